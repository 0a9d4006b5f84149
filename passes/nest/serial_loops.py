"""Loop nests of ops that are serial along an axis: scans, and scatters with colliding updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, mul
from stack.ir.node import Node
from stack.ir.space import identity
from stack.ir.types import F32, DType
from stack.passes.nest.scope import letter, looped
from stack.passes.nest.values import Scalars
from stack.passes.tiling.frame import COMBINE, static, wide

Along = Callable[
    [Sequence[Dim], Sequence[Node], Callable[[Sequence[Node]], list[Node]]], list[Node]
]


def scan_nest(values: Scalars, node: Node, output: Node, along: Along, running: DType) -> Node:
    """Builds the nest of a scan: a loop carries the running total and the output.

    Args:
        values: builds the scalars of the nest.
        node: the scan.
        output: the memory of its result.
        along: builds loops over axes.
        running: the type of running sums and products of f32.
    """
    axis, kind = int(node.attrs["axis"]), str(node.attrs["kind"])
    index = [values.scope.axis(letter(a), static(s)) for a, s in enumerate(node.shape)]
    walked = index[axis]
    place = list(index)
    if node.attrs["reverse"]:
        place[axis] = add(static(node.shape[axis]) - 1, mul(walked, -1))
    dtype = wide(node.dtype)
    if dtype is F32 and kind in ("sum", "prod"):
        dtype = running

    def program(memories: Sequence[Node]) -> list[Node]:
        value = values.scope.cast(values.value(node.args[0], tuple(place)), dtype)
        first = constant(identity(kind, dtype), dtype)
        if isinstance(walked, int):
            return [values.stored(memories[0], value, place)]
        acc = values.scope.carried("acc", first.type)
        held = values.scope.carried("o", memories[0].type)
        total = values.scope.b.op(COMBINE[kind], [acc, value])
        step = [total, values.stored(held, total, place)]
        return values.scope.loop(walked, [first, memories[0]], [acc, held], step)[1:]

    others = [d for a, d in enumerate(index) if a != axis]
    return along(looped(others), [output], program)[0]


def scatter_nest(values: Scalars, node: Node, output: Node, along: Along) -> Node:
    """Builds the nest of a scatter: copies the operand, then applies the updates one by one.

    Axes that no index selects get loops around both, except for the last axis of memory.
    """
    rule = parse_rule(node.attrs["rule"])
    source, updates = node.args[0], node.args[-1]
    target, *operands, given = ([a.names[0] for a in operand] for operand in rule.inputs)
    sizes = dict(zip((*target, *given), map(static, (*node.shape, *updates.shape))))
    picked = [a.names[0] for a in rule.inputs[0] if a.mark]
    places: dict[str, Dim] = {n: values.scope.axis(n, sizes[n]) for n in target}
    steps: dict[str, Dim] = {n: places[n] for n in given if n in target and n not in picked}
    around = [n for n in target[:-1] if n in steps]
    walked = [n for n in given if n not in steps]
    steps |= {n: values.scope.axis("r", sizes[n]) for n in walked}
    found: dict[str, Dim] = {n: steps.get(n, 0) for n in target}
    guard: Node | None = None
    for name, operand, index in zip(picked, operands, node.args[1:-1], strict=True):
        at = values.scope.cast(values.value(index, _at(steps, operand)), values.scope.integer)
        found[name] = values.scope.data_place(at, sizes[name])
        if node.attrs.get("drop"):
            test = values.scope.b.and_(
                values.scope.b.ge(at, values.scope.int(0)),
                values.scope.b.lt(at, values.scope.int(sizes[name])),
            )
            guard = values.scope.both(guard, test)

    def copied(memories: Sequence[Node]) -> list[Node]:
        at = _at(places, target)
        return [values.stored(memories[0], values.value(source, at), at)]

    def update(memories: Sequence[Node]) -> list[Node]:
        value = values.value(updates, _at(steps, given))
        kind = str(node.attrs["kind"])
        if kind != "set":
            there = values.element(memories[0], _at(found, target), guard)
            value = values.scope.b.op(kind, [there, value])
        return [values.stored(memories[0], value, _at(found, target), guard)]

    def program(memories: Sequence[Node]) -> list[Node]:
        copy = [places[n] for n in target if n not in around]
        walk = [*(steps[n] for n in walked), *(steps[n] for n in given if n in target[-1:])]
        full = along(looped(copy), memories, copied)
        return along(looped(dict.fromkeys(walk)), full, update)

    return along(looped(places[n] for n in around), [output], program)[0]


def _at(places: Mapping[str, Dim], names: Sequence[str]) -> Index:
    return tuple(places[n] for n in names)
