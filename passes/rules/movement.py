"""Exact rules about ops that only move elements. Part of canonicalize."""

from __future__ import annotations

from stack.ir.builder import Builder, constant, make, reshaped
from stack.ir.data import Data
from stack.ir.dim import Dim, add, equal, less_equal, mul
from stack.ir.node import Node, topological
from stack.ir.traits import axis_order, is_alias, is_elementwise, repeats, spread
from stack.ir.types import TensorType, Type
from stack.rewrite.engine import Scope, Simple, on


def reshape_to(x: Node, type_: Type) -> Node:
    """Reshapes if the type differs."""
    return x if x.type == type_ else make("reshape", (x,), hint=type_)


def in_shape(reader: Node, shape: tuple[Dim, ...], scope: Scope) -> Node:
    """Returns the first operand of a node, reshaped to `shape`.

    Elementwise ops that nothing else reads are rebuilt in that shape: a reshape between them and
    the reader would prevent contiguous loops.
    """
    root = reader.args[0]
    tree = {reader}
    for node in reversed(topological([root], lambda n: is_like(n, root))):
        if not scope.used_outside(node, tree):
            tree.add(node)
    done: dict[Node, Node] = {}
    for node in topological([root], tree.__contains__):
        args = [done.get(a) or (reshaped(a, shape) if a.shape else a) for a in node.args]
        done[node] = make(node.op, args, node.attrs, hint=node.tensor.with_shape(shape))
    return done.get(root) or reshaped(root, shape)


def is_like(node: Node, root: Node) -> bool:
    """True for an elementwise op of the shape of another value."""
    return is_elementwise(node) and node.shape == root.shape


