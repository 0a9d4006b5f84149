"""Streams of few rows on a GPU: one kernel for the states, and one for the rows.

A program loops over a whole row, so a stream that also writes the row leaves most processors idle
if there are few rows. Without the rows, parts of an axis are programs too (`split_reductions`), and
elementwise kernels, which have enough programs, compute the rows from the states.
"""

from __future__ import annotations

from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.policies.reduction_loops import reduces_columns
from stack.target import Gpu


def leaves_idle(sink: Node, gpu: Gpu) -> bool:
    """True if a stream without matmuls that reads its rows, and writes as many, takes longer than a
    stream for the states and a kernel for the rows.

    Args:
        sink: the last reduction of the stream.
        gpu: the target.
    """
    rows, source = sink.tensor.size, sink.args[0].tensor
    if not isinstance(rows, int) or not isinstance(source.bytes, int) or not rows:
        return False
    programs = -(-rows // WARP) if reduces_columns(sink) else rows
    idle = max(1.0, gpu.processors / programs)
    second = gpu.launch * (1 + gpu.parts.launches)  # it waits for the states and their parts
    moved = source.bytes / gpu.memory_rate
    return 2 * moved * idle > 3 * moved + second
