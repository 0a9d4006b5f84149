"""The IR: one immutable node class, op tables by level, lossless text, verifier, interpreter."""

from __future__ import annotations

import stack.ir.tensor_ops as _tensor_ops  # the first ops of the table
from stack.ir import kernel_ops as _kernel_ops
from stack.ir import warp_ops as _warp_ops
from stack.ir.builder import Builder, constant, make, param, rebuild, rebuild_block
from stack.ir.data import Data
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.parser import parse
from stack.ir.types import DTYPES, DType, TensorType, TupleType, tensor
from stack.ir.verifier import verify

_ = (_kernel_ops, _tensor_ops, _warp_ops)

__all__ = [
    "DTYPES",
    "Block",
    "Builder",
    "DType",
    "Data",
    "Func",
    "Node",
    "TensorType",
    "TupleType",
    "constant",
    "evaluate",
    "make",
    "param",
    "parse",
    "rebuild",
    "rebuild_block",
    "tensor",
    "verify",
]
