"""The numerical check: compares a function's results before and after a pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.data import round_bf16
from stack.ir.dim import INF
from stack.ir.node import Func
from stack.ir.types import BF16, DType, TensorType

# maximum error, relative to the largest finite value of the result
TOLERANCE = {"f16": 2e-2, "bf16": 5e-2, "f32": 2e-4, "f64": 1e-9, "c64": 2e-4, "c128": 1e-9}


class CheckError(StackError):
    """A pass changed the results of a function."""


def sample_sizes(func: Func, rng: np.random.Generator) -> dict[str, int]:
    """A small value within the bounds for every size symbol."""
    sizes: dict[str, int] = {}
    for s in func.symbols:
        step = max(1, s.multiple)
        low = -(-s.low // step)
        high = min(s.high if s.high != INF else 1 << 40, s.low + 6 * step) // step
        sizes[s.name] = step * int(rng.integers(low, max(low, high) + 1))
    return sizes


def random_array(type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Normal floats, 0 or 1 for integers (they may be indices), random bools."""
    shape = tuple(int(d) for d in type_.shape if isinstance(d, int))
    dtype: DType = type_.dtype
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape) == 1)
    if dtype.is_integer or dtype.kind == "s":
        return np.asarray(rng.integers(0, 2, shape), dtype=dtype.numpy)
    if dtype.kind == "c":
        values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        return np.asarray(values, dtype=dtype.numpy)
    values = np.asarray(rng.standard_normal(shape), dtype=dtype.numpy)
    return round_bf16(values) if dtype is BF16 else values


def random_inputs(
    func: Func, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """One array for each parameter. Size symbols take small values."""
    rng = np.random.default_rng(seed)
    chosen = dict(sizes) if sizes is not None else sample_sizes(func, rng)
    bound = func.bind(chosen) if chosen else func
    return [random_array(p.tensor, rng) for p in bound.params]


def difference(expected: Any, found: Any, dtype: DType) -> float:
    """Largest difference relative to the largest finite expected value; inf for a mismatch.

    nan matches nan, and an infinity matches the same infinity. Integers and bools must be equal.
    """
    want, have = np.asarray(expected), np.asarray(found)
    if want.shape != have.shape or want.dtype != have.dtype:
        return math.inf
    if dtype.kind not in "fc":
        return 0.0 if np.array_equal(want, have) else math.inf
    wide = np.complex128 if dtype.kind == "c" else np.float64
    want, have = want.astype(wide), have.astype(wide)
    finite = np.isfinite(want)
    same = np.isnan(want) & np.isnan(have)
    with np.errstate(invalid="ignore"):
        same |= want == have
    if not np.all(same | (finite & np.isfinite(have))):
        return math.inf
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(want[finite]).max()), 1e-30)
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.where(same, 0, want - have)).max()) / scale


class Checker:
    """Interprets a function once and compares the results of later passes with it."""

    def __init__(self, func: Func, seed: int = 0) -> None:
        self.func = func
        self.skipped = ""
        self.inputs: list[np.ndarray] = []
        self.expected: list[Any] = []
        try:
            self.inputs = random_inputs(func, seed)
            self.expected = as_list(func.interpret(*self.inputs))
        except (StackError, TypeError, ValueError, IndexError) as error:
            self.skipped = f"not checked: the interpreter cannot run @{func.name}: {error}"

    def compare(self, name: str, after: Func) -> float | None:
        """Largest relative error; None if the function cannot be interpreted.

        Raises CheckError if the error exceeds the tolerance.
        """
        if self.skipped or after.level != self.func.level:
            return None
        found = as_list(after.interpret(*self.inputs))
        worst = 0.0
        for i, (want, have) in enumerate(zip(self.expected, found, strict=True)):
            dtype = self.func.results[i].dtype
            error = difference(want, have, dtype)
            if error > TOLERANCE.get(dtype.name, 0.0):
                raise CheckError(
                    f"after pass {name!r}: result {i} of @{after.name} differs by {error:.3g}"
                    f" relative to its largest value (allowed {TOLERANCE.get(dtype.name, 0.0):.3g})"
                )
            worst = max(worst, error)
        return worst


def as_list(results: Any) -> list[Any]:
    """Results of `interpret` as a list."""
    return [*results] if isinstance(results, tuple) else [results]  # pyright: ignore[reportUnknownArgumentType]
