"""Computation of an IR function on one rank: by a backend's program, or by torch op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import stack.plugins as plugins
from stack.frontends.torch.replay.elementwise_ops import Tensor
from stack.frontends.torch.replay.space import TorchSpace
from stack.frontends.torch.tensors.arrays import from_numpy, to_numpy
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.run.compile import compile_func
from stack.run.options import balance_of

Compute = Callable[[Sequence[Tensor]], Sequence[Tensor]]
NO_OPTIONS: Mapping[str, Any] = {}


def compute_of(
    func: Func, space: TorchSpace, backend: str = "", options: Mapping[str, Any] = NO_OPTIONS
) -> Compute:
    """Returns a callable on device tensors: compiled by `backend`, or op by op if it is "".

    `options`: those of the backend, besides those for the device of `space`.
    """
    if not backend:
        return lambda args: evaluate(func.body, args, space)
    executable = compile_func(func, backend, options={**options_of(space), **options})
    call, accept = executable.call, executable.accept
    if call is None or accept is None:  # the backend takes storage arrays
        dtypes = [p.dtype for p in func.params], [r.dtype for r in func.results]
        return lambda args: list(
            map(from_numpy, executable.run(list(map(to_numpy, args, dtypes[0]))), dtypes[1])
        )
    return lambda args: call(accept([a.contiguous() for a in args]))


def options_of(space: TorchSpace) -> dict[str, Any]:
    """Returns backend options for a space's device: no CUDA graph, the caller may record one."""
    if str(space.device) == "cpu":
        return {}
    return {"device": str(space.device), "graph": False}


def options_beside(space: TorchSpace) -> dict[str, Any]:
    """Returns backend options for computation beside collectives, which hold processors of a GPU;
    empty on a CPU.
    """
    return {"shared": True} if str(space.device) != "cpu" else {}


def stream_balance(space: TorchSpace, backend: str) -> float:
    """Returns the balance for `steps_of`, for the backend that computes segments."""
    if not backend:
        return 0.0
    return balance_of(plugins.load("stack.backends", backend), options_of(space))
