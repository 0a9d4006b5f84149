"""Lowerings of nested calls, conditionals and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.frontends.jax.lax.index import Reads
from stack.frontends.jax.lax.lowering import Importer, Site, lower
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.types import I32, TensorType

Body = Callable[[Importer, list[Node]], Sequence[Node]]


def _call(parameter: str) -> Any:
    def rule(s: Site, *args: Node, **params: Any) -> list[Node]:
        inner = params[parameter]
        before = set(args)
        if hasattr(inner, "consts"):
            results = s.importer.closed(inner, args)
        else:
            results = s.importer.inline(inner, (), args)
        name = str(params.get("name") or "")
        if name and not name.startswith(("_", "<")) and results[0] not in before:
            s.b.note(results[0], name)
        return results

    rule.handles_words = True
    return rule


for _name, _parameter in {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "composite": "jaxpr",
    "compute_on": "jaxpr",
    "linear_call": "callee",
}.items():
    lower(_name)(_call(_parameter))


@lower("custom_linear_solve")
def _linear_solve(s: Site, *args: Node, const_lengths: Any, jaxprs: Any, **_: Any) -> list[Node]:
    skipped = const_lengths.matvec + const_lengths.vecmat
    consts = args[skipped : skipped + const_lengths.solve]
    right = args[skipped + const_lengths.solve + const_lengths.transpose_solve :]
    return s.importer.closed(jaxprs.solve, (*consts, *right))


_linear_solve.handles_words = True

# ---- cond


@lower("cond")
def _cond(s: Site, index: Node, *args: Node, branches: Sequence[Any], **_: Any) -> list[Node]:
    if index.op == "const":
        chosen = min(max(int(index.attrs["value"].array), 0), len(branches) - 1)
        return s.importer.closed(branches[chosen], args)
    captured = s.importer.captures(branches)
    tokens = s.importer.tokens(branches)
    names = [f"x{i}" for i in range(len(args))]
    types = [a.tensor for a in args]

    def body(branch: Any) -> Body:
        return lambda inner, params: [*inner.closed(branch, params), *inner.left]

    blocks = [s.importer.block(names, types, captured, tokens, body(b)) for b in branches]
    node = s.b.op("cond", (index, *args, *captured.values(), *tokens), blocks=blocks)
    items = s.items(node, "cond_result")
    if tokens:
        s.importer.token = items[-1]
    return items[: len(s.types)]


_cond.handles_words = True


# ---- loops


def loop(
    s: Site,
    state: Sequence[Node],
    names: Sequence[str],
    test: Callable[[Importer, list[Node]], Node],
    body: Body,
    jaxprs: Sequence[Any],
) -> list[Node]:
    """Builds a `while` node from functions that import its test and its body; returns its results.

    `body` maps the state (loop-carried values) to the next state. Large constants and tokens become
    part of the state too.
    """
    captured, tokens = s.importer.captures(jaxprs), s.importer.tokens(jaxprs)
    types = [n.tensor for n in state]

    def holds(inner: Importer, params: list[Node]) -> list[Node]:
        before = inner.token
        found = test(inner, params)
        if inner.token is None or inner.token is before:
            return [found]
        return [inner.b.or_(found, inner.token)]  # always false; runs effects of a test

    def step(inner: Importer, params: list[Node]) -> list[Node]:
        return [*body(inner, params), *inner.big.values(), *inner.left]

    blocks = [s.importer.block(names, types, captured, tokens, part) for part in (holds, step)]
    node = s.b.op("while", (*state, *captured.values(), *tokens), blocks=blocks)
    items = s.items(node)
    if tokens:
        s.importer.token = items[-1]
    for item, name in zip(items, names):
        s.b.note(item, name)
    return items[: len(state)]


@lower("while")
def _while(
    s: Site,
    *args: Node,
    cond_jaxpr: Any,
    body_jaxpr: Any,
    cond_nconsts: int,
    body_nconsts: int,
    **_: Any,
) -> list[Node]:
    fixed = cond_nconsts + body_nconsts
    carried = range(len(args) - fixed)
    names = [*(f"fixed.{i}" for i in range(fixed)), *(f"carry.{i}" for i in carried)]

    def holds(inner: Importer, params: list[Node]) -> Node:
        (found,) = inner.closed(cond_jaxpr, [*params[:cond_nconsts], *params[fixed:]])
        return found

    def test(inner: Importer, params: list[Node]) -> Node:
        found = holds(inner, params)
        # under vmap the loop continues while any lane does
        axes = tuple(range(found.tensor.rank))
        return inner.b.reduce(found, kind="or", axes=axes) if axes else found

    def body(inner: Importer, params: list[Node]) -> list[Node]:
        after = inner.closed(body_jaxpr, params[cond_nconsts:])
        lanes = holds(inner, params) if cond_jaxpr.out_avals[0].shape else None
        if lanes is not None:
            after = [_lanes(inner, lanes, new, old) for new, old in zip(after, params[fixed:])]
        return [*params[:fixed], *after]

    return loop(s, args, names, test, body, (cond_jaxpr, body_jaxpr))[fixed:]


_while.handles_words = True


def _lanes(inner: Importer, lanes: Node, new: Node, old: Node) -> Node:
    if new.tensor.rank > lanes.tensor.rank:
        axes = tuple(range(lanes.tensor.rank))
        lanes = inner.b.broadcast(lanes, axes=axes, type=new.tensor.with_dtype(lanes.dtype))
    return inner.b.select(lanes, new, old)


@lower("scan")
def _scan(
    s: Site,
    *args: Node,
    jaxpr: Any,
    length: Any,
    reverse: bool,
    num_consts: int = 0,
    num_carry: int = 0,
    ft_in: Any = None,
    unroll: int = 1,
    **_: Any,
) -> list[Node]:
    if ft_in is not None:  # from JAX 0.11 on operands are a tree of three parts
        num_consts, num_carry, _rest = map(len, ft_in.unpack())
    (count,) = s.dims([length])
    consts, start = args[:num_consts], args[num_consts : num_consts + num_carry]
    xs = args[num_consts + num_carry :]
    if isinstance(count, int) and (count < 2 or unroll >= count):
        return _unrolled(s, jaxpr, consts, start, xs, count, reverse)
    ys = [_zeros(s, t) for t in s.types[num_carry:]]
    names = ["i", *_numbered("fixed", consts), *_numbered("carry", start),
             *_numbered("xs", xs), *_numbered("ys", ys)]  # fmt: skip
    at = 1 + num_consts
    at_xs = at + num_carry
    at_ys = at_xs + len(xs)

    def body(inner: Importer, params: list[Node]) -> list[Node]:
        i = params[0]
        place = inner.b.sub(inner.b.size_of(count - 1, I32), i) if reverse else i
        step = Site(inner, s.eqn, s.types)
        rows = [read_row(step, x, place) for x in params[at_xs:at_ys]]
        after = inner.closed(jaxpr, [*params[1:at_xs], *rows])
        filled = [
            write_row(step, y, place, row)
            for y, row in zip(params[at_ys : at_ys + len(ys)], after[num_carry:], strict=True)
        ]
        return [inner.b.add(i, 1), *params[1:at], *after[:num_carry], *params[at_xs:at_ys], *filled]

    def test(inner: Importer, params: list[Node]) -> Node:
        return inner.b.lt(params[0], inner.b.size_of(count, I32))

    state = [constant(0, I32), *consts, *start, *xs, *ys]
    out = loop(s, state, names, test, body, (jaxpr,))
    return [*out[at:at_xs], *out[at_ys:]]


_scan.handles_words = True


def _zeros(s: Site, type_: TensorType) -> Node:
    zero = s.fill(0, type_)
    return zero if zero.tensor.rank else s.b.broadcast(zero, axes=(), type=type_)


def _numbered(name: str, nodes: Sequence[Node]) -> list[str]:
    return [f"{name}.{i}" for i in range(len(nodes))]


def read_row(s: Site, x: Node, i: Node) -> Node:
    """Reads `x[i]`."""
    reads = Reads()
    reads.at(i, ())
    names = [f"w{a}" for a in range(1, x.tensor.rank)]
    for name in names:
        reads.through(name)
    return reads.gather(s, x, names)


def write_row(s: Site, x: Node, i: Node, row: Node) -> Node:
    """Returns `x` with `x[i] = row`."""
    reads = Reads()
    reads.at(i, ())
    names = [f"w{a}" for a in range(1, x.tensor.rank)]
    for name in names:
        reads.through(name)
    return reads.scatter(s, x, row, names, "set")


def _unrolled(
    s: Site,
    jaxpr: Any,
    consts: Sequence[Node],
    carry: Sequence[Node],
    xs: Sequence[Node],
    count: int,
    reverse: bool,
) -> list[Node]:
    """Unrolls a scan of at most one step, or one that the user asked to unroll completely."""
    rows: list[list[Node]] = [[] for _ in range(len(s.types) - len(carry))]
    for i in range(count):
        place = count - 1 - i if reverse else i
        after = s.importer.closed(jaxpr, [*consts, *carry, *(_row(s, x, place) for x in xs)])
        after, made = after[: len(carry)], after[len(carry) :]
        carry = after
        for column, row in zip(rows, made, strict=True):
            column.insert(0 if reverse else len(column), row)
    stacked = [_stack(s, column, t) for column, t in zip(rows, s.types[len(carry) :], strict=True)]
    return [*carry, *stacked]


def _row(s: Site, x: Node, i: int) -> Node:
    low = [i] + [0] * (x.tensor.rank - 1)
    part = s.slice(x, low, [i + 1, *x.shape[1:]])
    return s.reshape(part, x.shape[1:])


def _stack(s: Site, rows: Sequence[Node], type_: TensorType) -> Node:
    parts = [s.reshape(r, (1, *type_.shape[1:])) for r in rows]
    if not parts:
        return _zeros(s, type_)
    return s.b.op("concat", parts, {"axis": 0}) if len(parts) > 1 else parts[0]
