"""MLIR's execution engine: compiles a module to an object, or to functions that run inside it.

It is used without the GIL, which its bindings hold: threads compile at once. Fatal errors of LLVM
become exceptions. If the C API is not found, the bindings are used instead: then only one thread
compiles at a time, and a fatal error terminates the process.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stack.phases import phase

from . import c_api, fatal_errors
from .bindings import bindings
from .fatal_errors import CompileError


@phase("LLVM")
def engine(module: Any, level: int) -> Any:
    """The bindings' engine for a module, at an optimization level. Raises CompileError."""
    functions = c_api.functions()
    if functions is None:
        kind = bindings().execution_engine.ExecutionEngine
        try:
            return kind(module, opt_level=level, shared_libs=[], enable_object_dump=True)
        except RuntimeError as error:
            raise CompileError(f"LLVM: {error}") from error
    address = c_api.address(module)
    made = fatal_errors.caught(
        lambda: functions.create(address, level, 0, None, True, False), module
    )
    if not made:
        raise CompileError("LLVM: Failure while creating the ExecutionEngine.")
    return c_api.wrapped("execution_engine", "ExecutionEngine", made)


def lookup(engine: Any, name: str) -> int:
    """The address of a function with packed arguments, or 0. The first look-up compiles the whole
    module. Raises CompileError.
    """
    functions = c_api.functions()
    if functions is None:
        return engine.raw_lookup(name) or 0
    address, text = c_api.address(engine), c_api.Text.of(name)
    return fatal_errors.caught(lambda: functions.lookup(address, text), engine) or 0


@phase("codegen")
def object_of(engine: Any, name: str) -> bytes:
    """The object file of a module that exports a function `name`."""
    # Dumping looks up every function in order to compile it, and fails for internal ones. Looking
    # up an exported one first compiles the module, so that the dump only writes.
    lookup(engine, name)
    # MLIR writes objects only to files, and returns without an error if it cannot
    with tempfile.TemporaryDirectory(prefix="stack-mlir-") as folder:
        path = Path(folder, "kernel.o")
        engine.dump_to_object_file(str(path))
        if not path.exists():
            raise CompileError("MLIR wrote no object file")
        return path.read_bytes()


def kernels_in(engine: Any, names: Sequence[str]) -> tuple[dict[str, int], list[Any]]:
    """Kernels inside the engine, for machines whose objects we cannot load ourselves.

    Returns their addresses, and what they need as long as they are called.
    """
    found: dict[str, int] = {}
    keep: list[Any] = [engine]
    for name in names:
        packed = lookup(engine, name)
        if not packed:
            raise CompileError(f"no such kernel: {name}")
        kernel = _unpacked(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(packed))
        keep.append(kernel)
        found[name] = ctypes.cast(kernel, ctypes.c_void_p).value or 0
    return found, keep


def _unpacked(packed: Callable[[int], None]) -> Any:
    """Adapts the engine's entries, which take the address of each argument's address."""

    def call(slots: int) -> None:
        first = ctypes.c_void_p(slots)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(first))
        packed(ctypes.addressof(arguments))

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
