"""Steps of mixtures that NumPy has no function for, for NumPy arrays and values of the IR."""

from __future__ import annotations

from typing import Any

import numpy

from stack.hosted.arrays import Namespace


def after(np: Any, ends: Any) -> Any:
    """Returns the first row of each group, given the row after the last of each: 0, ends[:-1]."""
    return np.concatenate([np.full((1,), 0, np.int32), ends[:-1]], axis=0)


def scattered(np: Any, x: Any, places: Any, rows: Any, kind: str) -> Any:
    """Returns a copy of `x` with `rows` written (kind "set") or added (kind "add") at the indices
    `places` of its first axis."""
    if isinstance(np, Namespace):
        rest = " ".join("abc"[: x.ndim - 1])
        rule = f"v! {rest}, n, n {rest} -> v! {rest}"
        return np.made("scatter", x, places, rows, rule=rule, kind=kind)
    out = numpy.array(x)
    if kind == "add":
        numpy.add.at(out, places, rows)
    else:
        out[places] = rows
    return out


def grouped_sums(np: Any, x: Any, weight: Any, sizes: Any) -> Any:
    """Multiplies rows of x with the weights of their group, `weight [e, n, k]`, in at least f32."""
    wide = np.result_type(x, np.float32)
    ends = np.cumsum(sizes, axis=0)
    if isinstance(np, Namespace):
        shape = (x.shape[0], weight.shape[1])
        type_ = x.node.tensor.with_shape(shape).with_dtype(wide)
        rule = "s! k, g^ k n, g^ -> s! n"
        return np.made("ragged_dot", x, weight.swapaxes(1, 2), ends, rule=rule, type=type_)
    out = numpy.zeros((len(x), weight.shape[1]), wide)
    for start, end, own in zip([0, *ends[:-1]], ends, weight):
        out[start:end] = x[start:end].astype(wide) @ own.astype(wide).T
    return out
