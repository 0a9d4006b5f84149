"""The tensor level: pure ops on whole arrays. Importing this module fills the op table.

Elementwise ops, movement, reductions, contractions and control have a module each. This module
exports the names that other levels and passes use.
"""

from __future__ import annotations

import stack.ir.window_ops as _window_ops
from stack.ir.control_ops import result_type
from stack.ir.conv_op import conv_rule
from stack.ir.elementwise_ops import (
    BINARY,
    COMPARE,
    EVERYWHERE,
    UNARY,
    common_shape,
    elementwise_rule,
)
from stack.ir.movement_ops import SCATTER_KINDS
from stack.ir.ops import OPS
from stack.ir.ragged_op import RaggedAxes, ragged_axes
from stack.ir.reduction_ops import REDUCE_KINDS, SCAN_KINDS
from stack.ir.stream_op import streamed_axes, streamed_extent

_ = _window_ops  # it fills the table

__all__ = [
    "BINARY",
    "COMPARE",
    "EVERYWHERE",
    "REDUCE_KINDS",
    "SCAN_KINDS",
    "SCATTER_KINDS",
    "TENSOR_OPS",
    "UNARY",
    "RaggedAxes",
    "common_shape",
    "conv_rule",
    "elementwise_rule",
    "ragged_axes",
    "result_type",
    "streamed_axes",
    "streamed_extent",
]

TENSOR_OPS = frozenset(name for name, op in OPS.items() if "tensor" in op.levels)
