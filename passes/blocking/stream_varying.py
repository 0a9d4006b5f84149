"""Along which of its axes a state of a stream varies: along the others one value stands for all.

A sum over weights alone, as of a norm's gain times a matrix, is the same for all rows; held for
each row it would fill the registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir import ops
from stack.ir.node import Block, Node

Dims = frozenset[int]


def varying(states: Block, correct: Block) -> dict[Node, Dims]:
    """The axes of each state along which what is added, or what corrects it, varies."""
    found: dict[Node, Dims] = {s: frozenset() for s in states.results}
    while True:
        before = dict(found)
        known = dict(found)
        count = len(states.results)
        for j, state in enumerate(states.results):
            for param in (correct.params[j], correct.params[count + j]):
                known[param] = found[state]
        for state, corrected in zip(states.results, correct.results, strict=True):
            added = _dims(state, known, is_root=True)
            found[state] |= added | _dims(corrected, known)
        if found == before:
            return found


def _dims(node: Node, known: Mapping[Node, Dims], is_root: bool = False) -> Dims:
    """Axes of a node along which it varies; `is_root` for the operands of a known one."""
    if node in known and not is_root:
        return known[node]
    rule = ops.rule_of(node) if node.args else None
    if rule is None or not rule.is_plain:
        return frozenset(range(node.tensor.rank))
    varied = {
        operand[a].names
        for operand, arg in zip(rule.inputs, node.args, strict=True)
        for a in _dims(arg, known)
    }
    return frozenset(i for i, a in enumerate(rule.outputs[0]) if a.names in varied)
