"""unfold: a convolution becomes a product that reads its image through sliding windows.

    conv(x, w)  =  dot(unfold(pad(x)), w)      n s k c, o c k -> n s o

The image is never copied window by window: a kernel that multiplies reads a block of it as windows
(implicit GEMM; Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014). Its channels
stand last, as `layout` leaves them, and the weight lies as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import Builder, make
from stack.ir.node import Func, Node, walk
from stack.passes.rules.convolutions import is_product_of_windows, why_no_windows, with_zeros
from stack.passes.rules.dot_layout import make_dot, operand_transpose
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Unfold(Pass):
    """Turn convolutions with their channels last into products of windows."""

    name: ClassVar[str] = "unfold"

    def run(self, func: Func, log: Log) -> Func:
        func = rewrite(func, (as_product, operand_transpose), log)
        for block, node in walk(func.body):
            if node.op == "conv":
                why = why_no_windows(node) or "copies of its image would cost more"
                log.note(
                    f"{block.names.get(node, node.op)} is a library's: {why}",
                    block.locs.get(node, ()),
                )
        return func


@on("conv")
def as_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Along channels that stand last."""
    x, w = node.args
    at = node.attrs
    if not at.get("channels_last") or not is_product_of_windows(node):
        return None
    rank = node.tensor.rank - 2
    attrs = {
        "axis": 1,
        "window": w.shape[1:-1],
        "stride": at["stride"],
        "dilation": at["rhs_dilation"],
    }
    image = with_zeros(x, (0, *at["low"], 0), (0, *at["high"], 0))
    places, taps = ([f"{v}{i}" for i in range(rank)] for v in "sk")
    weight, result = ["o", *taps, "c"], ["n", *places, "o"]
    contracted = "c" if at["groups"] == 1 else "o"  # else each channel is a product of its own
    windows = make("unfold", (image,), attrs)
    return make_dot((windows, w), (["n", *places, *taps, contracted], weight), result, node)
