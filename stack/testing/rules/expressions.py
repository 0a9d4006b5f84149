"""Small expressions of one op for each result type: the parts of programs to try a rule on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.builder import constant, make, param
from stack.ir.dim import Dim
from stack.ir.node import Node, topological
from stack.ir.ops import OPS
from stack.ir.types import BOOL, DTYPES, F32, I32, DType, TensorType, tensor

Shape = tuple[int, ...]
TYPES = tuple(DTYPES[n] for n in ("f32", "i32", "i8", "u8", "bool", "f16", "bf16", "f64", "i64"))
SHAPES: tuple[Shape, ...] = ((3,), (3, 3), (2, 3), (), (1, 3), (2, 1, 3))
KINDS = ("sum", "max", "min", "prod", "and", "or")  # of reductions
NAMES = "xyzuvw"
NUMBERS = (0, 1, -1, 2, 0.5, -0.0, np.inf)


def leaf(dtype: DType, shape: Sequence[Dim], number: int = 0) -> Node:
    """Returns a parameter; those with the first numbers are named x, y, z."""
    return param(NAMES[number] if number < len(NAMES) else f"x{number}", tensor(dtype, *shape))


@cache
def expressions(dtype: DType, shape: Shape) -> tuple[Node, ...]:
    """Returns expressions of one op on parameters, with this result type."""
    moves = [*_movement(dtype, shape), *_reductions(dtype, shape), *_contractions(dtype, shape)]
    return tuple([*_elementwise(dtype, shape), *filter(None, map(_made, moves))])


def constants(dtype: DType, shape: Shape, numbers: Sequence[float]) -> list[Node]:
    """Returns the numbers that the type represents, as constants: scalars, and repeated to `shape`
    if it has axes.
    """
    found: list[Node] = []
    for value in numbers:
        held = np.asarray(value)
        with np.errstate(all="ignore"):
            cast = held.astype(dtype.numpy)
        if dtype.kind in "iub" and not (np.isfinite(held) and cast == held):
            continue
        scalar = constant(cast, dtype)
        found.append(scalar)
        if shape:
            wide = TensorType(dtype, shape)
            found.append(make("broadcast", (scalar,), {"axes": ()}, hint=wide))
    return list(dict.fromkeys(found))


Draft = tuple[str, list[Node], dict[str, Any], TensorType | None]


def _made(draft: Draft) -> Node | None:
    """Makes a node; None if the op does not take these operands."""
    op, args, attrs, hint = draft
    try:
        return make(op, args, attrs, hint=hint)
    except RuleError:
        return None


def _elementwise(dtype: DType, shape: Shape) -> Iterator[Node]:
    """Elementwise ops: operands of the result's type, or of another one, as comparisons have."""
    wanted = TensorType(dtype, shape)
    others = dict.fromkeys((dtype, F32, I32, BOOL))
    for name, op in OPS.items():
        if op.kind != "elementwise" or "tensor" not in op.levels or op.arity is None:
            continue
        sources = TYPES if op.arity == 1 and dtype.kind != "c" else others
        for source in sources:
            args = [leaf(source, shape, i) for i in range(op.arity)]
            hint = wanted if name in ("cast", "bitcast") else None
            made = _made((name, args, {}, hint))
            if made is not None and made.type == wanted and not (hint and source is dtype):
                yield made
    test, yes, no = leaf(BOOL, shape), leaf(dtype, shape, 1), leaf(dtype, shape, 2)
    yield make("select", (test, yes, no))


def _movement(dtype: DType, shape: Shape) -> Iterator[Draft]:
    hint, rank = TensorType(dtype, shape), len(shape)
    for count in range(rank):
        for axes in itertools.combinations(range(rank), count):
            small = leaf(dtype, [shape[a] for a in axes])
            yield "broadcast", [small], {"axes": axes}, hint
    for perm in itertools.permutations(range(rank)):
        if rank > 1:
            before = [shape[perm.index(i)] for i in range(rank)]
            yield "transpose", [leaf(dtype, before)], {"perm": perm}, None
    for other in _same_size(shape):
        yield "reshape", [leaf(dtype, other)], {}, hint
    yield from _windows(dtype, shape)
    if rank:
        table = leaf(dtype, (shape[0] + 1, *shape[1:]))
        index = leaf(DTYPES["i64"], shape[:1], 1)
        rest = " ".join(f"d{i}" for i in range(1, rank))
        yield "gather", [table, index], {"rule": f"v! {rest}, n -> n {rest}"}, None
        updates = leaf(dtype, (2, *shape[1:]), 2)
        index = leaf(DTYPES["i64"], (2,), 1)
        rule = f"v! {rest}, n, n {rest} -> v! {rest}"
        for kind in ("add", "set"):
            args = [leaf(dtype, shape), index, updates]
            yield "scatter", args, {"rule": rule, "kind": kind}, None
    for axis in range(rank if dtype.is_integer else 0):
        yield "iota", [], {"axis": axis}, hint


