"""The order of loops: interchange, collapse and reverse them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import why_no_totals
from stack.passes.steps.loops import (
    along,
    axis_of,
    extent_of,
    held_like,
    inner_loop,
    loops_along,
    why_no_nest,
    why_not_free,
    why_shared,
)
from stack.passes.steps.online import is_online, serial_like, states_of
from stack.passes.steps.step import LoopStep
from stack.target import Target


@dataclass(frozen=True)
class Reorder(LoopStep, name="reorder"):
    """Interchange the loops over an axis with the loops over `inner` directly inside of them.

        loop(%o0) {(%i < 4, ...)             reorder i j       loop(%o0) {(%j < 5, ...)
          loop(...) {(%j < 5, ...)                               loop(...) {(%i < 4, ...)

    Legal if the loops are perfectly nested, and no dependence prevents the interchange: each
    iteration stores to its own elements, and other loop-carried values are totals, which can be
    reassociated.

    If both loops are online, each iteration of the new outer loop starts from nothing, and merges
    its states with those before. The iterations of `inner` are independent until the merge:

        loop(...) {online=true} {(%r.0 < 4, ...)        loop(...) {online=true} {(%r.1 < 64, %m, %l)
          loop(...) {online=true} {(%r.1 < 64, ...)       %a, %b = loop(-inf, 0.0) {(%r.0 < 4, ...)
                                                          %n = max(%m, %a)
                                                          add(%l * exp(%m - %n), %b * exp(%a - %n))

    Source: loop interchange (Allen and Kennedy, PLDI 1984); `reorder` of Halide; merging the states
    of online softmax (Milakov and Gimelshein, 2018) and of variances (Chan, Golub and LeVeque,
    1979).
    """

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


@dataclass(frozen=True)
class Fuse(LoopStep, name="fuse"):
    """Collapse the loops over an axis with the loops over `inner` directly inside of them.

        loop(...) {(%i < 4, ...)             fuse i j       loop(...) {(%i < 20, ...)
          loop(...) {(%j < 5, ...)                            load(%p0, div(%i, 5), rem(%i, 5))
            load(%p0, %i, %j)

    The fused loop has the name of the outer axis. Its extent is the product of both extents. Legal
    if the loops are perfectly nested: the inner loop is the whole body of the outer one. It starts
    from the values that the outer loop carries, and its results are the results of the body.

    Source: `fuse` of Halide; loop coalescing of Polychronopoulos (ICPP 1987).
    """

    inner: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_nest(kernel, self.axis, self.inner)
        inner_loops = loops_along(kernel, self.inner)
        if any(not f.around or axis_of(f.around[-1]) != self.axis for f in inner_loops):
            yield f"a loop over {self.inner} is outside of the loops over {self.axis}"

    def change(self, edit: Edit, loop: Node) -> Node:
        block, inner = loop.blocks[0], inner_loop(loop, self.inner)
        assert inner is not None
        body = inner.blocks[0]
        count = extent_of(inner)
        var = along(self.axis, extent_of(loop) * count, block.params[0])
        size = constant(count, var.dtype)
        known = {
            block.params[0]: make("div", (var, size)),
            body.params[0]: make("rem", (var, size)),
        }
        whole = Block((var, *body.params[1:]), edit.values(body.results, known))
        return make("loop", starts_of(loop), serial_like(loop, inner), (whole,))


@dataclass(frozen=True)
class Reverse(LoopStep, name="reverse"):
    """Reverse the order of the iterations of the loops over an axis.

        loop(%o0) {(%i.0 < 8, ...)       reverse i.0       loop(%o0) {(%i.0 < 8, ...)
          store(..., %i.0, ...) }                            store(..., sub(7, %i.0), ...) }

    Under a causal mask, late rows take the most time. If they start first, the short ones fill the
    processors at the end. Legal for a serial loop with independent iterations.

    Source: longest processing time first (Graham, SIAM Journal on Applied Mathematics, 1969).
    """

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            yield why_no_totals(loop)
            yield why_shared(loop)

    def change(self, edit: Edit, loop: Node) -> Node:
        block = loop.blocks[0]
        var = block.params[0]
        last = constant(extent_of(loop) - 1, var.dtype)
        body = edit.body(block, {var: make("sub", (last, var))})
        return make("loop", starts_of(loop), loop.attrs, (body,))
