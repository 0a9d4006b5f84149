"""Kernels written by hand: they get arrays of their framework, and break no rule unseen.

A kernel `file.py:function` takes the arrays that the generated kernel reads, in their order, and
returns its result, or a tuple of them. The arrays are

- torch tensors on a GPU;
- on a CPU those of the framework that the annotations of its parameters name (`x: torch.Tensor`,
  `x: jax.Array`, `x: np.ndarray`), else of the only one of NumPy, torch and JAX that its file
  imports, else NumPy arrays. A NumPy array of bf16 is `uint16`, its bit pattern.

It must not write to its arguments. Its results are dense arrays of the same framework, with the
element types and shapes of the generated kernel's, in memory of their own, which no later call
changes.
"""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

import stack.plugins as plugins
from stack.errors import StackError
from stack.explore.target import imported_packages
from stack.imports import function_of
from stack.ir.func import Func
from stack.run.frontend import Frontend
from stack.run.trace import IRFrontend

Arrays = Sequence[np.ndarray]
FRAMEWORKS = ("numpy", "torch", "jax")


class HandError(StackError):
    """Raised if a kernel written by hand fails, is wrong, or breaks a rule of this module."""


def framework_of(fn: Callable[..., Any], device: str) -> str:
    """Returns the framework whose arrays a kernel gets: one of `FRAMEWORKS`."""
    if device != "cpu":
        return "torch"
    fn = inspect.unwrap(fn)  # of `jax.jit` and others
    imported = imported_packages(fn)
    for parameter in inspect.signature(fn).parameters.values():
        note: Any = parameter.annotation
        if isinstance(note, str):  # of `import numpy as np` and `from torch import Tensor`
            note = getattr(fn, "__globals__", {}).get(note.partition(".")[0])
        module = note.__name__ if inspect.ismodule(note) else getattr(note, "__module__", "")
        package = str(module).partition(".")[0].removesuffix("lib")  # jaxlib is JAX
        if package in FRAMEWORKS:
            return package
    named = [name for name in FRAMEWORKS if name in imported]
    return named[0] if len(named) == 1 else "numpy"


