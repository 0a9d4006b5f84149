"""Convolutions on a CPU: rewrites them as matmuls of windows, or leaves them to a library."""

from __future__ import annotations

from stack.ir.builder import make, padded, reshaped, sliced
from stack.ir.contraction import product_types
from stack.ir.conv_op import channels_second
from stack.ir.dim import floordiv
from stack.ir.node import Node
from stack.ir.traits import axis_order
from stack.ir.types import F32
from stack.passes.cpu_products.gemm import known_to_libraries, panels_of
from stack.passes.rules.convolutions import has_single_channels, why_no_windows
from stack.passes.rules.dot_layout import make_dot
from stack.passes.tiling.frame import CannotTile, static, wide
from stack.target import Cpu


def why_library(conv: Node, cpu: Cpu) -> str:
    """Returns why a library is to compute a convolution; "" if a kernel of ours can."""
    if why := why_no_windows(conv):
        return why
    if conv.dtype != F32 and not known_to_libraries(conv, cpu):
        return ""  # libraries multiply such elements one by one
    if conv.dtype != F32 and not cpu.mmas(product_types(conv)):
        return f"libraries have instructions for products of {conv.dtype}"
    if conv.attrs["groups"] == 1 or has_single_channels(conv):
        return ""
    if any(missing_of_tiles(conv, cpu)):
        return ""  # zero padding fills the tiles
    results, lanes = _results_and_lanes(conv, cpu)
    return f"{lanes - results} of {lanes} lanes would idle in a group" if results < lanes else ""


def fills_vectors(conv: Node, cpu: Cpu) -> bool:
    """True if the results of a convolution at one position fill its vectors, with few idle lanes.

    Also true if the convolution is padded for a matrix instruction: a library multiplies in the
    same tiles, with as many idle lanes.
    """
    results, lanes = _results_and_lanes(conv, cpu)
    is_filled = -results % lanes <= cpu.convolutions.idle * results
    return is_filled or any(missing_of_tiles(conv, cpu))


def _results_and_lanes(conv: Node, cpu: Cpu) -> tuple[int, int]:
    """Returns how many results (output channels) a convolution's matmul computes at one position,
    and how many of them a vector has.
    """
    parts = 1 if has_single_channels(conv) else conv.attrs["groups"]
    results = static(channels_second(conv.shape, conv.attrs)[1]) // parts
    return results, cpu.vector_bytes // wide(conv.dtype).bytes


def multiplies_places(conv: Node, cpu: Cpu) -> bool:
    """True if the vectors of a convolution's matmul should run along the positions of an image row,
    not along output channels.

    This is for convolutions whose few results would leave lanes idle. The row must fill a vector
    and have stride 1. The type must be wide, so that no instruction packs neighbours.
    """
    if why_no_windows(conv) or conv.attrs.get("channels_last"):
        return False
    is_short = conv.dtype.bits == 16 and known_to_libraries(conv, cpu)
    if is_short and not _fills_little(conv, cpu):
        return False
    is_row = static(conv.shape[-1]) >= _results_and_lanes(conv, cpu)[1]
    is_other = has_single_channels(conv) or fills_vectors(conv, cpu)
    return is_row and conv.attrs["stride"][-1] == 1 and not is_other


