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

from ..device.driver import TensorMap, library
from ..device.launch import LoadedKernel, TensorMapArgument
from .foreign_memory import Place
from .recorded_launches import Fill, Launch, MapOf, Parameter, RecordedStep, Spot

_NOWHERE = 0, 0


def function_address(name: str) -> int:
    """Returns the address of a function of the CUDA driver."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


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
        head = [LAUNCH, function_address("cuLaunchKernel"), function, kernel.blocks, 1, 1, *threads]
        tail = [kernel.function.shared, size, len(arguments), self._replace(arguments)]
        self.steps.append([*head, *tail, *parameters])
        self.kept.append(kernel)

    def recorded(self, steps: Sequence[RecordedStep], places: Sequence[Place]) -> None:
        """Adds recorded launches; `places` are those of the recorded buffers."""
        for step in steps:
            made = (
                self._fill(step, places) if isinstance(step, Fill) else self._launch(step, places)
            )
            self.steps.append(made)

    def _launch(self, launch: Launch, places: Sequence[Place]) -> list[int]:
        from stack.backends.calls.xla_call_text import LAUNCH
        from stack.backends.calls.xla_launch_text import LAUNCH_HEAD

        parameters = [*chain(*(self._recorded(p, places) for p in launch.parameters))]
        size, count = LAUNCH_HEAD + len(parameters), len(launch.parameters)
        has_map = any(isinstance(p, MapOf) for p in launch.parameters)
        head = [LAUNCH, function_address("cuLaunchKernel"), launch.function]
        tail = [launch.shared, size, count, _replacer() if has_map else 0]
        return [*head, *launch.grid, *launch.block, *tail, *parameters]

    def _fill(self, fill: Fill, places: Sequence[Place]) -> list[int]:
        from stack.backends.calls.xla_call_text import FILL

        assert isinstance(fill.target, Spot)
        target = _inside(fill.target, places)
        function = function_address(f"cuMemsetD{8 * fill.width}Async")
        return [FILL, function, *target, fill.value, fill.count]

    def _recorded(self, value: Parameter, places: Sequence[Place]) -> tuple[int, int, int, int]:
        from stack.backends.calls.xla_launch_text import ADDRESS, FIXED, MAP

        if isinstance(value, Spot):
            return ADDRESS, 0, *_inside(value, places)
        is_map = isinstance(value, MapOf)
        held = ctypes.create_string_buffer(value.template if is_map else value)
        self.kept.append(held)
        if is_map:
            return MAP, ctypes.addressof(held), *_inside(value.memory, places)
        return FIXED, ctypes.addressof(held), *_NOWHERE

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
        return _replacer() if has_map else 0


def _replacer() -> int:
    return function_address("cuTensorMapReplaceAddress")


def _inside(spot: Spot, places: Sequence[Place]) -> Place:
    """Returns the place of a spot of a recorded buffer."""
    number, offset = places[spot.buffer]
    return number, offset + spot.offset
