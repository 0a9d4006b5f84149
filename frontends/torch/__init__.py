"""The torch frontend: `FRONTEND` for stack.compile, `dynamo_backend` for torch.compile.

Importing this file is cheap; torch's tracing machinery is loaded on first use.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.cpython import undisturbed
from stack.ir.types import DType
from stack.releases import warn_if_untested
from stack.run.backend import AddressProgram, Direct
from stack.run.frontend import Arrays, Calls, Captured, Entry, Finds
from stack.wings import PARTS, part


@functools.cache
def _arrays() -> Any:
    """Returns `tensors.arrays`. Cached, since it is used for every array of a call.

    An import statement costs a microsecond.
    """
    return importlib.import_module("stack.frontends.torch.tensors.arrays")


class TorchFrontend:
    """`stack.run.frontend.Frontend` for PyTorch modules and functions."""

    name = "torch"
    runs_loops = False

    def accepts(self, fn: Any, args: Sequence[Any]) -> bool:
        """True if `fn` is a module or an argument contains a tensor."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        if isinstance(fn, torch.nn.Module) or isinstance(
            getattr(fn, "__self__", None), torch.nn.Module
        ):
            return True
        from stack.frameworks.torch_private import pytree

        return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(tuple(args)))

    def entry(self, target: Any) -> Entry | None:
        """Returns module and example inputs of a module or a `torch.export` program, else None."""
        torch = sys.modules.get("torch")
        exported = sys.modules.get("torch.export")
        if torch is None or not (
            isinstance(target, torch.nn.Module)
            or (exported is not None and isinstance(target, exported.ExportedProgram))
        ):
            return None
        from stack.frontends.torch.capture.exported import entry

        return entry(target)

    @undisturbed
    def capture(self, fn: Any, args: Sequence[Any], *, dynamic: bool = False) -> Captured:
        """Trace with Dynamo into functional ATen ops and import them.

        Raises StackError if the function gives more than one graph.
        """
        from stack.frameworks.torch_private import compile_lock
        from stack.frontends.torch.capture.capture import capture

        # defines in torch the hosted operators that were declared before torch was loaded
        plugins.call_if_loaded(PARTS, "operators-enter", self.name)
        with compile_lock():
            return capture(fn, args, dynamic)

    def calls(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> Calls:
        plugins.call_if_loaded(PARTS, "operators-enter", self.name)
        return part("calls", "torch-calls")(fn, dynamic, options)

    def to_numpy(self, array: Any, dtype: DType) -> np.ndarray:
        return _arrays().to_numpy(array, dtype)

    def from_numpy(self, array: np.ndarray, dtype: DType) -> Any:
        return _arrays().from_numpy(array, dtype)

    def direct(
        self, program: AddressProgram, arrays: Arrays, returned: Sequence[DType], kept: Finds | None
    ) -> Direct | None:
        return part("calls", "torch-direct")(program, arrays, returned, kept)

    def stamp(self, array: Any) -> tuple[Hashable, Hashable]:
        return _arrays().stamp(array)

    def watch(self, array: Any) -> Callable[[], bool]:
        return _arrays().watch(array)

    def to_device(self, arrays: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[Any]:
        return _arrays().to_device(arrays, dtypes, device)

    def from_device(self, arrays: Sequence[Any]) -> list[Any]:
        return _arrays().from_device(arrays)

    def call_opaque(self, target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        from stack.frontends.torch.tensors.arrays import call_opaque

        return call_opaque(target, call, args)

    def breaks(self, fn: Callable[..., Any], args: Sequence[Any]) -> list[str]:
        """Returns the graph breaks that Dynamo finds, each with its source line."""
        from stack.frontends.torch.tracing.notes import breaks_of

        return breaks_of(fn, args)

    def flags(self) -> dict[str, Any]:
        """Returns torch's settings of precision, determinism, threads and gradients."""
        import torch

        return {
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "default_dtype": str(torch.get_default_dtype()),
            "num_threads": torch.get_num_threads(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "grad_enabled": torch.is_grad_enabled(),
            "autocast": [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)],
        }

    def random_inputs(self, specs: Sequence[str]) -> tuple[Any, ...]:
        from stack.frontends.torch.tensors.arrays import random_inputs

        return random_inputs(specs)

    def train_runs(self, fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        return part("calls", "torch-training")(fn, args, options)


FRONTEND = TorchFrontend()


def dynamo_backend(
    gm: Any, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **more: Any
) -> Any:
    """The backend behind `torch.compile(model, backend="stack")`.

    Args:
        options: `backend`, `passes` and `strict` as for `stack.compile`; the rest goes to the
            backend.
    """
    warn_if_untested("torch")
    return part("calls", "torch-compile")(gm, example_inputs, {**(options or {}), **more})


def runs() -> list[Any]:
    """Returns records of the graphs that torch.compile gave us in this process, in order."""
    return part("calls", "torch-runs")()


def clear_runs() -> None:
    """Forget the records that `runs` returns."""
    part("calls", "torch-graphs").clear()
