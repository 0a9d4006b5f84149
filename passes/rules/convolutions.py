"""Rules that give a convolution the form that a kernel computes fast.

- A convolution whose windows do not overlap becomes a matmul.
- A convolution that multiplies windows gets its channels last: a CPU kernel reads along channels.
- A convolution on tensor cores gets its channels last, as a library's fast kernels need them.
  Transposes around it express that, and `layout` cancels them against each other.
- A depthwise convolution is no matmul. It becomes a sum over the taps, which fuses with its
  neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from math import prod
from typing import Any

from stack.ir.builder import Builder, converted, make, padded, reshaped
from stack.ir.conv_op import as_stored, channels_second, sums_over_images
from stack.ir.dim import Dim, floordiv
from stack.ir.node import Node
from stack.ir.traits import axis_order
from stack.ir.types import F32
from stack.passes.rules.dot_layout import make_dot
from stack.passes.rules.transposes import for_free, inverse, transposed
from stack.rewrite.engine import Scope, on

MOST_TAPS = 27  # most taps of a window that is unrolled here: each is a load


def has_single_channels(node: Node) -> bool:
    """True for a depthwise convolution: as many groups as channels, and one result for each."""
    (_, channels, *_), (outs, per_group, *_) = (
        channels_second(a.shape, node.attrs) for a in node.args
    )
    return node.attrs["groups"] == channels == outs and per_group == 1


def is_sum_of_taps(node: Node) -> bool:
    """True for a depthwise convolution, channels in front, few taps, no dilated input."""
    at, sizes = node.attrs, (*node.args[0].shape, *node.args[1].shape)
    if not all(isinstance(s, int) for s in sizes) or not node.dtype.is_float:
        return False
    pads = (*at["low"], *at["high"])  # none if there are no spatial axes
    is_plain = all(d == 1 for d in at["lhs_dilation"]) and min(pads, default=0) >= 0
    other = at.get("channels_last") or at.get("transposed") or not node.tensor.size
    window: Any = node.args[1].shape[2:]
    return is_plain and not other and has_single_channels(node) and prod(window) <= MOST_TAPS


@on("conv")
def single_channels(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Depthwise convolution: multiply each tap by its shifted image, and add up."""
    x, w = node.args
    if not is_sum_of_taps(node):
        return None
    at, window = node.attrs, tuple[Any, ...](w.shape[2:])
    image = padded(x, (0, 0, *at["low"]), (0, 0, *at["high"]))
    flat = reshaped(w, (w.shape[0], prod(window)))
    wide = F32 if node.dtype.bits < 32 else node.dtype
    total: Node | None = None
    for number, tap in enumerate(itertools.product(*map(range, window))):
        part = converted(_places(image, node, tap), wide)
        factor = _column(flat, number, node, wide)
        term = make("mul", (part, factor))
        total = term if total is None else make("add", (total, term))
    assert total is not None
    return converted(total, node.dtype)


def _places(image: Node, node: Node, tap: tuple[int, ...]) -> Node:
    """Slices a padded image: for each element of the result, the image element that one tap of the
    window multiplies."""
    at, sizes = node.attrs, node.shape[2:]
    start = tuple(t * d for t, d in zip(tap, at["rhs_dilation"], strict=True))
    reach: list[Any] = [
        s + (n - 1) * step + 1  # pyright: ignore[reportOperatorIssue]
        for s, n, step in zip(start, sizes, at["stride"], strict=True)
    ]
    attrs = {
        "start": (0, 0, *start),
        "limit": (*image.shape[:2], *reach),
        "step": (1, 1, *at["stride"]),
    }
    return make("slice", (image,), attrs)


def _column(flat: Node, number: int, node: Node, wide: Any) -> Node:
    """Returns the weights of tap `number`, one for each channel, broadcast to the shape of the
    result."""
    channels = flat.shape[0]
    attrs = {"start": (0, number), "limit": (channels, number + 1), "step": (1, 1)}
    column = converted(reshaped(make("slice", (flat,), attrs), (channels,)), wide)
    return make("broadcast", (column,), {"axes": (1,)}, hint=node.tensor.with_dtype(wide))


