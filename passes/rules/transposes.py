"""Rules that move transposes down to readers, or up to operands."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir import ops
from stack.ir.axes import Rule, reshape_groups, reshape_rule
from stack.ir.builder import Builder, make, reshaped
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import axis_order, is_alias, is_contraction, is_positions, spread
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.rewrite.engine import Scope, on

# ops whose operands and result have the same order of axes
ALIGNED = tuple(
    name
    for name, op in ops.OPS.items()
    if op.kind == "elementwise" or (op.kind == "movement" and op.windows and op.restated)
)
Perm = tuple[int, ...]


def inverse(perm: Sequence[int]) -> Perm:
    """Returns the inverse of a permutation."""
    back = [0] * len(perm)
    for i, p in enumerate(perm):
        back[p] = i
    return tuple(back)


def transposed(x: Node, perm: Sequence[int]) -> Node:
    """Transposes if the permutation is not the identity; composes with a transpose of x."""
    if list(perm) == list(range(len(perm))):
        return x
    first = axis_order(x)
    if first is not None:
        return transposed(x.args[0], [first[p] for p in perm])
    return make("transpose", (x,), {"perm": tuple(perm)})


def for_free(x: Node, perm: Sequence[int]) -> Node | None:
    """Returns `transpose(x, perm)` in a form that copies nothing: of a scalar, a broadcast or an
    iota, or of a transpose that `perm` undoes. None if a copy is needed."""
    if not x.shape:
        return x
    if axis_order(x) is not None:
        moved = transposed(x, perm)
        return None if axis_order(moved) else moved
    if (order := _past_units(x)) is not None:
        left = [order[p] for p in perm if x.shape[p] != 1]
        shape = tuple(x.shape[p] for p in perm)
        return reshaped(x.args[0].args[0], shape) if left == sorted(left) else None
    old = spread(x)
    if old is not None:
        place = inverse(perm)
        axes = tuple(place[a] for a in old)
        if list(axes) == sorted(axes):
            shape = tuple(x.shape[p] for p in perm)
            return make("broadcast", x.args, {"axes": axes}, hint=x.tensor.with_shape(shape))
    if is_positions(x) and x.tensor.rank > 1:
        shape = tuple(x.shape[p] for p in perm)
        at = inverse(perm)[int(x.attrs["axis"])]
        return make("iota", (), {"axis": at}, hint=x.tensor.with_shape(shape))
    return None


class _Reordered:
    """Values in another order of axes, computed in that order by elementwise ops.

    Their operands move for free. Matmuls write any order, but only one: so those count whose
    results nothing else reads. Their last axis stays one of rows or columns: elements of a batch
    axis are of different programs.

    Args:
        perm: the order.
        scope: the block.
    """

    def __init__(self, perm: Perm, scope: Scope) -> None:
        self.perm, self.scope = perm, scope
        self.made: dict[Node, Node | None] = {}

    def of(self, x: Node, user: Node | None) -> Node | None:
        """Returns `transpose(x, perm)`; None if a copy is needed.

        Args:
            x: the value.
            user: the reader that is rebuilt too; None if others read its result as it was.
        """
        is_own = user is not None and not self.scope.used_outside(x, (user,))
        if x not in self.made:
            self.made[x] = for_free(x, self.perm) or self._computed(x, is_own)
        return self.made[x]

    def _computed(self, x: Node, is_own: bool) -> Node | None:
        if is_contraction(x) and is_own:
            inputs, output = dot_axes(x)
            order = [output[p] for p in self.perm]
            is_batch = all(order[-1] in names for names in inputs)
            return None if is_batch else make_dot(x.args, inputs, order, x)
        if ops.lookup(x.op).kind != "elementwise":
            return None
        args: list[Node] = []
        for arg in x.args:
            moved = self.of(arg, x if is_own else None)
            if moved is None:
                return None
            args.append(moved)
        hint = x.tensor.with_shape(tuple(x.shape[p] for p in self.perm))
        return make(x.op, args, x.attrs, hint=hint)


def _past_units(x: Node) -> Perm | None:
    """Returns the `perm` of a transpose behind which a reshape adds or drops axes of size 1.

    The result is as if these axes had been there before the transpose, each in front of the axis
    that follows it. None if the last axis would be one of them.
    """
    inner = x.args[0] if is_alias(x) else x
    perm = axis_order(inner)
    if perm is None or inner is x:
        return None
    order: list[list[int]] = [[] for _ in perm]  # for each axis of the transpose's operand
    units: list[int] = []
    last, at, to = -1, 0, 0
    for read, made in reshape_groups(inner.shape, x.shape):
        width, height = len(inner.shape[read]), len(x.shape[made])
        if max(width, height) > 1:
            return None
        units += range(to, to + height)
        if width and height:
            last = perm[at]
            order[last], units = units, []
        at, to = at + width, to + height
    if last < 0:
        return None
    order[last] += units
    return inverse([axis for axes in order for axis in axes])


def _ordered(x: Node) -> tuple[Node, Perm] | None:
    """Returns the array of which a value is the transpose, with the `perm`.

    If a reshape added axes of size 1 to the transpose, the array gets them too. None if the value
    is no transpose.
    """
    perm = axis_order(x)
    if perm is not None:
        return x.args[0], perm
    perm = _past_units(x)
    if perm is None:
        return None
    return reshaped(x.args[0].args[0], [x.shape[p] for p in inverse(perm)]), perm


def _permuted(node: Node, perm: Sequence[int]) -> dict[str, object] | None:
    """Returns the attributes of a node, such as axis numbers, for operands and a result whose axes
    are permuted by `perm`. Scalar operands stay. None if attributes cannot express it."""
    rule = ops.rule_of(node)
    assert rule is not None, "as of all such ops"
    inputs, outputs = (
        tuple(tuple(operand[p] for p in perm) if operand else operand for operand in side)
        for side in (rule.inputs, rule.outputs)
    )
    return ops.restated(node, Rule(inputs, outputs))


@on(*ALIGNED)
def sink(node: Node, op: Builder, scope: Scope) -> Node | None:
    """op(transpose(x), ...) is transpose(op(x, ...)).

    The other operands must follow for free, unless a convolution reads them in that order anyway.
    """
    perm = next((p for f in (axis_order, _past_units) for a in node.args if (p := f(a))), None)
    if perm is None or not node.shape:
        return None
    back = inverse(perm)
    args: list[Node] = []
    reordered = _Reordered(back, scope)
    for arg in node.args:
        moved = reordered.of(arg, node)
        if moved is None:
            moved = transposed(arg, back)
            if all(reader.op != "conv" for reader in scope.users(moved)):
                return None
        args.append(moved)
    hint = node.tensor.with_shape(tuple(node.shape[p] for p in back))
    return transposed(make(node.op, args, _permuted(node, back), hint=hint), perm)


@on("reduce")
def sink_through_reduce(node: Node, op: Builder, scope: Scope) -> Node | None:
    """reduce(transpose(x)): reduce x along its own axes."""
    found = _ordered(node.args[0])
    if found is None:
        return None
    x, perm = found
    reduced: tuple[int, ...] = node.attrs["axes"]
    gone = sorted(perm[a] for a in reduced)
    attrs = {"kind": node.attrs["kind"], "axes": tuple(gone)}
    kept = [p for i, p in enumerate(perm) if i not in reduced]
    order = sorted(kept)
    return transposed(make("reduce", (x,), attrs), [order.index(p) for p in kept])


@on("broadcast")
def sink_through_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """broadcast(transpose(x)): broadcast first.

    New axes keep their position. If a reshape may merge them with x, they follow the same axis as
    before.
    """
    found = _ordered(node.args[0])
    if found is None or not found[1]:  # nor for a scalar
        return None
    x, perm = found
    axes: Sequence[int] = node.attrs["axes"]
    back = inverse(perm)
    if all(is_alias(reader) for reader in scope.users(node)):
        ends = (*axes[1:], node.tensor.rank)
        order = list(range(axes[0]))
        for i in back:
            order += range(axes[i], ends[i])
    else:
        order = list(range(node.tensor.rank))
        for axis, i in zip(axes, back, strict=True):
            order[axis] = axes[i]
    hint = node.tensor.with_shape(tuple(node.shape[o] for o in order))
    attrs = {"axes": tuple(order.index(axes[i]) for i in back)}
    return transposed(make("broadcast", (x,), attrs, hint=hint), inverse(order))


@on("reshape")
def sink_through_reshape(node: Node, op: Builder, scope: Scope) -> Node | None:
    """reshape(transpose(x)) where only neighbours of x merge: reshape first."""
    x = node.args[0]
    perm = axis_order(x)
    if perm is None:
        return None
    source, to = x.args[0], tuple(s for s in node.shape if s != 1)
    if 1 in node.shape or 1 in x.shape:  # dropped here, and added again afterwards
        long = [p for p in perm if x.args[0].shape[p] != 1]
        perm = tuple(sorted(long).index(p) for p in long)
        source = reshaped(source, [s for s in source.shape if s != 1])
    lies = tuple(source.shape[p] for p in perm)
    if lies == to:
        return None
    rule = reshape_rule(lies, to)
    if rule.whole:
        return None
    place = {n: i for i, a in enumerate(rule.outputs[0]) for n in a.names}
    # for each axis of x, in x's own order, the result axes that contain it
    order: list[int] = []
    for axis in range(len(perm)):
        found = [place[n] for n in rule.inputs[0][perm.index(axis)].names]
        for out in found:
            if out in order and order[-1] != out:
                return None
            if out not in order:
                order.append(out)
    for axis in rule.outputs[0]:
        members = [
            perm[i] for i, a in enumerate(rule.inputs[0]) if any(n in axis.names for n in a.names)
        ]
        if members != list(range(members[0], members[0] + len(members))):
            return None
    shape: tuple[Dim, ...] = tuple(to[o] for o in order)
    made = transposed(reshaped(source, shape), [order.index(o) for o in range(len(order))])
    return reshaped(made, node.shape)


@on("transpose")
def hoist(node: Node, op: Builder, scope: Scope) -> Node | None:
    """transpose(op(x, ...)) is op(transpose(x), ...).

    At most one operand may need a real transpose, and nothing else may read the value in between.
    """
    inner = node.args[0]
    known = ops.lookup(inner.op).kind == "elementwise"
    if not known or scope.used_outside(inner, (node,)):
        return None
    perm: Perm = node.attrs["perm"]
    args: list[Node] = []
    costly = 0
    for arg in inner.args:
        moved = for_free(arg, perm)
        if moved is None:
            costly += 1
            moved = transposed(arg, perm)
        args.append(moved)
    if costly > 1:
        return None
    return make(inner.op, args, inner.attrs, hint=node.type)


SINK_RULES = (sink, sink_through_reduce, sink_through_broadcast, sink_through_reshape)
HOIST_RULES = (hoist,)
