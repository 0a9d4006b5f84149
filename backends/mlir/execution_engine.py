"""Uses MLIR's execution engine without the GIL, which its bindings hold: threads compile at once.

It calls the bindings' own library through ctypes, by the C API, and catches its fatal errors. If
the library or these functions are not found, the bindings are used instead: then only one thread
compiles at a time, and a fatal error terminates the process.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import fatal_errors
from .bindings import bindings

_BOOL, _INT, _POINTER = ctypes.c_bool, ctypes.c_int, ctypes.c_void_p
_OBJECT, _CHARS = ctypes.py_object, ctypes.c_char_p


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of Python's C API."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", _OBJECT, _POINTER, _CHARS, _POINTER)
_name_of = _python("PyCapsule_GetName", _CHARS, _OBJECT)
_pointer_in = _python("PyCapsule_GetPointer", _POINTER, _OBJECT, _CHARS)


class _Text(ctypes.Structure):
    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Functions(NamedTuple):
    create: Callable[..., int | None]
    lookup: Callable[..., int | None]


@functools.cache
def _functions() -> _Functions | None:
    folder = Path(bindings().ir.__file__ or "").parent / "_mlir_libs"
    for path in sorted(folder.glob("lib*CAPI*")):
        try:
            library = ctypes.CDLL(str(path))
            create = library.mlirExecutionEngineCreate
            lookup = library.mlirExecutionEngineLookupPacked
        except (OSError, AttributeError):
            continue
        create.argtypes = (_POINTER, _INT, _INT, _POINTER, _BOOL, _BOOL)
        lookup.argtypes = (_POINTER, _Text)
        create.restype = lookup.restype = _POINTER
        fatal_errors.install(library)
        return _Functions(create, lookup)
    return None


def engine(module: Any, level: int) -> Any:
    """The bindings' engine for a module, at an optimization level.

    Raises RuntimeError, FatalError.
    """
    kind = bindings().execution_engine.ExecutionEngine
    functions = _functions()
    if functions is None:
        return kind(module, opt_level=level, shared_libs=[], enable_object_dump=True)
    address = _address(module)
    made = fatal_errors.caught(
        lambda: functions.create(address, level, 0, None, True, False), module
    )
    if not made:
        raise RuntimeError("Failure while creating the ExecutionEngine.")
    return kind._CAPICreate(_capsule(made))


def lookup(engine: Any, name: str) -> int:
    """The address of a function with packed arguments, or 0; compiles the whole module.

    Raises FatalError.
    """
    functions = _functions()
    if functions is None:
        return engine.raw_lookup(name) or 0
    address, text = _address(engine), _Text(name.encode(), len(name.encode()))
    return fatal_errors.caught(lambda: functions.lookup(address, text), engine) or 0


def _address(value: Any) -> int:
    """The address of the C object behind an object of the bindings."""
    capsule = value._CAPIPtr
    return _pointer_in(capsule, _name_of(capsule))


def _capsule(engine: int) -> Any:
    return _new(engine, _capsule_name(), None)


@functools.cache
def _capsule_name() -> bytes:
    """The capsule's name, kept alive here because a capsule stores only its address."""
    return f"{bindings().package}.execution_engine.ExecutionEngine._CAPIPtr".encode()
