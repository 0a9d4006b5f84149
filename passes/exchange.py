"""exchange: compute sums of products in another order that reads less memory.

Gradients are full of sums along a row that another sum already computes. With a matmul T_mk = sum_n
B_mn C_kn, and O_mn = sum_k P_mk C_kn computed anyway,

    sum_k P_mk T_mk = sum_n B_mn O_mn          reads rows of n elements, and no table
    sum_k d_m E_mk  = d_m sum_k E_mk           reads nothing, if the right sum exists

The first form comes from the gradient of a weighted mean (attention), the second from a softmax
that is written out. Both round in another order than the sum they replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import Builder, converted, make, reshaped
from stack.ir.dim import Dim, Expr, add, mul, substitute, symbol, symbols
from stack.ir.func import Func
from stack.ir.node import Node, topological
from stack.ir.traits import converts, is_contraction, is_reduction, multiplies, negative_of, spread
from stack.ir.types import F32
from stack.passes.rules.dot_layout import dot_axes
from stack.passes.rules.transposes import transposed
from stack.rewrite.check import FINITE, WIDER
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.group import estimate
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Why

Entry = tuple[Node, Index]  # a value, and the index at which it is read


@dataclass(frozen=True)
class Exchange(Pass):
    """Compute sums of products in the order that reads less, reusing sums that exist."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, (exchanged_sum, multiple_of_sum), log)


