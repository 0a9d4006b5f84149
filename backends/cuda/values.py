"""What a printed kernel is, and how its values are named in C++."""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.warp_ops import WARP


@dataclass(frozen=True)
class Source:
    """A kernel as CUDA C++, and how it is launched.

    Attributes:
        text: prelude and kernel.
        blocks: size of the grid.
        warps: warps of a block.
        shared: bytes of shared memory that are asked for at launch.
        static_shared: bytes that the text declares.
        origins: the source line of each line of the text; "" where it has none.
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
class Value:
    """A value in C++: a scalar of each thread, or `count` registers of it.

    `each` is the text of an element where registers of its own would only repeat or reorder others.
    """

    text: str
    count: int = 0
    each: str = ""

    @property
    def element(self) -> str:
        """One element, inside of EACH."""
        if self.each:
            return self.each
        return f"{self.text}[i]" if self.count else self.text
