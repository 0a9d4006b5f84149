"""MLIR's C API through ctypes, which releases the GIL: the bindings hold it while MLIR works.

The functions are those of the bindings' own library, and take and give the bindings' objects. If
the library or a function is not found, callers use the bindings.
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
_SUCCESS = 1


def _python(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A function of Python's C API."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", _OBJECT, _POINTER, _CHARS, _POINTER)
_name_of = _python("PyCapsule_GetName", _CHARS, _OBJECT)
_pointer_in = _python("PyCapsule_GetPointer", _POINTER, _OBJECT, _CHARS)


class Text(ctypes.Structure):
    """A string with its length; keep the bytes alive."""

    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))

    @classmethod
    def of(cls, text: str) -> Text:
        raw = text.encode()
        return cls(raw, len(raw))


class _Outcome(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int8),)


# a result of one byte is returned as the structure around it
_Handler = ctypes.CFUNCTYPE(ctypes.c_int8, _POINTER, _POINTER)


@_Handler
def _unprinted(diagnostic: int, data: int) -> int:
    return _SUCCESS


class Functions(NamedTuple):
    create: Callable[..., int | None]  # an execution engine
    lookup: Callable[..., int | None]  # compiles its module
    parse: Callable[..., int | None]
    run: Callable[..., _Outcome]  # a pass manager on an operation
    attach: Callable[..., int]  # a handler of diagnostics
    detach: Callable[..., None]


_TYPES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {
    "create": (
        "mlirExecutionEngineCreate",
        _POINTER,
        (_POINTER, _INT, _INT, _POINTER, _BOOL, _BOOL),
    ),
    "lookup": ("mlirExecutionEngineLookupPacked", _POINTER, (_POINTER, Text)),
    "parse": ("mlirModuleCreateParse", _POINTER, (_POINTER, Text)),
    "run": ("mlirPassManagerRunOnOp", _Outcome, (_POINTER, _POINTER)),
    "attach": (
        "mlirContextAttachDiagnosticHandler",
        ctypes.c_uint64,
        (_POINTER, _Handler, _POINTER, _POINTER),
    ),
    "detach": ("mlirContextDetachDiagnosticHandler", None, (_POINTER, ctypes.c_uint64)),
}


@functools.cache
def functions() -> Functions | None:
    """The functions, None if the bindings' library lacks one."""
    folder = Path(bindings().ir.__file__ or "").parent / "_mlir_libs"
    for path in sorted(folder.glob("lib*CAPI*")):
        try:
            library = ctypes.CDLL(str(path))
            found = {key: getattr(library, name) for key, (name, _, _) in _TYPES.items()}
        except (OSError, AttributeError):
            continue
        for key, (_, result, arguments) in _TYPES.items():
            found[key].restype, found[key].argtypes = result, arguments
        fatal_errors.install(library)
        return Functions(**found)
    return None


def address(value: Any) -> int:
    """The address of the C object behind an object of the bindings."""
    capsule = value._CAPIPtr
    return _pointer_in(capsule, _name_of(capsule))


def wrapped(part: str, kind: str, pointer: int) -> Any:
    """The object of the bindings, of class `kind` in their module `part`, that owns a C object."""
    held = getattr(getattr(bindings(), part), kind)
    return held._CAPICreate(_new(pointer, _capsule_name(part, kind), None))


@functools.cache
def _capsule_name(part: str, kind: str) -> bytes:
    """The capsule's name, kept alive here because a capsule stores only its address."""
    return f"{bindings().package}.{part}.{kind}._CAPIPtr".encode()


def lowered(text: str, passes: Any, context: Any) -> Any:
    """The module of a text after the passes of a pass manager, None if MLIR refuses it.

    MLIR's reason is lost; ask the bindings for it.
    """
    known = functions()
    if known is None:
        return None
    handler = known.attach(address(context), _unprinted, None, None)
    try:
        made = known.parse(address(context), Text.of(text))
        if not made:
            return None
        module = wrapped("ir", "Module", made)
        done = known.run(address(passes), address(module.operation))
        return module if done.value == _SUCCESS else None
    finally:
        known.detach(address(context), handler)
