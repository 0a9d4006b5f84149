"""A compiled program that can be timed: in this process, or in a worker process."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stack.errors import StackError
from stack.ir.files import save_constants
from stack.ir.func import Func
from stack.measure.timing import repeat
from stack.run.backend import Executable, Kernel
from stack.run.frontend import Captured, Frontend

L2_BYTES = 2 << 20
# the function of each framework that returns the arrays of a result, in order
LEAVES = {
    "torch": ("stack.frameworks.torch_private", "leaves_of"),
    "jax": ("jax.tree_util", "tree_leaves"),
}


class Runner(Protocol):
    """Interface: a program compiled by one system, with prepared inputs, that can be timed."""

    @property
    def kernels(self) -> Sequence[Kernel]: ...

    @property
    def counts_what(self) -> str: ...

    @property
    def peak_bytes(self) -> int | None: ...

    @property
    def note(self) -> str: ...

    def run(self, count: int) -> float:
        """Calls the program `count` times; returns the total seconds."""
        ...

    def results(self) -> list[np.ndarray]:
        """Returns the results of the newest call as storage arrays."""
        ...

    def close(self) -> None: ...


class LocalRunner:
    """An executable in this process, called on prepared arrays.

    If one set of inputs would stay in the caches, calls use several sets in rotation.
    """

    def __init__(self, executable: Executable, storage: Sequence[np.ndarray]) -> None:
        self.executable = executable
        size = sum(a.nbytes for a in storage)
        copies = copies_of(size)
        prepare: Callable[[Sequence[np.ndarray]], Any] = executable.prepare or list
        sets = [list(storage), *([a.copy() for a in storage] for _ in range(copies - 1))]
        self.sets: list[Any] = [prepare(arrays) for arrays in sets]
        self.call = executable.call or executable.run
        self.at = 0
        self.newest: Any = None
        self._repeat = repeat(self._once)

    def _once(self) -> None:
        self.at = (self.at + 1) % len(self.sets)
        self.newest = self.call(self.sets[self.at])

    @property
    def kernels(self) -> Sequence[Kernel]:
        return self.executable.kernels

    @property
    def counts_what(self) -> str:
        return self.executable.counts_what

    @property
    def peak_bytes(self) -> int | None:
        return self.executable.peak_bytes

    @property
    def note(self) -> str:
        return self.executable.note

    def run(self, count: int) -> float:
        taken = self._repeat(count)
        if self.executable.wait is None:
            return taken
        start = time.perf_counter()
        self.executable.wait()
        return taken + time.perf_counter() - start

    def results(self) -> list[np.ndarray]:
        if self.newest is None:
            self._once()
        finish = self.executable.finish
        newest: Any = self.newest
        return finish(newest) if finish is not None else newest

    def close(self) -> None:
        self.sets, self.newest = [], None


class UserRunner(LocalRunner):
    """A compiled callable, called as its user calls it: on framework arrays, with all guards."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        captured: Captured,
        frontend: Frontend,
        executable: Executable,
        storage: Sequence[np.ndarray],
    ) -> None:
        self.executable, self.captured, self.frontend = executable, captured, frontend
        self.storage = storage
        size = sum(a.nbytes for a in captured.flatten(*captured.args))
        # weights are shared, arguments rotate
        self.sets: list[Any] = [captured.args]
        self.sets += [copy.deepcopy(captured.args) for _ in range(copies_of(size) - 1)]
        self.call = _without_gradients(compiled, frontend.name)
        self.at = 0
        self.newest: Any = None
        self._repeat = repeat(self._once)

    def results(self) -> list[np.ndarray]:
        if self.newest is None:
            self._once()
        module, name = LEAVES[self.frontend.name]
        found = getattr(importlib.import_module(module), name)(self.newest)
        arrays = [x for x in found if hasattr(x, "dtype")]
        kinds = [r.dtype for r in self.captured.func.results]
        if len(arrays) != len(kinds):  # it also sets state, which users do not get
            return self.executable.run(self.storage)
        pairs = zip(arrays, kinds, strict=True)
        return [np.array(self.frontend.to_numpy(x, kind), order="C") for x, kind in pairs]


