"""Programs of 16-bit floats in which each rounding shows, for passes and backends."""

from __future__ import annotations

import numpy as np

from stack.ir import Builder, Func, param, parse, tensor
from stack.ir.data import round_bf16


def chain(dtype: str) -> Func:
    """Sums and products that lose digits at each step, a sum of them along rows beside it."""
    b = Builder()
    x, y = (param(n, tensor(dtype, 6, 40)) for n in "xy")
    grown = b.mul(b.add(x, y), y)
    left = b.sub(grown, x)
    return b.func("main", [x, y], [left, b.reduce(b.mul(left, left), kind="sum", axes=(1,))])


def numbers(dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    made = [rng.normal(size=(6, 40)).astype(np.float32) for _ in "xy"]
    return [round_bf16(a) if dtype == "bf16" else a.astype(np.float16) for a in made]


def in_f32(func: Func, arrays: list[np.ndarray], dtype: str) -> list[np.ndarray]:
    """With one rounding, of the results."""
    text = str(func).replace(f"{dtype}[", "f32[")
    found = parse(text).interpret(*(a.astype(np.float32) for a in arrays))
    return [round_bf16(f) if dtype == "bf16" else f.astype(np.float16) for f in found]
