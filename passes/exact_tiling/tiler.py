"""Kernels of exact tiles, for a CPU: loops that carry values and memory, reductions, stores.

Tiles go along one axis, that of the lanes. Axes that are reduced, and not that of the lanes, become
serial loops that carry an accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.axes import Index
from stack.ir.dim import Dim, symbols
from stack.ir.node import Node
from stack.ir.traits import is_input
from stack.passes.blocking.block_policy import EXACT
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.kernel import KernelTiler
from stack.passes.tiling.frame import COMBINE, CannotTile, static, wide

Step = Callable[[Node, list[NamedTile]], list[NamedTile]]
Limits = tuple[Node, Node] | None


class Tiler(KernelTiler):
    """What tilers of products and of streams share: loops, reductions, stores."""

    block_policy = EXACT

    def along(
        self, axis: Axis, start: Sequence[NamedTile], body: Step, hint: str, limits: Limits = None
    ) -> list[NamedTile]:
        """A serial loop over an axis, which carries values and memory."""
        names = [f"{hint}{i or ''}_" for i in range(len(start))]
        return self.steps(axis.extent, start, body, limits=limits, names=names, var=axis.start)

    # ---- reductions

    def _reduce(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """Reduce along the tile where its axis is the lane axis, else in loops, outermost first."""
        operand, kind, axes = node.args[0], str(node.attrs["kind"]), node.attrs["axes"]
        if not axes:
            return self.value(operand, index, guard)
        moved = self.moves_along(index)
        whole: list[Axis] = []
        looped: list[Axis] = []
        full: list[Dim] = []
        kept = iter(index)
        for axis, extent in enumerate(operand.shape):
            known = self.reduced_axis.get((node, axis))
            if axis not in axes:
                full.append(next(kept))
            elif known is not None and known.name not in moved:
                whole.append(known)
                full.append(known.place)
            elif extent == 1:
                full.append(0)
            else:
                looped.append(self.loop_axis("r", static(extent)))
                full.append(looped[-1].place)
        if whole and self._loops_of(index):
            raise CannotTile("it reduces along the tile in every turn of a loop")
        if whole and guard is not None and guard.axes:
            # the lanes of what is read are others than those that need the result
            guard = self.fold(guard, "or", guard.axes)
        total = self._looped(looped, kind, operand, tuple(full), guard)
        if not whole:
            return total
        return self.fold(self.spread_over(total, whole), kind, [a.name for a in whole])

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

    # ---- stores

    def _store_result(self, result: Node, memory: Node, index: Index) -> Node:
        """Store one output; axes of it that are neither grid nor tile get serial loops."""
        return self._store_in(self._loops_of(index), result, memory, index)

    def _loops_of(self, index: Index) -> list[Axis]:
        """The axes of an index that are neither of the grid nor of tiles."""
        programs = {var for var, _ in self.grid}
        names = names_in(index).intersection(self.axes)
        found = [self.axes[name] for name in self.sorted([*names])]
        return [a for a in found if is_input(a.start) and a.start not in programs]

    def _store_in(self, loose: Sequence[Axis], result: Node, memory: Node, index: Index) -> Node:
        return self.each(loose, memory, lambda m: self.store(m, self.value(result, index), index))

    def each(self, loops: Sequence[Axis], memory: Node, step: Callable[[Node], Node]) -> Node:
        """Memory after a step at each place of some axes, in serial loops."""
        if not loops:
            return step(memory)
        axis, *inner = loops

        def body(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            return [NamedTile(self.each(inner, held[0].node, step))]

        return self.along(axis, [NamedTile(memory)], body, "o")[0].node


def names_in(index: Sequence[Dim]) -> set[str]:
    """Names of the symbols of an index."""
    return {s.name for d in index for s in symbols(d)}
