"""A printed kernel and its launch parameters, and the C++ text of its values."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.warp_ops import WARP


@dataclass(frozen=True)
class Source:
    """A kernel as CUDA C++, with its launch parameters.

    Attributes:
        text: prelude and kernel.
        blocks: size of the grid.
        warps: warps per block.
        shared: bytes of dynamic shared memory, requested at launch.
        static_shared: bytes of shared memory that the text declares.
        origins: the source line of each line of the text; "" for a line without one.
    """

    name: str
    text: str
    blocks: int
    warps: int
    shared: int
    static_shared: int
    origins: tuple[str, ...] = field(default=(), compare=False)

    @property
    def threads(self) -> int:
        return WARP * self.warps


@dataclass(frozen=True)
class CudaValue:
    """A value in C++: a scalar in each thread, or `count` registers per thread.

    `each`: the text of element `i` of a value without registers, because they would only repeat or
    reorder those of others; "" for a value with registers.
    """

    text: str
    count: int = 0
    each: str = ""

    @property
    def element(self) -> str:
        """The text of element `i`, for use inside the loop that the macro EACH begins."""
        if self.each:
            return self.each
        return f"{self.text}[i]" if self.count else self.text
