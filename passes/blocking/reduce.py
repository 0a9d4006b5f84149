"""Reductions in a kernel of blocks: in a tile where the axis fits, else in a loop.

A loop carries a tile whose elements are reduced apart, and together after it; reductions over the
same long axis that do not depend on each other share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir.axes import Index
from stack.ir.builder import Builder, constant
from stack.ir.dim import Dim
from stack.ir.node import Block, Node, topological
from stack.ir.relation import delinearize
from stack.ir.traits import choice, is_number, is_reduction, multiplies, number
from stack.ir.warp_ops import WARP
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.kernel import KernelTiler
from stack.passes.tiling.frame import COMBINE, CannotTile, power_of_two, static, wide
from stack.target import Gpu

COLUMNS = 128  # kept elements of a tile that walks along an axis across the lines of memory
MAX_WHOLE = 32768  # elements of an axis that one tile may hold


def unscaled(b: Builder, node: Node) -> tuple[Node, float]:
    """`x * c` as x and a positive number c, also below a select that hides with -inf."""
    if multiplies(node) and node.tensor.rank:
        for factor, other in (node.args, node.args[::-1]):
            if is_number(factor) and 0 < number(factor) < 1e30:
                return other, float(number(factor))
    if choice(node) and node.tensor.rank:
        for side in (1, 2):
            fill = node.args[side]
            if number(fill) == -math.inf:
                base, scale = unscaled(b, node.args[3 - side])
                if scale != 1 and base.tensor.rank:
                    parts = (fill, base) if side == 1 else (base, fill)
                    return b.select(node.args[0], *parts), scale
    return node, 1.0


@dataclass(frozen=True)
class ReductionLoop:
    """How a program goes along a long axis.

    Attributes:
        block: elements of a tile.
        ahead: steps that are loaded at a time; 0 where it does not pay.
        again: likewise of the second loop.
        is_first: whether what is read is read again by a second loop. A multiprocessor then has
            one program, so that all rows that are run over at a time stay in the cache between.
    """

    block: int
    warps: int
    ahead: int = 0
    is_first: bool = False
    again: int = 0

    @property
    def lanes(self) -> int:
        """Elements of a tile in a thread."""
        return self.block // (WARP * self.warps)


ADDRESSES = 24  # registers of a thread that hold no tiles
WHOLE_SHARE = 0.5  # of its registers, for a row whose tiles are all held
Step = Callable[[Node, list[NamedTile]], list[NamedTile]]
Place = tuple[Node, tuple[Node | None, ...], int]  # memory, where in it, which tile of a row
ACROSS = ReductionLoop(4096, 4, 3)  # axes that lie across the lines of memory
AHEAD_PARTS = 4  # of shared memory, of which such a loop may hold one of steps ahead
ONCE = ReductionLoop(4096, 8, 3)  # of rows that are read once
TWICE = ReductionLoop(16384, 32, 0, True)  # of rows that a second loop reads again
PRIVATE = ReductionLoop(8192, 32, 0, True)  # with several running tiles
WHOLE = ReductionLoop(8192, 32, 0, True)  # of a row whose tiles are all held


@dataclass(frozen=True)
class _Places:
    """Indices of the operand of a reduction, from the index of its result."""

    rank: int
    index: Index
    whole: Mapping[int, Dim]

    def of(self, stepped: Mapping[int, Dim]) -> Index:
        """With the places of axes that are run over."""
        kept = iter(self.index)
        inner = {**self.whole, **stepped}
        return tuple(inner[a] if a in inner else next(kept) for a in range(self.rank))


class BlockReduce(KernelTiler):
    """Reductions of the nodes of `body`."""

    gpu: Gpu
    # whether stores leave room in the cache: nothing finds there what they write
    streams_out = False

    def __init__(self, group: Node) -> None:
        super().__init__(group)
        self.reduction_loop = ACROSS
        self.kept = 0  # tiles at the end of a long row that are held between two loops
        self.iteration = -1  # which of these a loop is at
        self.begun: Node | None = None  # where its tile begins
        self.seen_tiles: dict[Place, Node] | None = None  # what the first loop reads of one
        self.held: dict[Place, Node] = {}  # what it read

    def folded(self, value: NamedTile, kind: str, gone: Sequence[str]) -> NamedTile:
        if kind in ("max", "min"):
            base, scale = unscaled(self.b, value.node)
            if scale != 1:
                # a positive factor leaves the order: it is applied to what is left
                made = self.folded(NamedTile(base, value.axes), kind, gone)
                return self.apply("mul", [made, NamedTile(constant(scale, made.dtype))])
        return super().folded(value, kind, gone)

    def _reduce(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """Reduce whole axes in the tile; along longer ones in a loop that carries a tile."""
        operand, kind = node.args[0], str(node.attrs["kind"])
        axes = [int(a) for a in node.attrs["axes"]]
        if not axes:
            return self.value(operand, index, guard)
        whole: dict[int, Axis] = {}
        looped: list[tuple[int, int]] = []
        moved = {name for d in index for name in self.tile_axes(d)}
        needed = {*moved, *(guard.axes if guard is not None else ())}
        room = self.long_step(index) if moved else MAX_WHOLE
        extents = [static(operand.shape[a]) for a in axes]
        if moved and in_a_row(axes) and prod(map(power_of_two, extents)) > room:
            if not any((node, axis) in self.reduced_axis for axis in axes):
                at = _Places(operand.tensor.rank, index, {})
                return self._in_loop(node, at, guard, [], axes, extents)
        for axis in reversed(axes):
            extent = static(operand.shape[axis])
            known = self.reduced_axis.get((node, axis))
            if known is not None and known.name not in needed:
                whole[axis] = known
            elif extent <= room and power_of_two(extent) <= room:
                whole[axis] = self.axis("r", extent, max(2, power_of_two(extent)))
                self.reduced_axis.setdefault((node, axis), whole[axis])
                room //= whole[axis].block
            else:
                looped.append((axis, extent))
        at = _Places(operand.tensor.rank, index, {a: x.place for a, x in whole.items()})
        if len(looped) > 1:
            raise CannotTile("two long axes are reduced at once")
        if looped:
            (axis, extent), *_ = looped
            return self._in_loop(node, at, guard, list(whole.values()), [axis], [extent])
        value = self.spread_over(self.value(operand, at.of({}), guard), whole.values())
        return self.fold(value, kind, [a.name for a in whole.values()])

    def _in_loop(
        self,
        node: Node,
        at: _Places,
        guard: NamedTile | None,
        whole: list[Axis],
        long: Sequence[int],
        extents: Sequence[int],
    ) -> NamedTile:
        """Reduce a long axis, or several in a row, in a loop, together with the other reductions
        that can share it."""
        extent = prod(extents)
        block = 1 if whole else min(power_of_two(extent), self.long_step(at.index))
        kept = self.union(
            [NamedTile(node, tuple(self.tile_axes(d))) for d in at.of(dict.fromkeys(long, 0))]
        )
        lanes = self.axis("lane", block, block)
        own = [lanes.name] if lanes.is_tile else []
        axes = (*kept, *own)
        nodes = [node, *self._mates(node)]
        kinds = [str(n.attrs["kind"]) for n in nodes]

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            stepped = self.axis("k", extent, block, self.begin(var, block))
            names = [stepped.name] if stepped.is_tile else []
            places = dict(zip(long, delinearize(stepped.place, tuple(extents)), strict=True))
            made: list[NamedTile] = []
            for n, kind, old in zip(nodes, kinds, carried, strict=True):
                value = self.value(n.args[0], at.of(places), guard)
                value = self.masked(self.spread_over(value, [stepped]), kind, names)
                value = NamedTile(self.spread(value, [*kept, *names]), axes)
                made.append(self.apply(COMBINE[kind], [old, value]))
            return made

        start: list[NamedTile] = []
        for n, kind in zip(nodes, kinds, strict=True):
            fill = self.identity(kind, wide(n.args[0].dtype))
            start.append(NamedTile(self.spread(fill, axes), axes))
        hints = [f"acc{i or ''}" for i in range(len(nodes))]
        count = -(-extent // block)
        totals = self.first_loop(count, start, body, hints, self.reduction_loop.ahead)
        gone = [*own, *(a.name for a in whole)]
        for n, kind, total in zip(nodes, kinds, totals, strict=True):
            self.memo[n, at.index, guard] = self.fold(total, kind, gone) if gone else total
        return self.memo[node, at.index, guard]

    def begin(self, var: Node, block: int) -> Node:
        """The first element of a tile, from the number of a step."""
        if is_number(var):
            self.begun = self.int(number(var) * block).node
        else:
            self.begun = var if block == 1 else self.b.mul(var, block)
        return self.begun

    def first_loop(
        self,
        count: int,
        start: Sequence[NamedTile],
        body: Step,
        names: Sequence[str],
        ahead: int,
        limits: tuple[Node, Node] | None = None,
        staged: bool = False,
    ) -> list[NamedTile]:
        """A loop along a long axis, whose last tiles are held where another loop follows."""
        hint = "k" if staged else "step"
        assert self.iteration < 0, "a loop inside of another"
        kept = self.kept if limits is None else 0
        found = list(start)
        self.evict = "last" if self.reduction_loop.is_first else ""
        if count > kept:
            room = self.gpu.shared_bytes // AHEAD_PARTS if self.reduction_loop == ACROSS else None
            found = self.steps(
                count - kept, found, body, hint, limits, names, ahead, room=room, staged=staged
            )
        self.evict = "first" if kept else ""
        for iteration in range(count - kept, count):
            found = self._holding(iteration, found, body, hint, names, staged)
        self.evict = ""
        return found

    def _holding(
        self,
        iteration: int,
        start: Sequence[NamedTile],
        body: Step,
        hint: str,
        names: Sequence[str],
        staged: bool,
    ) -> list[NamedTile]:
        """One step, a loop of its own, which gives what it read too."""
        self.iteration, self.seen_tiles = iteration, {}
        read = self.seen_tiles
        var = self.variable(hint, iteration + 1)
        carried = [
            self.carried(f"{n}{self.fresh}", s.node.type) for n, s in zip(names, start, strict=True)
        ]
        with self.loop_body():
            results = body(var, [NamedTile(c, s.axes) for c, s in zip(carried, start, strict=True)])
        places, tiles = list(read), list(read.values())
        self.iteration, self.seen_tiles = -1, None
        for i, tile in enumerate(tiles):
            carried.append(self.carried(f"held{i}_{self.fresh}", tile.type))
        none = [self.b.broadcast(constant(0, t.dtype), axes=(), type=t.tensor) for t in tiles]
        block = Block((var, *carried), [*(r.node for r in results), *tiles])
        limits = self.int(iteration).node, self.int(iteration + 1).node
        init = [*(s.node for s in start), *none]
        made = self.loop("serial", init, block, limits, staged=staged)
        self.held.update(zip(places, made[len(start) :], strict=True))
        return [NamedTile(m, s.axes) for m, s in zip(made, start)]

    def second_loop(
        self, count: int, start: Sequence[NamedTile], body: Step, names: Sequence[str]
    ) -> list[NamedTile]:
        """The loop that writes: what is held first, which makes room."""
        found = list(start)
        if self.kept:
            body(self.int(0).node, found)  # what it needs of whole rows comes before it
        self.evict = "first" if self.reduction_loop.is_first else ""
        for iteration in range(count - self.kept, count):
            self.iteration = iteration
            found = body(self.int(iteration).node, found)
        self.iteration = -1
        if count > self.kept:
            found = self.steps(
                count - self.kept, found, body, names=names, ahead=self.reduction_loop.again
            )
        self.evict = ""
        return found

    def reread(self, memory: Node, starts: Sequence[Node], node: Node) -> Node:
        """What a loop reads: of a tile that is held, what the first loop has read."""
        if self.iteration < 0 or self.begun not in starts:
            return node
        place = memory, tuple(None if s is self.begun else s for s in starts), self.iteration
        if self.seen_tiles is not None:
            return self.seen_tiles.setdefault(place, node)
        if place not in self.held:
            return node
        if memory.dtype.bits == 16:
            # wider values made of it before would take more registers than it does
            self.held[place] = self.b.again(self.held[place])
        return self.held[place]

    def store_hints(self, memory: Node) -> dict[str, object]:
        size = static(memory.tensor.size) * memory.dtype.bytes
        return {"evict": "first"} if self.streams_out and size > self.gpu.cache_bytes else {}

    def held_loop(self, count: int, start: Sequence[NamedTile], body: Step) -> list[NamedTile]:
        """One more loop along a row whose tiles are all held."""
        assert self.iteration < 0 and self.kept == count
        found = list(start)
        for iteration in range(count):
            self.iteration = iteration
            found = body(self.int(iteration).node, found)
        self.iteration = -1
        return found

    def keep_tiles(self, extent: int, sources: Iterable[Node], running: int) -> None:
        """Choose how many tiles of a long row are held between two loops, by all threads."""
        self.kept = held_tiles(self.reduction_loop, extent, sources, running, self.gpu)

    def holds_whole(self, extent: int, sources: Iterable[Node]) -> bool:
        """Whether registers hold all tiles of a row."""
        count = -(-extent // WHOLE.block)
        registers = count * WHOLE.lanes * _row_bytes(extent, sources) // 4
        return 0 < registers <= WHOLE_SHARE * self.gpu.registers // self.gpu.threads

    def _mates(self, node: Node) -> list[Node]:
        """Other reductions over the same axes that wait neither for this one nor for each other."""
        found = [node]
        before = {node: set(topological([node.args[0]]))}
        for other in self.body.nodes:
            if (
                not is_reduction(other)
                or other is node
                or other.attrs["axes"] != node.attrs["axes"]
            ):
                continue
            if other.args[0].shape != node.args[0].shape:
                continue
            before[other] = set(topological([other.args[0]]))
            if all(other not in before[n] and n not in before[other] for n in found):
                found.append(other)
        return found[1:]

    def long_step(self, index: Index) -> int:
        """Elements of a long reduced axis in one step: what keeps a tile to a few thousand."""
        return max(2, self.reduction_loop.block // self.held_along(index))

    def held_along(self, index: Sequence[Dim]) -> int:
        """Elements of a tile over the axes that an index moves along."""
        names = {name for d in index for name in self.tile_axes(d)}
        return prod(self.axes[name].block for name in names)


def held_tiles(
    loop: ReductionLoop, extent: int, sources: Iterable[Node], running: int, gpu: Gpu
) -> int:
    """How many tiles of a long row all threads can hold between two loops.

    Args:
        running: how many tiles the first loop carries; it must not wait for each of its steps,
            which would have to read ahead in place of holding.
    """
    registers = loop.lanes * _row_bytes(extent, sources) // 4
    count = -(-extent // loop.block)
    own = gpu.registers // gpu.threads
    room = max(0, own - ADDRESSES - loop.lanes * running)
    return min(room // registers, (count + 1) // 2) if registers and running else 0


def in_a_row(axes: Sequence[int]) -> bool:
    """Whether several axes stand side by side, in order: they are run over as one."""
    return len(axes) > 1 and list(axes) == list(range(axes[0], axes[0] + len(axes)))


def _row_bytes(extent: int, sources: Iterable[Node]) -> int:
    """Bytes that one place of the long rows among some arrays takes."""
    return sum(
        p.dtype.bytes
        for p in sources
        if p.tensor.rank > 1 and p.shape[-1] == extent and p.tensor.size != extent
    )


__all__ = [
    "COLUMNS",
    "MAX_WHOLE",
    "ONCE",
    "PRIVATE",
    "TWICE",
    "WHOLE",
    "BlockReduce",
    "ReductionLoop",
    "held_tiles",
    "unscaled",
]
