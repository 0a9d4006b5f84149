"""Uses MLIR's execution engine without the GIL, which its bindings hold: threads compile at once.

Fatal errors of LLVM become exceptions. If the C API is not found, the bindings are used instead:
then only one thread compiles at a time, and a fatal error terminates the process.
"""

from __future__ import annotations

from typing import Any

from . import c_api, fatal_errors
from .bindings import bindings


def engine(module: Any, level: int) -> Any:
    """The bindings' engine for a module, at an optimization level.

    Raises RuntimeError, FatalError.
    """
    functions = c_api.functions()
    if functions is None:
        kind = bindings().execution_engine.ExecutionEngine
        return kind(module, opt_level=level, shared_libs=[], enable_object_dump=True)
    address = c_api.address(module)
    made = fatal_errors.caught(
        lambda: functions.create(address, level, 0, None, True, False), module
    )
    if not made:
        raise RuntimeError("Failure while creating the ExecutionEngine.")
    return c_api.wrapped("execution_engine", "ExecutionEngine", made)


def lookup(engine: Any, name: str) -> int:
    """The address of a function with packed arguments, or 0; compiles the whole module.

    Raises FatalError.
    """
    functions = c_api.functions()
    if functions is None:
        return engine.raw_lookup(name) or 0
    address, text = c_api.address(engine), c_api.Text.of(name)
    return fatal_errors.caught(lambda: functions.lookup(address, text), engine) or 0
