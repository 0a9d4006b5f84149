"""Along which of its axes a state of a stream varies: along the others one value stands for all.

A sum over weights alone, as of a norm's gain times a matrix, is the same for all rows; held for
each row it would fill the registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir import ops
from stack.ir.axes import parse_rule
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
    if node.op == "broadcast":
        axes: tuple[int, ...] = node.attrs["axes"]
        return frozenset(axes[a] for a in _dims(node.args[0], known))
    if node.op == "transpose":
        perm: tuple[int, ...] = node.attrs["perm"]
        inner = _dims(node.args[0], known)
        return frozenset(i for i, p in enumerate(perm) if p in inner)
    if node.op == "reduce":
        inner = _dims(node.args[0], known)
        left = [a for a in range(node.args[0].tensor.rank) if a not in node.attrs["axes"]]
        return frozenset(i for i, a in enumerate(left) if a in inner)
    if node.op == "dot":
        rule = parse_rule(node.attrs["rule"])
        names = {
            operand[a].names[0]
            for operand, arg in zip(rule.inputs, node.args, strict=True)
            for a in _dims(arg, known)
        }
        return frozenset(i for i, a in enumerate(rule.outputs[0]) if a.names[0] in names)
    if ops.lookup(node.op).kind == "elementwise":
        return frozenset(d for a in node.args if a.tensor.rank for d in _dims(a, known))
    return frozenset(range(node.tensor.rank))