def _fills_little(conv: Node, cpu: Cpu) -> bool:
    """True if the convolution has so few channels or results that multiply-add instructions are
    faster than the fastest matrix instruction.

    It multiplies zeros too if the channels or results of the convolution do not fill it.
    """
    fastest = next(iter(cpu.mmas(product_types(conv))), None)
    if fastest is None:
        return False
    channels = static(channels_second(conv.args[1].shape, conv.attrs)[1])
    results, _ = _results_and_lanes(conv, cpu)
    share = 1.0
    for size, whole in ((channels, fastest.depth), (results, fastest.lanes)):
        share *= size / (-(-size // whole) * whole)
    return cpu.f32_rate > cpu.bf16_rate * share


def _packs_neighbours(conv: Node, cpu: Cpu) -> bool:
    """True if an instruction multiplies groups of neighbouring channels. The channels are then
    transposed in memory once, and not for each panel."""
    return any(m.group > 1 for m in cpu.mmas(product_types(conv)))


def missing_of_tiles(conv: Node, cpu: Cpu) -> tuple[int, int]:
    """Returns how many channels, and how many results, to append to each group for a matrix
    instruction with several rows. Both are 0 without such an instruction, for depthwise
    convolutions, if a row of the result has too few positions for it, or if multiply-adds without
    zeros are faster."""
    fastest = next(iter(cpu.mmas(product_types(conv))), None)
    if fastest is None or fastest.rows == 1 or has_single_channels(conv):
        return 0, 0
    places = static(channels_second(conv.shape, conv.attrs)[-1])
    is_tall = places >= fastest.rows or fastest.takes_part(places)
    if not is_tall or _fills_little(conv, cpu):
        return 0, 0
    channels = static(channels_second(conv.args[1].shape, conv.attrs)[1])
    results, _ = _results_and_lanes(conv, cpu)
    return -channels % fastest.depth, max(fastest.lanes - results, 0)


def missing(conv: Node, cpu: Cpu) -> tuple[int, int]:
    """Returns how many input channels, and how many results (output channels), to append to each
    group of a convolution, so that a matrix instruction divides them.
    """
    if any(found := missing_of_tiles(conv, cpu)):
        return found
    group = min((m.group for m in cpu.mmas(product_types(conv))), default=1)
    return -static(channels_second(conv.args[1].shape, conv.attrs)[1]) % group, 0


def why_kept(node: Node, cpu: Cpu) -> str:
    """Returns why a convolution is not rewritten; "" if it becomes a matmul."""
    if why := why_library(node, cpu):
        return why
    if not node.attrs.get("channels_last"):
        return "copies of its image would cost more"
    try:
        mma = panels_of(contraction_of(product_of_windows(node, cpu)), cpu).mma
    except CannotTile as error:
        return str(error)
    fastest = next(iter(cpu.mmas(product_types(node))), None)
    if fastest is None or fastest.rows == 1 or mma is fastest or has_single_channels(node):
        return ""
    return f"no tile of {fastest.name} fits its rows, channels and results"


def product_of_windows(node: Node, cpu: Cpu) -> Node:
    """Rewrites a convolution with channels last as a matmul that reads windows of its image."""
    x, w = node.args
    at, rank = node.attrs, node.tensor.rank - 2
    window, channels = w.shape[1:-1], w.shape[-1]
    attrs = {"axis": 1, "window": window, "stride": at["stride"], "dilation": at["rhs_dilation"]}
    places, taps = ([f"{v}{i}" for i in range(rank)] for v in "sk")
    weight, order = ["o", *taps, "c"], axis_order(w)
    if order is not None and not _packs_neighbours(node, cpu):  # read before the transpose
        w, weight = w.args[0], [weight[order.index(i)] for i in range(rank + 2)]
    if has_single_channels(node):
        parts, more, beside = ["o"], 0, 0  # depthwise: each channel is a matmul of its own
    else:
        parts, (more, beside) = ["c"], missing(node, cpu)
        if at["groups"] != 1:
            parts = ["g", "c"]
            x = reshaped(x, (*x.shape[:-1], at["groups"], channels))
            w, weight = _in_groups(w, weight, at["groups"])
        added = {"c": more, "o": beside}
        w = padded(w, [0] * len(weight), [added.get(n, 0) for n in weight])
    if parts == ["c"] and not more and _reads_planes(x, node, cpu):
        image = padded(x.args[0], [0, 0, *at["low"]], [0, 0, *at["high"]])
        attrs["axis"], names = 2, ["n", "c", *places, *taps]
    else:
        none = [0] * (len(parts) - 1)
        image = padded(x, [0, *at["low"], *none, 0], [0, *at["high"], *none, more])
        names = ["n", *places, *taps, *parts]
    result = ["n", *places, *(n for n in parts if n == "g"), "o"]
    dot = make_dot((make("unfold", (image,), attrs), w), (names, weight), result, node)
    if beside:
        limit = (*dot.shape[:-1], static(dot.shape[-1]) - beside)
        dot = sliced(dot, (0,) * len(limit), limit)
    return reshaped(dot, node.shape)


def _reads_planes(x: Node, conv: Node, cpu: Cpu) -> bool:
    """True if a convolution should read its image, which was transposed to channels last, as it was
    before that transpose: in planes, one for each channel.

    Its elements are then multiplied one by one. This is profitable for few planes, or if the image
    fits in the cache. Otherwise each element of many planes costs a cache line.
    """
    behind = (0, *range(2, x.tensor.rank), 1)
    is_near = static(x.tensor.bytes) <= cpu.cache_bytes * static(x.shape[0])
    is_few = static(x.shape[-1]) < cpu.lanes
    return axis_order(x) == behind and (is_few or is_near) and not _packs_neighbours(conv, cpu)


def contraction_of(node: Node) -> Node:
    """Returns the dot that a result is computed from: follows the first argument of each node until
    it reaches one.
    """
    while node.op != "dot":
        node = node.args[0]
    return node


def product_of_places(node: Node) -> Node:
    """Rewrites a convolution with channels second as a matmul, vectorized along image rows."""
    x, w = node.args
    at, rank = node.attrs, node.tensor.rank - 2
    image = padded(x, [0, 0, *at["low"]], [0, 0, *at["high"]])
    places, taps = ([f"{v}{i}" for i in range(rank)] for v in "sk")
    weight, parts = ["o", "c", *taps], ["c"]
    if at["groups"] != 1:
        parts = ["g", "c"]
        channels = w.shape[1]
        image = reshaped(image, (image.shape[0], at["groups"], channels, *image.shape[2:]))
        w, weight = _in_groups(w, weight, at["groups"])
    window = w.shape[len(weight) - rank :]
    attrs = {"window": window, "stride": at["stride"], "dilation": at["rhs_dilation"]}
    windows = make("unfold", (image,), {**attrs, "axis": 1 + len(parts)})
    inputs = ["n", *parts, *places, *taps], weight
    dot = make_dot((windows, w), inputs, ["n", *parts[:-1], "o", *places], node)
    return reshaped(dot, node.shape)


def _in_groups(w: Node, names: list[str], groups: int) -> tuple[Node, list[str]]:
    """Reshapes the weight of a grouped convolution: splits its axis of results into groups and
    results of a group. Returns the weight with the names of its new axes.
    """
    at = names.index("o")
    sizes = groups, floordiv(w.shape[at], groups)
    return reshaped(w, (*w.shape[:at], *sizes, *w.shape[at + 1 :])), [*names[:at], "g", *names[at:]]
