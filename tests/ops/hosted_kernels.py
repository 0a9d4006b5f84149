"""Runs kernels of hosted operators in Triton's interpreter, which must be chosen before import.

Prints a JSON object: the name of a case to its largest error against double precision, of the
kernel alone, and of a program of the triton backend that calls it: each of both types with --all,
else one in f32 and one in f16.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from hosted_cases import CASES, Case

import stack
from stack.backends.triton import interpreter
from stack.frontends.torch.tensors.arrays import dtype_of
from stack.hosted import declaration
from stack.ir.types import TensorType
from stack.ops.loss import linear_triton
from stack.ops.scan import (
    chunkwise_features_backward_triton,
    chunkwise_features_triton,
    gated,
    gated_gradient,
    gated_lookback_triton,
    gla,
    gla_gradient,
    lookback_triton,
)

interpreter.mend()
declaration._gpu_at_hand = lambda: "any"  # Triton interprets its own kernels, no Gluon or C++
SMALL = linear_triton.Config(16, 32, 16, 4, 1, group=4)
DTYPES = (torch.float32, torch.float16)


def main() -> None:
    found: dict[str, float] = {}
    every = "--all" in sys.argv
    for number, case in enumerate(CASES):
        kernels = [k for k in case.op.kernels if k.device == "cuda"]
        exact = case.op(*map(torch.from_numpy, case.arrays()), **case.attributes)
        attributes = case.op.read(case.attributes)
        for dtype in DTYPES:
            args = [torch.from_numpy(a) for a in case.arrays()]
            args = [a.to(dtype) if a.is_floating_point() else a for a in args]
            for kernel in kernels:
                types = [TensorType(dtype_of(a.dtype), tuple(a.shape)) for a in args]
                if kernel.why_not(types, attributes):
                    continue
                name = f"{case} {dtype}"
                is_alone = dtype is DTYPES[number % 2]
                if every or is_alone:
                    found[name] = error(kernel(*args, **attributes), exact)
                if every or not is_alone:
                    found[f"{name} compiled"] = error(compiled(case, args), exact)
    case = next(c for c in CASES if c.name == "loss.linear_cross_entropy")
    args = [torch.from_numpy(a) for a in case.arrays("float16")]
    exact = case.op(*map(torch.from_numpy, case.arrays()), **case.attributes)
    parts = linear_triton.linear_cross_entropy(*args, **case.op.read(case.attributes), config=SMALL)
    found["linear in parts, float16"] = error(parts, exact)
    x = torch.randn(3, 150)
    sums = torch.cumsum(x.double(), -1)
    found["inclusive in tiles"] = error(lookback_triton.inclusive(x, most=16), sums)
    found |= looking_back()
    found |= strong_gates()
    print(json.dumps(found))


def looking_back() -> dict[str, float]:
    """Gated scans of few sequences, in several tiles."""
    gate, x, told = torch.rand(1, 700, 3), torch.randn(1, 700, 3), torch.randn(1, 700, 3)
    first, out = torch.randn(1, 3), torch.empty_like(x)
    kernels = gated_lookback_triton
    kernels.launch(kernels.gated_kernel, (gate, x, first, out), x)
    made = torch.empty_like(gate), torch.empty_like(x), torch.empty_like(first)
    kernels.launch(kernels.gated_gradient_kernel, (gate, first, out, told, *made), x)
    wide = [t.double() for t in (gate, x, first)]
    exact = gated(*wide)
    gradient = gated_gradient(*wide, exact, told.double())
    return {
        "gated looks back": error(out, exact),
        "gated_gradient looks back": error(made, gradient),
    }


def strong_gates() -> dict[str, float]:
    """Gates that no single exponent can undo, beside some that forget nothing."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, gate, first = (
        torch.randn(1, 1, *s, generator=generator, dtype=torch.double)
        for s in ((150, 20), (150, 20), (150, 18), (150, 20), (20, 18))
    )
    found: dict[str, float] = {}
    for size in (0.01, 2.0, 60.0):
        args = [t.half() for t in (q, k, v, -size * gate.abs() * (gate < 1), first)]
        wide = [t.double() for t in args]
        exact = gla(*wide)
        told = tuple(torch.randn_like(t) for t in exact)
        gradient = gla_gradient(*wide, *exact, *told)
        made = chunkwise_features_triton.gla(*args, 0.0, 16)
        halves = [t.half() for t in (*exact, *told)]
        back = chunkwise_features_backward_triton.gla_gradient(*args, *halves, 0.0, 16)
        found[f"gla, gates to {size}, float16"] = error(made, exact)
        found[f"gla_gradient, gates to {size}, float16"] = error(back, gradient)
    return found


def compiled(case: Case, args: list[Any]) -> Any:
    call = stack.compile(
        lambda *ts: case.op(*ts, **case.attributes), *args,
        backend="triton", device="cpu", strict=True, hosted="hand",
    )  # fmt: skip
    out = call(*args)
    assert {k.kind for k in call.run.kernels} == {"hand"}, call.run.kernels
    return out


def error(found: Any, expected: Any) -> float:
    """The largest of all results, relative to the largest element."""
    pairs = zip(_tuple(found), _tuple(expected), strict=True)
    return max(_error(a, b) for a, b in pairs)


def _tuple(made: Any) -> tuple[torch.Tensor, ...]:
    return tuple(made) if isinstance(made, tuple | list) else (made,)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected).abs().max() / expected.abs().max().clamp(min=1))


if __name__ == "__main__":
    main()
