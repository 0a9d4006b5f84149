"""block: compute each state of an online loop for all iterations at once, then merge it.

    %m, %l = loop(%m0, %l0) {online=true}          block r.1      %a = loop(-inf) {(%r.1 < 64, %acc)
      {(%r.1 < 64, %old, %old_1)                                    max(%acc, %x) }
      %new = max(%old, %x)                                        %m = max(%m0, %a)
      %kept = mul(%old_1, exp(sub(%old, %new)))                   %b = loop(0.0) {(%r.1 < 64, %acc)
      %new_1 = add(%kept, exp(sub(%x, %new)))                       add(%acc, exp(sub(%x, %m))) }
      return %new, %new_1 }                                       %k = mul(%l0, exp(sub(%m0, %m)))
                                                                  %l = add(%k, %b)

An online loop rescales what it carries in each iteration. After this step it is rescaled once for
all of them, and each state has a loop of its own, which only adds: `vectorize` and `tensorize` can
replace it. So `split r 64; block r.1` computes a softmax in blocks of 64, and `block r` alone in
one pass over the row for each state.

Legal if the loop is online and carries states: each iteration rescales a state by the new values of
earlier states, and adds a part that does not depend on carried values. Also legal if the loop
carries totals only: it is the inverse of `compute_with`. A single total then starts from nothing.

Source: Milakov and Gimelshein (2018); FlashAttention (Dao et al., NeurIPS 2022); `rfactor` of
Halide (Suriana et al., CGO 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_memory
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import is_total
from stack.passes.steps.loops import extent_of, loops_along, stores_only, why_not_free
from stack.passes.steps.online import State, is_none, is_online, states_of
from stack.passes.steps.step import Step
from stack.target import Target


@dataclass(frozen=True)
class BlockStates(Step, name="block"):
    """Compute the states of the loops over an axis for all iterations at once."""

    axis: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis) if not stores_only(loop)]
        if not any(len(starts_of(loop)) > 1 or _is_continued(loop) for loop in loops):
            yield f"no loop over {self.axis} carries two values, or goes on with one"
        yield from map(_why_together, loops)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        known: dict[tuple[Node, Node], Node] = {}

        def loop_of(var: Node, state: State, part: Node) -> Node:
            """Builds the loop over `var` that reduces `part`, the contribution of an iteration, for
            one state; states with equal contributions share one loop.
            """
            if (var, part) not in known:
                known[var, part] = Node("var", (), {"name": edit.names.own("acc")}, state.new.type)
            acc = known[var, part]
            total = edit.locate(state.new, make(state.new.op, (acc, part)))
            own = make("loop", [state.none], {"kind": "serial"}, (Block((var, acc), [total]),))
            return edit.locate(state.new, own)

        def change(_: Node, loop: Node) -> Node | list[Node]:
            states = None if stores_only(loop) else states_of(loop.blocks[0])
            return loop if states is None else _apart(edit, loop, states, loop_of)

        return edit.change_loops(self.axis, change)


def _is_continued(loop: Node) -> bool:
    """True if a loop adds to a total that does not start from the identity."""
    block = loop.blocks[0]
    return any(
        not is_memory(held) and is_total(block, held, new) and not is_none(start, new.op)
        for held, new, start in zip(block.params[1:], block.results, starts_of(loop), strict=True)
    )


def _why_together(loop: Node) -> str:
    """Returns why one loop for each carried value cannot compute it; "" if they can."""
    block = loop.blocks[0]
    axis = block.params[0].attrs["name"]
    if any(map(is_memory, block.params[1:])):
        return f"the loop over {axis} carries memory too"
    if states_of(block) is None:
        return f"the loop over {axis} does more than rescale what it carries, and add to it"
    pairs = zip(block.params[1:], block.results, strict=True)
    if not (is_online(loop) or all(is_total(block, held, new) for held, new in pairs)):
        return f"the loop over {axis} is not online: a value that it carries depends on another"
    return ""


def _apart(
    edit: Edit, loop: Node, states: Sequence[State], loop_of: Callable[[Node, State, Node], Node]
) -> list[Node]:
    """Computes each state of an online loop by a loop of its own, which `loop_of` builds.

    Returns the replacements of the loop's results.
    """
    block = loop.blocks[0]
    var, *held = block.params
    start_of = dict(zip(held, starts_of(loop), strict=True))
    is_first = all(is_none(start_of[state.held], state.new.op) for state in states)
    made: dict[Node, Node] = {}
    for state in states:
        (part,) = edit.values([state.part], made)
        if var not in part.vars and KIND_OF[state.new.op] == "sum" and part.dtype.is_float:
            own = make("mul", (part, constant(extent_of(loop), part.dtype)))
        else:
            own = loop_of(var, state, part)
        if is_first:
            made[state.new] = own
            continue
        (kept,) = edit.values([state.kept], {**made, **start_of})
        made[state.new] = make(state.new.op, (kept, own))
    return [edit.note(new, made[new]) for new in block.results]
