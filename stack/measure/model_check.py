"""Results of a model in double precision, and the errors of others."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stack.measure.gpu_systems import error_of
from stack.measure.model_systems import (
    ModelProgram,
    eager_jax,
    eager_torch,
    torch_module,
)
from stack.rewrite.check import TOLERANCE
from stack.run.specs import BackendSpec

SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
EAGER = BackendSpec("eager", "eager")
USUAL = 4  # allowed error, relative to that of eager


@dataclass(frozen=True)
class DoublePrecision:
    """A program with its arguments in double precision."""

    framework: str
    fn: Any
    args: tuple[Any, ...]
    train: bool


def exact_results(program: ModelProgram, device: str) -> list[Any]:
    """Returns the results of the source in double precision, op by op.

    If a model itself casts to f32, as norms do, that part is in single precision. A 16-bit model
    with an op that does not support double precision runs in single precision.
    """
    if program.framework == "torch":
        try:
            return _exact_torch(program, device, "float64")
        except RuntimeError:
            names = {str(p.dtype) for p in program.fn.parameters()}  # pyright: ignore
            if not names & {"torch.bfloat16", "torch.float16"}:
                raise
            return [x.double() for x in _exact_torch(program, device, "float32")]
    jax = importlib.import_module("jax")

    def widen(x: Any) -> Any:
        floats = hasattr(x, "dtype") and jax.numpy.issubdtype(x.dtype, jax.numpy.floating)
        return x.astype("float64") if floats else x

    with jax.enable_x64(True):
        args = jax.tree.map(widen, program.args)
        system = eager_jax(
            DoublePrecision("jax", jax.jit(program.fn), args, program.train), EAGER, device
        )
        return [x.clone() for x in system.leaves(system.call())]


def _exact_torch(program: ModelProgram, device: str, dtype: str) -> list[Any]:
    torch = torch_module()
    kind = getattr(torch, dtype)
    wide: Any = copy.deepcopy(program.fn)
    args = tuple(
        a.to(kind) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in program.args
    )
    system = eager_torch(
        DoublePrecision("torch", wide.to(kind), args, program.train), EAGER, device
    )
    return system.leaves(system.call())


def usual_results(program: ModelProgram, device: str) -> list[Any]:
    """Returns the results of the source in its framework, op by op."""
    make = eager_torch if program.framework == "torch" else eager_jax
    system = make(program, EAGER, device)
    return system.leaves(system.call())


def errors_of(expected: Sequence[Any], found: Sequence[Any]) -> list[float]:
    """Returns the largest error of each result, relative to the largest value of that result."""
    if len(expected) != len(found):
        return [math.inf]
    return [
        error_of([a], [b.to(a.device) if b.dim() else b.to(a.device).reshape(a.shape)])
        for a, b in zip(expected, found, strict=True)
    ]


def judge(errors: Sequence[float], usual: Sequence[float], names: Sequence[str]) -> str:
    """Returns which result of a system is wrong, and by how much; "" if none is.

    `errors` are relative to double precision; `usual` are those of eager execution. A result may
    have the error of its element type, or four times its error in eager. A gradient that is zero
    except for rounding has no meaningful error; that of eager is then large too.
    """
    for number, (error, known, name) in enumerate(zip(errors, usual, names, strict=True)):
        allowed = max(TOLERANCE.get(SHORT.get(name, name), 0.0), USUAL * known)
        if not error <= allowed:
            return f"disagrees: result {number} is off by {error:.2g}, allowed {allowed:.2g}"
    return ""


def worst(errors: Sequence[float], usual: Sequence[float]) -> float:
    """Returns the largest error of the results whose error in eager execution is below 1.

    If there are no such results, returns the largest error of all; 0 without results.
    """
    known = [e for e, u in zip(errors, usual, strict=True) if u < 1]
    return max(known, default=max(errors, default=0.0))