@on("conv")
def channels_last(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Convert to channels last for tensor cores, or if the operand already has that layout."""
    x = node.args[0]
    rank = x.tensor.rank
    if node.attrs.get("channels_last") or rank < 3 or not node.dtype.is_float:
        return None
    attrs = {**node.attrs, "channels_last": True}
    if sums_over_images(node):
        if node.attrs["groups"] != 1:
            return None
        attrs["over_images"] = True
    if not comes_last(node) and not _on_tensor_cores(node):
        return None
    return with_channels_last(node, attrs)


def comes_last(conv: Node) -> bool:
    """True if the image of a convolution has its channels last in memory."""
    x = conv.args[0]
    last = as_stored(range(x.tensor.rank), {**conv.attrs, "channels_last": True})
    return axis_order(x) is not None and for_free(x, last) is not None


def with_channels_last(node: Node, attrs: Mapping[str, object]) -> Node:
    """Returns the convolution with these attributes, channels last, between transposes."""
    last = as_stored(range(node.tensor.rank), attrs)
    moved = make("conv", [transposed(a, last) for a in node.args], attrs)
    return transposed(moved, inverse(last))


def why_no_windows(node: Node) -> str:
    """Returns why a convolution cannot be a matmul of padded windows; "" if it can be."""
    at = node.attrs
    sizes = (*node.args[0].shape, *node.args[1].shape, *node.shape)
    if node.dtype.kind != "f" or node.dtype.bits < 16 or at.get("precision"):
        return f"products of windows are of floats of 16 bits and more, not {node.dtype}"
    if not all(isinstance(s, int) and s > 0 for s in sizes) or node.tensor.rank < 3:
        return "it has no windows of known sizes"
    if at.get("over_images") or sums_over_images(node):
        return "it sums over images"
    if at.get("transposed") or any(d != 1 for d in at["lhs_dilation"]):
        return "its image has holes"
    if min(*at["low"], *at["high"]) < 0:
        return "it reads a part of its image"
    return ""


def _on_tensor_cores(node: Node) -> bool:
    return node.dtype.bits <= 16 or node.attrs.get("precision") == "tf32"


def are_apart(node: Node) -> bool:
    """True if the windows of a convolution touch, but do not overlap."""
    window = channels_second(node.args[1].shape, node.attrs)[2:]
    return _sums_whole_windows(node) and tuple(node.attrs["stride"]) == tuple(window)


def are_places(node: Node) -> bool:
    """True if each window of a convolution is one pixel (a 1x1 convolution, perhaps strided),
    without padding or dilation."""
    window = channels_second(node.args[1].shape, node.attrs)[2:]
    return _sums_whole_windows(node) and all(k == 1 for k in window)


def _sums_whole_windows(node: Node) -> bool:
    """True if all channels of a window are summed, without padding, dilation or rounding."""
    at = node.attrs
    plain = all(v == 0 for v in (*at["low"], *at["high"])) and all(
        v == 1 for v in (*at["lhs_dilation"], *at["rhs_dilation"], at["groups"])
    )
    return plain and not (at.get("transposed") or at.get("precision"))


@on("conv")
def places_apart(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Strided 1x1 convolution, channels in front: slice the pixels first, then multiply."""
    at, (x, w) = node.attrs, node.args
    is_strided = any(s != 1 for s in at["stride"])
    sizes = all(isinstance(s, int) for s in x.shape)
    if at.get("channels_last") or not (is_strided and sizes and are_places(node)):
        return None
    step = (1, 1, *at["stride"])
    attrs = {"start": (0,) * len(step), "limit": x.shape, "step": step}
    taken = make("slice", (x,), attrs)
    return make("conv", (taken, w), {**at, "stride": (1,) * (len(step) - 2)}, hint=node.type)


@on("conv")
def windows_apart(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Windows that touch but do not overlap: patch embeddings and 1x1 convolutions become a dot."""
    x, w = node.args
    at = node.attrs
    (count, depth, *extents), (outs, _, *window) = (channels_second(v.shape, at) for v in (x, w))
    if not are_apart(node):
        return None
    # a window of one pixel adds no axis
    sizes: list[tuple[Dim, ...]] = [(count,), (depth,)]
    names = [["n"], ["c"]]
    for i, (size, k) in enumerate(zip(extents, window)):
        if not isinstance(k, int) or not isinstance(size, int) or size % k:
            return None
        sizes.append((size,) if k == 1 else (floordiv(size, k), k))
        names.append([f"p{i}"] if k == 1 else [f"p{i}", f"t{i}"])
    taps = {f"t{i}": k for i, k in enumerate(window) if k != 1}
    places = [axis[0] for axis in names[2:]]
    image = reshaped(x, [s for axis in as_stored(sizes, at) for s in axis])
    weight = reshaped(w, as_stored((outs, depth, *taps.values()), at))
    inputs = (
        [n for axis in as_stored(names, at) for n in axis],
        list(as_stored(["o", "c", *taps], at)),
    )
    return make_dot((image, weight), inputs, list(as_stored(["n", "o", *places], at)), node)


CONV_RULES = (single_channels, channels_last)
