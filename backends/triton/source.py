"""What a kernel is compiled from, apart from where it is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from .access import Descriptor

# what machine code is made from: `Source.code`
Code = tuple[str, tuple[str, ...], tuple[Descriptor, ...], int, int, bool]


@dataclass(frozen=True)
class Source:
    """A printed kernel.

    Attributes:
        text: a Python module, which does not name element types.
        name: the kernel in it.
        programs: size of the launch grid.
        stages: steps of its loops that are to be loaded ahead.
        contracts: whether a product and a sum may be rounded once.
        parameters: arrays in memory, by name.
        kinds: their element types.
        descriptors: tensor descriptors that follow the pointers as arguments.
        origins: the source line of each line of the text; "" where it has none.
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
        """All that machine code for a GPU is made from: where it is equal, the code is."""
        return self.text, self.kinds, self.descriptors, self.warps, self.stages, self.contracts
