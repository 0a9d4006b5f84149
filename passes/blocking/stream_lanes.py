"""States of a stream that need not be one number at each step.

A sum that no other state reads is wanted after the pass only. Where its correction is `S * a + c`
with a and c free of it, each place of a step can have a sum of its own, corrected by a, and one
more sum takes c; they are added after the pass. No step then waits for the others of its program.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Block, Node, topological
from stack.ir.traits import is_reduction, multiplies, signs


@dataclass(frozen=True)
class Loose:
    """How a sum is corrected: `S * factor + addend`; None where that is 1, or 0."""

    factor: Node | None = None
    addend: Node | None = None


def loose_states(states: Block, correct: Block) -> dict[int, Loose]:
    """The states that may be summed place by place, by position."""
    found: dict[int, Loose] = {}
    for j in range(len(states.results)):
        loose = _loose(states, correct, j)
        if loose is not None:
            found[j] = loose
    return found


def _loose(states: Block, correct: Block, j: int) -> Loose | None:
    state, old, made = states.results[j], correct.params[j], correct.results[j]
    new = correct.params[len(states.results) + j]
    if not is_reduction(state) or state.attrs["kind"] != "sum" or _depends(made, new):
        return None
    for i, (other, corrected) in enumerate(zip(states.results, correct.results, strict=True)):
        if i != j and (_depends(other, state) or _depends(corrected, old, new)):
            return None
    addend: Node | None = None
    if signs(made) == (1, 1):
        for part, rest in (made.args, made.args[::-1]):
            if _depends(part, old) and not _depends(rest, old):
                made, addend = part, rest
                break
    if made is old:
        return Loose(None, addend)
    if multiplies(made):
        for part, factor in (made.args, made.args[::-1]):
            if part is old and not _depends(factor, old):
                return Loose(factor, addend)
    return None


def _depends(node: Node, *others: Node) -> bool:
    return not set(topological([node])).isdisjoint(others)
