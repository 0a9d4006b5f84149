"""rfactor: accumulate a tile of partial sums in a loop, and reduce the tile after the loop.

    loop(0.0) {(%r.0 < 16, %acc)              rfactor r.0     %acc = loop(0.0 : f32<64>) {(...)
      add(%acc, reduce(%x) {axes=[0]})                          add(%acc, %x) }
    }                                                         reduce(%acc) {axes=[0]}

Legal if all loop-carried values are memory or totals, and a total is combined with the reduction of
a tile of the same kind: a sum with a sum, a maximum with a maximum. The reduction is reassociated.

Also legal for an online loop with a sum that no other state reads, and that is only multiplied and
added to when it is rescaled: the partial sums are rescaled one by one.

    %l1 = add(mul(%l, %k), reduce(%x))                        %t1 = add(mul(%t, %k), %x)

Source: Suriana, Adams and Kamil, Parallel associative reductions in Halide (CGO 2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, filled, make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_memory, is_reduction
from stack.passes.steps.access import spread_along
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import summand, why_no_totals
from stack.passes.steps.loops import loops_along, why_not_free
from stack.passes.steps.online import RescaledSum, is_none, is_online, scaled, states_of
from stack.passes.steps.step import LoopStep
from stack.passes.tiling.frame import static
from stack.target import Target


@dataclass(frozen=True)
class Rfactor(LoopStep, name="rfactor"):
    """Replace scalar totals of the loops over an axis by tiles of partial sums."""

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
            results.append(result if total is None else _alone(edit, result, variable, total))
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


def _alone(edit: Edit, result: Node, held: Node, total: _Sum) -> Node:
    """Returns the update of the scalar sum that stays: rescaled, plus its addend."""
    factor, addend = total.kept
    kept = held if factor is None else make("mul", (held, factor))
    return edit.locate(result, kept if addend is None else make("add", (kept, addend)))
