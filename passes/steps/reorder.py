"""reorder: interchange two perfectly nested loops.

    loop(%o0) {(%i < 4, ...)             reorder i j       loop(%o0) {(%j < 5, ...)
      loop(...) {(%j < 5, ...)                               loop(...) {(%i < 4, ...)

Legal if the loops are perfectly nested, and no dependence prevents the interchange: each iteration
stores to its own elements, and other loop-carried values are totals, which can be reassociated.

If both loops are online, each iteration of the new outer loop starts from nothing, and merges its
states with those before. The iterations of `inner` are independent until the merge:

    loop(...) {online=true} {(%r.0 < 4, ...)            loop(...) {online=true} {(%r.1 < 64, %m, %l)
      loop(...) {online=true} {(%r.1 < 64, ...)           %a, %b = loop(-inf, 0.0) {(%r.0 < 4, ...)
                                                          %n = max(%m, %a)
                                                          add(%l * exp(%m - %n), %b * exp(%a - %n))

Source: loop interchange (Allen and Kennedy, PLDI 1984); `reorder` of Halide; merging the states of
online softmax (Milakov and Gimelshein, 2018) and of variances (Chan, Golub and LeVeque, 1979).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.passes.steps.dependences import why_shared
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import why_no_totals
from stack.passes.steps.loops import held_like, inner_loop, loops_along, why_no_nest
from stack.passes.steps.online import is_online, serial_like, states_of
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Reorder(LoopStep, name="reorder"):
    """Interchange the loops over an axis with the loops over `inner` directly inside of them."""

    inner: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_nest(kernel, self.axis, self.inner)
        for loop, _ in loops_along(kernel, self.axis):
            inner = inner_loop(loop, self.inner)
            assert inner is not None
            if is_online(loop) and is_online(inner) and states_of(inner.blocks[0]) is not None:
                continue
            yield why_no_totals(inner)
            yield why_shared(loop)

    def change(self, edit: Edit, loop: Node) -> Node:
        block, inner = loop.blocks[0], inner_loop(loop, self.inner)
        assert inner is not None
        if is_online(loop) and is_online(inner):
            return _merged(edit, loop, inner)
        body = inner.blocks[0]
        turned = Block((block.params[0], *body.params[1:]), body.results)
        within = make("loop", block.params[1:], serial_like(loop), (turned,))
        whole = Block((body.params[0], *block.params[1:]), results_of(within))
        return make("loop", starts_of(loop), serial_like(inner), (whole,))


def _merged(edit: Edit, loop: Node, inner: Node) -> Node:
    """Interchanges two online loops. The new outer loop merges the states that its inner loop has
    computed from their identities with the states so far.
    """
    outer, body = loop.blocks[0].params[0], inner.blocks[0]
    var, *held = body.params
    states = states_of(body)
    assert states is not None
    of = {s.held: s for s in states}
    alone = Block((outer, *held), body.results)
    starts = [of[h].none for h in held]
    own = results_of(make("loop", starts, loop.attrs, (alone,)))
    lane = dict(zip(held, own, strict=True))
    total = dict(zip(held, held_like(held, edit.names), strict=True))
    new: dict[Node, Node] = {}
    for state in states:
        sides = [*edit.values([state.kept], new | total), *edit.values([state.kept], new | lane)]
        new[state.new] = edit.locate(state.new, make(state.new.op, sides))
    whole = Block((var, *(total[h] for h in held)), [new[r] for r in body.results])
    return make("loop", starts_of(loop), inner.attrs, (whole,))
