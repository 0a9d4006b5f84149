"""Lowerings of torch's control flow, whose operands are graphs: scan, while_loop, cond."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.fx import GraphModule

from stack.frontends.aten import Context, letters
from stack.ir.builder import constant, param
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.types import BOOL, I32, TensorType, TupleType


class Importer(Protocol):
    """What imports one graph."""

    cx: Context

    def nested(self, graph: GraphModule) -> Importer:
        """An importer of a graph inside of this one, which makes a block."""
        ...

    def results(self, given: Sequence[Node]) -> list[Node]:
        """The results of the graph for these tensors."""
        ...


def scan(
    outer: Importer, graph: GraphModule, start: Sequence[Node], xs: Sequence[Node],
    fixed: Sequence[Node],
) -> tuple[Node, ...]:  # fmt: skip
    """The last states, then for each output its values of all steps."""
    length: Dim = xs[0].shape[0]
    types: Sequence[TensorType] = outer.cx.want
    ys = [outer.cx.full(0, t) for t in types[len(start) :]]
    groups = {"carry": start, "fixed": fixed, "xs": xs, "ys": ys}
    state, params = _state({"i": [constant(0, I32)], **groups})
    i, old, kept, rows, made = params

    inner = outer.nested(graph)
    after = inner.results([*old, *(_read(inner.cx, x, i[0]) for x in rows), *kept])
    filled = [
        _write(inner.cx, y, i[0], row) for y, row in zip(made, after[len(start) :], strict=True)
    ]
    more = [inner.cx.b.add(i[0], 1), *after[: len(start)], *kept, *rows, *filled]
    every = [p for group in params for p in group]
    test = outer.nested(graph).cx.b
    holds = test.block(every, [test.lt(i[0], test.size_of(length, I32))])
    found = _items(outer.cx, "while", state, (holds, inner.cx.b.block(every, more)))
    return (*found[1 : 1 + len(start)], *found[len(state) - len(ys) :])


def while_loop(
    outer: Importer, test: GraphModule, body: GraphModule, start: Sequence[Node],
    fixed: Sequence[Node],
) -> tuple[Node, ...]:  # fmt: skip
    """The states for which `test` fails first."""
    state, (old, kept) = _state({"carry": start, "fixed": fixed})
    judge, inner = outer.nested(test), outer.nested(body)
    (found,) = judge.results([*old, *kept])
    holds = judge.cx.b.block([*old, *kept], [judge.cx.reshape(judge.cx.cast(found, BOOL), ())])
    after = [*inner.results([*old, *kept]), *kept]
    blocks = (holds, inner.cx.b.block([*old, *kept], after))
    return tuple(_items(outer.cx, "while", state, blocks)[: len(start)])


def cond(
    outer: Importer, test: Node, yes: GraphModule, no: GraphModule, operands: Sequence[Node]
) -> tuple[Node, ...]:
    """The results of one of two graphs."""
    blocks: list[Block] = []
    for graph in (no, yes):
        _, (params,) = _state({"x": operands})
        inner = outer.nested(graph)
        blocks.append(inner.cx.b.block(params, inner.results(params)))
    chosen = outer.cx.reshape(outer.cx.cast(test, BOOL), ())
    return tuple(_items(outer.cx, "cond", [chosen, *operands], blocks))


CONTROL: dict[str, Callable[..., tuple[Any, ...]]] = {
    "scan": scan, "while_loop": while_loop, "cond": cond,
}  # fmt: skip


def _state(groups: dict[str, Sequence[Node]]) -> tuple[list[Node], list[list[Node]]]:
    """The values of all groups, and parameters for each group."""
    params = [
        [param(f"{name}.{n}", v.type) for n, v in enumerate(values)]
        for name, values in groups.items()
    ]
    return [v for values in groups.values() for v in values], params


def _items(cx: Context, op: str, args: Sequence[Node], blocks: Sequence[Block]) -> list[Node]:
    node = cx.b.op(op, args, blocks=blocks)
    if not isinstance(node.type, TupleType):
        return [node]
    return [cx.b.item(node, index=i) for i in range(len(node.type.items))]


def _read(cx: Context, x: Node, i: Node) -> Node:
    """`x[i]`"""
    rest = " ".join(letters(x.tensor.rank - 1))
    return cx.b.gather(x, i, rule=f"i! {rest}, -> {rest}")


def _write(cx: Context, x: Node, i: Node, row: Node) -> Node:
    """`x` with `x[i] = row`"""
    rest = " ".join(letters(x.tensor.rank - 1))
    return cx.b.scatter(x, i, row, rule=f"i! {rest}, , {rest} -> i! {rest}", kind="set")
