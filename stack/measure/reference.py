"""Double precision version of a program, as the reference for errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stack.errors import StackError
from stack.hosted.nodes import check_calls
from stack.ir.func import Func
from stack.ir.types import BF16, DType, TensorType
from stack.rewrite.check import as_list, relative_error
from stack.rewrite.pipeline import Pipeline
from stack.rewrite.wide import widen, widen_dtype


def held(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Converts a storage array to the interpreter's format: bf16 bit patterns become float32."""
    if dtype is not BF16:
        return array
    return (np.ascontiguousarray(array).astype(np.uint32) << 16).view(np.float32)


def reference(func: Func, storage: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the results in double precision on storage arrays, by the NumPy interpreter.

    Raises RuleError for integer arguments that violate an operator's limits.
    """
    sizes = {s.name for s in func.symbols}
    if sizes:
        raise StackError(f"@{func.name} has symbolic sizes: {', '.join(sorted(sizes))}")
    wide = widen(
        Pipeline("hosted").run(func, verify=False).func
    )  # replaces operators by their decompositions
    inputs = [
        held(a, p.dtype).astype(widen_dtype(p.dtype).numpy)
        for a, p in zip(storage, func.params, strict=True)
    ]
    check_calls(func, inputs)
    return [np.asarray(r) for r in as_list(wide.interpret(*inputs))]


def error_of(
    expected: Sequence[np.ndarray], found: Sequence[np.ndarray], types: Sequence[TensorType]
) -> float:
    """Returns the largest error of any result, relative to the largest value of that result.

    `found` are storage arrays. Infinite if shapes, infinities, nans or integers differ.
    """
    if len(expected) != len(found):
        return math.inf
    worst = 0.0
    for want, have, type_ in zip(expected, found, types, strict=True):
        worst = max(worst, relative_error(want, held(have, type_.dtype), type_.dtype))
    return worst
