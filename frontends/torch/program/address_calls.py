"""Calls by address, for tensors with the layouts of the previous call."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from stack.frameworks.torch_private import empty_on_cpu, layout_check
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, is_dense
from stack.ir.types import DType
from stack.run.backend import AddressProgram, CallLayout, Direct
from stack.run.frontend import Arrays, Finds

Layout = tuple[Sequence[int], Sequence[int], torch.dtype]  # sizes, strides in elements, dtype

_address = torch.Tensor.data_ptr


def direct(
    program: AddressProgram, tensors: Arrays, returned: Sequence[DType], kept: Finds | None = None
) -> Direct | None:
    """Returns a callable for tensors with the same layouts, as checked by Dynamo's own guard.

    The callable returns None for other tensors, if frozen values of the current weights are
    missing, and if memory is short. Returns None if a tensor is not dense.
    """
    if not all(map(is_dense, tensors)):
        return None
    layouts = [
        (shape, row_major(shape), TORCH_DTYPE[dtype])
        for shape, dtype in zip(program.shapes, returned, strict=True)
    ]
    return caller(program, tensors, range(len(tensors)), layouts, range(len(layouts)), kept)


def caller(
    program: AddressProgram, args: Arrays, places: Sequence[int], layouts: Sequence[Layout],
    numbers: Sequence[int], kept: Finds | None,
) -> Direct:  # fmt: skip
    """Returns a callable for arguments with the same layouts, as checked by Dynamo's own guard.

    Args:
        places: for each parameter the number of its argument.
        layouts: sizes, strides and types of the program's results.
        numbers: for each returned value its number among these results.
        kept: finds memory whose addresses are passed before those of the arguments.
    """
    is_alike, call = layout_check(args), program.call
    if kept is None:
        own = [numbers.index(number) for number in range(len(layouts))]
        given = [tuple(layouts[number]) for number in numbers]
        make = empty_on_cpu
        entered = program.entered(
            CallLayout(len(args), is_alike, _address, make, given, places, own)
        )
        if entered is not None:
            return entered
    is_whole = [*places] == [*range(len(args))]
    is_own = [*numbers] == [*range(len(layouts))]

    def run(args: Arrays) -> list[torch.Tensor] | None:
        if not is_alike(*args):
            return None
        given = args if is_whole else [args[place] for place in places]
        held = kept([*given]) if kept is not None else None
        if held is None and kept is not None:
            return None
        try:
            made: list[torch.Tensor] = [empty_on_cpu(*layout) for layout in layouts]
        except RuntimeError:  # out of memory: the slow path reports it
            return None
        addresses = [*map(_address, (*given, *made))]
        call(addresses if held is None else [*held.addresses, *addresses])
        return made if is_own else [made[number] for number in numbers]

    return run


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a row-major array, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))
