"""Step 2 of the streaming rewrite: the correction of states when earlier states change.

For the summand F(x, r) of a state, F(x, r') = A(r, r') F(x, r) holds for all x:

    exp(a - r)      times exp(r - r')
    [a = r]         times [r = r'], where r bounds a
    (a - r) ** d    with its lower powers: binomial in (r - r')
    products        the product of both

so A alone corrects the running sums of F.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product as choices
from math import comb, prod

from stack.ir.builder import constant, make, param
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.types import Type
from stack.passes.streaming.normal_form import NormalForm, vanishes, without
from stack.passes.streaming.render import Render
from stack.passes.streaming.terms import (
    Exp,
    Names,
    Refusal,
    ScaledStabilizer,
    Shift,
    State,
    TieFactor,
)


def correct_block(normal: NormalForm, types: Mapping[State, Type]) -> Block:
    """Returns the block `correct` of a stream: old states as if computed with the new values.
    Each result has the source lines of its state."""
    states, old_locs = normal.states, normal.graph.block.locs
    old = {s: param(f"old{i}", types[s]) for i, s in enumerate(states)}
    new = {s: param(f"new{i}", types[s]) for i, s in enumerate(states)}
    action = _Action(normal, old, new)
    made = {s: action.corrected(s) for s in states}
    locs = {made[s]: old_locs[s.source] for s in states if s.source in old_locs}
    return Block([*old.values(), *new.values()], list(made.values()), {}, locs)


def _no_memory(node: Node, shape: tuple[Dim, ...]) -> Node:
    raise Refusal(f"the correction depends on {node.op!r}, which is not a state")


class _Action:
    def __init__(
        self, normal: NormalForm, old: Mapping[State, Node], new: Mapping[State, Node]
    ) -> None:
        self.normal = normal
        self.old = Render(normal, _no_memory, old, running=True)
        self.new = Render(normal, _no_memory, new, running=True)

    def corrected(self, state: State) -> Node:
        """Returns one old state, corrected for the new values of the earlier ones."""
        total = self._shifted(state)
        for factor in state.all_factors:
            if isinstance(factor, Exp):
                total = make("mul", (total, self._ratio(factor, state.names)))
            elif isinstance(factor, TieFactor):
                total = make("mul", (total, self._stays(factor, state.names, total)))
        return total

    def _stays(self, factor: TieFactor, names: Names, like: Node) -> Node:
        """Returns [r = r'], the correction of a tie: 1 if the bound is unchanged.

        Otherwise it is 0, since elements equal to the old bound do not equal the new one.
        """
        (old, own), (new, _) = self.old.bound(factor.bound), self.new.bound(factor.bound)
        same = make("eq", (old, new))
        return self.old.spread(
            make("cast", (same,), hint=same.tensor.with_dtype(like.dtype)), own, names
        )

    def _ratio(self, factor: Exp, names: Names) -> Node:
        """Returns exp(r - r'), the correction of a factor exp(a - r).

        The old bound is not guarded: if it is -inf, no element was added yet, and the result is 0.
        """
        inside = self._moved(factor.r, raw=True)
        return self.old.spread(make(factor.op, (inside,)), self._names(factor.r), names)

    def _moved(self, r: tuple[ScaledStabilizer, ...], raw: bool) -> Node:
        """Returns r - r', the old minus the new value of the reference that a term subtracts. If
        `raw` is false, it is 0 for a running max or min that has seen no finite element yet."""
        names = self._names(r)
        total: Node | None = None
        for scaled in r:
            stabilizer = scaled.stabilizer
            own = self.old.names(stabilizer.value)
            after = self.new.stabilizer(stabilizer)
            if stabilizer.kind != "bound":
                moved = make("sub", (self.old.stabilizer(stabilizer), after))
            else:
                source = self.normal.source_state(stabilizer)
                held = self.old.spread(self.old.states[source], source.names, own)
                moved = make("sub", (held, after))
                if not raw:
                    # before the first element there is nothing to correct
                    empty = self.old.spread(self.old.is_infinite(stabilizer), source.names, own)
                    moved = make("select", (empty, constant(0.0, moved.dtype), moved))
            moved = self.old.spread(moved, own, names)
            total = self.old.plus(total, scaled.number, moved)
        assert total is not None
        return total

    def _names(self, r: tuple[ScaledStabilizer, ...]) -> Names:
        """Returns the axes of r: those of the stabilizer with the most axes."""
        return max((self.old.names(s.stabilizer.value) for s in r), key=len)

    def _shifted(self, state: State) -> Node:
        """Returns a state that sums powers (a - r) ** p, corrected for the new r': the sum over i
        of C(p, i) (r - r') ** (p - i) times the state with power i."""
        shifts = Counter(f for f in state.all_factors if isinstance(f, Shift) and f.r)
        total = self.old.states[state]
        moved = {f: self._moved(f.r, raw=False) for f in shifts}
        for lost in choices(*(range(p + 1) for p in shifts.values())):
            if not any(lost):
                continue
            lower = state
            part: Node | None = None
            for shift, times in zip(shifts, lost, strict=True):
                for _ in range(times):
                    lower = without(lower, shift)
                step = self.old.spread(moved[shift], self._names(shift.r), state.names)
                for _ in range(times):
                    part = step if part is None else make("mul", (part, step))
            number = prod(comb(p, i) for p, i in zip(shifts.values(), lost, strict=True))
            assert part is not None
            held = self._lower(lower)
            if held is None:
                continue
            if number != 1:
                part = make("mul", (part, constant(float(number), part.dtype)))
            below, names = held
            below = self.old.spread(below, names, state.names)
            total = make("add", (total, make("mul", (below, part))))
        return total

    def _lower(self, state: State) -> tuple[Node, Names] | None:
        """Returns the old value of a state with a lower power of (a - r), and its axes.

        None if it is 0 by definition, as the sum of all deviations from the mean.
        """
        if vanishes(state):
            return None
        if state.kind == "sum" and not state.factors:
            state = State("count", state.names, state.space, (), state.source)
        held = next(s for s in self.normal.states if s == state)
        return self.old.states[held], held.names
