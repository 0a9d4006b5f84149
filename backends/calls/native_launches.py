"""Plans for the native handler of XLA's calls: launches of kernels, as numbers.

Needs the bindings of MLIR, which compile the handler; without them, calls go through ctypes.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch

from stack.run.cache import Cache, cache_folder

from ..device.driver import TensorMap
from ..device.launch import LoadedKernel, TensorMapArgument
from .foreign_memory import Place

_NOWHERE = 0, 0


@cache
def _library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def function_address(name: str) -> int:
    """Returns the address of a function of the CUDA driver."""
    return ctypes.cast(getattr(_library(), name), ctypes.c_void_p).value or 0


@cache
def handler() -> Any | None:
    """Returns the handler's code; None if nothing here can compile it."""
    if not any(importlib.util.find_spec(name) for name in ("mlir", "torch_mlir")):
        return None
    from stack.backends.calls.native_steps import handler as compiled

    return compiled(Cache(cache_folder() / "mlir"))


class NativeLaunches:
    """The steps of one call; see `stack.backends.calls.xla_call_text` for their layout."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[list[int]] = []
        self.kept: list[object] = []
        self.templates: dict[TensorMapArgument, int] = {}

    def kernel(self, kernel: LoadedKernel, places: Sequence[Place]) -> None:
        """Adds a launch of a kernel on arrays, given by memory."""
        from stack.backends.calls.xla_call_text import LAUNCH
        from stack.backends.calls.xla_launch_text import LAUNCH_HEAD

        arguments = range(len(places)) if kernel.arguments is None else kernel.arguments
        parameters = [*chain(*(self._parameter(a, places) for a in arguments))]
        function, threads = int(kernel.function.handle), kernel.threads
        size = LAUNCH_HEAD + len(parameters)
        head = [LAUNCH, function_address("cuLaunchKernel"), function, kernel.blocks, *threads]
        tail = [kernel.function.shared, size, len(arguments), self._replace(arguments)]
        self.steps.append([*head, *tail, *parameters])
        self.kept.append(kernel)

    def copy(self, target: Place, source: Place, size: int) -> None:
        """Adds a copy of memory."""
        from stack.backends.calls.xla_call_text import COPY

        copy = function_address("cuMemcpyDtoDAsync_v2")
        self.steps.append([COPY, copy, *target, *source, size])

    def numbers(self, operands: int, results: int) -> Any:
        """Returns the plan in the form that the handler reads."""
        words = [operands, results, len(self.steps), 1, 1, *chain(*self.steps)]
        return (ctypes.c_uint64 * len(words))(*words)

    def _parameter(self, argument: Any, places: Sequence[Place]) -> tuple[int, int, int, int]:
        from stack.backends.calls.xla_launch_text import ADDRESS, FIXED, MAP

        if isinstance(argument, int):
            return ADDRESS, 0, *places[argument]
        if isinstance(argument, TensorMapArgument):
            if argument not in self.templates:
                self.templates[argument] = self._template(argument.map())
            return MAP, self.templates[argument], *places[argument.array]
        self.kept.append(argument)
        return FIXED, ctypes.addressof(argument), *_NOWHERE

    def _template(self, made: TensorMap) -> int:
        """Returns a tensor map whose address is replaced at each launch."""
        memory = torch.empty(256, dtype=torch.uint8, device=self.device)
        made.point(memory.data_ptr())
        self.kept += [made, memory]
        return made.address

    def _replace(self, arguments: Sequence[Any]) -> int:
        has_map = any(isinstance(a, TensorMapArgument) for a in arguments)
        return function_address("cuTensorMapReplaceAddress") if has_map else 0
