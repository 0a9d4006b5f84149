"""Judges results: how far they are from the expected ones, and how far a rule may go."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.types import DType

# maximum error of a program, relative to the largest finite value of the result
TOLERANCE = {"f16": 2e-2, "bf16": 5e-2, "f32": 2e-4, "f64": 1e-9, "c64": 2e-4, "c128": 1e-9}
# and of a pass: sums in another order, no other formula
ROUNDING = {**TOLERANCE, "f32": 2e-5, "c64": 2e-5}
OWN = 4  # the error that is always allowed, relative to the program's own error of rounding


class CheckError(StackError):
    """A pass changed the results of a function."""


@dataclass(frozen=True)
class Inexact:
    """The allowed difference of results after a rule that is inexact by design.

    Attributes:
        error: largest error, relative to the largest value of a result, if it is above `ROUNDING`.
        finite: True if the rule holds for finite inputs only: others are not judged.
        native: True for code of a backend, which may approximate functions: `TOLERANCE` holds.
        wider: True if intermediate values may have more range and precision than in the program.
            Then two kinds of elements are not judged: those that are infinite or nan in the program
            though all inputs are finite, since an intermediate value overflowed, and those that
            the program itself computes differently in double precision.
    """

    error: float = 0.0
    wider: bool = False
    native: bool = False
    finite: bool = False

    def __or__(self, other: Inexact) -> Inexact:
        """Returns the difference of results that is allowed after rules with either allowance were
        applied.
        """
        wider, native = self.wider or other.wider, self.native or other.native
        finite = self.finite or other.finite
        return Inexact(max(self.error, other.error), wider, native, finite)

    def limit(self, dtype: DType) -> float:
        """The largest error of a result that is accepted."""
        usual = (TOLERANCE if self.native else ROUNDING).get(dtype.name, 0.0)
        return max(usual, self.error) if dtype.kind in "fc" else usual


EXACT = Inexact()
WIDER = Inexact(wider=True)
FINITE = Inexact(finite=True)
NATIVE = Inexact(native=True)


def difference(expected: Any, found: Any, dtype: DType) -> float:
    """Returns the largest absolute difference, divided by the largest finite expected value. It is
    inf if types or shapes differ, and for the wrong nan, infinity, integer or bool.

    nan matches nan, and an infinity matches the same infinity.
    """
    want, have = np.asarray(expected), np.asarray(found)
    return math.inf if want.dtype != have.dtype else relative_error(want, have, dtype)


def relative_error(want: np.ndarray, have: np.ndarray, dtype: DType) -> float:
    """Like `difference`, but accepts arrays whose element types differ in precision."""
    if want.shape != have.shape:
        return math.inf
    return float(errors(want, have, dtype, by_element=False).max(initial=0))


def errors(want: np.ndarray, have: np.ndarray, dtype: DType, by_element: bool = True) -> np.ndarray:
    """Returns the error of each element, relative to its own value: the `relative_error` that it
    would have alone. Without `by_element`, relative to the largest finite value of all.
    """
    if dtype.kind not in "fc":
        return np.where(want == have, 0.0, math.inf)
    want, have = _wide(want, dtype), _wide(have, dtype)
    same, finite = _same(want, have), np.isfinite(want) & np.isfinite(have)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(np.where(same, 0, want - have)) / _scale(want, by_element)
    return np.where(same | finite, off, math.inf)


def is_ill_conditioned(want: np.ndarray, exact: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns a mask of the elements of the program's result `want` that differ by more than the
    tolerance from `exact`, the result in double precision.
    """
    want, exact = _wide(want, dtype), _wide(exact, dtype)
    with np.errstate(invalid="ignore"):
        near = np.abs(want - exact) <= TOLERANCE.get(dtype.name, 0.0) * _scale(want, False)
    return ~(_same(want, exact) | near)


def _wide(array: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # a signalling nan, as a bitcast makes
        return array.astype(np.complex128 if dtype.kind == "c" else np.float64)


def _same(want: np.ndarray, have: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return (np.isnan(want) & np.isnan(have)) | (want == have)


def _scale(want: np.ndarray, by_element: bool) -> np.ndarray:
    """Returns what errors are relative to: the size of each element, or the largest of them."""
    with np.errstate(invalid="ignore"):
        sizes = np.where(np.isfinite(want), np.abs(want), 0)
    return np.maximum(sizes if by_element else sizes.max(initial=0), 1e-30)


def as_list(results: Any) -> list[Any]:
    """Results of `interpret` as a list."""
    return [*results] if isinstance(results, tuple) else [results]  # pyright: ignore[reportUnknownArgumentType]
