"""unfold: turn a convolution into a matmul that reads its image through sliding windows.

    conv(x, w)  =  dot(unfold(pad(x)), w)      n s k c, o c k -> n s o
    in groups                                  n s k g c, g o c k -> n s g o
    depthwise                                  n s k o, o k -> n s o

The image is never copied window by window: a matmul kernel reads a block of it as windows (implicit
GEMM; Chetlur et al., "cuDNN: efficient primitives for deep learning", 2014). The channels are the
last axis, as `layout` leaves them, and the weight keeps its layout. Channels that no instruction
divides are padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import Builder
from stack.ir.func import Func
from stack.ir.node import Node, walk
from stack.passes.cpu_products.windows import (
    multiplies_places,
    product_of_places,
    product_of_windows,
    why_kept,
)
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Unfold(Pass, needs=("conv",)):
    """Turn convolutions into matmuls of windows, except those left to a library."""

    def run(self, func: Func, log: Log) -> Func:
        func = rewrite(func, (as_product,), log)
        for block, node in walk(func.body):
            if node.op == "conv":
                log.note(
                    f"{block.names.get(node, node.op)} is a library's: {why_kept(node, log.cpu)}",
                    block.locs.get(node, ()),
                )
        return func


@on("conv")
def as_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Multiply along channels that are the last axis, or along pixels."""
    cpu = scope.log.cpu
    if multiplies_places(node, cpu):
        return product_of_places(node)
    return None if why_kept(node, cpu) else product_of_windows(node, cpu)