@on("reduce", inexact=FINITE | WIDER)
def exchanged_sum(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """sum over k of P_mk (B C^T)_mk is sum over n of B_mn O_mn, if O = P C exists."""
    factors = node.args[0]
    axes: Sequence[int] = node.attrs["axes"]
    if node.attrs["kind"] != "sum" or len(axes) != 1 or not multiplies(factors):
        return None
    if not node.dtype.is_float:
        return None
    iter_vars = _iter_vars(factors, "i")
    along = iter_vars[axes[0]]
    if not isinstance(along, Expr):
        return None
    near: Why | None = None
    for table, weights in (factors.args, factors.args[::-1]):
        if table.tensor.rank != len(iter_vars) or weights.tensor.rank != len(iter_vars):
            continue
        product, place = _source((table, iter_vars))
        if not is_contraction(product):
            continue
        for b, c in _sides(product, place):
            if along in b[1] or along not in c[1]:
                continue
            found = _other_product(node, _source((weights, iter_vars)), _source(c), b, scope)
            if found is None:
                near = Why("no matmul computes the weights times the other operand", product)
            elif estimate(b[0].tensor.size) >= estimate(product.tensor.size):
                near = Why("it would read no less", product)
            else:
                made = _rows(node, b, found, [m for m in iter_vars if m is not along])
                if made is not None:
                    return made
                near = Why("an axis of its result is a part of one, or has no known size", b[0])
    return near


@on("reduce", inexact=FINITE | WIDER)
def multiple_of_sum(node: Node, op: Builder, scope: Scope) -> Node | Why | None:
    """sum over k of d_m E_mk is d_m times the sum of E, if that exists."""
    axes: Sequence[int] = node.attrs["axes"]
    product, sign = node.args[0], 1
    while (below := negative_of(product)) is not None:
        product, sign = below, -sign
    if node.attrs["kind"] != "sum" or not multiplies(product) or not node.dtype.is_float:
        return None
    near: Why | None = None
    for row, table in (product.args, product.args[::-1]):
        if table.tensor.rank != product.tensor.rank:
            continue
        small = _constant_along(row, axes, node)
        if small is None:
            continue
        total = _sum_of(table, node, scope)
        if total is not None:
            made = make("mul", (total, small))
            return made if sign > 0 else make("neg", (made,))
        near = Why("the sum of its other factor is not computed anywhere", table)
    return near


# ---- index tuples


def _iter_vars(node: Node, name: str) -> Index:
    """Returns the index of an element of a value in new symbols `name0`, `name1`, ...; 0 along axes
    of one element, or of symbolic size."""
    return tuple(
        symbol(f"{name}{i}", 0, s - 1) if isinstance(s, int) and s > 1 else 0
        for i, s in enumerate(node.shape)
    )


def _source(entry: Entry) -> Entry:
    """Follows an element back through views and casts between float types. Returns the value that
    it is read from, and its index there."""
    node, index = entry
    while ops.is_whole_view(node) or _is_rounding(node):
        index = ops.pull(node, index)[0]
        node = node.args[0]
    return node, index


def _origin(node: Node) -> Node:
    """Follows a value back through views and casts between float types; returns the value that
    these read."""
    while ops.is_whole_view(node) or _is_rounding(node):
        node = node.args[0]
    return node


def _is_rounding(node: Node) -> bool:
    """True for a cast from one float type to another."""
    return converts(node) and node.dtype.is_float and node.args[0].dtype.is_float


def _sides(dot: Node, place: Index) -> Iterator[tuple[Entry, Entry]]:
    """Yields the two operands of a matmul, each with the index at which element `place` of the
    result reads it, in both orders. Symbol `n` is the position along the contracted axis. Yields
    nothing unless the operands share one such axis of constant size."""
    (left, right), output = dot_axes(dot)
    summed = [(n, s) for n, s in zip(left, dot.args[0].shape, strict=True) if n not in output]
    if len(summed) == 1 and summed[0][0] in right and isinstance(summed[0][1], int):
        n = symbol("n", 0, max(summed[0][1] - 1, 1))
        first, second = zip(dot.args, ops.pull(dot, place, {summed[0][0]: n}), strict=True)
        yield first, second
        yield second, first


def _other_product(
    node: Node, weights: Entry, c: Entry, b: Entry, scope: Scope
) -> tuple[Node, Index] | None:
    """Finds a matmul that multiplies `weights` and `c` and has the axes of `b`. Returns it with the
    index of the element that corresponds to `b`; None if there is none, or if it depends on
    `node`."""
    for dot in scope.block.all_nodes:
        if not is_contraction(dot) or dot.tensor.size != b[0].tensor.size:
            continue
        if {_origin(a) for a in dot.args} != {weights[0], c[0]}:
            continue
        iter_vars = _iter_vars(dot, "o")
        for p, other in _sides(dot, iter_vars):
            p, other = _source(p), _source(other)
            if p[0] is not weights[0]:
                continue
            known = _unified((*p[1], *other[1]), (*weights[1], *c[1]))
            place = None if known is None else _at(iter_vars, known)
            if place is None or {*map(str, place)} != {*map(str, b[1])}:
                continue
            if node not in topological([dot]):
                return dot, place
    return None


def _unified(pattern: Index, wanted: Index) -> Mapping[str, Dim] | None:
    """Returns values for the symbols of index `pattern` that make it equal to index `wanted`; None
    if no values do."""
    known: dict[str, Dim] = {}
    for here, there in zip(pattern, wanted, strict=True):
        names = [s.name for s in symbols(here)]
        if len(names) == 1 and here == symbol_of(here):
            known.setdefault(names[0], there)
    for here, there in zip(pattern, wanted, strict=True):
        # heads that share an operand have a linear index: solve for the last symbol
        left = [s.name for s in symbols(here) if s.name not in known]
        if len(left) == 1:
            rest = substitute(here, {**known, left[0]: 0})
            known[left[0]] = add(there, mul(rest, -1))
    return known if _at(pattern, known) == wanted else None


def symbol_of(dim: Dim) -> Dim | None:
    """Returns the only symbol of an expression, as an expression; None if there are more."""
    (found, *more) = symbols(dim) or [None]
    return None if found is None or more else symbol(found.name, found.low, found.high)


def _at(place: Index, known: Mapping[str, Dim]) -> Index:
    return tuple(substitute(d, known) for d in place)


# ---- replacements of a sum


def _rows(node: Node, b: Entry, other: Entry, kept: Sequence[Dim]) -> Node | None:
    """Builds sum over n of B_mn O_mn with the axes of `node`, which it replaces; O is the matmul of
    entry `other`. The sum is accumulated in f32 or wider. None if an axis of `node` is not an axis
    of B, or has no known size."""
    wide = node.dtype if node.dtype.bits >= 32 else F32
    left, right = _without_units(b), _without_units(other)
    kept = [d for d in kept if isinstance(d, Expr)]
    if left is None or right is None or not {*kept} <= {*left[1]}:
        return None
    order = tuple(right[1].index(d) for d in left[1])
    factors = [converted(x, wide) for x in (left[0], transposed(right[0], order))]
    summed = tuple(i for i, d in enumerate(left[1]) if d not in kept)
    total = make("reduce", (make("mul", factors),), {"kind": "sum", "axes": summed})
    rest = [d for d in left[1] if d in kept]
    total = transposed(total, tuple(rest.index(d) for d in kept))
    return converted(reshaped(total, node.shape), node.dtype)


def _without_units(entry: Entry) -> Entry | None:
    """Returns an entry without its axes of one element; None if it is read at one position of
    a longer axis."""
    value, index = entry
    axes = [i for i, d in enumerate(index) if isinstance(d, Expr)]
    if any(value.shape[i] != 1 for i in range(len(index)) if i not in axes):
        return None
    return reshaped(value, [value.shape[i] for i in axes]), tuple(index[i] for i in axes)


def _constant_along(row: Node, axes: Sequence[int], like: Node) -> Node | None:
    """Returns a value without the axes `axes`, in the shape of `like` or as a scalar.

    None if the value may vary along one of these axes.
    """
    if not row.tensor.rank:
        return row
    own = spread(row)
    if own is None:
        return None
    if not {*own}.isdisjoint(axes):
        return None
    kept = [i for i in range(row.tensor.rank) if i not in axes]
    places = tuple(kept.index(a) for a in own)
    small = row.args[0]
    if small.shape == like.shape or not small.tensor.rank:
        return small
    return make("broadcast", (small,), {"axes": places}, hint=like.type)


def _sum_of(table: Node, like: Node, scope: Scope) -> Node | None:
    """Finds another reduction of `table` with the attributes and the type of the reduction `like`,
    which does not depend on `like`. Returns None if there is none."""
    for user in scope.users(table):
        if is_reduction(user) and user.attrs == like.attrs and user.type == like.type:
            if user is not like and like not in topological([user]):
                return user
    return None
