"""Finds the frontend of a user's callable, and traces the callable with it.

Functions of the IR have a frontend of their own, which takes and returns storage arrays.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.types import BF16, DType
from stack.releases import install_hint, warn_if_untested
from stack.run.backend import AddressProgram
from stack.run.frontend import Arrays, Calls, Captured, Entry, Finds, Frontend
from stack.run.rejected_arguments import capture_as_eager
from stack.wings import part


class IRFrontend:
    """The frontend of functions from IR text; storage arrays are used unchanged."""

    name = "ir"
    runs_loops = False

    def accepts(self, fn: Any, args: Sequence[Any]) -> bool:
        return isinstance(fn, Func)

    def entry(self, target: Any) -> Entry | None:
        return None

    def capture(self, fn: Any, args: Sequence[Any], *, dynamic: bool = False) -> Captured:
        return captured_of(fn)

    def calls(self, fn: Any, dynamic: bool, options: Mapping[str, Any]) -> Calls:
        return part("calls", "ir-calls")(fn, options)

    def to_numpy(self, array: Any, dtype: DType) -> np.ndarray:
        held = np.asarray(array)
        expected = "uint16" if dtype is BF16 else dtype.numpy
        if held.dtype.name != expected:
            raise TypeError(f"expected {expected} values, got {held.dtype.name}")
        return held

    def from_numpy(self, array: np.ndarray, dtype: DType) -> Any:
        return array

    def direct(
        self, program: AddressProgram, arrays: Arrays, returned: Sequence[DType], kept: Finds | None
    ) -> None:
        return None

    def stamp(self, array: Any) -> tuple[Hashable, Hashable]:
        """The array's identity, without a version: NumPy does not count writes."""
        return id(array), None

    def watch(self, array: Any) -> Callable[[], bool]:
        """Keeps the array alive."""
        return lambda: array is not None

    def to_device(self, arrays: Sequence[Any], dtypes: Sequence[DType], device: str) -> list[Any]:
        raise UsageError("a function from text takes arrays in host memory")

    def from_device(self, arrays: Sequence[Any]) -> list[Any]:
        raise UsageError("a function from text returns arrays in host memory")

    def call_opaque(self, target: str, call: Any, args: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Calls the framework that the name contains: `jax:fft`."""
        frontend: Frontend = plugins.load("stack.frontends", target.partition(":")[0])
        return frontend.call_opaque(target, call, args)

    def breaks(self, fn: Any, args: Sequence[Any]) -> list[str]:
        return []

    def flags(self) -> dict[str, Any]:
        return {}

    def random_inputs(self, specs: Sequence[str]) -> tuple[Any, ...]:
        raise UsageError("a file of IR text defines its own inputs: -i is for programs")

    def train_runs(self, fn: Any, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        raise UsageError("a function from text has no gradient to ask for")


def captured_of(func: Func) -> Captured:
    """A function from text as a captured program."""

    def flatten(*args: Any) -> list[Any]:
        return list(args)

    return Captured(
        func=func,
        make_text=lambda: str(func),
        bound=(),
        flatten=flatten,
        unflatten=lambda results: results[0] if len(results) == 1 else tuple(results),
        original=func.interpret,
        args=(),
    )


def find_frontend(fn: Any, args: Sequence[Any], name: str = "auto") -> Frontend:
    """The frontend of a callable. "auto" tries those whose framework is already loaded.

    A function of the IR has a frontend of its own.
    """
    if isinstance(fn, Func):
        return IRFrontend()
    known = plugins.names("stack.frontends")
    if name != "auto":
        if name in known and name not in sys.modules and not is_installed(name):
            raise UsageError(f"{name} is not installed: {install_hint(name)}")
        warn_if_untested(name)
        return plugins.load("stack.frontends", name)
    loaded = [n for n in known if n in sys.modules]
    for candidate in loaded:
        frontend: Frontend = plugins.load("stack.frontends", candidate)
        if frontend.accepts(fn, args):
            warn_if_untested(candidate)
            return frontend
    absent = [f"{n} ({install_hint(n)})" for n in known if not is_installed(n)]
    more = f"; not installed: {', '.join(absent)}" if absent else ""
    raise UsageError(
        f"cannot find the framework of {fn!r} (loaded: {', '.join(loaded) or 'none'});"
        f" pass frontend= one of {', '.join(known)}{more}"
    )


def entry_of(target: Any, frontend: str = "auto") -> Entry:
    """Returns the user's callable as an `Entry`, prepared by the first loaded framework that
    recognizes it; unprepared if none does.
    """
    for name in plugins.names("stack.frontends"):
        if name in sys.modules and frontend in ("auto", name):
            found = plugins.load("stack.frontends", name).entry(target)
            if found is not None:
                return found
    return Entry(target)


def is_installed(framework: str) -> bool:
    """True if the module that a frontend is named after can be found; does not import it."""
    try:
        return importlib.util.find_spec(framework) is not None
    except ValueError:  # loaded by hand: the module has no spec
        return True


def trace(fn: Any, *args: Any, frontend: str = "auto", dynamic: bool = False) -> Func:
    """Captures and imports a torch module or function, or a JAX function, without compiling it."""
    entry = entry_of(fn, frontend)
    args = args or entry.args or ()
    found = find_frontend(entry.fn, args, frontend)
    return capture_as_eager(found, entry.fn, args, dynamic=dynamic).func
