"""Captures, runs in the interpreter, and puts results back together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stack.frontends.torch import FRONTEND
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.parser import parse
from stack.ir.types import BF16, DType
from stack.ir.verifier import verify
from stack.run.frontend import Captured


def to_array(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    """The array for the interpreter: bf16 as float32."""
    array = FRONTEND.to_numpy(tensor, dtype)
    if dtype is BF16:
        return (array.astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
    return array


def to_tensor(array: np.ndarray, dtype: DType) -> torch.Tensor:
    if dtype is BF16:
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16
        return FRONTEND.from_numpy(bits.astype(np.uint16).reshape(array.shape), dtype)
    return FRONTEND.from_numpy(array, dtype)


def run(captured: Captured, *args: Any, **kwargs: Any) -> Any:
    """Call a captured program in the interpreter as the user would."""
    tensors = [*captured.bound, *captured.flatten(*args, **kwargs)]
    func = captured.func
    arrays = [to_array(t, p.dtype) for t, p in zip(tensors, func.params, strict=True)]
    results = func.interpret(*arrays)
    if not isinstance(results, tuple):
        results = (results,)
    pairs = zip(results, func.results, strict=True)
    return captured.unflatten([to_tensor(np.asarray(r), n.dtype) for r, n in pairs])


def capture(fn: Any, *args: Any, dynamic: bool = False) -> Captured:
    """Capture; the function must verify and read back from its own text."""
    captured = FRONTEND.capture(fn, args, dynamic=dynamic)
    verify(captured.func)
    assert parse(str(captured.func)) is captured.func
    return captured


def check(fn: Any, *args: Any, rtol: float = 1e-5, atol: float = 1e-6) -> Captured:
    """Interpreter and eager agree, structure and element types too."""
    captured = capture(fn, *args)
    with torch.no_grad():
        torch.testing.assert_close(
            run(captured, *args), fn(*args), rtol=rtol, atol=atol, equal_nan=True
        )
    return captured


def ops(func: Func) -> set[str]:
    return {node.op for node in func.nodes}


__all__ = ["FRONTEND", "capture", "check", "evaluate", "ops", "run"]
