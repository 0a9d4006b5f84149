"""Attention and its gradient through `stack.mini`, the compiler in one file.

python -m stack.demos.mini
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import stack.mini as mini


def attention(q: Any, k: Any, v: Any) -> Any:
    """Computes causal attention, written naively."""
    scores = q @ k.T / q.shape[1] ** 0.5
    row, column = mini.iota(scores.shape, 0), mini.iota(scores.shape, 1)
    scores = mini.where(row >= column, scores, -np.inf)
    weights = mini.exp(scores - mini.max(scores, axis=1, keepdims=True))
    return (weights / mini.sum(weights, axis=1, keepdims=True)) @ v


def total(q: Any, k: Any, v: Any) -> Any:
    """Computes a scalar, so that there is a gradient."""
    out = attention(q, k, v)
    return mini.sum(out * out)


def main() -> int:
    """Prints all stages, fusion decisions and kernels; checks results in double precision."""
    rng = np.random.default_rng(0)
    args = [rng.standard_normal((64, 32)).astype(np.float32) for _ in range(3)]
    start = time.perf_counter()
    compiled = mini.compile(attention, *args)
    taken = time.perf_counter() - start
    for name, text in compiled.stages.items():
        print(f"---- {name}\n{text}\n")
    print("---- fusion decisions")
    print(*compiled.decisions, sep="\n")
    print(f"\n---- kernels (by {compiled.backend}, compiled in {taken:.2f} s)")
    for kernel in compiled.kernels:
        intensity = kernel.flops / kernel.bytes
        lines = ", ".join(kernel.source)
        print(f"{kernel.name}: {kernel.flops} flops, {intensity:.1f} per byte, from {lines}")
    joint = mini.grad(mini.trace(total, *args))
    print(
        f"\n---- the gradient: {len(joint.nodes)} nodes from {len(mini.trace(total, *args).nodes)}"
    )
    forward = worst(compiled.func, [compiled(*args)], args)
    backward = worst(joint, mini.compile(joint)(*args), args)
    print(f"largest error against NumPy in f64: {forward:.1e}; of the gradients: {backward:.1e}")
    return 0 if max(forward, backward) < 1e-5 else 1


def worst(func: mini.Func, found: Any, args: list[Any]) -> float:
    """Returns the largest relative error of results against the program in double precision."""
    exact = func.interpret(*(a.astype(np.float64) for a in args))
    pairs = zip(found, exact, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
