"""Stabilizers: values of states that can be r in a - r, so that a - r stays small.

A running max or min bounds its elements. A running sum over the running count is a mean, and so is
one running sum over another. Any other r would subtract large numbers from each other, which the
two loops of the function do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stack.ir import ops
from stack.ir.node import Node
from stack.ir.traits import (
    choice,
    divides,
    equates,
    is_constant,
    is_elementwise,
    is_reduction,
    multiplies,
    shows,
    splat,
)
from stack.passes.streaming.region import Region
from stack.passes.streaming.terms import (
    Exp,
    Factor,
    Form,
    Power,
    ScaledStabilizer,
    Shift,
    Stabilizer,
    TermValue,
)


def find_stabilizer(
    region: Region, forms: Mapping[Node, Form], number: float, row: TermValue
) -> tuple[ScaledStabilizer, bool] | None:
    """Returns `number * row` as a number times a stabilizer, and True if the function replaces the
    infinities of that row. None if the row is no running max, min or mean, and no ratio of running
    sums."""
    inner, guarded = unguarded(row.node)
    source, factor = _multiple(row.node)
    if any((n.dtype.bits == 64) != (row.node.dtype.bits == 64) for n in (inner, source)):
        return None  # computed in another width
    if inner in forms and is_reduction(inner) and inner.attrs["kind"] in ("max", "min"):
        if not _is_state(forms[inner]):
            return None
        stabilizer = Stabilizer("bound", inner, TermValue(inner, region.members[inner]))
        return ScaledStabilizer(number, stabilizer), guarded
    if source in forms and is_reduction(source) and source.attrs["kind"] == "sum":
        if isinstance(region.extent, int) and region.extent and _is_state(forms[source]):
            stabilizer = Stabilizer("mean", source, TermValue(source, region.members[source]))
            return ScaledStabilizer(_rounded(number * factor * region.extent), stabilizer), False
    below = _divisor(region, forms, source, row)
    if below is None:
        return None
    value = row if source is row.node else TermValue(source, row.names)
    return ScaledStabilizer(
        _rounded(number * factor), Stabilizer("ratio", source, value, below)
    ), False


def _is_state(form: Form) -> bool:
    """True if a reduction's value is one state (running value) itself: times 1, and times no other
    value."""
    return len(form) == 1 and form[0].number == 1 and not form[0].rows


def _rounded(number: float) -> float:
    """Returns the nearest integer if a number is closer to it than 1e-6, as size * (1 / size) is to
    1; else the number."""
    near = round(number)
    return float(near) if abs(number - near) < 1e-6 else number


def _divisor(
    region: Region, forms: Mapping[Node, Form], source: Node, row: TermValue
) -> TermValue | None:
    """Returns the running sum by which another running sum is divided to give a row; None for other
    rows."""
    if source in forms:
        form = forms[source]
        rows = form[0].rows if len(form) == 1 and form[0].state is not None else ()
        powers = [r for r in rows if isinstance(r, Power)]
        only = powers[0] if len(powers) == 1 else None
        if only is not None and only.power == -1 and only.value.node in forms:
            return only.value
        return None
    if divides(source) and all(_multiple(a)[0] in forms for a in source.args):
        below = _multiple(source.args[1])[0]
        return TermValue(below, region.members[below])
    return None


def stabilizers(factors: Sequence[Factor]) -> list[Stabilizer]:
    """Returns the stabilizers r of all factors exp(a - r) and a - r, each once."""
    held = [f for f in factors if isinstance(f, Exp | Shift)]
    return list(dict.fromkeys(s.stabilizer for f in held for s in f.r))


def unguarded(node: Node) -> tuple[Node, bool]:
    """Returns a row without views and ops that only replace infinities, and True if one of these
    ops is a select."""
    guarded = False
    while True:
        position = inside_guard(node)
        if position is None:
            return node, guarded
        guarded |= choice(node) is not None
        node = node.args[position]


def inside_guard(node: Node) -> int | None:
    """Returns the number of the operand to which a node is equal, up to views, wherever that is
    finite: it only replaces infinities. None if it does more."""
    neutral = ops.algebra_of(node).neutral.get(1, 0.0)
    is_kept = math.isinf(neutral) and splat(node.args[1]) == neutral  # max(x, -inf), min(x, inf)
    if shows(node) or is_kept:
        return 0
    chosen = choice(node)
    if chosen is None:
        return None
    if _tests_finite(chosen.test, chosen.yes):
        return 1
    return 2 if _tests_infinite(chosen.test, chosen.no) else None


def _multiple(node: Node) -> tuple[Node, float]:
    """Follows a row back through views, and through multiplications and divisions by constants.
    Returns the value that it is a multiple of, and the number."""
    number = 1.0
    while True:
        other = splat(node.args[1]) if len(node.args) == 2 else None
        if shows(node):
            node = node.args[0]
        elif multiplies(node) and isinstance(other, float):
            node, number = node.args[0], number * other
        elif divides(node) and isinstance(other, float) and other:
            node, number = node.args[0], number / other
        else:
            return node, number


def _tests_finite(test: Node, value: Node) -> bool:
    """True if a test fails only for infinities or nan."""
    if test.op == "isfinite":
        return test.args[0] is value
    limits = {"ne": (-math.inf, math.inf), "gt": (-math.inf,), "lt": (math.inf,)}
    return _compares(test, value, limits.get(test.op, ()))


def _tests_infinite(test: Node, value: Node) -> bool:
    """True if a test fails for every finite value."""
    if not equates(test):
        return False
    size = test.args[0]
    if size.op == "abs" and size.args[0] is value:
        return splat(test.args[1]) == math.inf
    return _compares(test, value, (-math.inf, math.inf))


def _compares(test: Node, value: Node, limits: Sequence[float]) -> bool:
    return len(test.args) == 2 and test.args[0] is value and splat(test.args[1]) in limits


def may_be_infinite(node: Node, seen: set[Node]) -> bool:
    """True if a value may be -inf, as far as ops and constants show."""
    if node in seen:
        return False  # already checked
    seen.add(node)
    if is_constant(node) and node.dtype.is_float:
        return not bool(np.isfinite(node.attrs["value"].array).all())
    facts = ops.algebra_of(node)
    if not node.dtype.is_float or facts.range[0] > -math.inf:
        return False
    if not (is_elementwise(node) or ops.is_whole_view(node)):
        return True
    if facts.pole and (len(node.args) == 1 or splat(node.args[1]) in (None, 0)):
        return True
    return any(may_be_infinite(a, seen) for a in node.args)
