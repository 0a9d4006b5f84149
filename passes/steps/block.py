"""Partial sums: add many iterations of a loop at once, or each lane of a tile by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, filled, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_memory, is_reduction
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import is_total, summand, why_no_totals
from stack.passes.steps.loops import extent_of, loops_along, stores_only, why_not_free
from stack.passes.steps.online import RescaledSum, State, is_none, is_online, scaled, states_of
from stack.passes.steps.step import LoopStep, Step
from stack.passes.steps.tiles import spread_along
from stack.passes.tiling.frame import static
from stack.target import Target


@dataclass(frozen=True)
class BlockStates(Step, name="block"):
    """Compute the states of the loops over an axis for all iterations at once.

        %m, %l = loop(%m0, %l0) {online=true}          block r.1  %a = loop(-inf) {(%r.1 < 64, %acc)
          {(%r.1 < 64, %old, %old_1)                                max(%acc, %x) }
          %new = max(%old, %x)                                    %m = max(%m0, %a)
          %kept = mul(%old_1, exp(sub(%old, %new)))               %b = loop(0.0) {(%r.1 < 64, %acc)
          %new_1 = add(%kept, exp(sub(%x, %new)))                   add(%acc, exp(sub(%x, %m))) }
          return %new, %new_1 }                                   %k = mul(%l0, exp(sub(%m0, %m)))
                                                                  %l = add(%k, %b)

    An online loop rescales what it carries in each iteration. After this step it is rescaled once
    for all of them, and each state has a loop of its own, which only adds: `vectorize` and
    `tensorize` can replace it. So `split r 64; block r.1` computes a softmax in blocks of 64, and
    `block r` alone in one pass over the row for each state.

    Legal if the loop is online and carries states: each iteration rescales a state by the new
    values of earlier states, and adds a part that does not depend on carried values. Also legal if
    the loop carries totals only: it is the inverse of `compute_with`. A single total then starts
    from nothing.

    Source: Milakov and Gimelshein (2018); FlashAttention (Dao et al., NeurIPS 2022); `rfactor` of
    Halide (Suriana et al., CGO 2017).
    """

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


@dataclass(frozen=True)
class Rfactor(LoopStep, name="rfactor"):
    """Replace scalar totals of the loops over an axis by tiles of partial sums.

        loop(0.0) {(%r.0 < 16, %acc)              rfactor r.0     %acc = loop(0.0 : f32<64>) {(...)
          add(%acc, reduce(%x) {axes=[0]})                          add(%acc, %x) }
        }                                                         reduce(%acc) {axes=[0]}

    Legal if all loop-carried values are memory or totals, and a total is combined with the
    reduction of a tile of the same kind: a sum with a sum, a maximum with a maximum. The reduction
    is reassociated.

    Also legal for an online loop with a sum that no other state reads, and that is only multiplied
    and added to when it is rescaled: the partial sums are rescaled one by one.

        %l1 = add(mul(%l, %k), reduce(%x))                        %t1 = add(mul(%t, %k), %x)

    Source: Suriana, Adams and Kamil, Parallel associative reductions in Halide (CGO 2017).
    """

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        factored = 0
        for loop, _ in loops_along(kernel, self.axis):
            if not is_online(loop):
                yield why_no_totals(loop)
            factored += any(_sums(loop))
        if not factored:
            yield f"no loop over {self.axis} adds the reduction of a tile to a total"

    def change(self, edit: Edit, loop: Node) -> Node | list[Node]:
        parts = _sums(loop)
        return _factored(edit, loop, parts) if any(parts) else loop


class _Sum(NamedTuple):
    """A carried sum that a tile of partial sums can replace.

    Attributes:
        part: the reduction of the tile that an iteration adds.
        kept: the update before that.
    """

    part: Node
    kept: RescaledSum = RescaledSum()

    def stays(self, start: Node, op: str) -> bool:
        """True if the loop still carries a scalar sum beside the tile of partial sums: for an
        addend, or for an initial value that is rescaled and is not the identity."""
        factor, addend = self.kept
        return addend is not None or (factor is not None and not is_none(start, op))


def _sums(loop: Node) -> list[_Sum | None]:
    """Returns how each carried value is summed; None for those that stay scalar."""
    block = loop.blocks[0]
    known: dict[Node, _Sum] = {}
    for state in (states_of(block) or ()) if is_online(loop) else ():
        if (kept := scaled(block, state)) is not None and _reduces(state.part, state.new):
            known[state.held] = _Sum(state.part, kept)
    for held, new in () if is_online(loop) else zip(block.params[1:], block.results, strict=True):
        part = None if is_memory(held) else summand(held, new)
        if part is not None and _reduces(part, new):
            known[held] = _Sum(part)
    return [known.get(held) for held in block.params[1:]]


def _reduces(part: Node, total: Node) -> bool:
    """True if what an iteration adds to a total is the reduction of a tile, of the same kind."""
    if not is_reduction(part) or total.tensor.rank != part.tensor.rank:
        return False
    return part.attrs["kind"] == KIND_OF[total.op]


def _factored(edit: Edit, loop: Node, parts: Sequence[_Sum | None]) -> list[Node]:
    """Builds the loop with tiles of partial sums in place of scalar sums, and reduces the tiles
    after it. Returns the replacements of the loop's results.
    """
    block = loop.blocks[0]
    var, *held = block.params
    inside: list[Node] = []
    starts: list[Node] = []
    results: list[Node] = []
    carried = list(zip(held, block.results, starts_of(loop), parts, strict=True))
    for variable, result, start, total in carried:
        if total is None or total.stays(start, result.op):
            inside.append(variable)
            starts.append(start)
            new = result
            if total is not None:  # the scalar sum is rescaled, plus its addend
                factor, addend = total.kept
                new = variable if factor is None else make("mul", (variable, factor))
                new = new if addend is None else make("add", (new, addend))
            results.append(edit.locate(result, new))
        if total is not None:
            lanes, first, new = _tile(edit, result, total)
            inside.append(lanes)
            starts.append(first)
            results.append(new)
    made = make("loop", starts, loop.attrs, (Block((var, *inside), results),))
    found = iter(results_of(edit.locate(loop, made)))
    totals: list[Node] = []
    for _, result, start, total in carried:
        if total is None:
            totals.append(next(found))
            continue
        first = next(found) if total.stays(start, result.op) else start
        whole = make("reduce", (next(found),), total.part.attrs)
        is_empty = is_none(first, result.op)
        totals.append(edit.note(loop, whole if is_empty else make(result.op, (first, whole))))
    return totals


def _tile(edit: Edit, result: Node, total: _Sum) -> tuple[Node, Node, Node]:
    """Builds a tile of partial sums: its variable, its start, and its new value."""
    (tile,) = total.part.args
    first = filled(constant(identity(KIND_OF[result.op], tile.dtype), tile.dtype), tile)
    lanes = Node("var", (), {"name": edit.names.own("lanes")}, first.type)
    kept, (factor, _) = lanes, total.kept
    if factor is not None:
        gone = {int(a) for a in total.part.attrs["axes"]}
        axes = [a for a in range(tile.tensor.rank) if a not in gone]
        kept = make("mul", (lanes, spread_along(factor, axes, tuple(map(static, tile.shape)))))
    return lanes, first, edit.note(result, make(result.op, (kept, tile)))
