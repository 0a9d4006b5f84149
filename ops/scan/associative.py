"""Scans of an associative function, in blocks; declares an operator from a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from stack.errors import RuleError, UsageError
from stack.hosted import Op, op

BLOCK = 8  # elements that are combined sequentially
Values = tuple[Any, ...]
Combine = Callable[..., Values]  # (numpy, earlier values, later values) -> values


def gate_combine(np: Any, earlier: Values, later: Values) -> Values:
    """Composes two affine maps h -> a h + b, given as (a, b), to the map that applies `earlier`
    first: (a1 a2, a2 b1 + b2)."""
    (a1, b1), (a2, b2) = earlier, later
    return a1 * a2, a2 * b1 + b2


def segment_combine(np: Any, earlier: Values, later: Values) -> Values:
    """Combines two parts of a segmented sum, given as (start, sum). If the later part contains a
    segment start, its sum alone remains."""
    (start1, sum1), (start2, sum2) = earlier, later
    return start1 | start2, np.where(start2, sum2, sum1 + sum2)


def blocked(np: Any, combine: Combine, values: Values, axis: int = -1) -> Values:
    """Running combinations along an axis, which is given as a negative number.

    The elements of a block are combined sequentially, for all blocks at once. The totals of the
    blocks are scanned the same way and combined into the next blocks. This takes 2 n combinations
    and few levels, each of which becomes a kernel. Raises RuleError if the length is not known.
    """
    length = values[0].shape[axis]
    if not isinstance(length, int):
        raise RuleError(f"the length of a scan must be a number, not {length}")
    if length <= BLOCK:
        return _in_turn(np, combine, values, axis)
    whole = length - length % BLOCK
    head = _by_blocks(np, combine, _cut(values, axis, 0, whole), axis)
    if whole == length:
        return head
    tail = _in_turn(np, combine, _cut(values, axis, whole, length), axis)
    last = _spread(np, _cut(head, axis, whole - 1, whole), tail)
    return _joined(np, [head, combine(np, last, tail)], axis)


def _in_turn(np: Any, combine: Combine, values: Values, axis: int) -> Values:
    """Scans along an axis sequentially: combines each element with the result for all before it."""
    length = values[0].shape[axis]
    made = [_cut(values, axis, 0, 1)]
    for t in range(1, length):
        made.append(combine(np, made[-1], _cut(values, axis, t, t + 1)))
    return _joined(np, made, axis) if length > 1 else values


def _by_blocks(np: Any, combine: Combine, values: Values, axis: int) -> Values:
    """Scans an axis whose length is a multiple of BLOCK: all blocks, then their totals."""
    own = tuple(_reshaped(v, axis, (v.shape[axis] // BLOCK, BLOCK)) for v in values)
    own = _in_turn(np, combine, own, axis)
    totals = tuple(v[(..., BLOCK - 1, *_after(axis))] for v in own)
    upto = blocked(np, combine, totals, axis)
    count = upto[0].shape[axis]
    first, later = (_cut(own, axis - 1, *part) for part in ((0, 1), (1, count)))
    past = tuple(v[(..., None, *_after(axis))] for v in _cut(upto, axis, 0, count - 1))
    joined = _joined(np, [first, combine(np, _spread(np, past, later), later)], axis - 1)
    return tuple(v.reshape(*w.shape) for v, w in zip(joined, values, strict=True))


def _after(axis: int) -> tuple[slice, ...]:
    """Returns the slices that keep all axes after axis `axis`, a negative number, in a NumPy
    index."""
    return (slice(None),) * (-1 - axis)


def _cut(values: Values, axis: int, start: int, stop: int) -> Values:
    return tuple(v[(..., slice(start, stop), *_after(axis))] for v in values)


def _joined(np: Any, parts: Sequence[Values], axis: int) -> Values:
    return tuple(np.concatenate(list(p), axis=axis) for p in zip(*parts, strict=True))


def _spread(np: Any, values: Values, like: Values) -> Values:
    return tuple(np.broadcast_to(v, tuple(w.shape)) for v, w in zip(values, like, strict=True))


def _reshaped(x: Any, axis: int, sizes: tuple[int, int]) -> Any:
    place = x.ndim + axis
    return x.reshape(*x.shape[:place], *sizes, *x.shape[place + 1 :])


def sequential(combine: Combine, values: Values) -> Values:
    """A sequential scan of NumPy arrays along the last axis, which defines the result."""
    out = tuple(v.copy() for v in values)
    for t in range(1, out[0].shape[-1]):
        now = combine(numpy, tuple(o[..., t - 1] for o in out), tuple(v[..., t] for v in values))
        for o, value in zip(out, now, strict=True):
            o[..., t] = value
    return out


def check_associative(combine: Combine, count: int, tolerance: float = 1e-6) -> None:
    """Compare (a b) c with a (b c) on sampled values. Raises UsageError with an example."""
    rng = numpy.random.default_rng(0)
    a, b, c = (tuple(rng.uniform(-2, 2, 64) for _ in range(count)) for _ in range(3))
    left = combine(numpy, combine(numpy, a, b), c)
    right = combine(numpy, a, combine(numpy, b, c))
    for number, (x, y) in enumerate(zip(left, right, strict=True)):
        wrong = numpy.flatnonzero(numpy.abs(x - y) > tolerance * (1 + numpy.abs(x)))
        if wrong.size:
            place = int(wrong[0])
            raise UsageError(
                f"the function of a scan must be associative; for a = {_shown(a, place)}, b ="
                f" {_shown(b, place)}, c = {_shown(c, place)} value {number} of (a b) c is"
                f" {x[place]:.6g}, but that of a (b c) is {y[place]:.6g}"
            )


def _shown(values: Values, place: int) -> str:
    return "(" + ", ".join(f"{v[place]:.4g}" for v in values) + ")"


def associative(name: str, combine: Combine, operands: tuple[str, ...] = ("x",)) -> Op:
    """Declares an operator that scans float arrays along the last axis by a user's function.

    Args:
        name: "family.operator".
        combine: `(numpy, earlier, later) -> values`, on tuples with one array per operand.

    Raises:
        UsageError: `combine` is not associative on sampled values.
    """
    check_associative(combine, len(operands))
    rule = f"{', '.join(['... n~'] * len(operands))} -> {', '.join(['... n~'] * len(operands))}"

    def scan(np: Any, *values: Any) -> Any:
        out: Any = blocked(np, combine, values)
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
