"""Calls by address, for tensors with the layouts of the previous call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import or_

import torch

from stack.frameworks.torch_private import empty_on_cpu, empty_on_cuda, layout_check
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE, is_dense
from stack.ir.types import DType
from stack.run.backend import AddressProgram, CallDense, CallLayout, Direct
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
    if not all(is_dense(tensor, program.device) for tensor in tensors):
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

    It returns None for other arguments, for addresses that the program does not take, if another
    GPU is the current one, and if memory is short.

    Args:
        places: for each parameter the number of its argument.
        layouts: sizes, strides and types of the program's results.
        numbers: for each returned value its number among these results.
        kept: finds memory whose addresses are passed before those of the arguments.
    """
    is_alike, call = layout_check(args), program.call
    make = empty_on_cpu if program.device == "cpu" else empty_on_cuda
    if kept is None:
        own = [numbers.index(number) for number in range(len(layouts))]
        given = [tuple(layouts[number]) for number in numbers]
        entered = program.entered(
            CallLayout(len(args), is_alike, _address, make, given, places, own)
        )
        if entered is not None:
            return entered
    is_whole = [*places] == [*range(len(args))]
    is_own = [*numbers] == [*range(len(layouts))]
    is_current, rest = program.is_current, program.alignment - 1

    def run(args: Arrays) -> list[torch.Tensor] | None:
        if not (is_alike(*args) and is_current()):
            return None
        given = args if is_whole else [args[place] for place in places]
        held = kept([*given]) if kept is not None else None
        if held is None and kept is not None:
            return None
        try:
            made: list[torch.Tensor] = [make(*layout) for layout in layouts]
        except RuntimeError:  # out of memory: the slow path reports it
            return None
        addresses = [*map(_address, (*given, *made))]
        if rest and reduce(or_, addresses, 0) & rest:
            return None
        call(addresses if held is None else [*held.addresses, *addresses])
        return made if is_own else [made[number] for number in numbers]

    return run


def dense_caller(
    call: CallDense, args: Arrays, places: Sequence[int],
    array: Callable[[Arrays, int], torch.Tensor], views: Sequence[tuple[int, Layout | None]],
) -> Direct:  # fmt: skip
    """Returns a callable for arguments with the same layouts, as checked by Dynamo's own guard.

    It returns None for other arguments, and for memory that the program's kernels cannot read.

    Args:
        call: runs the program on dense arrays.
        places: for each parameter the number of its argument.
        array: returns the array of a parameter from the arguments.
        views: for each returned value its number among the program's results, and its layout if
            that is not the one in which the program computes it.
    """
    is_alike, numbers = layout_check(args), [number for number, _ in views]
    laid = [(i, *layout[:2]) for i, (_, layout) in enumerate(views) if layout is not None]

    def run(args: Arrays) -> list[torch.Tensor] | None:
        if not is_alike(*args):
            return None
        found = call([_address(args[place]) for place in places], partial(array, args))
        if found is None:
            return None
        made = [found[number] for number in numbers]
        for i, sizes, strides in laid:
            made[i] = torch.as_strided(made[i], sizes, strides)
        return made

    return run


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a row-major array, in elements."""
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))
