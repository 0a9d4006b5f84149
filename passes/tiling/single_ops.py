"""Wraps ops that fusion left on their own in groups of one op."""

from __future__ import annotations

from stack.ir import ops
from stack.ir.bounds import INT32
from stack.ir.builder import Builder, param
from stack.ir.node import Node
from stack.ir.traits import finds_position, is_alias, is_contraction, is_formula
from stack.ir.types import I32, I64, TensorType
from stack.rewrite.log import Lines


def is_bare(node: Node) -> bool:
    """True if a node is a single op that a kernel can compute, such as an elementwise op, a
    reduction or a contraction; False for fusion groups and aliases.
    """
    if not isinstance(node.type, TensorType) or is_alias(node):
        return False
    is_positions = is_formula(node) and bool(node.shape)
    by_kind = ops.lookup(node.op).kind in ("elementwise", "movement", "reduction")
    return by_kind or is_contraction(node) or is_positions


def alone(node: Node, lines: Lines = ()) -> Node:
    """Wraps one op in a fusion group of its own. `lines` are the op's source lines."""
    b = Builder()
    params = [param(f"p{i}", a.type) for i, a in enumerate(node.args)]
    if finds_position(node):
        result = first_position(b, node, params[0])
    else:
        result = b.op(node.op, params, node.attrs, hint=node.type)
    if lines:
        b.locs[result] = lines
    attrs = {"kind": "loop", "name": node.op}
    return b.op("fusion", node.args, attrs, (b.block(params, [result]),))


def group_of(node: Node, lines: Lines = ()) -> Node:
    """Returns an op that fusion left on its own in a group, and any other node, such as a group,
    itself. `lines` are the op's source lines.
    """
    return alone(node, lines) if is_bare(node) else node


def is_best_or_nan(b: Builder, x: Node, best: Node) -> Node:
    """Tests where values equal the best ones, or are nan, which is the best of all."""
    same = b.eq(x, best)
    return b.or_(same, b.ne(x, x)) if x.dtype.is_float else same


def first_position(b: Builder, node: Node, x: Node, best: Node | None = None) -> Node:
    """Rewrites argreduce as two reductions: the best value, then its (or a nan's) first index.

    `best`: the best value, if it was already computed.
    """
    axis, kind = int(node.attrs["axis"]), node.attrs["kind"]
    if best is None:
        best = b.reduce(x, kind=kind, axes=(axis,))
    others = tuple(a for a in range(x.tensor.rank) if a != axis)
    same = is_best_or_nan(b, x, b.broadcast(best, axes=others, type=x.type) if others else best)
    extent = x.shape[axis]
    dtype = I32 if isinstance(extent, int) and extent <= INT32[1] else I64
    places = b.iota(axis=axis, type=TensorType(dtype, x.shape))
    first = b.reduce(b.select(same, places, extent), kind="min", axes=(axis,))
    return first if node.dtype == dtype else b.cast(first, type=node.type)
