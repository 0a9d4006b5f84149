"""Rules that absorb transposes, merges and broadcasts of operands into the axis rule of a dot."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import LETTERS, Rule, parse_rule, reshape_rule
from stack.ir.builder import Builder, make, reshaped
from stack.ir.dim import Dim, product
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.traits import axis_order, is_alias, is_contraction, spread
from stack.rewrite.engine import Scope, on

Axes = list[str]


def dot_axes(node: Node) -> tuple[list[Axes], Axes]:
    """Returns the axis names of a dot: those of each operand, and those of its result."""
    rule = parse_rule(node.attrs["rule"])
    return [[a.names[0] for a in o] for o in rule.inputs], [a.names[0] for a in rule.outputs[0]]


def make_dot(args: Sequence[Node], inputs: Sequence[Axes], output: Axes, like: Node) -> Node:
    """Builds a dot of `args` from axis names: those of each operand (`inputs`), and those of the
    result. It has the element type and the precision of the dot `like`."""
    text = ", ".join(" ".join(o) for o in inputs) + " -> " + " ".join(output)
    attrs = {"rule": text, **{k: v for k, v in like.attrs.items() if k == "precision"}}
    plain = make("dot", args, attrs)
    return make("dot", args, attrs, hint=like.tensor.with_shape(plain.shape))


@on("dot", "ragged_dot")
def operand_transpose(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(transpose(x), y): name x's axes in its own order."""
    orders = [axis_order(a) for a in node.args]
    if not any(orders):
        return None
    rule = parse_rule(node.attrs["rule"])
    inputs = list(rule.inputs)
    args = list(node.args)
    for i, order in enumerate(orders):
        if order:
            inputs[i] = tuple(inputs[i][order.index(p)] for p in range(len(order)))
            args[i] = node.args[i].args[0]
    attrs = {**node.attrs, "rule": str(Rule(tuple(inputs), rule.outputs))}
    return make(node.op, args, attrs, hint=node.type)


@on("transpose")
def result_transpose(node: Node, op: Builder, scope: Scope) -> Node | None:
    """transpose(dot(x, y)): write the result in the transposed order."""
    dot = node.args[0]
    if not is_contraction(dot) or scope.used_outside(dot, (node,)):
        return None
    inputs, output = dot_axes(dot)
    return make_dot(dot.args, inputs, [output[p] for p in node.attrs["perm"]], dot)


@on("dot")
def operand_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(broadcast(x), y): drop broadcast axes that y has too."""
    inputs, output = dot_axes(node)
    for i, arg in enumerate(node.args):
        axes = spread(arg)
        if axes is None:
            continue
        gone = [n for j, n in enumerate(inputs[i]) if j not in axes]
        others = {n for j, names in enumerate(inputs) if j != i for n in names}
        if not arg.args[0].shape or not set(gone) <= others or not set(gone) <= set(output):
            continue
        args = list(node.args)
        args[i] = arg.args[0]
        inputs[i] = [inputs[i][a] for a in axes]
        return make_dot(args, inputs, output, node)
    return None


@on("dot")
def operand_merge(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(reshape(x), y) where the reshape merged axes: keep them separate, merge in the result.

    Frameworks reshape to `(b s) k` and back for a linear layer, and merge batch and heads before a
    batched matmul. The other operand is split to fit, which costs nothing. Contracted axes stay
    merged: splitting them gains nothing.
    """
    inputs, output = dot_axes(node)
    parts: dict[str, tuple[Dim, ...]] = {}
    for names, arg in zip(inputs, node.args):
        for name, sizes in zip(names, merged_sizes(arg)):
            if sizes is None or name not in output:
                continue
            if parts.setdefault(name, sizes) != sizes:
                return None
    if not parts:
        return None
    taken = {n for names in (*inputs, output) for n in names}
    fresh = iter([c for c in LETTERS if c not in taken] + [f"y{i}" for i in range(64)])
    split = {n: [next(fresh) for _ in sizes] for n, sizes in parts.items()}
    new_args: list[Node] = []
    new_inputs: list[Axes] = []
    sizes_of: dict[str, Dim] = {}
    for names, arg in zip(inputs, node.args):
        shape: list[Dim] = []
        for name, size in zip(names, arg.shape):
            shape.extend(parts.get(name, (size,)))
            sizes_of[name] = size
        source = arg.args[0] if is_alias(arg) and _merged_any(arg) else arg
        new_args.append(reshaped(source, shape))
        new_inputs.append([a for n in names for a in split.get(n, [n])])
    new_output = [a for n in output for a in split.get(n, [n])]
    if any(not names for names in new_inputs):
        return None
    dot = make_dot(new_args, new_inputs, new_output, node)
    return reshaped(dot, [sizes_of[n] for n in output])


