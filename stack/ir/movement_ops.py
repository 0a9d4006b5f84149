"""Leaves, and ops that move elements without computing: views, windows, gather and scatter."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stack.ir.algebra import INF, NOTHING, RISING, Algebra
from stack.ir.axes import (
    Axis,
    Operand,
    Rule,
    names,
    operand_text,
    parse_rule,
    plain,
    reshape_groups,
    reshape_rule,
    unmarked,
)
from stack.ir.dim import Dim, add, equal, floordiv, less_equal, maximum, mul, product
from stack.ir.elementwise_ops import EVERYWHERE, hinted
from stack.ir.node import Node
from stack.ir.ops import Applied, OpDef, Site, define
from stack.ir.relation import Equation, Linear, Relation, Window, Windows, related, row_major
from stack.ir.types import TensorType, Type

MOVED = Algebra(((0,),), (RISING,), exact=True)
SCATTER_KINDS = ("set", "add", "mul", "max", "min")


def _const_infer(site: Site) -> Type:
    data = site.attrs["value"]
    space = site.hint.space if isinstance(site.hint, TensorType) else "value"
    return TensorType(data.dtype, data.shape, space)


def _iota_infer(site: Site) -> Type:
    hint = hinted(site)
    if not 0 <= site.attrs["axis"] < hint.rank:
        raise site.fail(f"axis {site.attrs['axis']} is outside of {hint}")
    if hint.dtype.kind not in "iuf":
        raise site.fail(f"counts in integers or floats, not in {hint.dtype}")
    return hint


def _size_infer(site: Site) -> Type:
    dtype = hinted(site).dtype
    if not dtype.is_integer:
        raise site.fail(f"a size is an integer, not {dtype}")
    return TensorType(dtype, ())


def _leaf_rule(node: Node) -> Rule:
    return Rule((), (plain(names(node.tensor.rank)),))


def _leaf(
    name: str, doc: str, infer: Callable[[Site], Type], kind: str = "leaf", **more: Any
) -> None:
    define(OpDef(name, doc, kind, infer, arity=0, levels=EVERYWHERE, **more))


_leaf("param", "an input of a block", hinted, "input", attrs=("name: str",))
_leaf("const", "a constant array", _const_infer, attrs=("value: data",))
_leaf(
    "iota",
    "position along one axis: 0, 1, 2, ...",
    _iota_infer,
    rule=_leaf_rule,
    algebra=Algebra(range=(0, INF), exact=True),
    attrs=("axis: int",),
)
_leaf(
    "size",
    "the value of a size expression, as an integer",
    _size_infer,
    rule=_leaf_rule,
    algebra=Algebra(range=(0, INF), exact=True),
    attrs=("value: dim",),
)


# ---- views


def _reshape_infer(site: Site) -> Type:
    hint = hinted(site)
    if equal(hint.size, site.args[0].tensor.size) is False or hint.dtype != site.args[0].dtype:
        raise site.fail(f"cannot reshape to {hint}: the number or type of elements differs")
    return hint


def _reshape_rule(node: Node) -> Rule:
    return reshape_rule(node.args[0].shape, node.shape)


def _reshape_relation(node: Node) -> Relation:
    """Both shapes number the elements of each group of dims in the same, row-major, order."""
    source, target = node.args[0].shape, node.shape
    sizes: dict[str, Dim] = {}
    read: list[Equation] = []
    made: list[Equation] = []
    for group, (left, right) in enumerate(reshape_groups(source, target)):
        flat = f"f{group}"
        sizes[flat] = product(source[left])
        for found, dims, shape in ((read, left, source), (made, right, target)):
            terms = row_major(range(len(shape))[dims], shape[dims])
            found.append(Equation(terms, ((flat, 1),)))
    return Linear(sizes, ((source, tuple(read)),), ((target, tuple(made)),))


def _transpose_infer(site: Site) -> Type:
    perm: tuple[int, ...] = site.attrs["perm"]
    source = site.args[0].tensor
    if sorted(perm) != list(range(source.rank)):
        raise site.fail(f"perm {list(perm)} is not a permutation of its {source.rank} axes")
    return source.with_shape(site.shape())


def _transpose_rule(node: Applied) -> Rule:
    return _permuted(tuple(node.attrs["perm"]))


@lru_cache(maxsize=1 << 8)
def _permuted(perm: tuple[int, ...]) -> Rule:
    axes = names(len(perm))
    return Rule((plain(axes),), (plain([axes[p] for p in perm]),))


def _restated_transpose(node: Node, rule: Rule) -> dict[str, object]:
    return {"perm": tuple(rule.inputs[0].index(a) for a in rule.outputs[0])}


def _broadcast_infer(site: Site) -> Type:
    hint, source, axes = hinted(site), site.args[0].tensor, site.attrs["axes"]
    if len(axes) != source.rank or list(axes) != sorted(set(axes)):
        raise site.fail(
            f"axes {list(axes)} must name one result axis for each operand axis, rising"
        )
    for axis, size in zip(axes, source.shape, strict=True):
        if not 0 <= axis < hint.rank or hint.shape[axis] != size:
            raise site.fail(f"operand axis of size {size} does not match axis {axis} of {hint}")
    return hint


def _broadcast_rule(node: Node) -> Rule:
    return _spread(node.tensor.rank, tuple(node.attrs["axes"]))


@lru_cache(maxsize=1 << 8)
def _spread(rank: int, kept: tuple[int, ...]) -> Rule:
    axes = names(rank)
    return Rule((plain([axes[i] for i in kept]),), (plain(axes),))


def _restated_broadcast(node: Node, rule: Rule) -> dict[str, object]:
    return {"axes": tuple(rule.outputs[0].index(a) for a in rule.inputs[0])}


# ---- windows


def _slice_infer(site: Site) -> Type:
    source = site.args[0].tensor
    start, limit, step = (site.attrs[k] for k in ("start", "limit", "step"))
    if not len(start) == len(limit) == len(step) == source.rank:
        raise site.fail("start, limit and step need one entry for each axis")
    if any(k < 1 for k in step):
        raise site.fail("steps are positive")
    shape: list[Dim] = []
    for s, e, k, size in zip(start, limit, step, source.shape, strict=True):
        if less_equal(0, s) is False or less_equal(0, e) is False:
            raise site.fail(f"slice {s}:{e} has a negative bound")
        if less_equal(e, size) is False:
            raise site.fail(f"slice {s}:{e} reaches past the size {size}")
        shape.append(maximum(floordiv(add(add(e, mul(s, -1)), k - 1), k), 0))
    return source.with_shape(tuple(shape))


def _windowed(node: Node) -> Rule:
    """Operand axes read through an offset, where the op changes them."""
    axes = names(node.tensor.rank)
    flipped = node.attrs["axes"] if node.op == "reverse" else ()
    sizes = enumerate(zip(axes, node.args[0].shape, node.shape, strict=True))
    read = tuple(Axis((a,), "" if s == t and i not in flipped else "^") for i, (a, s, t) in sizes)
    extra = tuple(() for _ in node.args[1:])
    return Rule((read, *extra), (plain(axes),))


def _restated_windows(node: Node, rule: Rule) -> dict[str, object]:
    """One entry for each axis of the result, which go where it goes."""
    old = [a.names for a in _windowed(node).outputs[0]]
    order = [old.index(a.names) for a in rule.outputs[0]]
    return {k: tuple(v[i] for i in order) for k, v in node.attrs.items()}


def _slice_windows(node: Node) -> Windows:
    start: tuple[Dim, ...] = node.attrs["start"]
    step: tuple[int, ...] = node.attrs["step"]
    axes = zip(names(len(start)), start, step)
    return {(0, dim): Window(((a, k),), s) for dim, (a, s, k) in enumerate(axes)}


def _reverse_infer(site: Site) -> Type:
    source, axes = site.args[0].tensor, site.attrs["axes"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < source.rank for a in axes):
        raise site.fail(f"axes {list(axes)} are not distinct rising axes of {source}")
    return source


def _reverse_windows(node: Node) -> Windows:
    axes = names(node.tensor.rank)
    flipped: tuple[int, ...] = node.attrs["axes"]
    return {(0, d): Window(((axes[d], -1),), add(node.shape[d], -1)) for d in flipped}


def _restated_reverse(node: Node, rule: Rule) -> dict[str, object]:
    return {"axes": tuple(i for i, a in enumerate(rule.inputs[0]) if a.mark)}


def _pad_infer(site: Site) -> Type:
    source, value = site.args[0].tensor, site.args[1].tensor
    low, high, inner = (site.attrs[k] for k in ("low", "high", "interior"))
    if value.rank or value.dtype != source.dtype:
        raise site.fail("the padding value is a scalar of the operand's element type")
    if not len(low) == len(high) == len(inner) == source.rank:
        raise site.fail("low, high and interior need one entry for each axis")
    if any(less_equal(0, v) is False for v in (*low, *high, *inner)):
        raise site.fail("padding is not negative; slice instead")
    shape: list[Dim] = []
    for size, lo, hi, gap in zip(source.shape, low, high, inner, strict=True):
        gaps = mul(gap, maximum(add(size, -1), 0))
        shape.append(add(add(size, gaps), add(lo, hi)))
    return source.with_shape(tuple(shape))


def _pad_windows(node: Node) -> Windows:
    low, interior = node.attrs["low"], node.attrs["interior"]
    axes = zip(names(len(low)), low, interior)
    return {
        (0, dim): Window(((a, 1),), mul(lo, -1), add(gap, 1))
        for dim, (a, lo, gap) in enumerate(axes)
    }


def _unfold_infer(site: Site) -> Type:
    source, at = site.args[0].tensor, site.attrs
    first, window = at["axis"], at["window"]
    stride, dilation = at["stride"], at["dilation"]
    past = first + len(window)
    if not 0 < len(window) == len(stride) == len(dilation) or not 0 <= first <= past <= source.rank:
        raise site.fail("window, stride and dilation need one entry for each axis from `axis` on")
    if any(v < 1 for v in (*window, *stride, *dilation)):
        raise site.fail("windows, strides and dilations are positive")
    places: list[Dim] = []
    sizes = source.shape[first:past]
    for extent, taps, by, apart in zip(sizes, window, stride, dilation, strict=True):
        span = (taps - 1) * apart + 1
        if less_equal(span, extent) is False:
            raise site.fail(f"a window of {span} on an axis of {extent}")
        places.append(add(floordiv(add(extent, -span), by), 1))
    return source.with_shape((*source.shape[:first], *places, *window, *source.shape[past:]))


def _unfold_rule(node: Node) -> Rule:
    first, rank = node.attrs["axis"], len(node.attrs["window"])
    axes = names(node.tensor.rank)
    past = first + rank
    read = tuple(Axis((a,), "^") for a in axes[first:past])
    kept = plain(axes[:first]), plain(axes[past + rank :])
    return Rule(((*kept[0], *read, *kept[1]),), (plain(axes),))


def _unfold_windows(node: Node) -> Windows:
    first: int = node.attrs["axis"]
    stride: tuple[int, ...] = node.attrs["stride"]
    dilation: tuple[int, ...] = node.attrs["dilation"]
    axes = names(node.tensor.rank)
    return {
        (0, dim): Window(((axes[dim], by), (axes[dim + len(stride)], apart)))
        for dim, (by, apart) in enumerate(zip(stride, dilation, strict=True), first)
    }


def _concat_infer(site: Site) -> Type:
    axis: int = site.attrs["axis"]
    first = site.args[0].tensor
    if not 0 <= axis < first.rank:
        raise site.fail(f"axis {axis} is outside of {first}")
    total: Dim = 0
    for arg in site.args:
        rest = arg.shape[:axis] + arg.shape[axis + 1 :]
        if arg.dtype != first.dtype or rest != first.shape[:axis] + first.shape[axis + 1 :]:
            raise site.fail(f"operands differ outside of axis {axis}")
        total = add(total, arg.shape[axis])
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat_rule(node: Node) -> Rule:
    axes = names(node.tensor.rank)
    at = node.attrs["axis"]
    operand = tuple(
        Axis((f"{a}{i}",), "^") if axis == at else Axis((a,))
        for i in range(len(node.args))
        for axis, a in enumerate(axes)
    )
    rank = node.tensor.rank
    operands = tuple(operand[i * rank : (i + 1) * rank] for i in range(len(node.args)))
    return Rule(operands, (plain(axes),))


def _concat_windows(node: Node) -> Windows:
    at: int = node.attrs["axis"]
    axis = names(node.tensor.rank)[at]
    found: dict[tuple[int, int], Window] = {}
    start: Dim = 0
    for operand, arg in enumerate(node.args):
        found[operand, at] = Window(((axis, 1),), mul(start, -1))
        start = add(start, arg.shape[at])
    return found


def _concat_algebra(node: Node) -> Algebra:
    count = len(node.args)
    return Algebra((tuple(range(count)),), (RISING,) * count, exact=True)


def _restated_concat(node: Node, rule: Rule) -> dict[str, object]:
    (axis,) = (i for i, a in enumerate(rule.inputs[0]) if a.mark)
    return {"axis": axis}


# ---- gather and scatter


def rule_attr(node: Applied) -> Rule:
    """The axis rule of an op that carries it as an attribute."""
    return parse_rule(node.attrs["rule"])


def _check_indices(
    site: Site, rule: Rule, indices: tuple[Node, ...], frame: Operand
) -> dict[str, Dim]:
    """Checks what gather and scatter share; `frame` is the operand that has all plain axes."""
    if len(rule.inputs) != len(site.args) or len(rule.outputs) != 1:
        raise site.fail(f"rule {str(rule)!r} does not fit {len(site.args)} operands")
    indexed = [a for a in rule.inputs[0] if a.mark == "!"]
    if len(indexed) != len(indices):
        raise site.fail(f"{len(indexed)} axes are marked '!', {len(indices)} indices given")
    if any(not a.dtype.is_integer for a in indices):
        raise site.fail("indices are integers")
    read = [*(a for a in rule.inputs[0] if a.mark != "!"), *(a for o in rule.inputs[1:] for a in o)]
    if any(a.mark or len(a.names) != 1 for a in (*read, *frame)):
        raise site.fail(f"rule {str(rule)!r}: axes are single names, '!' marks axes of operand 0")
    have = [a.names[0] for a in frame]
    missing = [a.names[0] for a in read if a.names[0] not in have]
    if missing or len(set(have)) != len(have):
        raise site.fail(
            f"rule {str(rule)!r}: {operand_text(frame)!r} needs each axis once"
            + "".join(f", {name!r} is missing" for name in dict.fromkeys(missing))
        )
    return rule.sizes([a.shape for a in site.args])


def _gather_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if len(rule.outputs) != 1:
        raise site.fail(f"rule {str(rule)!r} has one result")
    frame = rule.outputs[0]
    sizes = _check_indices(site, rule, site.args[1:], frame)
    loose = [a.names[0] for a in frame if a.names[0] not in sizes]
    if loose or any(a.names[0] in rule.whole for a in frame):
        raise site.fail(f"rule {str(rule)!r}: the result has the plain axes of the operands")
    return site.args[0].tensor.with_shape(site.shape())


def _scatter_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if site.attrs["kind"] not in SCATTER_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(SCATTER_KINDS)}")
    if rule.outputs != rule.inputs[:1]:
        raise site.fail(f"rule {str(rule)!r}: the result has the axes of operand 0")
    _check_indices(site, rule, site.args[1:-1], rule.inputs[-1])
    if site.args[-1].dtype != site.args[0].dtype:
        raise site.fail("the updates have the operand's element type")
    if site.attrs["kind"] in ("max", "min") and site.args[0].dtype.kind == "c":
        raise site.fail("complex numbers have no order")
    return site.args[0].type


def _scatter_relation(node: Node) -> Relation:
    """An element of operand 0 stays where it is; an update goes anywhere along the marked axes."""
    return related(unmarked(rule_attr(node)), [a.shape for a in node.args], [node.shape], {})


def _scatter_operations(node: Node) -> Dim:
    return 0 if node.attrs["kind"] == "set" else node.args[-1].tensor.size


def _movement(
    name: str,
    doc: str,
    infer: Callable[[Site], Type],
    rule: Callable[[Node], Rule],
    algebra: Algebra | Callable[[Node], Algebra] = MOVED,
    **more: Any,
) -> None:
    define(OpDef(name, doc, "movement", infer, rule=rule, algebra=algebra, **more))


_movement(
    "reshape",
    "same elements in row-major order, another shape",
    _reshape_infer,
    _reshape_rule,
    relation=_reshape_relation,
    aliases=True,
    arity=1,
    levels=EVERYWHERE,
)
_movement(
    "transpose",
    "axis i of the result is axis perm[i] of the operand",
    _transpose_infer,
    _transpose_rule,
    restated=_restated_transpose,
    arity=1,
    attrs=("perm: ints",),
    levels=EVERYWHERE,
)
_movement(
    "broadcast",
    "operand axis i becomes result axis axes[i]; the others repeat",
    _broadcast_infer,
    _broadcast_rule,
    restated=_restated_broadcast,
    arity=1,
    attrs=("axes: ints",),
    levels=EVERYWHERE,
)
_movement(
    "slice",
    "elements start, start+step, ... below limit",
    _slice_infer,
    _windowed,
    windows=_slice_windows,
    beyond="zero",
    restated=_restated_windows,
    arity=1,
    attrs=("start: dims", "limit: dims", "step: ints"),
)
_movement(
    "reverse",
    "flip the axes",
    _reverse_infer,
    _windowed,
    windows=_reverse_windows,
    beyond="zero",
    restated=_restated_reverse,
    arity=1,
    attrs=("axes: ints",),
)
_movement(
    "pad",
    "put `low`, `high` and, between elements, `interior` copies of the scalar operand",
    _pad_infer,
    _windowed,
    windows=_pad_windows,
    beyond="operand",
    restated=_restated_windows,
    algebra=Algebra(((0, 1),), (RISING, RISING), exact=True),
    arity=2,
    attrs=("low: dims", "high: dims", "interior: dims"),
)
_movement(
    "unfold",
    "sliding windows: the axes from `axis` on become places of a window, and its taps behind them",
    _unfold_infer,
    _unfold_rule,
    windows=_unfold_windows,
    arity=1,
    attrs=("axis: int", "window: ints", "stride: ints", "dilation: ints"),
    levels=EVERYWHERE,
)
_movement(
    "concat",
    "operands one after another along an axis",
    _concat_infer,
    _concat_rule,
    windows=_concat_windows,
    restated=_restated_concat,
    algebra=_concat_algebra,
    at_least=1,
    attrs=("axis: int",),
)
_movement(
    "gather",
    "read at data-dependent positions of the axes marked '!'; indices in range",
    _gather_infer,
    rule_attr,
    at_least=1,
    attrs=("rule: str",),
    levels=frozenset({"tensor", "tile"}),
)
_movement(
    "scatter",
    "combine updates into operand 0 at data-dependent positions; indices in range",
    _scatter_infer,
    rule_attr,
    relation=_scatter_relation,
    algebra=NOTHING,
    operations=_scatter_operations,
    at_least=2,
    attrs=("rule: str", "kind: str"),
)
