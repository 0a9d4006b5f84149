"""Masks in online loops: which selections hide elements from all states.

    %masked = select(gt(%key, %row), -inf, %score)      hides a score from a maximum, and from the
    %m = max(%old, reduce(%masked))                     sum of exp(%masked - %m), which is 0 there

A selection hides elements if -inf or 0 in their place contributes the identity to every state. What
is hidden counts as nothing: an infinity there does not become a nan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make
from stack.ir.equivalence import once_in
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_contraction, is_loop, is_reduction
from stack.passes.positions.visibility import fills_that_hide, follow, known_value
from stack.passes.steps.edit import Edit
from stack.passes.steps.online import State, identity_like, states_of, total_of


class HidingMask(NamedTuple):
    """A select node that hides elements from all states of an online loop, as attention masks do.

    Attributes:
        select: the selection.
        shown: the operand that visible elements get: 1 or 2.
    """

    select: Node
    shown: int

    @property
    def test(self) -> Node:
        """The condition of the selection."""
        return self.select.args[0]


@once_in
def masks_of(block: Block) -> Sequence[HidingMask]:
    """Returns the select nodes in the body of an online loop that hide elements from all states."""
    found = fills_that_hide(block.all_nodes, partial(hides, block))
    return [HidingMask(select, shown) for select, shown in found]


def hides(block: Block, start: Node, fill: float) -> bool:
    """True if an element adds nothing to any state when the value `start` is `fill`."""
    states = states_of(block)
    if not states:
        return False
    known: dict[Node, float] = {start: fill}
    follow(block, known, hidden_value)
    return all(known.get(s.part) == identity(KIND_OF[s.new.op], s.new.dtype) for s in states)


def _total(loop: Node, known: Mapping[Node, float]) -> float | None:
    """Returns the result of a loop that combines only identities; None for others."""
    state = total_of(loop)
    if state is None:
        return None
    none = identity(KIND_OF[state.new.op], state.new.dtype)
    return none if known.get(state.part) == none else None


def hidden_value(node: Node, known: Mapping[Node, float]) -> float | None:
    """Returns the value that operands in `known` determine; None for no certain value."""
    if is_loop(node):
        return _total(node, known)
    if is_contraction(node):
        return 0.0 if any(known.get(a) == 0.0 for a in node.args) else None
    if is_reduction(node):
        value = known.get(node.args[0])
        return value if value == identity(str(node.attrs["kind"]), node.dtype) else None
    return known_value(node, known)


def guarded_states(edit: Edit, block: Block, test: Node) -> list[Node] | None:
    """Rewrites the body of an online loop so that an iteration leaves the states unchanged if
    `test` is false. Returns the new results of the body.

    If -inf in place of one part hides an iteration from all states, only this part is masked.
    None if the body is not in the form of states.
    """
    states = states_of(block)
    if states is None:
        return None
    alone = next((s.part for s in states if _hides_all(block, s)), None)
    known: dict[Node, Node] = {}
    if alone is not None:
        lowest = constant(-math.inf, alone.dtype)
        known[alone] = edit.locate(alone, make("select", (test, alone, lowest)))
    for _, kept, part, new in states:
        rest, own = edit.values([kept, part], known, block)
        if alone is None:
            own = edit.locate(new, make("select", (test, own, identity_like(new))))
        known[new] = edit.note(new, make(new.op, (rest, own)))
    return [known[r] for r in block.results]


def _hides_all(block: Block, state: State) -> bool:
    """True if -inf as the part of a scalar maximum hides an iteration from all states."""
    is_max = KIND_OF[state.new.op] == "max" and state.new.dtype.is_float
    return is_max and not state.part.tensor.rank and hides(block, state.part, -math.inf)
