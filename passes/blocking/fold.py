"""Values of a kernel reduced along axes of their tiles."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.types import I32, DType
from stack.passes.blocking.frame import Axis, BlockFrame, NamedTile
from stack.passes.tiling.frame import CannotTile


class BlockFold(BlockFrame):
    """Reductions of tiles; `body` has the nodes whose values they are."""

    def __init__(self, body: Block, integer: DType = I32) -> None:
        super().__init__(integer)
        self.body = body
        self.reduced_axis: dict[tuple[Node, int], Axis] = {}  # of a reduce: its axis of the kernel
        self.memo: dict[tuple[Node, Index, NamedTile | None], NamedTile] = {}

    @abstractmethod
    def value(self, node: Node, index: Index, guard: NamedTile | None = None) -> NamedTile:
        """The value of a node at an index."""

    def identity(self, kind: str, dtype: DType) -> NamedTile:
        return NamedTile(constant(identity(kind, dtype), dtype))

    def masked(self, value: NamedTile, kind: str, names: Sequence[str]) -> NamedTile:
        """A value with the identity of a reduction past the ends of axes."""
        for name in names:
            mask = self.mask(name)
            if mask is not None:
                value = self.apply("select", [mask, value, self.identity(kind, value.dtype)])
        return value

    def fold(self, value: NamedTile, kind: str, names: Sequence[str]) -> NamedTile:
        """Reduce a tile along some of its axes."""
        gone = [n for n in names if n in value.axes]
        if len(gone) != len(names):
            raise CannotTile("a reduced axis is broadcast along: its size would be a factor")
        return self.folded(self.masked(value, kind, gone), kind, gone)

    def folded(self, value: NamedTile, kind: str, gone: Sequence[str]) -> NamedTile:
        """`fold` of a tile that holds the identity past the ends of these axes."""
        axes = tuple(sorted(value.axes.index(n) for n in gone))
        kept = tuple(n for n in value.axes if n not in gone)
        return NamedTile(self.b.reduce(value.node, kind=kind, axes=axes), kept)

    def spread_over(self, value: NamedTile, axes: object) -> NamedTile:
        """A value that does not move along an axis, spread along it."""
        names = [a.name for a in axes if isinstance(a, Axis) and a.is_tile]  # pyright: ignore
        missing = [n for n in names if n not in value.axes]
        if not missing:
            return value
        union = tuple(self.sorted({n: None for n in (*value.axes, *missing)}))
        return NamedTile(self.spread(value, union), union)


__all__ = ["BlockFold"]
