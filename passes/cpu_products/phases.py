"""Transposed convolutions as one matmul of windows of the image, without multiplying zeros.

A transposed convolution dilates its image by `s`: there are `s - 1` zeros between pixels. Position
`m` of the result only needs the taps `k = q + s t` for which `m + k - low` is a multiple of `s`;
the other taps meet zeros. Positions of one phase `q` share the same `T = ceil(K / s)` taps, and
their windows are consecutive in the image:

    y[s j - q + low]  =  sum over t of  x[j + t] w[q + s t]

So the matmul has one phase axis for each axis of the image:
`n j.. t.. c, p.. o t.. c -> n j p .. o` with `p = s - 1 - q`. The phase axis follows the position
in the result, so the phases are already interleaved.
"""

from __future__ import annotations

from math import prod

from stack.ir.axes import parse_rule
from stack.ir.builder import make, padded, param, reshaped, sliced
from stack.ir.conv_op import sums_over_images
from stack.ir.node import Node
from stack.passes.cpu_products.windows import (
    contraction_of,
    fills_vectors,
    product_of_windows,
    why_kept,
)
from stack.passes.rules.convolutions import has_single_channels
from stack.passes.rules.dot_layout import make_dot
from stack.passes.rules.transposes import inverse, transposed
from stack.passes.tiling.frame import static
from stack.target import Cpu


