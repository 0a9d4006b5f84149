"""The threads that run kernels, and those that compile them.

Kernels share their iterations through MLIR text; the threads that run them are in `pool`.

LLVM does not take the GIL, so that threads compile in the background. They are kept, because MLIR
loads data per thread. A forked child has none of them, and a lock that one of them held would stay
locked there. So a fork waits until they are idle, and a child starts its own.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

Made = TypeVar("Made")

SYMBOL = "stack_parallel_for"
# In the text of each module that declares the thread pool's entry function. The text is searched,
# because inspecting a module would load the ops of all its dialects, which takes longer than
# compiling it.
DECLARED = f"@{SYMBOL}(!llvm.ptr"
DECLARATION = f"llvm.func {DECLARED}, !llvm.ptr, i64, i64)\n"


def entry(name: str, body: str, count: int, grain: int = 1) -> str:
    """Returns a kernel `name` that runs `body` over [0, count), in chunks of at least `grain`.

    The body takes the table and a range [lo, hi). It is called any number of times, on any thread.
    """
    return f"""\
llvm.func @{name}(%table: !llvm.ptr) {{
  %body = llvm.mlir.addressof @{body} : !llvm.ptr
  %count = llvm.mlir.constant({count} : i64) : i64
  %grain = llvm.mlir.constant({grain} : i64) : i64
  llvm.call @{SYMBOL}(%body, %table, %count, %grain) : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.return
}}
"""


def body(name: str) -> str:
    """Returns the opening line of an MLIR function that runs a range of a kernel's iterations."""
    return f"llvm.func internal @{name}(%table: !llvm.ptr, %lo: i64, %hi: i64) {{\n"


def chosen() -> int | None:
    """The value of STACK_NUM_THREADS; None if it is not a number."""
    found = os.environ.get("STACK_NUM_THREADS", "")
    return max(int(found), 1) if found.isdigit() else None


@functools.cache
def cores() -> int:
    """Number of processor cores that this process may use; hardware threads are not counted."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    found: set[str] = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            found.add(path.read_text())
        except OSError:
            found.add(str(cpu))
    return max(len(found), 1)


def openmp(name: str) -> int:
    """The address of a function of torch's OpenMP library; 0 if there is none."""
    path = _openmp()
    if path is None:
        return 0
    try:
        function = getattr(ctypes.CDLL(path), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def _openmp() -> str | None:
    """The path of the OpenMP library in a torch wheel, which torch loads."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        # wheels name it with or without a hash, in torch/lib or in torch.libs next to it
        for where in (folder / "lib", folder.parent / "torch.libs"):
            for path in sorted(where.glob("libgomp*.so*")):
                return str(path)
    return None


# ---- compiling in the background

_started: list[ThreadPoolExecutor] = []  # for this process: empty until the first submit
_under_way: set[Future[Any]] = set()


def submit(make: Callable[..., Made], *args: Any) -> Future[Made]:
    """Run `make` with the arguments on another thread, and return its future."""
    if not _started:
        _started.append(ThreadPoolExecutor(cores(), "stack-mlir"))
    try:
        made = _started[0].submit(make, *args)
    except RuntimeError:  # Python is shutting down and starts no threads
        return _made_here(make, *args)
    _under_way.add(made)
    made.add_done_callback(_under_way.discard)
    return made


def _made_here(make: Callable[..., Made], *args: Any) -> Future[Made]:
    made: Future[Made] = Future()
    try:
        made.set_result(make(*args))
    except Exception as error:
        made.set_exception(error)
    return made


def _before_fork() -> None:
    wait(tuple(_under_way))


def _after_fork() -> None:
    _started.clear()
    _under_way.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
