"""The states of an online loop: carried values that iterations rescale, then add to.

    %new = max(%old, %x)                                           kept %old, part %x
    %new_1 = add(mul(%old_1, exp(sub(%old, %new))), exp(...))      kept mul(...), part exp(...)

The part is what the iteration contributes; it does not depend on carried values, except through the
new values of other states. What is kept depends on carried values, but not on the iteration, except
through new values.

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
from stack.ir.builder import constant, filled, make, remade
from stack.ir.equivalence import once_in
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node, topological
from stack.ir.space import identity
from stack.ir.traits import is_contraction, is_loop, is_memory, is_reduction, multiplies, signs
from stack.passes.positions.visibility import fills_that_hide, follow, known_value
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import is_constant


class State(NamedTuple):
    """A carried value that iterations rescale, then add to.

    Attributes:
        held: the variable that carries it.
        kept: the value before the iteration, rescaled to the new values of other states.
        part: what the iteration contributes.
        new: the value after the iteration: `kept` combined with `part`.
    """

    held: Node
    kept: Node
    part: Node
    new: Node

    @property
    def none(self) -> Node:
        """The identity of the op that updates a state: 0 for a sum, -inf for a maximum."""
        return identity_like(self.new)


def is_online(loop: Node) -> bool:
    """True if iterations of a loop rescale what they carry, in an associative way."""
    return bool(loop.attrs.get("online"))


class RescaledSum(NamedTuple):
    """The update of a carried sum by an iteration, before its own contribution is added: `sum *
    factor + addend`.

    Attributes:
        factor: None for 1.
        addend: None for 0.
    """

    factor: Node | None = None
    addend: Node | None = None


def scaled(block: Block, state: State) -> RescaledSum | None:
    """Returns how an iteration updates a state that is a sum: `sum * factor + addend`.

    None for other updates, and if anything but its own update reads the state.
    """
    held, kept, _, new = state
    own = set(topological([new]))
    is_read = any(n not in own and (held in n.args or new in n.args) for n in block.nodes)
    if KIND_OF[new.op] != "sum" or is_read or block.results.count(new) != 1:
        return None
    addend: Node | None = None
    if signs(kept) == (1, 1):
        for first, rest in (kept.args, kept.args[::-1]):
            if held in first.vars and held not in rest.vars:
                kept, addend = first, rest
                break
    if kept is held:
        return RescaledSum(None, addend)
    if multiplies(kept):
        for first, factor in (kept.args, kept.args[::-1]):
            if first is held and held not in factor.vars:
                return RescaledSum(factor, addend)
    return None


def is_associative(loop: Node) -> bool:
    """True if a loop is online or carries only totals: parts may be combined first."""
    if is_online(loop):
        return True
    block = loop.blocks[0]
    states = states_of(block)
    return bool(states) and all(s.kept is s.held for s in states or ())


def serial_like(*loops: Node) -> dict[str, object]:
    """Returns the attributes of a serial loop that replaces others: `online` if one is, `overlap`
    if all do.
    """
    attrs: dict[str, object] = {"kind": "serial"}
    if any(map(is_online, loops)):
        attrs["online"] = True
    if all(loop.attrs.get("overlap") for loop in loops):
        attrs["overlap"] = True
    return attrs


def in_order(loop: Node, updates: Mapping[Node, Node]) -> Node:
    """Returns a loop with updates in its body that need its iterations in order."""
    block = loop.blocks[0]
    results = [updates.get(r, r) for r in block.results]
    made = Block(block.params, results, block.names, block.locs)
    attrs = {name: value for name, value in loop.attrs.items() if name != "online"}
    return loop.rebuilt(attrs=attrs, blocks=[made])


def identity_like(total: Node) -> Node:
    """Returns the identity of the op `total`, such as 0 for an addition, with the same type."""
    none = constant(identity(KIND_OF[total.op], total.dtype), total.dtype)
    return filled(none, total)


def is_none(start: Node, op: str) -> bool:
    """True if a value is a constant, the identity of op `op`, as 0 is of an addition."""
    return is_constant(start, identity(KIND_OF[op], start.dtype))


def total_of(loop: Node) -> State | None:
    """Returns the only carried value of a loop, if each iteration just combines its contribution
    with it and the loop starts from the identity. None for other loops.
    """
    states = states_of(loop.blocks[0]) or []
    if len(states) != 1 or states[0].kept is not states[0].held:
        return None
    return states[0] if is_none(starts_of(loop)[0], states[0].new.op) else None


@once_in
def states_of(block: Block) -> list[State] | None:
    """Returns the states that the body of a loop updates (carried values that are rescaled, then
    added to), each after those whose new value it reads.

    None if the loop carries memory, or a value that is updated in another way.
    """
    var, *held = block.params
    cuts = {n: Node("var", (), {"name": f"new.{i}"}, n.type) for i, n in enumerate(block.results)}
    found: list[State] = []
    for variable, new in zip(held, block.results, strict=True):
        if is_memory(variable) or new.op not in KIND_OF or len(new.args) != 2:
            return None
        known = {n: cut for n, cut in cuts.items() if n is not new}
        done = remade(new.args, known)
        used = {a: done[a].vars for a in new.args}
        sides = ((k, p) for k, p in (new.args, new.args[::-1]) if used[p].isdisjoint(held))
        side = next((s for s in sides if variable in used[s[0]] and var not in used[s[0]]), None)
        if side is None:
            return None
        found.append(State(variable, *side, new))
    order = {n: i for i, n in enumerate(block.nodes)}
    return sorted(found, key=lambda state: order[state.new])


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


def hidden_value(node: Node, known: Mapping[Node, float]) -> float | None:
    """Returns the value that operands in `known` determine; None for no certain value."""
    if is_loop(node):
        total = total_of(node)
        value = known.get(total.part) if total is not None else None
        is_none = total is not None and value == identity(KIND_OF[total.new.op], total.new.dtype)
        return value if is_none else None
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
    maxima = (s.part for s in states if KIND_OF[s.new.op] == "max" and s.new.dtype.is_float)
    scalars = (part for part in maxima if not part.tensor.rank)
    alone = next((part for part in scalars if hides(block, part, -math.inf)), None)
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
