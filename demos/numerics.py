"""Effects of rounding: formats, orders of summation, small gradients, reproducible bits.

python -m stack.demos.numerics
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import stack
from stack.explore.table import table
from stack.ops.qgemm.formats import E2M1, E4M3, E5M2

Array = np.ndarray
COUNT = 1 << 18


def in_order(x: Array) -> float:
    """Sums in order."""
    return float(np.add.accumulate(x, dtype=np.float32)[-1])


def pairwise(x: Array) -> float:
    """Adds halves recursively: the error grows with log n (Higham, section 4.2)."""
    while len(x) > 1:
        x = x[0::2] + x[1::2]
    return float(x[0])


def compensated(x: Array) -> float:
    """Sums in order, and also sums the rounding errors (Kahan 1965, Neumaier 1974)."""
    total = lost = np.float32(0)
    for value in x:
        new = total + value
        lost += (total - new) + value if abs(total) >= abs(value) else (value - new) + total
        total = new
    return float(total + lost)


def compiled(x: Array) -> float:
    """Runs our kernel: vectors of partial sums, on each thread."""
    func = stack.parse(
        f"func @f(%x: f32[{len(x)}]) -> (f32[]) at tensor {{\n"
        '  %s = reduce(%x) {axes=[0], kind="sum"} : f32[]\n  return %s\n}'
    )
    return float(np.asarray(stack.compile(func)(x)))


def sums(count: int = COUNT) -> tuple[str, dict[str, float]]:
    """Returns the relative errors of one f32 sum, computed in several orders."""
    x = np.random.default_rng(0).uniform(0, 1, count).astype(np.float32)
    exact = math.fsum(x)
    orders: tuple[Callable[[Array], float], ...] = (in_order, pairwise, compensated, compiled)
    errors = {f.__name__: abs(f(x) - exact) / exact for f in orders}
    rows = [[name.replace("_", " "), f"{error:.1e}"] for name, error in errors.items()]
    return table([f"sum of {count} numbers", "error"], rows), errors


def formats() -> str:
    """Lists the step above 1, the largest number, and the smallest positive one of each format."""
    rows: dict[str, tuple[float, float, float]] = {
        "float32": _held(np.float32),
        "bfloat16": (2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-133),
        "float16": _held(np.float16),
    }
    for name, small in (("E4M3", E4M3), ("E5M2", E5M2), ("E2M1", E2M1)):
        values = np.unique(np.abs([v for v in small.values if np.isfinite(v)]))
        step = values[np.searchsorted(values, 1.0) + 1] - 1.0
        rows[name] = float(step), float(small.largest), float(values[1])
    lines = [[name, *(f"{v:.2g}" for v in row)] for name, row in rows.items()]
    return table(["format", "step at 1", "largest", "smallest"], lines)


def _held(dtype: type[np.floating[Any]]) -> tuple[float, float, float]:
    info = np.finfo(dtype)
    return float(info.eps), float(info.max), float(info.smallest_subnormal)


def scaled(gradient: float = 1e-8, scale: float = 2.0**16) -> tuple[float, float]:
    """Passes a gradient through f16: unscaled, and scaled before and after (loss scaling)."""
    return float(np.float16(gradient)), float(np.float32(np.float16(gradient * scale)) / scale)


def steps_of_training(count: int = 1000, step: float = 1e-3) -> tuple[float, float]:
    """Adds many small steps to 1 in bf16, with nearest and with stochastic rounding."""
    rng = np.random.default_rng(0)
    nearest = random = 1.0
    for _ in range(count):
        nearest = _bfloat16(nearest + step, 0.5)
        random = _bfloat16(random + step, rng.uniform())
    return nearest, random


def _bfloat16(value: float, up: float) -> float:
    """Rounds to bf16: up if the truncated part is at least `up` of a step, else down."""
    size = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
    low = math.floor(value / size)
    return (low + (value / size - low >= up)) * size


def main() -> int:
    """Prints errors of sums, number formats and training steps; returns 1 if a check fails."""
    print(formats() + "\n")
    text, errors = sums()
    print(text + "\n")
    plain, kept = scaled()
    print(f"a gradient of 1e-8 in f16: {plain:g}; times 65536 before, divided after: {kept:.3g}")

    nearest, random = steps_of_training()
    print(f"1 + 1000 x 0.001 in bf16: {nearest:g} to nearest, {random:g} rounded at random")
    x = np.random.default_rng(1).standard_normal(COUNT).astype(np.float32)
    same = len({compiled(x) for _ in range(3)}) == 1
    print(f"the compiled sum is bitwise reproducible: {same}")
    sound = errors["compensated"] < 1e-7 and errors["compiled"] < errors["in_order"]
    sound &= plain == 0 < kept and nearest == 1 and abs(random - 2) < 0.2 and same
    print("all of it holds" if sound else "something does not hold")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
