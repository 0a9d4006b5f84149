"""Scans of an associative function: by doubling, and as an operator of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy

from stack.errors import RuleError, UsageError
from stack.hosted import Op, op

Values = tuple[Any, ...]
Combine = Callable[..., Values]  # (numpy, earlier values, later values) -> values


def gate_combine(np: Any, earlier: Values, later: Values) -> Values:
    """h -> a h + b, one after the other: a2 (a1 h + b1) + b2."""
    (a1, b1), (a2, b2) = earlier, later
    return a1 * a2, a2 * b1 + b2


def segment_combine(np: Any, earlier: Values, later: Values) -> Values:
    """A sum that a start in the later part cuts off from the earlier one."""
    (start1, sum1), (start2, sum2) = earlier, later
    return start1 | start2, np.where(start2, sum2, sum1 + sum2)


def doubled(np: Any, combine: Combine, values: Values, axis: int = -1) -> Values:
    """Running combinations along an axis, the last or the last but one.

    Step k combines each element with what stands 2^k before it, so that log2(n) steps do: Hillis
    and Steele, "Data parallel algorithms", 1986. Raises RuleError where the length is not known.
    """
    length = values[0].shape[axis]
    if not isinstance(length, int):
        raise RuleError(f"the length of a scan is a number, not {length}")
    rest = (slice(None),) * (-1 - axis)
    distance = 1
    while distance < length:
        earlier = tuple(v[(..., slice(None, -distance), *rest)] for v in values)
        later = tuple(v[(..., slice(distance, None), *rest)] for v in values)
        heads = (v[(..., slice(None, distance), *rest)] for v in values)
        made = combine(np, earlier, later)
        values = tuple(np.concatenate([h, m], axis=axis) for h, m in zip(heads, made, strict=True))
        distance *= 2
    return values


def sequential(combine: Combine, values: Values) -> Values:
    """The same one after the other, on NumPy arrays along the last axis: what it means."""
    out = tuple(v.copy() for v in values)
    for t in range(1, out[0].shape[-1]):
        now = combine(numpy, tuple(o[..., t - 1] for o in out), tuple(v[..., t] for v in values))
        for o, value in zip(out, now, strict=True):
            o[..., t] = value
    return out


def check_associative(combine: Combine, count: int, tolerance: float = 1e-6) -> None:
    """Hold (a b) c against a (b c) on sampled values. Raises UsageError with what differs."""
    rng = numpy.random.default_rng(0)
    a, b, c = (tuple(rng.uniform(-2, 2, 64) for _ in range(count)) for _ in range(3))
    left = combine(numpy, combine(numpy, a, b), c)
    right = combine(numpy, a, combine(numpy, b, c))
    for number, (x, y) in enumerate(zip(left, right, strict=True)):
        wrong = numpy.flatnonzero(numpy.abs(x - y) > tolerance * (1 + numpy.abs(x)))
        if wrong.size:
            place = int(wrong[0])
            raise UsageError(
                f"the function of a scan is associative; of a = {_shown(a, place)}, b ="
                f" {_shown(b, place)}, c = {_shown(c, place)} value {number} of (a b) c is"
                f" {x[place]:.6g}, of a (b c) {y[place]:.6g}"
            )


def _shown(values: Values, place: int) -> str:
    return "(" + ", ".join(f"{v[place]:.4g}" for v in values) + ")"


def associative(name: str, combine: Combine, operands: tuple[str, ...] = ("x",)) -> Op:
    """An operator that scans along the last axis of float arrays by a function of one's own.

    Args:
        name: "family.operator".
        combine: `(numpy, earlier, later) -> values`, on tuples of an array for each operand.

    Raises:
        UsageError: it is not associative on sampled values.
    """
    check_associative(combine, len(operands))
    rule = f"{', '.join(['... n~'] * len(operands))} -> {', '.join(['... n~'] * len(operands))}"

    def scan(np: Any, *values: Any) -> Any:
        out: Any = doubled(np, combine, values)
        return out if len(out) > 1 else out[0]

    def reference(*values: Any) -> Any:
        out: Any = sequential(combine, values)
        return out if len(out) > 1 else out[0]

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    scan.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [inspect.Parameter(n, kind) for n in ("np", *operands)]
    )
    scan.__doc__ = f"A scan along the last axis by {combine.__name__}: {inspect.getdoc(combine)}"
    return op(name, rule=rule, reference=reference)(scan)
