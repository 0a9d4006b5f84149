"""The vectorized load or store of all lanes, from the one of one lane.

If exactly one index has unit stride in the lanes, the access is contiguous: it loads or stores a
block. Otherwise it is a gather or a scatter, with one index for each lane.

    load(%p0, %i, %r) : f32          load(%p0, %i, 0) : f32<64>                     a block
    load(%p0, %r, %i) : f32          load(%p0, iota, broadcast(%i)) : f32<64>       a gather
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stack.ir.bounds import Integers
from stack.ir.builder import constant, make
from stack.ir.node import Node
from stack.ir.traits import is_store, repeats
from stack.ir.types import TensorType
from stack.passes.steps.affine import index_of, limit_of, start_along
from stack.passes.steps.loops import is_constant
from stack.passes.steps.tiles import (
    conjunction,
    conjuncts,
    parts_of,
    positions,
    positions_from,
    reshaped,
    spread_along,
    tile_type,
)
from stack.passes.tiling.frame import static


@dataclass
class Lanes:
    """A loop that is vectorized: its iterations become the first axis of tiles. Maps the values of
    one iteration (lane) to those of all lanes that replace them.

    Attributes:
        var: the variable of the loop.
        count: the number of lanes.
        is_reversed: whether lane 0 is the last iteration.
        is_loop: whether the kernel is for a CPU. Its blocks are masked at the end of memory; those
            of a GPU kernel are clipped.
        padded: memory whose rows end in zeros, past what is read.
        done: the replacement of each node of one lane.
        wide: nodes of one lane whose replacement is a tile of all lanes.
    """

    var: Node
    count: int
    is_reversed: bool
    is_loop: bool
    padded: Collection[Node]
    done: dict[Node, Node] = field(default_factory=dict[Node, Node])
    wide: set[Node] = field(default_factory=set[Node])

    def first(self, place: Node) -> Node | None:
        """Returns the value in lane 0 of an index that grows by 1 by lane; None for others."""
        first = start_along(place, self.var, -1 if self.is_reversed else 1)
        if first is None:
            return None
        return (first.plus(1 - self.count) if self.is_reversed else first).node(place.dtype)

    def ascending(self, index: Node) -> Node | None:
        """Returns a scalar index that grows by 1 from lane to lane as a tile; None for others."""
        if not isinstance(index.type, TensorType) or index.tensor.rank:
            return None
        is_affine = all("extent" in term.attrs for term in index_of(index).terms)
        first = self.first(index) if is_affine else None
        return None if first is None else positions_from(first, self.count)

    def shape(self, rank_of: Node) -> tuple[int, ...]:
        """Returns the shape of a value for all lanes: the lane axis precedes its own axes."""
        return (self.count, *map(static, rank_of.shape))

    def new(self, node: Node) -> Node:
        """Returns the replacement of a node of one lane; nodes from outside are their own."""
        return self.done.get(node, node)

    def spread(self, node: Node, shape: Sequence[int]) -> Node:
        """Returns the replacement of a node, broadcast to a shape with the lane axis first."""
        return spread_last(self.new(node), shape, node in self.wide)


def spread_last(value: Node, shape: Sequence[int], has_lanes: bool) -> Node:
    """Broadcasts a scalar or a tile to the shape of a tile with the lane axis first. Its axes are
    the last axes of the tile, but the first one is the lane axis if the value `has_lanes`.
    """
    rank, wanted = value.tensor.rank, len(shape)
    if value.shape == tuple(shape):
        return value
    own = (0, *range(wanted - rank + 1, wanted)) if has_lanes else range(wanted - rank, wanted)
    return spread_along(value, tuple(own), shape)


class Contiguous(NamedTuple):
    """The block of contiguous memory that the loads or stores of all lanes cover together.

    Attributes:
        starts: the first index along each axis of memory.
        shape: the shape of the block, in memory order.
        at: the axis of the lanes in it.
        attrs: attributes of the access.
        test: its mask, if it has one: a scalar, or a tile with the lane axis first.
    """

    starts: list[Node]
    shape: tuple[int, ...]
    at: int
    attrs: dict[str, object]
    test: list[Node]

    def in_memory_order(self, value: Node) -> Node:
        """Transposes a tile with the lane axis first to a block in memory order; not a scalar."""
        shape, at = self.shape, self.at
        moved = (shape[at], *(s for k, s in enumerate(shape) if k != at))
        value = reshaped(value, moved) if value.tensor.rank else value
        if not at or not value.tensor.rank:
            return value
        order = (*range(1, at + 1), 0, *range(at + 1, len(shape)))
        return make("transpose", (value,), {"perm": order})


class Access:
    """A load or store of one lane, which becomes that of all lanes.

    Args:
        node: the load or store.
        lanes: the values of all lanes.
    """

    def __init__(self, node: Node, lanes: Lanes) -> None:
        self.node, self.lanes = node, lanes
        self.index, self.mask, self.other, self.tile = parts_of(node)
        self.memory = lanes.new(node.args[0])
        self.rank = self.memory.tensor.rank
        self.lead = self.rank - len(self.tile)  # axes of memory before those of the tile
        self.shape = (self.lanes.count, *self.tile)

    def load(self) -> Node:
        """Builds the load of all lanes that replaces the load of one lane."""
        node, dtype = self.node, self.node.dtype
        if not self.index:
            assert self.mask is not None and self.other is not None
            test = spread_last(self.lanes.new(self.mask), self.shape, True)
            one = make("load", (self.memory,), hint=TensorType(dtype, ()))
            sides = test, one, self.lanes.new(self.other)
            return make("select", sides, hint=tile_type(dtype, self.shape))
        block = self._block()
        if block is None:
            operands = [_without_units(v) for v in (*self._places(), *self._extra())]
            own = tile_type(dtype, (self.shape[0], *(n for n in self.shape[1:] if n > 1)))
            made = make("load", [self.memory, *operands], self._unclipped, hint=own)
            return reshaped(made, self.shape)
        mask = [*map(block.in_memory_order, block.test), *([self._fill] if block.test else [])]
        attrs, hint = {**node.attrs, **block.attrs}, tile_type(dtype, block.shape)
        made = make("load", [self.memory, *block.starts, *mask], attrs, hint=hint)
        if block.at:
            order = (block.at, *(k for k in range(made.tensor.rank) if k != block.at))
            made = make("transpose", (made,), {"perm": order})
        return reshaped(made, self.shape)

    def store(self) -> Node:
        """Builds the store of all lanes that replaces the store of one lane."""
        value = self.lanes.spread(self.node.args[1], self.shape)
        block = self._block()
        if block is None:
            operands = [self.memory, value, *self._places(), *self._extra()]
            return make("store", operands, self._unclipped)
        value, *mask = map(block.in_memory_order, (value, *block.test))
        operands = [self.memory, value, *block.starts, *mask]
        return make("store", operands, {**self.node.attrs, **block.attrs})

    @property
    def _unclipped(self) -> dict[str, object]:
        """The attributes of the access without `clip`, which is for blocks only."""
        return {k: v for k, v in self.node.attrs.items() if k != "clip"}

    def _places(self) -> list[Node]:
        """Returns the index along each axis of memory for each element of each lane."""
        is_block = not any(i.tensor.rank for i in self.index)
        found: list[Node] = []
        for axis, place in enumerate(self.index):
            made = self.lanes.new(place)
            at = axis - self.lead
            if is_block and at >= 0 and self.tile[at] > 1:
                if made.tensor.rank:
                    steps = positions(self.lanes.var.dtype, self.tile[at])
                    steps = spread_along(steps, (at + 1,), self.shape)
                    made = make("add", (spread_last(made, self.shape, True), steps))
                else:
                    made = positions_from(made, self.tile[at])
                    made = spread_along(made, (at + 1,), self.shape)
            found.append(spread_last(made, self.shape, place in self.lanes.wide))
        return found

    def _extra(self) -> list[Node]:
        """Returns the mask and fill operands of a gather or scatter; empty without a mask."""
        tests = [] if self.mask is None else [self.lanes.spread(self.mask, self.shape)]
        inside: list[Node] = []  # the bounds checks that a clipped block needs
        for axis, place in enumerate(self._places() if "clip" in self.node.attrs else ()):
            at, extent = axis - self.lead, static(self.memory.shape[axis])
            if at >= 0 and Integers().may_pass(self.index[axis], self.tile[at], extent):
                inside.append(make("lt", (place, constant(extent, place.dtype))))
        test = conjunction([*tests, *filter(None, [conjunction(inside)])])
        if test is None:
            return []
        return [test] if is_store(self.node) else [test, self._fill]

    @property
    def _fill(self) -> Node:
        """The value that masked lanes of a load get."""
        other = self.other
        return constant(0, self.node.dtype) if other is None else self.lanes.new(other)

    def _block(self) -> Contiguous | None:
        """Returns the block of memory that all lanes access, if exactly one index has unit stride
        in them.

        None if the access is a gather or a scatter.
        """
        index, tile, lead, lanes = self.index, self.tile, self.lead, self.lanes
        moved = [k for k, place in enumerate(index) if lanes.var in place.vars]
        if any(i.tensor.rank for i in index) or len(moved) != 1:
            return None
        (axis,) = moved
        first = lanes.first(index[axis])
        if first is None or (axis >= lead and tile[axis - lead] > 1):
            return None
        if lanes.is_loop and axis < self.rank - 1:
            return None  # a vector of a CPU is contiguous: along the last axis of memory
        starts = [first if k == axis else lanes.new(place) for k, place in enumerate(index)]
        begin = min(axis, lead)
        shape = [tile[k - lead] if k >= lead else 1 for k in range(begin, self.rank)]
        shape[axis - begin] = lanes.count
        block = Contiguous(starts, tuple(shape), axis - begin, {}, [])
        asked, is_clipped = conjuncts(self.mask), "clip" in self.node.attrs
        if not lanes.is_loop:
            others = [p for p in asked if not self._is_clipped(p, axis, first)]
            is_zero = self.other is None or is_constant(self.other, 0)  # as clipped elements are
            is_one = is_zero and all(not p.tensor.rank and p not in lanes.wide for p in others)
            if is_one and (len(others) < len(asked) or is_clipped):
                test = filter(None, [conjunction([lanes.new(p) for p in others])])
                return block._replace(attrs={"clip": True}, test=list(test))
        if is_clipped or (self.mask is None and static(self.memory.shape[axis]) < lanes.count):
            return None  # a clipped block cannot also have a mask over its elements
        made = [
            lanes.spread(p, self.shape) if lanes.new(p).tensor.rank else lanes.new(p) for p in asked
        ]
        return block._replace(test=list(filter(None, [conjunction(made)])))

    def _is_clipped(self, test: Node, axis: int, first: Node) -> bool:
        """True if clipping a block from index `first` on along `axis` implies a condition."""
        place, size = self.index[axis], static(self.memory.shape[axis])
        end = limit_of(test, place)
        if end is None or (end == size and test.args[0] is place):
            return end is not None
        # printers test nothing if the block size divides the axis: blocks start at multiples of it
        is_aligned = Integers().divisor(first) % self.lanes.count == 0
        is_padded = self.node.args[0] in self.lanes.padded
        return is_aligned and (end == size or (is_padded and end < size))


def _without_units(value: Node) -> Node:
    """Drops the axes of one element of a tile, except for the first axis, that of the lanes."""
    kept = [axis for axis, size in enumerate(value.shape) if size != 1 or axis == 0]
    shape = tuple(static(value.shape[axis]) for axis in kept)
    if repeats(value) and all(int(axis) in kept for axis in value.attrs["axes"]):
        return spread_along(value.args[0], [kept.index(int(a)) for a in value.attrs["axes"]], shape)
    return reshaped(value, shape)
