"""Kernels of exact tiles, for a CPU: loops that carry values and memory, and reductions.

Tiles go along one axis, that of the lanes. Axes that are reduced become serial loops that carry an
accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.axes import Index
from stack.ir.dim import Dim, symbols
from stack.ir.node import Node
from stack.passes.blocking.block_policy import EXACT
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.kernel import KernelTiler
from stack.passes.tiling.frame import COMBINE, static, wide

Step = Callable[[Node, list[NamedTile]], list[NamedTile]]
Limits = tuple[Node, Node] | None


class Tiler(KernelTiler):
    """Loops and reductions of the kernels of streams."""

    block_policy = EXACT

    def along(
        self, axis: Axis, start: Sequence[NamedTile], body: Step, hint: str, limits: Limits = None
    ) -> list[NamedTile]:
        """A serial loop over an axis, which carries values and memory."""
        names = [f"{hint}{i or ''}_" for i in range(len(start))]
        return self.steps(axis.extent, start, body, limits=limits, names=names, var=axis.start)

    def _reduce(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """Reduce in loops, outermost first."""
        operand, kind, axes = node.args[0], str(node.attrs["kind"]), node.attrs["axes"]
        looped: list[Axis] = []
        full: list[Dim] = []
        kept = iter(index)
        for axis, extent in enumerate(operand.shape):
            if axis not in axes:
                full.append(next(kept))
            elif extent == 1:
                full.append(0)
            else:
                looped.append(self.loop_axis("r", static(extent)))
                full.append(looped[-1].place)
        return self._looped(looped, kind, operand, tuple(full), guard)

    def _looped(
        self, loops: Sequence[Axis], kind: str, operand: Node, index: Index, guard: NamedTile | None
    ) -> NamedTile:
        """Reduce an operand over loops; lanes stay apart, and each loop has its accumulator."""
        if not loops:
            return self.value(operand, index, guard)
        axis, *inner = loops
        moved = self.moves_along(index)
        axes = self.sorted([*moved.union(guard.axes if guard is not None else ())])

        def body(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            part = self._looped(inner, kind, operand, index, guard)
            part = NamedTile(self.spread(part, axes), tuple(axes))
            return [self.apply(COMBINE[kind], [held[0], part])]

        zero = self.identity(kind, wide(operand.dtype))
        start = NamedTile(self.spread(zero, axes), tuple(axes))
        return self.along(axis, [start], body, "acc")[0]


def names_in(index: Sequence[Dim]) -> set[str]:
    """Names of the symbols of an index."""
    return {s.name for d in index for s in symbols(d)}