def _merged_any(arg: Node) -> bool:
    return any(sizes is not None for sizes in merged_sizes(arg))


@cached_by_class
def merged_sizes(arg: Node) -> tuple[tuple[Dim, ...] | None, ...]:
    """Returns for each axis of a value the sizes of the axes that a reshape merged into it, or None
    if it merged none. All are None if the value is no reshape, or one that splits axes."""
    nothing = (None,) * arg.tensor.rank
    if not is_alias(arg):
        return nothing
    source = tuple(s for s in arg.args[0].shape if s != 1)
    rule = reshape_rule(source, arg.shape)
    if rule.whole or any(len(a.names) != 1 for a in rule.inputs[0]):
        return nothing
    sizes = {a.names[0]: s for a, s in zip(rule.inputs[0], source)}
    found: list[tuple[Dim, ...] | None] = []
    for axis in rule.outputs[0]:
        parts = tuple(sizes[n] for n in axis.names)
        found.append(parts if len(parts) > 1 else None)
    if any(
        a.names and product([sizes[n] for n in a.names]) != s
        for a, s in zip(rule.outputs[0], arg.shape)
    ):
        return nothing
    return tuple(found)


def _apart_from_units(arg: Node) -> tuple[list[int], list[int]] | None:
    """Returns for a reshape the numbers of the axes longer than 1, in its operand and in its
    result. None if it does more than add or drop axes of size 1."""
    if not is_alias(arg):
        return None
    source = [i for i, s in enumerate(arg.args[0].shape) if s != 1]
    made = [i for i, s in enumerate(arg.shape) if s != 1]
    same = [arg.args[0].shape[i] for i in source] == [arg.shape[i] for i in made]
    return (source, made) if same else None


@on("transpose")
def transpose_past_units(node: Node, op: Builder, scope: Scope) -> Node | None:
    """transpose(reshape(x)), if only axes of size 1 are added or removed: transpose first."""
    inner = node.args[0]
    found = _apart_from_units(inner)
    if found is None:
        return None
    source, made = found
    place = dict(zip(made, source))
    moved = [place[p] for p in node.attrs["perm"] if p in place]
    units = [i for i in range(inner.args[0].tensor.rank) if i not in source]
    return reshaped(make("transpose", inner.args, {"perm": (*units, *moved)}), node.shape)


@on("dot")
def operand_units(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(reshape(transpose(x)), y), if only axes of size 1 are added or removed: drop them."""
    inputs, output = dot_axes(node)
    for i, arg in enumerate(node.args):
        found = _apart_from_units(arg)
        if found is None or axis_order(arg.args[0]) is None or 1 in arg.args[0].shape:
            continue
        args = list(node.args)
        args[i] = arg.args[0]
        inputs[i] = [inputs[i][a] for a in found[1]]
        left = {n for names in inputs for n in names}
        if not inputs[i] or not left.intersection(output):
            continue
        dot = make_dot(args, inputs, [n for n in output if n in left], node)
        return reshaped(dot, node.shape)
    return None


DOT_RULES = (
    operand_transpose,
    result_transpose,
    operand_broadcast,
    operand_merge,
    transpose_past_units,
    operand_units,
)
