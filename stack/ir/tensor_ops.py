"""The tensor level: pure ops on whole arrays. Importing this module fills the op table.

Elementwise ops, movement, reductions, contractions and control have a module each.
"""

from __future__ import annotations

import stack.ir.window_ops as _window_ops
from stack.ir import control_ops, conv_op, ragged_op, reduction_ops, stream_op
from stack.ir.ops import OPS

_ = (_window_ops, control_ops, conv_op, ragged_op, reduction_ops, stream_op)

TENSOR_OPS = frozenset(name for name, op in OPS.items() if "tensor" in op.levels)