def product_of_phases(node: Node, cpu: Cpu) -> Node | None:
    """Rewrites a transposed convolution with channels second as one matmul; None if a library is
    to compute it."""
    if not _has_phases(node, cpu):
        return None
    at, steps, rank = node.attrs, node.attrs["lhs_dilation"], node.tensor.rank - 2
    sizes, image = _sizes(node), _sizes(node.args[0])
    taps = [-(-k // s) for k, s in zip(_sizes(node.args[1]), steps, strict=True)]
    # positions of the first and last windows in the image
    first = [-(low // s) for low, s in zip(at["low"], steps, strict=True)]
    last = [-(-(n - 1 - v) // s) for n, v, s in zip(sizes, at["low"], steps, strict=True)]
    low = [-j for j in first]
    high = [j + t - n for j, t, n in zip(last, taps, image, strict=True)]
    behind = [0, *range(2, 2 + rank), 1]
    x = transposed(node.args[0], behind)
    x = _inside(x, [0, *(max(-v, 0) for v in low), 0], [0, *(max(-v, 0) for v in high), 0])
    outs = static(node.shape[1])
    made = _of_one_phase(node, x, [outs, *taps], low, high)
    if why_kept(made, cpu) or not fills_vectors(made, cpu):
        return None
    dot = contraction_of(product_of_windows(made, cpu))
    left, rule = dot.args[0], parse_rule(dot.attrs["rule"])
    windows, made_as = ([a.names[0] for a in o] for o in (rule.inputs[0], rule.outputs[0]))
    channels = static(left.shape[windows.index("c")])
    weight = _by_phase(node, taps, channels, static(dot.shape[-1]))
    phases = [f"p{i}" for i in range(rank)]
    groups = ["g"] if at["groups"] != 1 else []
    spread = [v for i in range(rank) for v in (f"s{i}", f"p{i}")]
    names = [*groups, *phases, *(f"k{i}" for i in range(rank)), "c", "o"]
    result = ["n", *spread, *made_as[1 + rank :]]
    product = make_dot((left, weight), (windows, names), result, node)
    counts = [b - a + 1 for a, b in zip(first, last, strict=True)]
    whole = [count * s for count, s in zip(counts, steps, strict=True)]
    before = [s - 1 - v - s * j for s, v, j in zip(steps, at["low"], first, strict=True)]
    after = [n - v - size for n, v, size in zip(whole, before, sizes, strict=True)]
    beside = static(dot.shape[-1]) * at["groups"] - outs
    none = [0] * len(groups)
    own = [0, *before, *none, 0], [0, *after, *none, beside // at["groups"]]
    joined = reshaped(product, (node.shape[0], *whole, *dot.shape[1 + rank :]))
    cut = _inside(joined, *own)
    return transposed(reshaped(cut, (node.shape[0], *sizes, outs)), inverse(behind))


def _has_phases(node: Node, cpu: Cpu) -> bool:
    """True if a transposed convolution dilates its image, so that it has several phases, and
    padding the taps to a multiple of the dilation adds few zeros.
    """
    at, steps = node.attrs, node.attrs["lhs_dilation"]
    sizes = (*node.args[0].shape, *node.args[1].shape, *node.shape)
    if at.get("channels_last") or node.tensor.rank < 3 or not node.dtype.is_float:
        return False
    if not all(isinstance(s, int) and s > 0 for s in sizes) or sums_over_images(node):
        return False
    if has_single_channels(node):
        return False
    if at.get("over_images") or any(v != 1 for v in (*at["stride"], *at["rhs_dilation"])):
        return False
    window = _sizes(node.args[1])
    whole = prod(-(-k // s) * s for k, s in zip(window, steps, strict=True))
    return any(s != 1 for s in steps) and whole <= cpu.convolutions.padded_taps * prod(window)


def _of_one_phase(node: Node, x: Node, outer: list[int], low: list[int], high: list[int]) -> Node:
    """Returns the ordinary convolution that computes one phase of a transposed convolution.

    A new parameter replaces its weight. The convolution shows which windows of the image the
    matmul of all phases reads, and whether that matmul is profitable.
    """
    at, ones = node.attrs, (1,) * len(low)
    channels = static(x.shape[-1]) // at["groups"]
    weight = param("w", node.tensor.with_shape((*outer, channels)))
    attrs = {k: v for k, v in at.items() if k != "transposed"}
    attrs |= {"lhs_dilation": ones, "channels_last": True}
    attrs |= {"low": tuple(max(v, 0) for v in low), "high": tuple(max(v, 0) for v in high)}
    return make("conv", (x, weight), attrs)


def _by_phase(node: Node, taps: list[int], channels: int, outs: int) -> Node:
    """Rearranges the weight of a transposed convolution for the matmul of all phases: axes `g p..
    t.. c o`, without g for one group.

    Zeros pad it to so many channels and results (`outs`).
    """
    at, w = node.attrs, node.args[1]
    rank, steps, groups = len(taps), at["lhs_dilation"], at["groups"]
    is_turned = bool(at.get("transposed"))
    more = [t * s - k for t, s, k in zip(taps, steps, _sizes(w), strict=True)]
    rows, columns = static(w.shape[0]) // groups, static(w.shape[1])
    added = [channels - rows, outs - columns] if is_turned else [outs - rows, channels - columns]
    # [g c, o, k..] if transposed (taps are reversed), else [g o, c, k..]
    w = reshaped(w, (groups, rows, columns, *_sizes(w)))
    none, zeros = [0, 0, 0], [0, *added]
    low, high = ([*none, *more], [*zeros, *[0] * rank]), ([0] * (3 + rank), [*zeros, *more])
    w = padded(w, *(low if is_turned else high))
    pairs = [v for t, s in zip(taps, steps, strict=True) for v in (t, s)]
    w = reshaped(w, (*w.shape[:3], *pairs))
    # reverse either the taps or the phases
    axes = (3 + 2 * i + (not is_turned) for i in range(rank))
    turned = tuple(axis for axis in axes if w.shape[axis] != 1)
    w = make("reverse", (w,), {"axes": turned}) if turned else w
    places = [4 + 2 * i for i in range(rank)], [3 + 2 * i for i in range(rank)]
    w = transposed(w, [0, *places[0], *places[1], *((1, 2) if is_turned else (2, 1))])
    return w if groups != 1 else reshaped(w, w.shape[1:])


def _inside(x: Node, low: list[int], high: list[int]) -> Node:
    """Crops an array: along each axis, removes `low` elements from the start and `high` elements
    from the end.
    """
    return sliced(x, low, [static(n) - v for n, v in zip(x.shape, high, strict=True)])


def _sizes(node: Node) -> list[int]:
    """Returns the spatial extents of an image or a window."""
    return [static(n) for n in node.shape[2:]]
