"""Which convolutions multiply windows on a CPU, and which stay a library's."""

from __future__ import annotations

from stack.ir.contraction import product_types
from stack.ir.conv_op import channels_second
from stack.ir.node import Node
from stack.ir.types import F32
from stack.passes.exact_tiling.mma import known_to_libraries
from stack.passes.rules.convolutions import has_single_channels, why_no_windows
from stack.passes.tiling.frame import static, wide
from stack.target import Cpu


def why_library(conv: Node, cpu: Cpu) -> str:
    """What stands against a kernel of ours for a convolution; "" where nothing does."""
    if why := why_no_windows(conv):
        return why
    if conv.dtype != F32 and not known_to_libraries(conv, cpu):
        return ""  # they multiply such elements one by one
    if conv.dtype != F32 and not cpu.mmas(product_types(conv)):
        return f"libraries have instructions for products of {conv.dtype}"
    groups, lanes = conv.attrs["groups"], cpu.vector_bytes // wide(conv.dtype).bytes
    if groups == 1 or has_single_channels(conv):
        return ""
    outs = channels_second(conv.shape, conv.attrs)[1] // groups
    return f"of {lanes} lanes {lanes - outs} would idle in a group" if outs < lanes else ""


def missing_neighbours(conv: Node, cpu: Cpu) -> int:
    """Channels that a group lacks for the instruction that multiplies some of them together."""
    group = min((m.group for m in cpu.mmas(product_types(conv))), default=1)
    return -static(channels_second(conv.args[1].shape, conv.attrs)[1]) % group
