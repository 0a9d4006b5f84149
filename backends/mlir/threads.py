"""Threads for compiled kernels: the OpenMP pool that torch already runs, or none.

Kernels call `GOMP_parallel` themselves. Where torch is installed that is torch's own libgomp, so
library steps and generated code share one pool of threads instead of fighting over the cores; a
region costs about a microsecond.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.util
from pathlib import Path

NAMES = ("GOMP_parallel", "GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")


@functools.cache
def library_path() -> str | None:
    """Torch's libgomp, without importing torch; else the system's; else None."""
    spec = importlib.util.find_spec("torch")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        # Wheels name it plainly or with a hash, in torch/lib or beside it in torch.libs.
        for where in (folder / "lib", folder.parent / "torch.libs"):
            for path in sorted(where.glob("libgomp*.so*")):
                return str(path)
    return ctypes.util.find_library("gomp")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The loaded library, or None where kernels run on the calling thread."""
    path = library_path()
    if path is None:
        return None
    try:
        loaded = ctypes.CDLL(path)
    except OSError:
        return None
    return loaded if all(hasattr(loaded, name) for name in NAMES) else None


DECLARED = """\
llvm.func @GOMP_parallel(!llvm.ptr, !llvm.ptr, i32, i32)
llvm.func @GOMP_barrier()
llvm.func @omp_get_thread_num() -> i32
llvm.func @omp_get_num_threads() -> i32
"""

# The same names, so that a printer of kernels need not know which of the two it gets.
SERIAL = """\
llvm.func internal @GOMP_parallel(%fn: !llvm.ptr, %data: !llvm.ptr, %threads: i32, %flags: i32) {
  llvm.call %fn(%data) : !llvm.ptr, (!llvm.ptr) -> ()
  llvm.return
}
llvm.func internal @GOMP_barrier() {
  llvm.return
}
llvm.func internal @omp_get_thread_num() -> i32 {
  %zero = llvm.mlir.constant(0 : i32) : i32
  llvm.return %zero : i32
}
llvm.func internal @omp_get_num_threads() -> i32 {
  %one = llvm.mlir.constant(1 : i32) : i32
  llvm.return %one : i32
}
"""


def prelude() -> str:
    """MLIR text that makes the thread functions known to a module."""
    return DECLARED if library() is not None else SERIAL


def entry(name: str, body: str) -> str:
    """A kernel `name` that runs `body` (same argument: the table) on every thread of the pool.

    The number of threads is the pool's, as torch.set_num_threads left it.
    """
    return f"""\
llvm.func @{name}(%table: !llvm.ptr) {{
  %body = llvm.mlir.addressof @{body} : !llvm.ptr
  %zero = llvm.mlir.constant(0 : i32) : i32
  llvm.call @GOMP_parallel(%body, %table, %zero, %zero) : (!llvm.ptr, !llvm.ptr, i32, i32) -> ()
  llvm.return
}}
"""


def chunk(count: str, lo: str = "%lo", hi: str = "%hi") -> str:
    """Text that gives this thread its share [lo, hi) of `count` (an i64 value) iterations."""
    p = lo  # Names derived from the result's, so that one body may hold several chunks.
    return f"""\
{p}_t32 = llvm.call @omp_get_thread_num() : () -> i32
{p}_n32 = llvm.call @omp_get_num_threads() : () -> i32
{p}_t = arith.extui {p}_t32 : i32 to i64
{p}_n = arith.extui {p}_n32 : i32 to i64
{p}_a = arith.muli {count}, {p}_t : i64
{p}_b = arith.addi {p}_a, {count} : i64
{lo} = arith.divui {p}_a, {p}_n : i64
{hi} = arith.divui {p}_b, {p}_n : i64
"""
