"""Shared parts of the stories of hosted operators: output, calls, measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.func import Func
from stack.ir.types import TensorType, dtype_named, dtype_of
from stack.run.backend import Executable
from stack.run.compile import compile_func, find_backend
from stack.run.record import Run

Array = np.ndarray
TOLERANCE = 1e-4


@dataclass
class Teller:
    """Collects the output of a story about operators: text, pictures, failed checks."""

    folder: Path | None = None
    wrong: list[str] = field(default_factory=list[str])

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def check(self, what: str, found: Any, expected: Any) -> float:
        """Returns the largest difference, relative to the largest element; records a failure."""
        error = float(np.abs(found - expected).max() / max(1.0, float(np.abs(expected).max())))
        if not error < TOLERANCE:
            self.wrong.append(f"{what}: error {error:.1e}")
        return error

    def draw(self, name: str, picture: Callable[..., None], *args: Any, **options: Any) -> None:
        """Draws a picture as SVG into the output folder; does nothing without a folder."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = self.folder / f"{name}.svg"
            picture(path, *args, **options)
            self.say(f"wrote {path}")


def function(name: str, shapes: Sequence[tuple[int, ...]], dtypes: str, **attributes: Any) -> Func:
    """Returns a function with one call of an operator; `dtypes` has a word for each operand."""
    made, b = find(name), Builder()
    types = [TensorType(dtype_named(d), s) for d, s in zip(dtypes.split(), shapes, strict=True)]
    params = [param(n, t) for n, t in zip(made.operands, types, strict=True)]
    return b.func(name.replace(".", "_"), params, custom(b, made, params, attributes))


def built(func: Func) -> Executable:
    """Compiles a function for this CPU."""
    return compile_func(func, find_backend("mlir"), Run(), "default", {})


def called(name: str, *arrays: Array, **attributes: Any) -> Executable:
    """Compiles a function that calls operator `name` on operands with these arrays' types."""
    dtypes = " ".join(dtype_of(a).name for a in arrays)
    return built(function(name, [a.shape for a in arrays], dtypes, **attributes))


def held_by(func: Func, made: Executable) -> int:
    """Returns the planned bytes of intermediates at their peak, plus those of the results."""
    results = sum(math.prod(map(int, r.shape)) * r.dtype.bits // 8 for r in func.results)
    return (made.peak_bytes or 0) + results


def measured(made: Executable, arrays: Sequence[Array]) -> int | None:
    """Returns the bytes that the first call adds to this process, or None if unavailable."""
    try:
        forget_peak()
        before = resident("VmRSS")
        made.run(arrays)
        return resident("VmHWM") - before
    except OSError:
        return None


def forget_peak() -> None:
    """Resets this process's peak memory; raises OSError where Linux's /proc is missing."""
    Path("/proc/self/clear_refs").write_text("5")


def resident(what: str) -> int:
    """Returns this process's resident bytes: VmRSS is current, VmHWM the peak. Raises OSError."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(what)).split()[1]) << 10


def median(call: Callable[[], object], count: int = 5) -> float:
    """Returns the median seconds of `count` calls."""
    times: list[float] = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return sorted(times)[count // 2]


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    """Returns normally distributed f32 numbers."""
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def bytes_of(arrays: Sequence[Array]) -> int:
    """Returns the bytes of some arrays."""
    return sum(a.nbytes for a in arrays)
