"""An interpreter in f64 whose inexact values are a few roundings off: what that changes a lot, a
correct compiler may change too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from stack.ir import DType, Node
from stack.ir.data import Data
from stack.ir.space import NumpySpace
from stack.ir.types import TensorType

EPS = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-52}


class Noisy(NumpySpace):
    """Floats in f64; every result that is not a short number is moved by a few roundings."""

    def __init__(self, seed: int, size: float = 4) -> None:
        super().__init__()
        self.size = size
        self.rng = np.random.default_rng(seed)

    def dtype(self, dtype: DType) -> Any:
        return np.dtype("float64") if dtype.kind == "f" else super().dtype(dtype)

    def constant(self, data: Data) -> Any:
        return data.array.astype(self.dtype(data.dtype))

    def cast(self, x: Any, source: DType, target: DType) -> Any:
        return x != 0 if target.kind == "b" else x.astype(self.dtype(target))

    def elementwise(self, node: Node, *args: Any) -> Any:
        found = super(NumpySpace, self).elementwise(node, *args)
        extreme = node.op in ("max", "min") and node.dtype.kind == "f"
        return self.signed(found) if extreme else found

    def op_bitcast(self, node: Node, x: Any) -> Any:
        return super().op_bitcast(node, x.astype(node.args[0].dtype.numpy))

    def settle(self, value: Any, type_: TensorType) -> Any:
        if type_.dtype.kind != "f":
            return np.asarray(value).astype(type_.dtype.numpy)
        return self.moved(np.asarray(value, dtype=np.float64), type_.dtype)

    def moved(self, x: Any, dtype: DType) -> Any:
        """x with noise on what is not a short number."""
        if dtype.kind != "f":
            return x
        eps = EPS[dtype.name]
        noisy = x * (1 + self.size * eps * self.rng.uniform(-1, 1, np.shape(x)))
        return np.where(short(x, eps) | ~np.isfinite(x), x, noisy)

    # Sums round at every step, and partial sums may be larger than the result: the noise is that
    # of the sum of sizes.

    def summed(self, node: Node, meaning: Callable[..., Any], *args: Any) -> Any:
        """A sum with noise. `meaning` gives it, and of absolute values the sum of sizes."""
        total = meaning(*args)
        if node.dtype.kind != "f" or not self.size:
            return total
        eps = min(EPS[node.dtype.name], EPS["f32"])  # 16-bit numbers are summed in f32
        sizes = meaning(*(np.abs(a) for a in args))
        exact = all(short(a, eps).all() for a in args) & short(sizes, eps)
        noise = self.size * eps * sizes * self.rng.uniform(-1, 1, np.shape(total))
        return self.signed(np.where(exact | ~np.isfinite(sizes), total, total + noise))

    def signed(self, x: Any) -> Any:
        """Zeros of any sign: that of a sum or of the larger of two zeros is not specified."""
        if not self.size:
            return x
        return np.where(x == 0, self.rng.choice([0.0, -0.0], np.shape(x)), x)

    def combined(self, node: Node, meaning: Callable[..., Any], x: Any) -> Any:
        """A reduction or a scan."""
        kind = node.attrs["kind"]
        if kind == "sum":
            return self.summed(node, meaning, x)
        found = meaning(self.moved(x, node.dtype))
        extreme = kind in ("max", "min") and node.dtype.kind == "f"
        return self.signed(found) if extreme else found

    def op_reduce(self, node: Node, x: Any) -> Any:
        return self.combined(node, partial(super().op_reduce, node), x)

    def op_scan(self, node: Node, x: Any) -> Any:
        return self.combined(node, partial(super().op_scan, node), x)

    def op_dot(self, node: Node, a: Any, b: Any) -> Any:
        return self.summed(node, partial(super().op_dot, node), a, b)

    def op_conv(self, node: Node, x: Any, w: Any) -> Any:
        return self.summed(node, partial(super().op_conv, node), x, w)

    def op_scatter(self, node: Node, x: Any, *rest: Any) -> Any:
        meaning = partial(super().op_scatter, node)
        kind = node.attrs["kind"]
        if kind == "add":  # indices are their own absolute values
            return self.summed(node, meaning, x, *rest)
        found = meaning(x, *rest)
        extreme = kind in ("max", "min") and node.dtype.kind == "f"
        return self.signed(found) if extreme else found


def short(x: Any, eps: float) -> Any:
    """Numbers of few bits, whose sums are exact in any order."""
    x = np.asarray(x)
    return (np.abs(x) < 2.0 ** (math.log2(1 / eps) - 5)) & (np.round(x * 16) == x * 16)


def pushed(values: Sequence[Any], dtype: DType, sign: int) -> Any:
    """A value, each inexact element of it as far off in one direction as it may be.

    Args:
        values: the value, then the value with noise, several times.
        sign: the direction; 1 or -1.
    """
    if dtype.kind != "f":
        return values[0]
    want, *noisy = (np.asarray(v, np.float64) for v in values)
    with np.errstate(invalid="ignore"):
        moved = reduce(np.fmax, [np.abs(n - want) for n in noisy])
        most = 8 * moved + 8 * EPS[dtype.name] * np.abs(want)
        return np.where(np.isfinite(want) & (moved > 0), want + sign * most, want)
