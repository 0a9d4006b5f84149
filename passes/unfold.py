"""unfold: a convolution becomes a product that reads its image through sliding windows.

    conv(x, w)  =  dot(unfold(pad(x)), w)      n s k c, o c k -> n s o
    in groups                                  n s k g c, g o c k -> n s g o
    of single channels                         n s k o, o k -> n s o

The image is never copied window by window: a kernel that multiplies reads a block of it as windows
(implicit GEMM; Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014). Its channels
stand last, as `layout` leaves them, and the weight lies as it is. Channels that an instruction does
not divide get some of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import Builder, make
from stack.ir.contraction import product_types
from stack.ir.dim import floordiv
from stack.ir.node import Func, Node, walk
from stack.ir.traits import axis_order, behind
from stack.passes.exact_tiling.gemm import tile_and_mma
from stack.passes.exact_tiling.windows import missing_neighbours, why_library
from stack.passes.rules.convolutions import has_single_channels, with_zeros
from stack.passes.rules.dot_layout import make_dot, reshaped
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Cpu


@dataclass(frozen=True)
class Unfold(Pass):
    """Turn convolutions with their channels last into products of windows."""

    name: ClassVar[str] = "unfold"

    def run(self, func: Func, log: Log) -> Func:
        func = rewrite(func, (as_product,), log)
        for block, node in walk(func.body):
            if node.op == "conv":
                log.note(
                    f"{block.names.get(node, node.op)} is a library's: {_why_kept(node, log.cpu)}",
                    block.locs.get(node, ()),
                )
        return func


@on("conv")
def as_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Along channels that stand last."""
    cpu = scope.log.cpu
    return None if _why_kept(node, cpu) else _product(node, cpu)


def _why_kept(node: Node, cpu: Cpu) -> str:
    """Why a convolution stays one; "" where it becomes a product."""
    if why := why_library(node, cpu):
        return why
    if not node.attrs.get("channels_last"):
        return "copies of its image would cost more"
    try:
        *_, mma = tile_and_mma(behind(_product(node, cpu)), cpu)
    except CannotTile as error:
        return str(error)
    fastest = next(iter(cpu.mmas(product_types(node))), None)
    if fastest is None or fastest.rows == 1 or mma is fastest or has_single_channels(node):
        return ""
    return f"no tile of {fastest.name} fits its rows, channels and results"


def _product(node: Node, cpu: Cpu) -> Node:
    x, w = node.args
    at, rank = node.attrs, node.tensor.rank - 2
    window, channels = w.shape[1:-1], w.shape[-1]
    attrs = {"axis": 1, "window": window, "stride": at["stride"], "dilation": at["rhs_dilation"]}
    places, taps = ([f"{v}{i}" for i in range(rank)] for v in "sk")
    weight, order = ["o", *taps, "c"], axis_order(w)
    if order is not None:  # it is read as it lies
        w, weight = w.args[0], [weight[order.index(i)] for i in range(rank + 2)]
    if has_single_channels(node):
        parts, more = ["o"], 0  # each channel is a product of its own
    else:
        parts, more = ["c"], missing_neighbours(node, cpu)
        w = with_zeros(w, [0] * len(weight), [more if n == "c" else 0 for n in weight])
        if at["groups"] != 1:
            parts = ["g", "c"]
            x = reshaped(x, (*x.shape[:-1], at["groups"], channels))
            w, weight = _in_groups(w, weight, at["groups"])
    none = [0] * (len(parts) - 1)
    image = with_zeros(x, [0, *at["low"], *none, 0], [0, *at["high"], *none, more])
    inputs = ["n", *places, *taps, *parts], weight
    result = ["n", *places, *(n for n in parts if n == "g"), "o"]
    dot = make_dot((make("unfold", (image,), attrs), w), inputs, result, node)
    return reshaped(dot, node.shape)


def _in_groups(w: Node, names: list[str], groups: int) -> tuple[Node, list[str]]:
    """A weight whose results are split into groups."""
    at = names.index("o")
    sizes = groups, floordiv(w.shape[at], groups)
    return reshaped(w, (*w.shape[:at], *sizes, *w.shape[at + 1 :])), [*names[:at], "g", *names[at:]]