def _same_size(shape: Shape) -> Iterator[Shape]:
    size = int(np.prod(shape))
    found = {(size,), (1, *shape), (*shape, 1), tuple(s for s in shape if s != 1)}
    yield from sorted(found - {shape}) if size else ()


def _windows(dtype: DType, shape: Shape) -> Iterator[Draft]:
    """Slices, pads, reversals and concatenations along each axis."""
    rank = len(shape)

    def along(axis: int, value: int, rest: Sequence[int]) -> Shape:
        return (*rest[:axis], value, *rest[axis + 1 :])

    zeros, ones = (0,) * rank, (1,) * rank
    for axis, size in enumerate(shape):
        longer = leaf(dtype, along(axis, size + 1, shape))
        for start in (0, 1):
            ends = along(axis, size + start, shape)
            attrs = {"start": along(axis, start, zeros), "limit": ends, "step": ones}
            yield "slice", [longer], attrs, None
        attrs = {"start": zeros, "limit": along(axis, 2 * size, shape)}
        sparse = leaf(dtype, along(axis, 2 * size, shape))
        yield "slice", [sparse], {**attrs, "step": along(axis, 2, ones)}, None
        yield "slice", [leaf(dtype, shape)], {"start": zeros, "limit": shape, "step": ones}, None
        yield "reverse", [leaf(dtype, shape)], {"axes": (axis,)}, None
        if size > 1:
            widths = {"high": zeros, "interior": zeros, "low": along(axis, 1, zeros)}
            shorter = leaf(dtype, along(axis, size - 1, shape))
            yield "pad", [shorter, leaf(dtype, (), 1)], widths, None
            first = leaf(dtype, along(axis, 1, shape), 1)
            yield "concat", [first, shorter], {"axis": axis}, None
    widths = {"low": zeros, "high": zeros, "interior": zeros}
    yield "pad", [leaf(dtype, shape), leaf(dtype, (), 1)], widths, None
    if rank:
        yield "concat", [leaf(dtype, shape)], {"axis": 0}, None


def _reductions(dtype: DType, shape: Shape) -> Iterator[Draft]:
    for axis in range(len(shape) + 1):
        for size, kind in itertools.product((3, 1), KINDS):
            wide = leaf(dtype, (*shape[:axis], size, *shape[axis:]))
            yield "reduce", [wide], {"kind": kind, "axes": (axis,)}, None
    yield "reduce", [leaf(dtype, shape)], {"kind": "sum", "axes": ()}, None
    for axis in range(len(shape)):
        attrs = {"kind": "sum", "axis": axis, "reverse": False}
        yield "scan", [leaf(dtype, shape)], attrs, None


def _contractions(dtype: DType, shape: Shape) -> Iterator[Draft]:
    if len(shape) == 2:
        m, n = shape
        for rule, left, right in (
            ("m k, k n -> m n", (m, 2), (2, n)),
            ("k m, n k -> m n", (2, m), (n, 2)),
        ):
            yield "dot", [leaf(dtype, left), leaf(dtype, right, 1)], {"rule": rule}, None


def parameters(root: Node) -> list[Node]:
    """Returns the parameters of an expression, in order of their first use."""
    return [n for n in topological([root]) if n.op == "param"]


def renamed(
    root: Node, known: dict[Node, Node], visit: Callable[[Node], Node] | None = None
) -> Node:
    """Makes an expression again with nodes replaced, types inferred anew, and parameters named in
    order. Raises RuleError if an op does not take its new operands.
    """
    done = dict(known)
    for node in topological([root], lambda n: n not in known):
        made = node if visit is None else visit(node)
        if node.args:
            made = make(node.op, [done[a] for a in node.args], node.attrs, node.blocks, made.type)
        done[node] = made
    return done[root]
