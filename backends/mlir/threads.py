"""MLIR text with which kernels share their iterations, and the number of their threads.

The threads themselves are in `pool`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from pathlib import Path

SYMBOL = "stack_parallel_for"
_DECLARES_POOL = re.compile(rf"llvm\.func[^@\n]*@{SYMBOL}\((?!%)")


def prelude() -> str:
    """Returns MLIR text that declares the thread pool's entry function in a module."""
    return f"llvm.func @{SYMBOL}(!llvm.ptr, !llvm.ptr, i64, i64)\n"


def are_asked_for(text: str) -> bool:
    """True if a module declares the thread pool's entry function.

    The text is searched, because inspecting a module would load the ops of all its dialects, which
    takes longer than compiling it.
    """
    return _DECLARES_POOL.search(text) is not None


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
