"""Calls by address: tensors like those of the call before cross the border in one look."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import (
    TensorGuards,
    _empty_strided_cpu,  # pyright: ignore[reportAttributeAccessIssue]
)

from stack.frontends.torch_arrays import TORCH_DTYPE, is_dense
from stack.ir.types import DType
from stack.run.backend import ByAddress

_address = torch.Tensor.data_ptr


def direct(
    program: ByAddress, tensors: Sequence[Any], returned: Sequence[DType]
) -> Callable[[Sequence[Any]], list[torch.Tensor] | None] | None:
    """What calls a program with tensors that Dynamo's own guard cannot tell from these.

    It gives None for others, and where memory is short. None where a tensor is not dense.
    """
    if not all(map(is_dense, tensors)):
        return None
    guards: Any = TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    is_alike, call = guards.check, program.call
    layouts = [
        (shape, _row_major(shape), TORCH_DTYPE[dtype])
        for shape, dtype in zip(program.shapes, returned, strict=True)
    ]

    def run(tensors: Sequence[Any]) -> list[torch.Tensor] | None:
        if not is_alike(*tensors):
            return None
        try:
            made = [_empty_strided_cpu(*layout) for layout in layouts]
        except RuntimeError:  # out of memory: the long way says what it was for
            return None
        call([*map(_address, tensors), *map(_address, made)])
        return made

    return run


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))
