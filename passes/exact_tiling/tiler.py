"""One fusion group to one kernel of exact tiles: rows for a CPU, and for CUDA.

One axis, the *lane axis*, is held as a tile, whole or in blocks of a divisor; the other axes of the
output become grid loops. Reduced axes that are not the lane axis become serial loops that carry an
accumulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from stack.ir.axes import Index
from stack.ir.dim import Dim, minimum, mul, symbols
from stack.ir.node import Node
from stack.ir.traits import is_input
from stack.passes.blocking.block_policy import EXACT
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.kernel import KernelTiler
from stack.passes.tiling.frame import COMBINE, MAX_TILE, SPLIT_TILE, CannotTile, static, wide

Step = Callable[[Node, list[NamedTile]], list[NamedTile]]
Limits = tuple[Node, Node] | None


class Blocks(NamedTuple):
    """Into what a lane axis is split that is longer than `most`.

    Attributes:
        most: elements of an axis that stays whole.
        split: of a block, at most.
        least: of a block whose size divides the axis.
        part: what divides the size of others.
        step: between the sizes that are tried.
    """

    most: int
    split: int
    least: int
    part: int
    step: int = 1


LINES = Blocks(MAX_TILE, SPLIT_TILE, 256, 256)  # where lanes lie along memory
# where lanes lie across, and rows of some programs are turned together; what divides one is divided
ACROSS = Blocks(64, 64, 32, 8, 8)


class Tiler(KernelTiler):
    """Builds one kernel; schedules of other kinds of groups derive from it.

    Attributes:
        inside: an axis that each program goes along in a loop, where others are the grid's.
        axis_of: the axis that an index of programs counts.
    """

    block_policy = EXACT

    def __init__(self, group: Node, inside: int | None = None) -> None:
        super().__init__(group)
        self.inside = inside
        self.axis_of: dict[Node | None, int] = {}

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        root, iter_vars, index_maps = self._root()
        stored = self.sited(iter_vars, index_maps, self._axes(root, iter_vars, index_maps))

        def store_all(memories: Sequence[Node]) -> list[Node]:
            return [
                self._store_result(result, memory, place)
                for (result, place), memory in zip(stored, memories, strict=True)
            ]

        return self.built(self.in_grid(self.grid, self.outputs, store_all))

    def _axes(self, root: Node, iter_vars: Index, index_maps: Mapping[Node, Index]) -> Index:
        """What each axis of the root is in the kernel."""
        shape = [static(d) for d in root.shape]
        reduced = {axis for n in self._reduces() if n.args[0] is root for axis in n.attrs["axes"]}
        index: list[Dim] = [0] * len(shape)
        inner = self._innermost(iter_vars, index_maps)
        for axis in sorted(range(len(shape)), key=lambda axis: axis == inner):
            extent = shape[axis]
            if axis == len(shape) - 1:
                blocks = LINES if inner == axis else ACROSS
                lanes = self.lane_axis(extent, axis in reduced, blocks)
                self._bind_reduces(index_maps, iter_vars, {axis: lanes})
                index[axis] = lanes.place if extent > 1 else 0
            elif extent > 1 and (axis in reduced or axis == self.inside):
                index[axis] = self.loop_axis("r", extent).place
            elif extent > 1:
                made = self.program_axis("ijklmnopq"[axis % 9], extent, 1, self.grid)
                index[axis], self.axis_of[made.start] = made.place, axis
        return tuple(index)

    def _innermost(self, iter_vars: Index, index_maps: Mapping[Node, Index]) -> int:
        """The innermost axis of the root: that of lanes. Where they lie across in an input, the
        axis along which it lies together: neighbours are then read together."""
        names = [str(v) for v in iter_vars]
        inner, most = len(names) - 1, 0
        for p in self.body.params:
            place = [[s.name for s in symbols(d)] for d in index_maps.get(p, ())]
            if not place or len(place[-1]) != 1 or not any(names[-1] in d for d in place[:-1]):
                continue
            (along,), size = place[-1], static(p.tensor.bytes)
            if along in names[:-1] and size > most:
                inner, most = names.index(along), size
        return inner

    def lane_axis(self, extent: int, is_whole: bool, blocks: Blocks = LINES) -> Axis:
        """The axis that tiles hold: whole, or in blocks for a grid where it is long and may be."""
        most, split, least, part, step = blocks
        if is_whole or extent <= most:
            return self.axis("t", extent, extent)
        sizes = range(split, least - 1, -step)
        size = next((d for d in sizes if extent % d == 0), 0)
        if size:
            return self.program_axis("t", extent, size, self.grid)
        # the last block starts early rather than ends late
        count = -(-extent // split)
        size = -(-extent // (count * part)) * part
        begin = mul(self.program_axis("s", count, 1, self.grid).place, size)
        start = self.number(minimum(begin, extent - size)).node
        return self.axis("t", extent, size, start, is_aligned=False, overlaps=True)

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
