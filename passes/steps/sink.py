"""sink: move a loop into the loop over another axis in its body.

    loop(%o0) {(%k < 64, %o)                  sink k r    %m = loop(alloc()) {(%k < 64, %s)
      %l, %s = loop(0.0, 0.0) {(%r < 9, ...)                store(%s, 0.0, %k) }
        %e = load(%p0, %r)                                %l, %m1 = loop(0.0, %m) {(%r < 9, ...)
        %x = mul(%e, load(%p1, %r, %k))                     %e = load(%p0, %r)
        return add(%l0, %e), add(%s0, %x) }                 %m2 = loop(%s1) {(%k < 64, %s)
      store(%o, div(%s, %l), %k) }                            %x = mul(%e, load(%p1, %r, %k))
                                                              store(%s, add(load(%s, %k), %x), %k) }
                                                            return add(%l0, %e), %m2 }
                                                          loop(%o0) {(%k < 64, %o)
                                                            store(%o, div(load(%m1, %k), %l), %k) }

Carried values that depend on the moved axis are kept in local memory, one element for each of its
iterations. Those that do not depend on it are computed once. Legal for a serial loop whose body has
loops over the other axis that carry values, not memory, and do not depend on what the moved loop
carries. CPUs only: a program of a GPU has no local memory.

Source: loop interchange with scalar expansion (Allen and Kennedy, 2001, sections 5.2 and 5.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import make, results_of
from stack.ir.kernel_ops import loop_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop, is_memory
from stack.passes.steps.edit import Edit
from stack.passes.steps.local_values import loaded, memory_for, stored, why_not_kept
from stack.passes.steps.loops import along, axis_of, held_like, loops_along, why_not_free
from stack.passes.steps.online import is_online
from stack.passes.steps.step import Step
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Sink(Step, name="sink", only=Cpu):
    """Move the loops over an axis into the loops over `inner` in their bodies.

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
        yield from map(self._why_not, found)

    def _why_not(self, loop: Node) -> str:
        for inner in _loops(loop, self.inner):
            if inner.attrs["kind"] not in ("serial", "branch"):
                return f"axis {self.inner} is bound"
            limits, _ = loop_parts(inner.args, inner.attrs)
            if any(loop.blocks[0].params[0] in limit.vars for limit in limits):
                return f"the trip count of the loop over {self.inner} depends on {self.axis}"
            if why := why_not_kept(loop, inner, _varying(inner, loop.blocks[0].params[0])):
                return why
        return ""

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
                for before, new in zip(results_of(inner), after, strict=True):
                    known[before] = edit.note(before, new)
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
    before = [_memory_of(start, axis) for start in starts]
    new = [i for i, memory in enumerate(before) if memory is None]
    fill = [memories[i] for i in new]
    filled = iter(stored(edit, axis, fill, lambda _: [starts[i] for i in new]) if new else [])
    return [next(filled) if memory is None else memory for memory in before]


def _memory_of(start: Node, axis: Node) -> Node | None:
    """Returns the local memory that the initial value of a carried variable is loaded from, if an
    earlier moved loop stored it there; None for other values.
    """
    if not is_load(start) or start.args[0].tensor.space != "local" or start.args[1] is not axis:
        return None
    return start.args[0] if start is loaded(start.args[0], axis, start) else None
