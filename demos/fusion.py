"""Kinds of fusion: the memory traffic that each one saves, and cases that are not fused.

python -m stack.demos.fusion
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import stack
from stack.explore.explored_run import ExploredRun
from stack.explore.table import table

APART = "canonicalize,decompose,layout"  # each op is a kernel
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Pattern:
    """A program that shows one kind of fusion; `shapes` are its arguments."""

    name: str
    program: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def args(self) -> tuple[Tensor, ...]:
        """Returns random arguments."""
        draw = torch.Generator().manual_seed(0)
        return tuple(torch.randn(s, generator=draw) for s in self.shapes)


def chain(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2 + 1


def rows(x: Tensor, g: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * g


def epilogue(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(x @ w + b)


def joined(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate) * (x @ up)


def streamed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT / 8, -1) @ v


def row_of_product(x: Tensor, w: Tensor) -> Tensor:
    return torch.softmax(x @ w, -1)


def product_of_product(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    return torch.relu(x @ w) @ u


WIDE, FLAT = (256, 1024), (1024,)
PATTERNS = (
    Pattern("vertical: a chain of elementwise ops", chain, (WIDE,)),
    Pattern("a reduction with its producers and consumers", rows, (WIDE, FLAT)),
    Pattern("a matmul with its epilogue", epilogue, ((256, 256), (256, 1024), FLAT)),
    Pattern("two matmuls that join: gate and up", joined, ((256, 256), (256, 512), (256, 512))),
    Pattern("a streaming reduction: attention", streamed, ((4, 256, 64),) * 3),
    Pattern("not: softmax of a wide matmul", row_of_product, ((64, 64), (64, 4096))),
    Pattern("not: a matmul of a matmul", product_of_product, ((64, 256), (256, 256), (256, 64))),
)


def tell(pattern: Pattern) -> tuple[list[object], list[str], float]:
    """Returns the table row of a pattern (kernels, bytes), its refused fusions, and its error."""
    args = pattern.args()
    compiled = stack.compile(pattern.program, *args)
    apart, fused = stack.compile(pattern.program, *args, passes=APART).run, compiled.run
    moved = [sum(k.bytes for k in run.kernels) for run in (apart, fused)]
    expected = pattern.program(*args)
    error = float((compiled(*args) - expected).abs().max() / expected.abs().max())
    row = [pattern.name, len(apart.kernels), len(fused.kernels)]
    return (
        [*row, *(f"{n / 1e6:.2f} MB" for n in moved), f"{moved[0] / moved[1]:.1f}x"],
        kept(fused) if len(fused.kernels) > 1 else [],
        error,
    )


def kept(run: ExploredRun) -> list[str]:
    """Returns the notes of pass `fuse` on fusions that it refused for the first result of a run."""
    body = run.func("fused").body
    told = run.explain(body.names[body.results[0]]).splitlines()
    return [line.partition("fuse: ")[2] for line in told if "fuse: did not fuse" in line]


def main() -> int:
    """Prints a line per kind; returns 1 if a result differs from torch."""
    lines: list[list[object]] = []
    reasons: list[str] = []
    wrong: list[str] = []
    for pattern in PATTERNS:
        row, why, error = tell(pattern)
        lines.append(row)
        reasons += [f"{pattern.name}: {line}" for line in why]
        if not error < TOLERANCE:
            wrong.append(f"{pattern.name}: error {error:.1e}")
    print(table(["fusion", "kernels unfused", "fused", "bytes unfused", "fused", "saved"], lines))
    print("\n" + "\n".join(reasons))
    print("\n".join(wrong) or "\nall results agree with torch")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