def _without_gradients(compiled: Callable[..., Any], framework: str) -> Callable[[Any], Any]:
    """Returns a function from a tuple of arguments to results; torch runs it without gradients."""
    if framework != "torch":
        return lambda args: compiled(*args)
    no_grad: Any = importlib.import_module("torch").no_grad

    def call(args: Any) -> Any:
        with no_grad():
            return compiled(*args)

    return call


def copies_of(size: int) -> int:
    """Returns the number of input sets to rotate so that no inputs stay in the caches."""
    return 1 if size > 2 * L2_BYTES else min(8, 2 + 2 * L2_BYTES // max(size, 1))


class WorkerDied(StackError):
    """Raised if a backend crashed its worker process."""


class WorkerRunner:
    """A backend in a worker process, so that a crash is isolated.

    The worker is `stack.measure.worker`. Requests and replies are JSON lines; arrays are exchanged
    as files in a temporary folder.
    """

    def __init__(
        self, backend: str, func: Func, storage: Sequence[np.ndarray], options: dict[str, Any]
    ) -> None:
        self.backend = backend
        self.folder = tempfile.TemporaryDirectory(prefix="stack-worker-")
        root = Path(self.folder.name)
        (root / "func.stack").write_text(str(func), encoding="utf-8")
        save_constants([func], root)
        save_arrays(root / "inputs.npz", storage)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stack.measure.worker", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            reply = self._ask({"compile": backend, "options": options})
        except StackError:
            self.close()
            raise
        self.compile_s = float(reply["compile_s"])
        self._kernels: list[Kernel] | None = None
        self._info: dict[str, Any] = {}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise WorkerDied(f"{self.backend} {self._death()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise StackError(str(reply["error"]))
        return reply

    def _death(self) -> str:
        code = self.process.wait(30)
        if code >= 0:
            return f"ended its process with exit code {code}"
        with contextlib.suppress(ValueError):
            return f"took its process down: {signal.Signals(-code).name}"
        return f"took its process down: signal {-code}"

    def _about(self) -> dict[str, Any]:
        if not self._info:
            self._info = self._ask({"about": True})
            self._kernels = [_kernel(entry) for entry in self._info["kernels"]]
        return self._info

    @property
    def kernels(self) -> Sequence[Kernel]:
        self._about()
        return self._kernels or ()

    @property
    def counts_what(self) -> str:
        return str(self._about()["counts_what"])

    @property
    def peak_bytes(self) -> int | None:
        return self._about()["peak_bytes"]

    @property
    def note(self) -> str:
        return str(self._about()["note"])

    def run(self, count: int) -> float:
        return float(self._ask({"run": count})["seconds"])

    def results(self) -> list[np.ndarray]:
        reply = self._ask({"results": True})
        return load_arrays(Path(self.folder.name) / "results.npz", int(reply["count"]))

    def close(self) -> None:
        """Ends the worker and deletes its files."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        with contextlib.suppress(OSError):
            self.folder.cleanup()


def _kernel(entry: dict[str, Any]) -> Kernel:
    fields: dict[str, Any] = {
        **entry,
        "source": tuple(entry["source"]),
        "ops": tuple(entry["ops"]),
    }
    return Kernel(**fields)


def save_arrays(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """Writes arrays in order."""
    named: dict[str, Any] = {f"a{i}": a for i, a in enumerate(arrays)}
    np.savez(path, **named)


def load_arrays(path: Path, count: int) -> list[np.ndarray]:
    """Reads the arrays written by `save_arrays`."""
    with np.load(path, allow_pickle=False) as held:
        return [held[f"a{i}"] for i in range(count)]


def silence_stdout() -> Any:
    """Redirects stdout to stderr, since peers print to it; returns the real stdout."""
    sys.stdout.flush()
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return real
