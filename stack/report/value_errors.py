"""The rounding error of each value of a program, against the same program in double precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.ir.space import Array, NumpySpace
from stack.ir.types import TensorType
from stack.rewrite.wide import widen, widen_dtype


def value_errors(func: Func, arrays: Sequence[np.ndarray]) -> dict[str, float]:
    """Returns the largest error of each float value, relative to the largest magnitude in it.

    Both programs run in the interpreter. Values that are not finite, and those of ops that have no
    form in double precision, are left out.

    Raises:
        StackError: the function has no form in double precision.
    """
    sizes = func.sizes([a.shape for a in arrays])
    bound = func.bind(sizes) if sizes else func
    wide = widen(bound)
    narrow_values = _values(bound, arrays)
    doubled = [
        np.asarray(a).astype(widen_dtype(p.dtype).numpy) if p.dtype.kind in "fc" else a
        for a, p in zip(arrays, bound.params, strict=True)
    ]
    wide_values = _values(wide, doubled)
    found: dict[str, float] = {}
    for name, value in narrow_values.items():
        exact = wide_values.get(name)
        if exact is None or exact.shape != value.shape or not np.isfinite(exact).all():
            continue
        most = float(np.max(np.abs(exact), initial=0.0))
        error = float(np.max(np.abs(value - exact), initial=0.0))
        if np.isfinite(error):
            found[name] = error / most if most else error
    return found


def _values(func: Func, arrays: Sequence[np.ndarray]) -> Mapping[str, Array]:
    """Interprets a function; returns its float values by name, in double precision."""
    names = func.body.names
    found: dict[str, Array] = {}

    def observe(node: Node, value: Array, _operands: Sequence[Array]) -> None:
        name = names.get(node)
        is_float = isinstance(node.type, TensorType) and node.dtype.kind in "fc"
        if name is not None and is_float:
            found[name] = np.asarray(value).astype(widen_dtype(node.dtype).numpy)

    evaluate(func.body, list(arrays), NumpySpace(), observe)
    return found
