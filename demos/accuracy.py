"""Accuracy of each elementary function: its largest error in ulp over the floats of a type.

python -m stack.demos.accuracy [--every 4099] [FUNCTION ...]

All numbers of the 16-bit types are tried, and every n-th f32 in the order of their bits; `--every
1` tries them all. An ulp is the distance between neighbouring floats at the exact result. Below the
smallest normal number, that number is the unit. The exact result is torch's in f64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import stack
from stack.explore.table import table

Tensor = torch.Tensor
CHUNK = 1 << 18
EVERY = 4099

# the largest allowed error in f32; correct rounding would give 0.5
BOUNDS: dict[str, float] = {
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos"), 1.6),
    **dict.fromkeys(("rsqrt", "sqrt", "reciprocal", "tan", "asin", "acos", "atan"), 1.6),
    **dict.fromkeys(("sinh", "cosh", "asinh", "acosh", "atanh"), 1.6),
    **{"erf": 1.3, "erfc": 1.1, "tanh": 1.3, "log10": 2.3, "sigmoid": 2.3, "lgamma": 6.0},
}
# 16-bit types: computed in f32 and rounded once; some CPUs flush denormals of bf16 to zero
SHORT = {"bf16": 1.0, "f16": 0.51}


@dataclass(frozen=True)
class Format:
    """A float type: `digits` of its significand, the exponent of its smallest normal number."""

    dtype: torch.dtype
    digits: int
    least: int

    def patterns(self, every: int) -> Iterator[Tensor]:
        """Yields numbers of all signs and exponents in chunks; only quiet nans."""
        bits = self.dtype.itemsize * 8
        held = torch.int16 if bits == 16 else torch.int32
        for start in range(0, 1 << bits, CHUNK * every):
            found = torch.arange(start, min(start + CHUNK * every, 1 << bits), every)
            x = found.to(held).view(self.dtype)
            yield torch.where(x.isnan(), torch.nan, x)

    def ulps(self, got: Tensor, exact: Tensor) -> Tensor:
        """Returns errors in units in the last place; inf if only one value is inf or nan."""
        near = exact.to(self.dtype)
        exponent = torch.frexp(exact).exponent.to(torch.float64)
        unit = torch.exp2(exponent - self.digits)
        unit = torch.where(exact.abs() < 2.0**self.least, 2.0**self.least, unit)
        both = near.isfinite() & got.isfinite()
        same = (near.isnan() & got.isnan()) | (near == got)
        error = (got.double() - torch.where(both, exact, 0)).abs() / unit
        return torch.where(both, error, torch.where(same, 0.0, torch.inf))


FORMATS = {
    "f32": Format(torch.float32, 24, -126),
    "bf16": Format(torch.bfloat16, 8, -126),
    "f16": Format(torch.float16, 11, -14),
}


def worst(name: str, kind: str, every: int = EVERY) -> tuple[float, float]:
    """Returns the largest error in ulp of a compiled torch function, and the argument it is at."""
    made, function = FORMATS[kind], _function(name)
    compiled: Callable[[Tensor], Any] | None = None
    largest, place = 0.0, 0.0
    for x in made.patterns(every if kind == "f32" else 1):
        if compiled is None or x.numel() < CHUNK:
            compiled = stack.compile(function, x, backend="mlir")
        errors = made.ulps(compiled(x), function(x.double()))
        at = int(errors.argmax())
        if float(errors[at]) > largest:
            largest, place = float(errors[at]), float(x[at])
    return largest, place


def bound(name: str, kind: str) -> float:
    """Returns the largest error in ulp that the function `name` may have in the type `kind`."""
    return BOUNDS[name] if kind == "f32" else SHORT[kind]


def _function(name: str) -> Callable[[Tensor], Tensor]:
    return lambda x: getattr(torch, name)(x)


def main() -> int:
    """Prints the table of errors; returns 1 if a function's error is above its bound."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("functions", nargs="*", metavar="FUNCTION")
    parser.add_argument("--every", type=int, default=EVERY)
    options = parser.parse_args()
    rows: list[list[object]] = []
    sound = True
    for name in options.functions or BOUNDS:
        found = {kind: worst(name, kind, options.every) for kind in FORMATS}
        errors = {kind: error for kind, (error, _) in found.items()}
        sound &= all(e <= bound(name, kind) for kind, e in errors.items())
        rows.append([name, *(f"{e:.3f}" for e in errors.values()), f"{found['f32'][1]:.9g}"])
        print(*rows[-1], flush=True)
    print("\n" + table(["function", "f32", "bf16", "f16", "f32 at"], rows))
    return 0 if sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