@on("reshape")
def reshape_of_reshape(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Only the last shape of two reshapes matters."""
    inner = node.args[0]
    if inner.type == node.type:
        return inner
    return reshape_to(inner.args[0], node.type) if is_alias(inner) else None


@on("reshape", "transpose", "slice", "reverse", "gather", of=("broadcast",))
def moves_a_splat(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Movement of equal elements changes nothing: broadcast the scalar."""
    inner = node.args[0]
    if spread(inner) != ():
        return None
    return make("broadcast", inner.args, {"axes": ()}, hint=node.type)


@on("const")
def splat_constant(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A constant array of equal elements is a broadcast scalar. Bits are compared, not values."""
    data: Data = node.attrs["value"]
    if data.size < 2 or not node.shape:
        return None
    width = len(data.raw) // data.size
    if data.raw != data.raw[:width] * data.size:
        return None
    scalar = constant(data.array.reshape(-1)[0], data.dtype)
    return make("broadcast", (scalar,), {"axes": ()}, hint=node.type)


@on("transpose")
def transpose_of_transpose(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Permutations compose; the identity is dropped."""
    inner, perm = node.args[0], node.attrs["perm"]
    if list(perm) == list(range(len(perm))):
        return inner
    first = axis_order(inner)
    if first is None:
        return None
    composed = tuple(first[int(p)] for p in perm)
    return make("transpose", inner.args, {"perm": composed})


@on("transpose")
def transpose_of_units(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Moving only axes of size 1 is a reshape."""
    moved = [p for p in node.attrs["perm"] if node.args[0].shape[p] != 1]
    return reshape_to(node.args[0], node.type) if moved == sorted(moved) else None


@on("broadcast")
def broadcast_of_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Axis maps compose; the identity is dropped."""
    inner, axes = node.args[0], node.attrs["axes"]
    if inner.type == node.type:
        return inner
    first = spread(inner)
    if first is None:
        return None
    composed = tuple(axes[a] for a in first)
    return make("broadcast", inner.args, {"axes": composed}, hint=node.type)


@on("broadcast")
def broadcast_of_units(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A broadcast that only adds axes of size 1 is a reshape."""
    axes = node.attrs["axes"]
    new = [s for i, s in enumerate(node.shape) if i not in axes]
    if all(s == 1 for s in new):
        return reshape_to(node.args[0], node.type)
    return None


@on("broadcast")
def broadcast_without_units(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Operand axes of size 1 are dropped first: fewer spellings of one value."""
    inner, axes = node.args[0], node.attrs["axes"]
    if 1 not in inner.shape:
        return None
    kept = [i for i, s in enumerate(inner.shape) if s != 1]
    type_ = inner.tensor.with_shape(tuple(inner.shape[i] for i in kept))
    return make(
        "broadcast",
        (reshape_to(inner, type_),),
        {"axes": tuple(axes[i] for i in kept)},
        hint=node.type,
    )


@on("reshape", of=("broadcast",))
def reshape_of_broadcast(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Adding or dropping axes of size 1 after a broadcast: broadcast to the other shape."""
    inner = node.args[0]
    if not repeats(inner) or 1 in inner.args[0].shape:
        return None
    before = [i for i, s in enumerate(inner.shape) if s != 1]
    after = [i for i, s in enumerate(node.shape) if s != 1]
    if [inner.shape[i] for i in before] != [node.shape[i] for i in after]:
        return None
    place = dict(zip(before, after))
    axes = tuple(place[a] for a in inner.attrs["axes"])
    return make("broadcast", inner.args, {"axes": axes}, hint=node.type)


@on("slice")
def slice_of_all(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A slice of the whole array is the array."""
    return node.args[0] if node.type == node.args[0].type and _is_whole(node) else None


def _is_whole(node: Node) -> bool:
    start, limit, step = (node.attrs[k] for k in ("start", "limit", "step"))
    return all(
        s == 0 and k == 1 and equal(e, size) is True
        for s, e, k, size in zip(start, limit, step, node.args[0].shape)
    )


@on("slice", of=("slice",))
def slice_of_slice(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Starts and steps compose."""
    inner = node.args[0]
    start: list[Dim] = []
    limit: list[Dim] = []
    step: list[int] = []
    for axis in range(node.tensor.rank):
        s0, k0 = inner.attrs["start"][axis], inner.attrs["step"][axis]
        s1, e1, k1 = (node.attrs[k][axis] for k in ("start", "limit", "step"))
        size, held = node.shape[axis], inner.args[0].shape[axis]
        if not all(isinstance(d, int) for d in (size, e1, s1)) and k0 * k1 != 1:
            return None
        first = add(s0, mul(s1, k0))
        # one past the last element that is read
        last = add(first, add(mul(add(size, -1), k0 * k1), 1)) if size != 0 else first
        if less_equal(last, held) is not True:
            return None
        start.append(first)
        limit.append(last)
        step.append(k0 * k1)
    attrs = {"start": tuple(start), "limit": tuple(limit), "step": tuple(step)}
    made = make("slice", inner.args, attrs)
    return made if made.type == node.type else None


@on("slice", of=("concat",))
def slice_of_concat(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A slice that reads one operand of a concat only."""
    inner = node.args[0]
    axis = int(inner.attrs["axis"])
    start, limit, step = (list(node.attrs[k]) for k in ("start", "limit", "step"))
    low: Dim = 0
    for part in inner.args:
        high = add(low, part.shape[axis])
        if less_equal(low, start[axis]) is True and less_equal(limit[axis], high) is True:
            start[axis] = add(start[axis], mul(low, -1))
            limit[axis] = add(limit[axis], mul(low, -1))
            attrs = {"start": tuple(start), "limit": tuple(limit), "step": tuple(step)}
            made = make("slice", (part,), attrs)
            return made if made.type == node.type else None
        low = high
    return None


@on("slice", of=("pad",))
def slice_of_pad(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A slice of exactly the array that was padded."""
    inner = node.args[0]
    if inner.args[0].type != node.type or any(inner.attrs["interior"]):
        return None
    same = all(
        equal(s, lo) is True and k == 1
        for s, lo, k in zip(node.attrs["start"], inner.attrs["low"], node.attrs["step"])
    )
    return inner.args[0] if same else None


@on("pad")
def pads_nothing(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Padding of zero width."""
    widths = (*node.attrs["low"], *node.attrs["high"], *node.attrs["interior"])
    if node.type == node.args[0].type and all(w == 0 for w in widths):
        return node.args[0]
    return None


@on("pad")
def pads_with_itself(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A broadcast scalar padded with the same scalar."""
    x, value = node.args
    if spread(x) == () and x.args[0] is value:
        return make("broadcast", (value,), {"axes": ()}, hint=node.type)
    return None


@on("concat")
def concat_of_concat(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Nested concats along one axis are one; empty operands are dropped; one operand is itself."""
    axis = node.attrs["axis"]
    parts: list[Node] = []
    for arg in node.args:
        same = arg.op == "concat" and arg.attrs["axis"] == axis
        parts.extend(arg.args if same else (arg,))
    full = [p for p in parts if p.shape[axis] != 0] or parts[:1]
    if len(full) == 1:
        return full[0] if full[0].type == node.type else None
    if tuple(full) == node.args:
        return None
    return make("concat", full, {"axis": axis})


@on("reverse")
def reverse_of_reverse(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Axes of size 1 need no reversal; two reversals cancel."""
    x = node.args[0]
    axes = {a for a in node.attrs["axes"] if x.shape[a] != 1}
    source = x
    if x.op == "reverse":
        axes ^= set(x.attrs["axes"])
        source = x.args[0]
    if not axes:
        return source
    if source is x and len(axes) == len(node.attrs["axes"]):
        return None
    return make("reverse", (source,), {"axes": tuple(sorted(axes))})


@on("iota")
def iota_of_one(node: Node, op: Builder, scope: Scope) -> Node | None:
    """The positions along an axis of size 1 are all 0."""
    if node.shape[node.attrs["axis"]] != 1:
        return None
    return make("broadcast", (constant(0, node.dtype),), {"axes": ()}, hint=node.type)


@on("iota")
def iota_of_line(node: Node, op: Builder, scope: Scope) -> Node | None:
    """An iota of several axes is a broadcast line, so that all share one line."""
    if node.tensor.rank == 1:
        return None
    axis = int(node.attrs["axis"])
    line = TensorType(node.dtype, (node.shape[axis],), node.tensor.space)
    made = make("iota", (), {"axis": 0}, hint=line)
    return make("broadcast", (made,), {"axes": (axis,)}, hint=node.type)


@on("size")
def known_size(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A size that is a number is a constant."""
    value = node.attrs["value"]
    return constant(value, node.dtype) if isinstance(value, int) else None


MOVEMENT_RULES: tuple[Simple, ...] = (
    reshape_of_reshape,
    moves_a_splat,
    splat_constant,
    transpose_of_transpose,
    transpose_of_units,
    broadcast_of_broadcast,
    broadcast_of_units,
    broadcast_without_units,
    reshape_of_broadcast,
    slice_of_all,
    slice_of_slice,
    slice_of_concat,
    slice_of_pad,
    pads_nothing,
    pads_with_itself,
    concat_of_concat,
    reverse_of_reverse,
    iota_of_one,
    iota_of_line,
    known_size,
)
