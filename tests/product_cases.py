"""Matrix products and what follows them in one kernel."""

from __future__ import annotations

import numpy as np

from stack.ir import Builder, Node, tensor


def residual(b: Builder, x: Node, w: Node, r: Node) -> Node:
    return b.add(r, b.dot(x, w, rule="m k, k n -> m n"))


def gate(b: Builder, x: Node, w: Node, g: Node) -> Node:
    y = b.dot(x, w, rule="m k, n k -> m n")
    return b.mul(b.mul(y, b.sigmoid(y)), g)


def row_scale(b: Builder, x: Node, w: Node, s: Node) -> Node:
    y = b.dot(x, w, rule="m k, k n -> m n")
    return b.mul(y, b.broadcast(s, axes=(0,), type=y.type))


def causal(b: Builder, q: Node, k: Node) -> Node:
    y = b.mul(b.dot(q, k, rule="h s d, h t d -> h s t"), 0.125)
    row = b.iota(axis=1, type=tensor("i64", *y.shape))
    column = b.iota(axis=2, type=tensor("i64", *y.shape))
    return b.select(b.ge(row, column), y, -np.inf)


def two_results(b: Builder, x: Node, w: Node) -> tuple[Node, Node]:
    y = b.dot(x, w, rule="m k, k n -> m n")
    return y, b.exp(y)
