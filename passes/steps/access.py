"""Loads and stores of a lane become loads and stores of a tile.

Where one index moves by one element for each lane, lanes lie side by side, and the access is of a
block. Else each lane has an index of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_load, is_number, number
from stack.ir.types import TensorType
from stack.passes.steps.linear import linear
from stack.passes.tiling.frame import static


@dataclass(frozen=True)
class Lanes:
    """An axis that becomes the first axis of tiles.

    Attributes:
        var: the loop variable that it was.
        count: lanes.
        is_reversed: whether lane 0 is the last iteration.
    """

    var: Node
    count: int
    is_reversed: bool = False

    @property
    def places(self) -> Node:
        """The number of each lane."""
        type_ = TensorType(self.var.dtype, (self.count,), "tile")
        lanes = make("iota", (), {"axis": 0}, hint=type_)
        return make("sub", (self.last, lanes)) if self.is_reversed else lanes

    @property
    def last(self) -> Node:
        """The number of the last lane."""
        return constant(self.count - 1, self.var.dtype)

    def shape(self, rank_of: Node) -> tuple[int, ...]:
        """The shape of a value with lanes, from that of one lane."""
        return (self.count, *map(static, rank_of.shape))

    def spread(self, value: Node, shape: Sequence[int], has_lanes: bool) -> Node:
        """A value along all axes of a tile, of which the first are the lanes."""
        rank, wanted = value.tensor.rank, len(shape)
        if value.shape == tuple(shape):
            return value
        own = (0, *range(wanted - rank + 1, wanted)) if has_lanes else range(wanted - rank, wanted)
        return spread_along(value, tuple(own), shape)


def spread_along(value: Node, axes: Sequence[int], shape: Sequence[int]) -> Node:
    """A value spread over a tile, of which its axes are some; one broadcast in place of two."""
    if value.op == "broadcast":
        axes = [axes[int(a)] for a in value.attrs["axes"]]
        (value,) = value.args
    hint = TensorType(value.dtype, tuple(shape), "tile")
    return make("broadcast", (value,), {"axes": tuple(axes)}, hint=hint)


def reshaped(value: Node, shape: tuple[int, ...]) -> Node:
    """A tile of another shape; one reshape in place of two."""
    if value.shape == shape:
        return value
    if value.op == "reshape":
        return reshaped(value.args[0], shape)
    return make("reshape", (value,), hint=TensorType(value.dtype, shape, "tile"))


def block_axis(index: Sequence[Node], lanes: Lanes) -> tuple[int, Node] | None:
    """The axis of memory along which lanes lie side by side, and where the first of them lies."""
    found: tuple[int, Node] | None = None
    for axis, place in enumerate(index):
        if lanes.var not in place.vars:
            continue
        step = linear(place, lanes.var)
        if found is not None or step is None or step[0] != (-1 if lanes.is_reversed else 1):
            return None
        first = step[1] if step[1] is not None else constant(0, lanes.var.dtype)
        found = axis, make("sub", (first, lanes.last)) if lanes.is_reversed else first
    return found


def is_gathered(load: Node, var: Node) -> bool:
    """Whether a load has no unit stride in a loop variable."""
    index = access_parts(load)[0]
    moved = [k for k, place in enumerate(index) if var in place.vars]
    step = linear(index[-1], var) if moved == [len(index) - 1] else None
    return bool(moved) and (step is None or step[0] != 1)


def conjuncts(mask: Node | None) -> list[Node]:
    """What a mask asks, all of which holds where it does."""
    if mask is None:
        return []
    return [p for a in mask.args for p in conjuncts(a)] if mask.op == "and" else [mask]


def all_of(parts: Sequence[Node]) -> Node | None:
    """A mask that asks for all parts; None for nothing."""
    made: Node | None = None
    for part in parts:
        made = part if made is None else make("and", (made, part))
    return made


def is_end(test: Node, place: Node, size: object) -> bool:
    """Whether a test only says that a place lies before the end of an axis of memory."""
    if test.op != "lt" or test.args[0] is not place:
        return False
    end = test.args[1]
    return is_number(end) and number(end) == size


def clipped(
    index: Sequence[Node], tile: Sequence[int], memory: Node, axis: int, test: Node
) -> bool:
    """Whether a test over an axis of a block only says that memory has not ended there."""
    at, first = memory.tensor.rank - len(tile) + axis, index[memory.tensor.rank - len(tile) + axis]
    steps = make("iota", (), {"axis": 0}, hint=TensorType(first.dtype, (tile[axis],), "tile"))
    is_first = is_number(first) and not number(first)
    return is_end(test, steps if is_first else make("add", (first, steps)), memory.shape[at])


def parts_of(node: Node) -> tuple[list[Node], Node | None, Node | None, tuple[int, ...]]:
    """Indices, mask, value of masked lanes, and the shape of what one lane reads or writes."""
    tile = node.tensor if is_load(node) else node.args[1].tensor
    return (*access_parts(node), tuple(map(static, tile.shape)))
