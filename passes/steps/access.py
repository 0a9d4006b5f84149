"""Loads and stores in loops, and the tiles that they move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import axis_order, is_load, is_number, number, repeats
from stack.ir.types import DType, TensorType
from stack.passes.steps.affine import start_along
from stack.passes.steps.intervals import collected, is_affine
from stack.passes.steps.loops import is_constant
from stack.passes.tiling.frame import static


@dataclass(frozen=True)
class Lanes:
    """A loop that is vectorized: its iterations become the first axis of tiles.

    Attributes:
        var: the variable of the loop.
        count: the number of lanes.
        is_reversed: whether lane 0 is the last iteration.
    """

    var: Node
    count: int
    is_reversed: bool = False

    @property
    def places(self) -> Node:
        """A tile with the iteration number that each lane computes."""
        lanes = positions(self.var.dtype, self.count)
        return make("sub", (self.last, lanes)) if self.is_reversed else lanes

    @property
    def last(self) -> Node:
        """A constant: the number of the last iteration of the loop."""
        return constant(self.count - 1, self.var.dtype)

    def first(self, place: Node) -> Node | None:
        """Returns the value in lane 0 of an index that grows by 1 from lane to lane; None for any
        other index.
        """
        first = start_along(place, self.var, -1 if self.is_reversed else 1)
        if first is None or not self.is_reversed:
            return first
        return collected(make("sub", (first, self.last)))

    def ascending(self, index: Node) -> Node | None:
        """Returns an index as `start + iota` if it grows by 1 from lane to lane of a reversed loop.

        None for other indices, and for loops that are not reversed.
        """
        first = self.first(index) if self.is_reversed and is_affine(index) else None
        return None if first is None else positions_from(first, self.count)

    def shape(self, rank_of: Node) -> tuple[int, ...]:
        """Returns the shape of the tile that replaces `rank_of`, a value of one iteration: the lane
        axis is put before its own axes.
        """
        return (self.count, *map(static, rank_of.shape))

    def spread(self, value: Node, shape: Sequence[int], has_lanes: bool) -> Node:
        """Broadcasts a value to the shape of a tile with the lane axis first.

        Args:
            value: a scalar or a tile.
            shape: the shape of the tile.
            has_lanes: whether the first axis of the value is the lane axis. If not, its axes are
                the last axes of the tile.
        """
        rank, wanted = value.tensor.rank, len(shape)
        if value.shape == tuple(shape):
            return value
        own = (0, *range(wanted - rank + 1, wanted)) if has_lanes else range(wanted - rank, wanted)
        return spread_along(value, tuple(own), shape)


def tile_type(dtype: DType, shape: Sequence[int]) -> TensorType:
    """Returns the type of a tile of this element type and shape."""
    return TensorType(dtype, tuple(shape), "tile")


def positions(dtype: DType, count: int) -> Node:
    """Builds a tile of one axis with the numbers 0, 1, ... up to `count` - 1."""
    return make("iota", (), {"axis": 0}, hint=tile_type(dtype, (count,)))


def positions_from(first: Node, count: int) -> Node:
    """Builds a tile of one axis with `count` consecutive integers from the scalar `first` on."""
    steps = positions(first.dtype, count)
    return steps if is_constant(first, 0) else make("add", (first, steps))


def spread_along(value: Node, axes: Sequence[int], shape: Sequence[int]) -> Node:
    """Broadcasts a value whose axes become `axes` of a tile; merges two broadcasts into one."""
    if repeats(value):
        axes = [axes[int(a)] for a in value.attrs["axes"]]
        (value,) = value.args
    hint = tile_type(value.dtype, shape)
    return make("broadcast", (value,), {"axes": tuple(axes)}, hint=hint)


def reshaped(value: Node, shape: tuple[int, ...]) -> Node:
    """Builds the reshape of a tile to `shape`. A reshape of a reshape becomes one, and axes of one
    element are dropped before a transpose, not after it.
    """
    if value.shape == shape:
        return value
    if value.op == "reshape":
        return reshaped(value.args[0], shape)
    order = axis_order(value)
    if order is not None and shape == tuple(s for s in value.shape if s != 1):
        (before,) = value.args
        kept = [axis for axis, size in enumerate(before.shape) if size != 1]
        made = reshaped(before, tuple(static(before.shape[axis]) for axis in kept))
        perm = tuple(kept.index(axis) for axis in order if axis in kept)
        return make("transpose", (made,), {"perm": perm}) if perm != (*range(len(perm)),) else made
    return make("reshape", (value,), hint=tile_type(value.dtype, shape))


def is_gathered(load: Node, var: Node) -> bool:
    """True if a load varies with a loop variable, but not by unit stride along the last axis."""
    index = access_parts(load)[0]
    moved = [k for k, place in enumerate(index) if var in place.vars]
    is_run = moved == [len(index) - 1] and start_along(index[-1], var) is not None
    return bool(moved) and not is_run


def is_transposed(load: Node, var: Node) -> bool:
    """True if a load varies with a loop variable along one axis, and along the last one by unit
    stride with another variable.
    """
    index = access_parts(load)[0]
    moved = [k for k, place in enumerate(index) if var in place.vars]
    if len(moved) != 1 or moved[0] == len(index) - 1:
        return False
    return any(start_along(index[-1], other) is not None for other in index[-1].vars)


def conjuncts(mask: Node | None) -> list[Node]:
    """Splits a mask into the conditions that `and` nodes combine; empty for None."""
    if mask is None:
        return []
    return [p for a in mask.args for p in conjuncts(a)] if mask.op == "and" else [mask]


def conjunction(conditions: Sequence[Node]) -> Node | None:
    """Builds the `and` of some conditions, the first two first; None if there are none."""
    return reduce(lambda a, b: make("and", (a, b)), conditions) if conditions else None


def is_end(test: Node, place: Node, size: object) -> bool:
    """True if a condition is `place < size`: the bounds check of a memory axis."""
    if test.op != "lt" or test.args[0] is not place:
        return False
    end = test.args[1]
    return is_number(end) and number(end) == size


def clipped(
    index: Sequence[Node], tile: Sequence[int], memory: Node, axis: int, test: Node
) -> bool:
    """True if condition `test` along `axis` of a block, which starts at `index`, is just the bounds
    check of memory along that axis."""
    at = memory.tensor.rank - len(tile) + axis
    return is_end(test, positions_from(index[at], tile[axis]), memory.shape[at])


def parts_of(node: Node) -> tuple[list[Node], Node | None, Node | None, tuple[int, ...]]:
    """Returns the operands of a load or a store: its indices, its mask and the value of masked
    lanes (None without a mask), and the shape of its tile.
    """
    tile = node.tensor if is_load(node) else node.args[1].tensor
    return (*access_parts(node), tuple(map(static, tile.shape)))
