"""Loops around inner loops: distribute them, or move them inside. Local memory keeps what an inner
loop computes: one scalar or tile for each iteration.

Source: scalar expansion (Kuck et al., POPL 1981).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant, make, results_of
from stack.ir.kernel_ops import loop_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_memory
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import (
    along,
    axes,
    axis_of,
    extent_of,
    held_like,
    loops_along,
    why_not_free,
)
from stack.passes.steps.online import is_online
from stack.passes.steps.step import Step
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Fission(Step, name="fission", only=Cpu):
    """Split the loops over an axis in two, after the loop over `inner` in their body.

        loop(%o0) {(%i < 8, ...)             fission i k       %m = loop(alloc()) {(%i < 8, %sums)
          %s = loop(0.0) {(%k < 64, ...)                         %s = loop(0.0) {(%k < 64, ...)
          store(%o0, exp(%s), %i)                                store(%sums, %s, %i)
                                                               loop(%o0) {(%i < 8, ...)
                                                                 store(%o0, exp(load(%m, %i)), %i)

    The value is the result of an inner loop. It is kept in local memory, one element or tile for
    each iteration. If several loops contain the same inner loop, one first loop serves all of them.
    Legal for serial loops of which at least one has a loop over the inner axis in its body. The
    first such loop of a body is taken: it carries values, not memory, and does not depend on what
    the outer loop carries. CPUs only: a program of a GPU has no local memory.

    Source: loop distribution with scalar expansion (Kuck et al., POPL 1981).

    Attributes:
        inner: the axis of the loop whose results are kept in local memory.
        into: the axis of the first loop; by default the same.
    """

    axis: str
    inner: str
    into: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        found = [(loop, _inner(loop.blocks[0], self.inner)) for loop in loops]
        if not any(inner for _, inner in found):
            yield f"the body of {self.axis} has no loop over {self.inner}"
        if self.into in axes(kernel):
            yield f"axis {self.into} exists already"
        yield from (why_not_kept(loop, i[0], results_of(i[0])) for loop, i in found if i)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        first: dict[tuple[Node, Node], Sequence[Node]] = {}

        def change(_: Node, loop: Node) -> list[Node]:
            block = loop.blocks[0]
            found = _inner(block, self.inner)
            if not found:
                return results_of(loop)
            inner, var = found[0], block.params[0]
            values = results_of(inner)
            if (var, inner) not in first:
                own = along(self.into, extent_of(loop), var) if self.into else var
                made = edit.values(values, {var: own})
                memories = [memory_for(edit, v, own, "sums") for v in values]
                first[var, inner] = stored(edit, own, memories, lambda _: made)
            kept = zip(values, first[var, inner], strict=True)
            known = {value: loaded(full, var, value) for value, full in kept}
            return results_of(loop.rebuilt(blocks=[edit.body(block, known)]))

        return edit.change_loops(self.axis, change)


def _inner(block: Block, axis: str) -> list[Node]:
    """Returns the loops over an axis that are directly in a block, without those nested deeper."""
    return [n for n in block.nodes if is_loop(n) and axis_of(n) == axis]


@dataclass(frozen=True)
class Sink(Step, name="sink", only=Cpu):
    """Move the loops over an axis into the loops over `inner` in their bodies.

      loop(%o0) {(%k < 64, %o)                  sink k r  %m = loop(alloc()) {(%k < 64, %s)
        %l, %s = loop(0.0, 0.0) {(%r < 9, ...)              store(%s, 0.0, %k) }
          %e = load(%p0, %r)                              %l, %m1 = loop(0.0, %m) {(%r < 9, ...)
          %x = mul(%e, load(%p1, %r, %k))                   %e = load(%p0, %r)
          return add(%l0, %e), add(%s0, %x) }               %m2 = loop(%s1) {(%k < 64, %s)
        store(%o, div(%s, %l), %k) }                          %x = mul(%e, load(%p1, %r, %k))
                                                              store(%s, add(load(%s, %k), %x), %k) }
                                                            return add(%l0, %e), %m2 }
                                                          loop(%o0) {(%k < 64, %o)
                                                            store(%o, div(load(%m1, %k), %l), %k) }

    Carried values that depend on the moved axis are kept in local memory, one element for each of
    its iterations. Those that do not depend on it are computed once. Legal for a serial loop whose
    body has loops over the other axis that carry values, not memory, and do not depend on what the
    moved loop carries. CPUs only: a program of a GPU has no local memory.

    Source: loop interchange with scalar expansion (Allen and Kennedy, 2001, sections 5.2 and 5.3).

    Attributes:
        inner: the axis of the loops into which they are moved.
        into: the axis of the moved loops; by default the same.
    """

    axis: str
    inner: str
    into: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        found = [loop for loop, _ in loops_along(kernel, self.axis) if _loops(loop, self.inner)]
        if not found:
            yield f"no loop over {self.inner} in the body of {self.axis} carries a value along it"
        for loop, around in loops_along(kernel, self.axis):
            inside = filter(is_loop, loop.blocks[0].all_nodes)
            if self.into in {axis_of(n) for n in (*around, *inside)}:
                yield f"axis {self.into} exists already, around {self.axis} or inside"
        for loop, inner in [(outer, n) for outer in found for n in _loops(outer, self.inner)]:
            var = loop.blocks[0].params[0]
            if inner.attrs["kind"] not in ("serial", "branch"):
                yield f"axis {self.inner} is bound"
            if any(var in limit.vars for limit in loop_parts(inner.args, inner.attrs)[0]):
                yield f"the trip count of the loop over {self.inner} depends on {self.axis}"
            yield why_not_kept(loop, inner, _varying(inner, var))

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        around = {
            loop: [outer.blocks[0].params[0] for outer in outers]
            for loop, outers in loops_along(kernel, self.axis)
        }

        def change(old: Node, loop: Node) -> list[Node]:
            block, known = loop.blocks[0], dict[Node, Node]()
            for inner in _loops(loop, self.inner):
                (own,) = edit.values([inner], known)
                after = _moved(edit, own, block.params[0], around[old], self.into)
                known.update(zip(results_of(inner), after, strict=True))
            return results_of(loop.rebuilt(blocks=[edit.body(block, known)]))

        return edit.change_loops(self.axis, change)


def _loops(loop: Node, axis: str) -> list[Node]:
    """Returns the loops over `axis` in the body of `loop` that carry what varies with it."""
    block = loop.blocks[0]
    inner = [n for n in block.nodes if is_loop(n) and axis_of(n) == axis]
    return [n for n in inner if _varying(n, block.params[0])]


def _varying(loop: Node, var: Node) -> list[Node]:
    """Returns the carried variables of a loop that depend on the variable of another one."""
    block = loop.blocks[0]
    pairs = list(zip(block.params[1:], block.results, starts_of(loop), strict=True))
    found: dict[Node, None] = {}
    while True:
        grown = {
            held: None
            for held, result, start in pairs
            if var in start.vars or not result.vars.isdisjoint((var, *found))
        }
        if len(grown) == len(found):
            return list(grown)
        found = grown


def _moved(edit: Edit, inner: Node, axis: Node, around: Sequence[Node], into: str) -> list[Node]:
    """Builds the loop `inner` with the loop over `axis` moved into its body.

    Returns the results of `inner` for one iteration of the moved loop. `around` are the variables
    of enclosing loops.
    """
    place = along(into, int(axis.attrs["extent"]), axis) if into else axis
    var, *params = inner.blocks[0].params
    varying = _varying(inner, axis)
    limits, initial = loop_parts(inner.args, inner.attrs)
    start_of = dict(zip(params, initial, strict=True))
    result_of = dict(zip(params, inner.blocks[0].results, strict=True))
    memories = [memory_for(edit, v, axis, "held", around) for v in varying]
    full = _filled(edit, axis, memories, [start_of[v] for v in varying])
    held = held_like(memories, edit.names)

    def step(before: Sequence[Node]) -> list[Node]:
        loads = {v: loaded(m, place, v) for v, m in zip(varying, before, strict=True)}
        return edit.values([result_of[v] for v in varying], {**loads, axis: place})

    starts = {**start_of, **dict(zip(varying, full, strict=True))}
    own = {v: v for v in params} | dict(zip(varying, held, strict=True))
    results = {**result_of, **dict(zip(varying, stored(edit, place, held, step), strict=True))}
    body = Block((var, *(own[v] for v in params)), [results[v] for v in params])
    args = [*limits, *(starts[v] for v in params)]
    attrs = dict(inner.attrs)
    if is_online(inner) and all(map(is_memory, body.params[1:])):
        del attrs["online"]  # it carries no state any more
    made = edit.locate(inner, make("loop", args, attrs, (body,)))
    return [
        loaded(value, axis, v) if v in varying else value
        for v, value in zip(params, results_of(made), strict=True)
    ]


def _filled(edit: Edit, axis: Node, memories: Sequence[Node], starts: Sequence[Node]) -> list[Node]:
    """Returns the memories that contain the initial values `starts`: the one that an earlier moved
    loop left a value in, or one of `memories`, in which a new loop stores it."""
    before: list[Node | None] = []
    for start in starts:
        is_local = is_load(start) and start.args[0].tensor.space == "local"
        is_own = is_local and start.args[1] is axis
        is_kept = is_own and start is loaded(start.args[0], axis, start)
        before.append(start.args[0] if is_kept else None)
    new = [i for i, memory in enumerate(before) if memory is None]
    fill = [memories[i] for i in new]
    filled = iter(stored(edit, axis, fill, lambda _: [starts[i] for i in new]) if new else [])
    return [next(filled) if memory is None else memory for memory in before]


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
