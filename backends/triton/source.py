"""The printed form of a kernel, independent of where it is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from .access import Descriptor

# everything that determines the machine code: `Source.code`
Code = tuple[str, tuple[str, ...], tuple[Descriptor, ...], int, int, bool]


@dataclass(frozen=True)
class Source:
    """A printed kernel.

    Attributes:
        text: a Python module; it does not name element types.
        name: the kernel's function in it.
        programs: size of the launch grid.
        stages: pipeline stages of its loops, for prefetching.
        contracts: True if a multiply and an add may be fused to an FMA, with one rounding.
        parameters: arrays in memory, by name.
        kinds: their element types.
        descriptors: tensor descriptors, passed as arguments after the pointers.
        origins: the source line of each line of the text; "" for a line without one.
    """

    text: str
    name: str
    programs: int
    warps: int
    stages: int
    contracts: bool
    parameters: tuple[str, ...]
    kinds: tuple[str, ...]
    descriptors: tuple[Descriptor, ...]
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def code(self) -> Code:
        """Everything that determines the machine code; equal `code` means equal kernels."""
        return self.text, self.kinds, self.descriptors, self.warps, self.stages, self.contracts
