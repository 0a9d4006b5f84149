"""Lowerings of torch's control flow, whose operands are graphs: scan, map, while_loop, cond.

An out-of-range index inside a block is clamped, and the block returns a bool that reports it. The
error is raised outside, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch.fx import GraphModule

from stack.errors import StackError
from stack.frontends.arithmetic.complex_pairs import Pair
from stack.frontends.torch.aten.complex_numbers import joined
from stack.frontends.torch.aten.lowering import Context, Promise, letters
from stack.ir.builder import Builder, constant, param
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.types import BOOL, I32, TensorType, TupleType


class Importer(Protocol):
    """Imports one graph."""

    cx: Context

    def nested(self, graph: GraphModule) -> Importer:
        """Returns an importer for a nested graph, which becomes a block."""
        ...

    def results(self, given: Sequence[Any]) -> list[Node]:
        """Returns the results of the graph for these operands."""
        ...


def scan(
    outer: Importer, graph: GraphModule, start: Sequence[Node], xs: Sequence[Node],
    fixed: Sequence[Any],
) -> tuple[Node, ...]:  # fmt: skip
    """Lowers `scan`: returns the final states, then for each output its values of all steps."""
    start, xs, held = (_tensors(outer.cx, values) for values in (start, xs, fixed))
    length: Dim = xs[0].shape[0]
    types: Sequence[TensorType] = outer.cx.want
    ys = [outer.cx.full(0, t) for t in types[len(start) :]]
    groups = {"carry": start, "fixed": held, "xs": xs, "ys": ys}
    state, params = _state({"i": [constant(0, I32)], **groups})
    i, old, kept, rows, made = params

    inner = outer.nested(graph)
    read = [_read(inner.cx, x, i[0]) for x in rows]
    after = inner.results([*old, *read, *_inside(fixed, kept)])
    filled = [
        _write(inner.cx, y, i[0], row) for y, row in zip(made, after[len(start) :], strict=True)
    ]
    more = [inner.cx.b.add(i[0], 1), *after[: len(start)], *kept, *rows, *filled]
    every = [p for group in params for p in group]
    test = outer.nested(graph).cx.b
    holds = test.lt(i[0], test.size_of(length, I32))
    found = _loop(outer, state, every, (test, holds), (inner, more))
    return (*found[1 : 1 + len(start)], *found[len(state) - len(ys) :])


def map_over(
    outer: Importer, graph: GraphModule, xs: Sequence[Node], fixed: Sequence[Any]
) -> tuple[Node, ...]:
    """Lowers `map`: returns the results of a graph for each row."""
    return scan(outer, graph, (), xs, fixed)


def while_loop(
    outer: Importer, test: GraphModule, body: GraphModule, start: Sequence[Node],
    fixed: Sequence[Any],
) -> tuple[Node, ...]:  # fmt: skip
    """Lowers `while_loop`: returns the states for which `test` is first false.

    Raises:
        StackError: if the test itself may raise, for a data-dependent index.
    """
    carried, held = (_tensors(outer.cx, values) for values in (start, fixed))
    state, (old, kept) = _state({"carry": carried, "fixed": held})
    given = [*_inside(start, old), *_inside(fixed, kept)]
    judge, inner = outer.nested(test), outer.nested(body)
    (found,) = judge.results(given)
    if judge.cx.promises:
        raise StackError(f"the condition of a loop may raise: {judge.cx.promises[0].text}")
    holds = judge.cx.reshape(judge.cx.cast(found, BOOL), ())
    after = [*inner.results(given), *kept]
    made = _loop(outer, state, [*old, *kept], (judge.cx.b, holds), (inner, after))
    return tuple(made[: len(carried)])


def cond(
    outer: Importer, test: Node, yes: GraphModule, no: GraphModule, operands: Sequence[Any]
) -> tuple[Node, ...]:
    """Lowers `cond`: returns the results of one of two graphs."""
    given = _tensors(outer.cx, operands)
    _, (params,) = _state({"x": given})
    sides = [outer.nested(graph) for graph in (no, yes)]
    made = [side.results(_inside(operands, params)) for side in sides]
    promises = list(dict.fromkeys(p for side in sides for p in side.cx.promises))
    blocks: list[Block] = []
    for side, results in zip(sides, made, strict=True):
        own = side.cx.promises
        kept = [p.holds if p in own else _true() for p in promises]
        blocks.append(side.cx.b.block(params, [*results, *kept]))
    chosen = outer.cx.reshape(outer.cx.cast(test, BOOL), ())
    found = _items(outer.cx, "cond", [chosen, *given], blocks)
    _promise(outer.cx, promises, found[len(made[0]) :])
    return tuple(found[: len(made[0])])


CONTROL: dict[str, Callable[..., tuple[Any, ...]]] = {
    "scan": scan, "map_impl": map_over, "while_loop": while_loop, "cond": cond,
}  # fmt: skip


def _loop(
    outer: Importer, state: Sequence[Node], params: Sequence[Node], test: tuple[Builder, Node],
    body: tuple[Importer, Sequence[Node]],
) -> list[Node]:  # fmt: skip
    """Builds a `while` node and returns the final values of its state.

    The checks that the body adds for after the run (promises) have to hold in all iterations, so
    their bools are part of the state.
    """
    b, holds = test
    inner, after = body
    promises = list(dict.fromkeys(inner.cx.promises))
    so_far = [param(f"holds.{n}", _true().type) for n in range(len(promises))]
    still = [inner.cx.b.op("and", [s, p.holds]) for s, p in zip(so_far, promises, strict=True)]
    every = [*params, *so_far]
    blocks = (b.block(every, [holds]), inner.cx.b.block(every, [*after, *still]))
    found = _items(outer.cx, "while", [*state, *(_true() for _ in promises)], blocks)
    _promise(outer.cx, promises, found[len(state) :])
    return found[: len(state)]


def _promise(cx: Context, promises: Sequence[Promise], holds: Sequence[Node]) -> None:
    """Adds the promises of a block, checked after a run, to the code around it.

    `holds`: the block's results that are their bools.
    """
    pairs = zip(promises, holds, strict=True)
    cx.promises.extend(Promise(h, p.error, p.text) for p, h in pairs)


def _true() -> Node:
    return constant(True, BOOL)


def _tensors(cx: Context, operands: Sequence[Any]) -> list[Node]:
    """Returns the tensor operands of a block; sizes, numbers and flags are inlined in it."""
    return [joined(cx, v) for v in operands if isinstance(v, Node | Pair)]


def _inside(operands: Sequence[Any], params: Sequence[Node]) -> list[Any]:
    """Replaces the tensors among the operands of a control flow op by the block's parameters."""
    left = iter(params)
    return [next(left) if isinstance(v, Node | Pair) else v for v in operands]


def _state(groups: dict[str, Sequence[Node]]) -> tuple[list[Node], list[list[Node]]]:
    """Returns the values of all groups in one list, and new block parameters for each group."""
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
    """Reads `x[i]`."""
    rest = " ".join(letters(x.tensor.rank - 1))
    return cx.b.gather(x, i, rule=f"i! {rest}, -> {rest}")


def _write(cx: Context, x: Node, i: Node, row: Node) -> Node:
    """Returns `x` with `x[i] = row`."""
    rest = " ".join(letters(x.tensor.rank - 1))
    return cx.b.scatter(x, i, row, rule=f"i! {rest}, , {rest} -> i! {rest}", kind="set")