class Hand:
    """A kernel written by hand, called on storage arrays.

    All calls pass the same memory with new contents, so that a kernel that remembers results by
    the addresses of its arguments is caught by its results.

    Args:
        code: `file.py:function`.
        func: the function of the generated kernel, with parameters and results in their order.
        device: "cpu", or that of a GPU, such as "cuda".
    """

    def __init__(self, code: str, func: Func, device: str) -> None:
        self.code, self.func, self.device = code, func, device
        self.fn = function_of(code)
        self.framework = framework_of(self.fn, device)
        frontend = IRFrontend() if self.framework == "numpy" else None
        self.frontend: Frontend = frontend or plugins.load("stack.frontends", self.framework)
        self.arrays: list[Any] = []
        self.last: tuple[list[Any], list[np.ndarray]] = ([], [])

    def __call__(self, inputs: Arrays) -> tuple[list[np.ndarray], float]:
        """Returns the results as storage arrays, and the seconds of the call.

        Raises:
            HandError: the kernel fails, or breaks a rule of this module.
        """
        self._refill(inputs)
        start = self._mark()
        try:
            with np.errstate(all="ignore"):
                out = self.fn(*self.arrays)
        except Exception as error:
            raise self._error(f"fails: {type(error).__name__}: {error}") from error
        self._wait(out)
        end = self._mark()
        made = [*cast("Sequence[Any]", out)] if isinstance(out, tuple | list) else [out]
        seen = [self._copy(x) for x in made]  # at once: what is not finished now was not timed
        seconds = self._seconds(start, end)
        self._check_form(made)
        results = [self._storage(x, i) for i, x in enumerate(seen)]
        self._check_memory(made, inputs)
        self.last = (made, results)
        return results, seconds

    def _error(self, text: str) -> HandError:
        return HandError(f"{self.code} {text}")

    def _refill(self, inputs: Arrays) -> None:
        """Copies new inputs into the arrays that all calls pass to the kernel written by hand.

        JAX arrays cannot be written; new ones replace them.
        """
        types = [p.dtype for p in self.func.params]
        fresh = [self.frontend.from_numpy(a.copy(), t) for a, t in zip(inputs, types, strict=True)]
        if self.device != "cpu":
            fresh = self.frontend.to_device(fresh, types, self.device)
        if not self.arrays or self.framework == "jax":
            self.arrays = fresh
            return
        for array, new in zip(self.arrays, fresh, strict=True):
            array[...] = new

    def _check_form(self, made: Sequence[Any]) -> None:
        """Raises HandError unless the kernel's results have the right number, types and layout.

        Checks the array type (of the kernel's framework) and the shape of each result, and that the
        array is dense.
        """
        wanted = self.func.results
        if len(made) != len(wanted):
            raise self._error(f"returns {len(made)} results, not {len(wanted)}")
        for number, (array, result) in enumerate(zip(made, wanted, strict=True)):
            what = f"returns as result {number}"
            if not self._is_array(array):
                name = type(array).__name__
                raise self._error(f"{what} {name}, which is no array of {self.framework}")
            if tuple(array.shape) != tuple(result.shape):
                shapes = f"shape {list(array.shape)}, not {list(result.shape)}"
                raise self._error(f"{what} an array of {shapes}")
            if not self._is_dense(array):
                raise self._error(f"{what} an array that is not dense: copy it in the kernel")

    def _check_memory(self, made: Sequence[Any], inputs: Arrays) -> None:
        """Raises HandError if the kernel wrote to arguments or to results of the call before.

        Also raises it if a result shares memory with an argument or with another result.
        """
        for number, (array, before) in enumerate(zip(self.arrays, inputs, strict=True)):
            now = self.frontend.to_numpy(array, self.func.params[number].dtype)
            if np.ascontiguousarray(now).tobytes() != np.ascontiguousarray(before).tobytes():
                raise self._error(f"writes to its argument {number}")
        places = [*map(self._memory, self.arrays)]
        for number, array in enumerate(made):
            place = self._memory(array)
            if place is not None and place in places:
                raise self._error(
                    f"returns as result {number} memory of an argument or of another result"
                )
            places.append(place)
        for number, (array, seen) in enumerate(zip(*self.last, strict=True)):
            if self._storage(array, number).tobytes() != seen.tobytes():
                raise self._error(f"changes result {number} of an earlier call")

    def _storage(self, array: Any, number: int) -> np.ndarray:
        """Converts the kernel's result `number` to a storage array.

        Raises HandError if the result has the wrong element type.
        """
        try:
            found = self.frontend.to_numpy(array, self.func.results[number].dtype)
        except TypeError as error:
            raise self._error(f"returns result {number} in the wrong type: {error}") from error
        return np.array(found, order="C")

    # ---- frameworks

    def _is_array(self, array: Any) -> bool:
        if self.framework == "numpy":
            return type(array) is np.ndarray or issubclass(type(array), np.generic)
        module = importlib.import_module(self.framework)
        return isinstance(array, module.Tensor if self.framework == "torch" else module.Array)

    def _is_dense(self, array: Any) -> bool:
        if self.framework == "torch":
            return bool(array.is_contiguous())
        return self.framework == "jax" or bool(array.flags.c_contiguous)

    def _memory(self, array: Any) -> object:
        """Returns an id of an array's memory, which its views share.

        Returns None for JAX arrays and NumPy scalars, which cannot be written, and for empty
        arrays.
        """
        if self.framework == "jax" or issubclass(type(array), np.generic) or 0 in array.shape:
            return None
        if self.framework == "torch":
            return array.untyped_storage().data_ptr()
        while issubclass(type(array.base), np.ndarray):
            array = array.base
        return array.ctypes.data

    def _copy(self, array: Any) -> Any:
        """Copies one result of the kernel by hand, so that later calls cannot change the copy.

        Returns a JAX array, or a value that is no array, as it is; `_check_form` refuses the
        latter.
        """
        if not self._is_array(array) or self.framework == "jax":
            return array
        return array.clone() if self.framework == "torch" else array.copy()

    def _wait(self, out: Any) -> None:
        if self.framework == "jax":
            importlib.import_module("jax").block_until_ready(out)

    def _mark(self) -> Any:
        if self.device == "cpu":
            return time.perf_counter()
        event = importlib.import_module("torch").cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, start: Any, end: Any) -> float:
        if self.device == "cpu":
            return end - start
        importlib.import_module("torch").cuda.synchronize()
        return start.elapsed_time(end) * 1e-3
