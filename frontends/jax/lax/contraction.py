"""Lowerings of dot_general and conv_general_dilated, with JAX's precision settings for rounding f32
operands of matmuls on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.lax import DotAlgorithmPreset, Precision

from stack.frontends.jax.lax.lowering import NoLowering, Site, lower
from stack.ir.axes import Rule, plain
from stack.ir.node import Node
from stack.ir.types import BOOL, F32

_ROUNDED = (
    *(Precision.DEFAULT, Precision.HIGH),
    *(DotAlgorithmPreset.DEFAULT, DotAlgorithmPreset.TF32_TF32_F32),
)


def rounds(asked: Any) -> bool:
    """True if an equation's `precision` allows f32 operands to be rounded to TF32.

    XLA does so by default on a GPU; see `jax.lax.Precision`.
    """
    both = asked if isinstance(asked, tuple) else (asked,)
    return all(p is None or p in _ROUNDED for p in both)


def _letters(letter: str, count: int) -> list[str]:
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def rounding(s: Site, x: Node, asked: Any) -> dict[str, str]:
    """Returns the `precision` attribute of a matmul: "tf32" for f32 on a GPU, if JAX allows it.

    `asked`: the equation's precision in JAX. Empty if operands are not rounded.
    """
    may_round = s.importer.shared.on_gpu and x.dtype is F32 and rounds(asked)
    return {"precision": "tf32"} if may_round else {}


@lower("dot_general")
def _dot_general(
    s: Site, x: Node, y: Node, *, dimension_numbers: Any, precision: Any = None, **_: Any
) -> Node:  # fmt: skip
    (x_sum, y_sum), (x_batch, y_batch) = dimension_numbers
    x_free = [a for a in range(x.tensor.rank) if a not in (*x_sum, *x_batch)]
    y_free = [a for a in range(y.tensor.rank) if a not in (*y_sum, *y_batch)]
    batch, summed = _letters("b", len(x_batch)), _letters("k", len(x_sum))
    rows, columns = _letters("m", len(x_free)), _letters("n", len(y_free))
    x_names = dict(zip((*x_batch, *x_free, *x_sum), (*batch, *rows, *summed), strict=True))
    y_names = dict(zip((*y_batch, *y_free, *y_sum), (*batch, *columns, *summed), strict=True))
    rule = Rule(
        (
            plain([x_names[a] for a in range(x.tensor.rank)]),
            plain([y_names[a] for a in range(y.tensor.rank)]),
        ),
        (plain([*batch, *rows, *columns]),),
    )
    name = weight_name(y) or weight_name(x)
    is_bool = s.type.dtype is BOOL  # logical or of ands: a count in f32, which does not wrap to 0
    dtype = F32 if is_bool else s.type.dtype
    if x.dtype != y.dtype or is_bool:
        x, y = s.cast(x, dtype), s.cast(y, dtype)
    attrs = {"rule": str(rule), **rounding(s, x, precision)}
    made = s.b.op("dot", (x, y), attrs, hint=s.type.with_dtype(dtype), named=name)
    return s.b.ne(made, 0.0) if is_bool else made


@lower("ragged_dot_general")
def _ragged_dot(
    s: Site, x: Node, y: Node, sizes: Node, *, ragged_dot_dimension_numbers: Any,
    group_offset: Any = None, **_: Any,
) -> Node:  # fmt: skip
    numbers = ragged_dot_dimension_numbers
    (x_sum, y_sum), (batch, _) = numbers.dot_dimension_numbers
    (rows,) = numbers.lhs_ragged_dimensions
    if batch or group_offset is not None or sizes.tensor.rank != 1:
        raise NoLowering("a ragged product with batches or an offset")
    left = [f"m{a}" for a in range(x.tensor.rank)]
    right = [f"n{a}" for a in range(y.tensor.rank)]
    for a, c in zip(x_sum, y_sum, strict=True):
        right[c] = left[a]
    left = [f"{n}!" if n == f"m{rows}" else n for n in left]
    right = [f"{n}!" if n == f"m{rows}" else n for n in right]
    for axis in numbers.rhs_group_dimensions:
        right[axis] = "g^"
    summed = {left[a] for a in x_sum}
    free = [n for n in (*left, *right) if n not in summed and n != "g^"]
    made = ["g^", *free] if rows in x_sum else free
    rule = f"{' '.join(left)}, {' '.join(right)}, g^ -> {' '.join(made)}"
    ends = s.b.scan(sizes, kind="sum", axis=0, reverse=False)
    x, y = s.cast(x, s.type.dtype), s.cast(y, s.type.dtype)
    return s.b.op("ragged_dot", (x, y, ends), {"rule": rule}, hint=s.type, named=weight_name(y))


def weight_name(node: Node) -> str | None:
    """Returns `attn.wq` for a matmul with the parameter `params.attn.wq.weight`."""
    while node.op in ("transpose", "reshape", "cast"):
        node = node.args[0]
    parts = str(node.attrs["name"]).split(".") if node.op == "param" else []
    if len(parts) > 2 and parts[-1] in ("weight", "kernel", "w"):
        parts.pop()
    return ".".join(parts[1:]) or None


@lower("conv_general_dilated")
def _conv(
    s: Site,
    x: Node,
    w: Node,
    *,
    window_strides: Sequence[int],
    padding: Sequence[Any],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any = None,
    **_: Any,
) -> Node:
    x = s.transpose(s.cast(x, s.type.dtype), dimension_numbers.lhs_spec)
    w = s.transpose(s.cast(w, s.type.dtype), dimension_numbers.rhs_spec)
    groups = feature_group_count
    if batch_group_count > 1:
        if groups > 1:
            raise NoLowering("groups of batches and of features at once")
        x, groups = _batch_groups_to_features(s, x, batch_group_count), batch_group_count
    low, high = zip(*padding, strict=True) if padding else ((), ())
    out = s.b.conv(
        x, w, stride=tuple(window_strides), low=s.dims(low), high=s.dims(high),
        lhs_dilation=tuple(lhs_dilation), rhs_dilation=tuple(rhs_dilation), groups=groups,
        **rounding(s, x, precision),
    )  # fmt: skip
    perm = [0] * len(dimension_numbers.out_spec)
    for i, axis in enumerate(dimension_numbers.out_spec):
        perm[axis] = i
    return s.transpose(out, perm)


def _batch_groups_to_features(s: Site, x: Node, groups: int) -> Node:
    """Reorders `(g n) c ...` to `n (g c) ...`."""
    count, channels, *rest = x.shape
    split = s.reshape(x, [groups, count // groups, channels, *rest])
    perm = [1, 0, *range(2, len(rest) + 3)]
    return s.reshape(s.transpose(split, perm), [count // groups, channels * groups, *rest])
