"""Values of a loop in local memory: one scalar or tile for each iteration.

Source: scalar expansion (Kuck et al., POPL 1981).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_memory
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import axis_of, extent_of, held_like
from stack.passes.tiling.frame import static


def why_not_kept(loop: Node, inner: Node, values: Sequence[Node]) -> str:
    """Returns why local memory cannot hold `values`, which a loop inside of `loop` carries, for all
    iterations of `loop`; "" if it can.
    """
    axis = axis_of(inner)
    if any(map(is_memory, starts_of(inner))):
        return f"the loop over {axis} carries memory, not values"
    held = next((p for p in loop.blocks[0].params[1:] if p in inner.vars), None)
    if held is not None:
        return f"the loop over {axis} depends on {held.attrs['name']}, which is carried"
    size = extent_of(loop) * max((static(v.tensor.bytes) for v in values), default=0)
    most = LARGEST_LOCAL
    return f"{size} bytes of values; local memory has at most {most}" if size > most else ""


def memory_for(edit: Edit, value: Node, axis: Node, hint: str, around: Sequence[Node] = ()) -> Node:
    """Allocates local memory with one element, a scalar or a tile like `value`, for each iteration
    of the loop over the variable `axis`. Each iteration of the loops over `around` fills it anew.
    """
    held = TensorType(value.dtype, (int(axis.attrs["extent"]), *value.shape), "local")
    return make("alloc", around, {"name": edit.names.own(hint)}, hint=held)


def stored(
    edit: Edit,
    axis: Node,
    memories: Sequence[Node],
    values: Callable[[Sequence[Node]], Sequence[Node]],
) -> list[Node]:
    """Builds a loop over the variable `axis` that stores a value in each memory. Returns the
    memories after it. `values` returns these values, from the memories in an iteration.
    """
    held = held_like(memories, edit.names)
    made = zip(held, values(held), strict=True)
    stores = [make("store", (m, value, *slot(axis, value))) for m, value in made]
    return results_of(make("loop", memories, {"kind": "serial"}, (Block((axis, *held), stores),)))


def loaded(memory: Node, axis: Node, like: Node) -> Node:
    """Builds the load of an iteration's value; `like` has its type."""
    return make("load", (memory, *slot(axis, like)), hint=like.type)


def slot(axis: Node, value: Node) -> list[Node]:
    """Returns the index of an iteration's value in local memory with those of all iterations."""
    return [axis, *[constant(0, axis.dtype)] * value.tensor.rank]
