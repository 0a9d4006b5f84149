"""Reductions along and across lines in one kernel: programs walk over lines, reading each once.

A program has a part of an axis that is reduced across the lines of memory. It goes along that part
in tiles of whole lines, writes what belongs to the lines, and adds to its own partial results of
the reductions across. A line is held whole where a reduction runs along it, else in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.axes import Index
from stack.ir.dim import Dim, Expr, bounds, substitute, symbol, symbols
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_reduction
from stack.passes.blocking.frame import NamedTile
from stack.passes.blocking.reduce import COLUMNS
from stack.passes.blocking.tiler import BlockTiler
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.frame import COMBINE, CannotTile, power_of_two, static, wide

LINES = 8192  # elements of a tile of whole lines
BLOCKS = 4096  # of a tile of blocks of lines
MOST = 1 << 15  # elements of whole lines that registers hold: partial results, and two arrays
AHEAD = 3  # tiles that are loaded at a time


@dataclass(frozen=True)
class Space:
    """The loop space of a group that has reductions across lines.

    Attributes:
        across: reductions of the walked axis; all read the whole space.
        shape: the size of each axis.
        iter_vars: a symbol for each axis, outermost first; the last one is the line.
        index_maps: where values sit.
        streamed: position of the walked axis.
        is_along: whether a reduction runs along lines.
        programs: how many the kernel has.
    """

    across: tuple[Node, ...]
    shape: tuple[int, ...]
    iter_vars: Index
    index_maps: dict[Node, Index]
    streamed: int
    is_along: bool
    programs: int


def space_of(body: Block) -> Space | None:
    """The space of a group that is walked; None where it is no such group.

    Besides a reduction across lines it has reductions along them, results as large as the space,
    or another reduction across. Whole lines have to fit the registers.
    """
    reduces = [n for n in body.nodes if is_reduction(n) and n.attrs["axes"]]
    wide_ones = [n for n in reduces if n.args[0].tensor.rank - 1 not in n.attrs["axes"]]
    if not wide_ones or any(map(is_contraction, body.nodes)):
        return None
    for root in dict.fromkeys(n.args[0] for n in wide_ones):
        found = _space(body, reduces, root)
        if found is not None:
            return found
    return None


def _space(body: Block, reduces: Sequence[Node], root: Node) -> Space | None:
    """The space, where it is that of one value."""
    iter_vars = tuple(symbol(f"d{i}", 0, max(static(s) - 1, 0)) for i, s in enumerate(root.shape))
    try:
        index_maps = index_maps_of(body, root, iter_vars)
    except CannotTile:
        return None
    wide_ones = [n for n in reduces if n.args[0].tensor.rank - 1 not in n.attrs["axes"]]
    axes = next(n.attrs["axes"] for n in wide_ones if n.args[0] is root)
    if (
        len(axes) != 1
        or static(root.shape[-1]) < 2
        or any(r not in index_maps for r in body.results)
    ):
        return None
    streamed = int(axes[0])
    across = [
        n for n in wide_ones if _runs_across(n, index_maps.get(n.args[0]), iter_vars, streamed)
    ]
    along = [n for n in reduces if n not in across]
    for node in along:
        place = index_maps.get(node.args[0])
        if place is None or [place[int(a)] for a in node.attrs["axes"]] != [iter_vars[-1]]:
            return None
    held = [*body.results, *(n.args[0] for n in reduces)]
    if any(static(n.tensor.size) != _reached(index_maps[n], iter_vars) for n in held):
        return None  # a part of it, as behind a slice
    full = [r for r in body.results if {str(m) for m in iter_vars} <= _names(index_maps[r])]
    if not along and not full and len(across) < 2:
        return None
    if along and power_of_two(static(root.shape[-1])) * (len(across) + 2) > MOST:
        return None
    programs = prod(static(s) for i, s in enumerate(root.shape[:-1]) if i != streamed)
    if not along:
        programs *= -(-static(root.shape[-1]) // COLUMNS)
    shape = tuple(static(s) for s in root.shape)
    return Space(tuple(across), shape, iter_vars, index_maps, streamed, bool(along), programs)


def _reached(place: Index, iter_vars: Index) -> int:
    """How many elements the axes of a place reach."""
    named = _names(place)
    return prod(bounds(m)[1] + 1 for m in iter_vars if str(m) in named)


def _runs_across(node: Node, place: Index | None, iter_vars: Index, streamed: int) -> bool:
    """Whether a reduction is over the walked axis; others may be split in another way."""
    if place is None or place[-1] != iter_vars[-1] or len(node.attrs["axes"]) != 1:
        return False
    axis = int(node.attrs["axes"][0])
    others = [d for i, d in enumerate(place) if i != axis]
    return place[axis] == iter_vars[streamed] and str(iter_vars[streamed]) not in _names(others)


def _names(place: Sequence[Dim]) -> set[str]:
    """Marks of a place, and of axes of one element."""
    return {s.name for d in place for s in symbols(d)}


class MixOrderTiler(BlockTiler):
    """Builds the kernel of a group with reductions across lines."""

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        space = space_of(self.body)
        if space is None:
            raise CannotTile("it has no reductions across lines besides what belongs to lines")
        self.space = space
        shape = space.shape
        line = power_of_two(shape[-1]) if space.is_along else min(power_of_two(shape[-1]), COLUMNS)
        room = LINES if space.is_along else BLOCKS
        room = min(room, MOST // (len(space.across) + 2))
        rows = min(power_of_two(shape[space.streamed]), power_of_two(room // line + 1) // 2 or 1)
        self.warps = min(16, max(4, power_of_two(rows * line // 512)))
        var = self.variable("step", -(-shape[space.streamed] // rows))
        index: list[Dim] = []
        for axis, extent in enumerate(shape):
            if axis == space.streamed:
                start = var if rows == 1 else self.b.mul(var, rows)
                self.row = self.axis("r", extent, rows, start)
                self.lane = self.axis("lane", rows, rows)  # the row of a partial result
                made = self.row
            elif axis == len(shape) - 1 and space.is_along:
                made = self.axis("n", extent, max(2, line))
            else:
                block = line if axis == len(shape) - 1 else 1
                made = self.program_axis("ijklmnopq"[axis % 9], extent, block, self.grid)
            index.append(made.place if extent > 1 else 0)
        self._bind(index)
        values = {str(m): d for m, d in zip(space.iter_vars, index, strict=True)}
        self.at = {n: tuple(substitute(d, values) for d in p) for n, p in space.index_maps.items()}
        results = [(r, self.at[r]) for r in self.body.results]
        self.var = var
        return self.finish(results, None)

    def _bind(self, index: Sequence[Dim]) -> None:
        """Reductions along lines use the axis of the line."""
        if not self.space.is_along:
            return
        line = next(a for a in self.axes.values() if a.place == index[-1])
        for node in self._reduces():
            if node not in self.space.across:
                self.reduced_axis[node, int(node.attrs["axes"][0])] = line

    def _stores(
        self,
        results: Sequence[tuple[Node, Index]],
        memories: Sequence[Node],
        long: tuple[Expr, int] | None,
    ) -> list[Node]:
        """The walk: what belongs to lines is written in it, what is summed across them after it."""
        streamed = [i for i, (_, place) in enumerate(results) if self.row.name in _names(place)]
        across = self.space.across
        starts: list[NamedTile] = [NamedTile(memories[i]) for i in streamed]
        for node in across:
            fill = self.identity(str(node.attrs["kind"]), wide(node.args[0].dtype))
            axes = self._axes(node)
            starts.append(NamedTile(self.spread(fill, axes), axes))

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            made: list[NamedTile] = []
            for i, memory in zip(streamed, carried, strict=False):
                result, place = results[i]
                made.append(NamedTile(self.store(memory.node, self.value(result, place), place)))
            for node, old in zip(across, carried[len(streamed) :], strict=True):
                made.append(self._add(node, old))
            return made

        names = [f"{memories[i].attrs.get('name', 'o')}_w" for i in streamed]
        names += [f"acc{i or ''}" for i in range(len(across))]
        count = -(-self.row.extent // self.row.block)
        found = self.steps(count, starts, body, names=names, ahead=AHEAD, var=self.var)
        final = list(memories)
        for i, held in zip(streamed, found, strict=False):
            final[i] = held.node
        for node, total in zip(across, found[len(streamed) :], strict=True):
            kind = str(node.attrs["kind"])
            done = self.fold(total, kind, [self.lane.name]) if self.lane.is_tile else total
            self.memo[node, self.at[node], None] = done
        for i, (result, place) in enumerate(results):
            if i not in streamed:
                final[i] = self.store(memories[i], self.value(result, place), place)
        return final

    def _axes(self, node: Node) -> tuple[str, ...]:
        """Tile axes of a partial result, with a lane for each row of a tile."""
        own = {n: None for d in self.at[node.args[0]] for n in self.tile_axes(d)}
        return tuple(self.lane.name if n == self.row.name else n for n in self.sorted(own))

    def _add(self, node: Node, old: NamedTile) -> NamedTile:
        """A partial result with the values of one tile."""
        kind, place = str(node.attrs["kind"]), self.at[node.args[0]]
        own = [self.row.name] if self.row.is_tile else []
        value = self.masked(
            self.spread_over(self.value(node.args[0], place), [self.row]), kind, own
        )
        order = self.sorted({n: None for d in place for n in self.tile_axes(d)})
        return self.apply(COMBINE[kind], [old, NamedTile(self.spread(value, order), old.axes)])


__all__ = ["MixOrderTiler", "Space", "space_of"]
