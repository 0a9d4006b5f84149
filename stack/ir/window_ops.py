"""Ops that read through windows: slice, reverse, pad, unfold, and concat."""

from __future__ import annotations

from stack.ir.algebra import RISING, Algebra
from stack.ir.axes import Axis, Rule, names, plain
from stack.ir.dim import Dim, add, floordiv, less_equal, maximum, mul
from stack.ir.elementwise_ops import EVERYWHERE
from stack.ir.movement_ops import movement
from stack.ir.node import Node
from stack.ir.ops import Site
from stack.ir.relation import Window, Windows
from stack.ir.types import Type


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
    """The axis rule of an op of this file. Operand axes that the op resizes or reverses are marked
    `^`, because it reads them at other indices than those of the result.
    """
    axes = names(node.tensor.rank)
    flipped = node.attrs["axes"] if node.op == "reverse" else ()
    sizes = enumerate(zip(axes, node.args[0].shape, node.shape, strict=True))
    read = tuple(Axis((a,), "" if s == t and i not in flipped else "^") for i, (a, s, t) in sizes)
    extra = tuple(() for _ in node.args[1:])
    return Rule((read, *extra), (plain(axes),))


def _restated_windows(node: Node, rule: Rule) -> dict[str, object]:
    """Returns the attributes of a node of this file, which have one entry for each dim, permuted to
    the order of the axes in the result of `rule`.
    """
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


movement(
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
movement(
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
movement(
    "pad",
    "add `low` and `high` copies of the scalar operand at the ends, `interior` between elements",
    _pad_infer,
    _windowed,
    windows=_pad_windows,
    beyond="operand",
    restated=_restated_windows,
    algebra=Algebra(((0, 1),), (RISING, RISING), exact=True),
    arity=2,
    attrs=("low: dims", "high: dims", "interior: dims"),
)
movement(
    "unfold",
    "sliding windows: each axis from `axis` on becomes window positions; the taps follow as axes",
    _unfold_infer,
    _unfold_rule,
    windows=_unfold_windows,
    arity=1,
    attrs=("axis: int", "window: ints", "stride: ints", "dilation: ints"),
    levels=EVERYWHERE,
)
movement(
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
