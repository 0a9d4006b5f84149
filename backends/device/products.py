"""Contractions as one library call: a dot is a batched matmul over permuted views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from stack.ir.axes import parse_rule
from stack.ir.contraction import contraction
from stack.ir.node import Node

Tensor = torch.Tensor
# reads two operands, writes into the third tensor
Product = Callable[[Tensor, Tensor, Tensor], None]
CHUNK = 1 << 28  # bytes of the intermediate of an integer matmul


def is_product(node: Node) -> bool:
    """True if every axis is a batch, row, column or contracted axis, so that a matmul computes it.

    An axis that only one operand has, and not the result, has no such role.
    """
    return not contraction(parse_rule(node.attrs["rule"])).lone


class _Views:
    """Views of the arrays of a dot as `[b, m, k]`, `[b, k, n]` and `[b, m, n]`."""

    def __init__(self, node: Node) -> None:
        rule = parse_rule(node.attrs["rule"])
        roles = contraction(rule)
        batch, m, n, k = roles.batch, roles.rows, roles.columns, roles.contracted
        orders = (batch + m + k, batch + k + n, batch + m + n)
        names = (roles.left, roles.right, roles.result)
        self.perms = [
            [own.index(name) for name in order] for own, order in zip(names, orders, strict=True)
        ]
        sizes = rule.sizes([a.shape for a in node.args])
        b, m_, n_, k_ = (
            math.prod(int(sizes[x]) for x in axes)  # pyright: ignore[reportArgumentType]
            for axes in (batch, m, n, k)
        )
        self.shapes = [(b, m_, k_), (b, k_, n_), (b, m_, n_)]

    def permuted(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t.permute(p) for t, p in zip(tensors, self.perms, strict=True)]


def dot_into(node: Node) -> Product:
    """Computes a dot by one `mm` or `bmm`; an operand is copied only if no view has the shape."""
    views = _Views(node)
    same = node.args[0].dtype == node.dtype

    def run(left: Tensor, right: Tensor, out: Tensor) -> None:
        a, b, c = views.permuted((left, right, out))
        a, b = a.reshape(views.shapes[0]), b.reshape(views.shapes[1])
        try:
            target = c.view(views.shapes[2])
        except RuntimeError:
            target = torch.empty(views.shapes[2], dtype=c.dtype, device=c.device)
            _multiply(a, b, target, same)
            c.copy_(target.view(c.shape))
            return
        _multiply(a, b, target, same)

    return run


def _multiply(a: Tensor, b: Tensor, target: Tensor, same: bool) -> None:
    """Writes `[b, m, k] @ [b, k, n]` to `target`.

    `same`: operands and target have one element type. Otherwise operands are cast first, except
    that cuBLAS accumulates 16-bit operands directly into an f32 target.
    """
    multiply = torch.bmm
    if a.shape[0] == 1:
        a, b, target, multiply = a[0], b[0], target[0], torch.mm
    small = a.dtype in (torch.float16, torch.bfloat16) and target.dtype is torch.float32
    if not same and small and a.is_cuda:
        if target.is_contiguous():
            multiply(a, b, out_dtype=target.dtype, out=target)  # pyright: ignore
        else:
            target.copy_(multiply(a, b, out_dtype=target.dtype))  # pyright: ignore
    elif same:
        multiply(a, b, out=target)
    else:
        multiply(a.to(target.dtype), b.to(target.dtype), out=target)


def integer_dot(node: Node, a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """A dot of integers (or of bools stored as integers) on a device without an integer matmul.

    Elementwise products are materialized and summed, for as many rows at a time as `CHUNK` allows.
    """
    views = _Views(node)
    out = torch.empty([int(s) for s in node.shape], dtype=kind, device=a.device)  # pyright: ignore
    left, right, target = views.permuted((a.to(kind), b.to(kind), out))
    (batch, rows, inner), (_, _, columns) = views.shapes[:2]
    left, right = left.reshape(views.shapes[0]), right.reshape(views.shapes[1])
    found = torch.empty(views.shapes[2], dtype=kind, device=a.device)
    step = max(1, CHUNK // max(1, batch * inner * columns * found.element_size()))
    for start in range(0, rows, step):
        part = left[:, start : start + step, :, None] * right[:, None]
        found[:, start : start + step] = part.sum(2, dtype=kind)
    target.copy_(found.view(target.shape))
    return out
