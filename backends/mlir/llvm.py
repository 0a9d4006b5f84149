"""MLIR and LLVM in this process: MLIR text becomes an object file, or functions of their engine.

The Python bindings are those of `mlir` (upstream) or of `torch_mlir` (PyPI), which have the same
core dialects. `torch_mlir` is a namespace package, so finding the name proves little. The needed
parts are imported, and any failure counts as missing. Nothing else in the library imports them.

The bindings hold the GIL while MLIR works. Parsing, passes and code generation therefore call the
bindings' own C library through ctypes, which releases the GIL, so that threads compile at once.

LLVM terminates the process if it cannot compile something, unless a handler takes the error; but
the handler must not return. So code is generated in a thread of its own. The handler passes the
message to the thread that waits for it, and blocks its own thread forever, with everything that
LLVM holds.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from stack.errors import BackendMissing, StackError
from stack.phases import phase
from stack.releases import install_hint

from . import locations, portable_pool, threads

Made = TypeVar("Made")

PACKAGES = ("mlir", "torch_mlir")
DISTRIBUTIONS = {"mlir": ("mlir-python-bindings", "mlir"), "torch_mlir": ("torch-mlir",)}
PIPELINE = "builtin.module(convert-scf-to-cf,convert-to-llvm,reconcile-unrealized-casts)"

_INT, _POINTER = ctypes.c_int, ctypes.c_void_p


class CompileError(StackError):
    """An error of MLIR or LLVM for a module; the message is theirs, with the lines it refers to."""


class _Text(ctypes.Structure):
    """A string of the C library, with its length; keep the bytes alive."""

    _fields_ = (("data", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Outcome(ctypes.Structure):
    _fields_ = (("is_success", ctypes.c_int8),)


# a result of one byte is returned as the structure around it
_Diagnostic = ctypes.CFUNCTYPE(ctypes.c_int8, _POINTER, _POINTER)
_FatalError = ctypes.CFUNCTYPE(None, ctypes.c_char_p)

# functions of the C library: result and arguments
_C_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mlirContextAttachDiagnosticHandler": (
        ctypes.c_uint64,
        (_POINTER, _Diagnostic, _POINTER, _POINTER),
    ),
    "mlirContextDetachDiagnosticHandler": (None, (_POINTER, ctypes.c_uint64)),
    "mlirModuleCreateParse": (_POINTER, (_POINTER, _Text)),
    "mlirPassManagerRunOnOp": (_Outcome, (_POINTER, _POINTER)),
    "mlirExecutionEngineCreate": (
        _POINTER,
        (_POINTER, _INT, _INT, _POINTER, ctypes.c_bool, ctypes.c_bool),
    ),
    "mlirExecutionEngineLookupPacked": (_POINTER, (_POINTER, _Text)),
}


class Bindings(NamedTuple):
    """The parts of MLIR that the backend uses; `c` is the C library of the bindings."""

    package: str
    ir: ModuleType
    passmanager: ModuleType
    execution_engine: ModuleType
    c: ctypes.CDLL


def missing() -> str | None:
    """Returns what to install if no bindings can be found; does not import them."""
    if any(importlib.util.find_spec(package) for package in PACKAGES):
        return None
    return f"install the extra: {install_hint('mlir')}"


@functools.cache
def bindings() -> Bindings:
    """Returns the bindings; raises BackendMissing that names the extra if there are none."""
    why: list[str] = []
    for package in PACKAGES:
        try:
            ir, passes, engine = (
                importlib.import_module(f"{package}.{part}")
                for part in ("ir", "passmanager", "execution_engine")
            )
            found = sorted(Path(ir.__file__ or "").parent.glob("_mlir_libs/lib*CAPI*"))
            if not found:
                raise ImportError(f"{package} is without its C library")
            c = ctypes.CDLL(str(found[0]))
            for name, (result, arguments) in _C_FUNCTIONS.items():
                function = getattr(c, name)
                function.restype, function.argtypes = result, arguments
        except (ImportError, OSError, AttributeError) as error:
            why.append(str(error))
            continue
        if hasattr(c, "LLVMInstallFatalErrorHandler"):
            c.LLVMInstallFatalErrorHandler(_pass_on)
        return Bindings(package, ir, passes, engine, c)
    raise BackendMissing("mlir", f"{install_hint('mlir')} ({'; '.join(why)})")


@functools.cache
def version() -> str:
    """Package and version, without importing the bindings; a part of every cache key."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            continue
        for name in DISTRIBUTIONS[package]:
            try:
                return f"{package} {importlib.metadata.version(name)}"
            except importlib.metadata.PackageNotFoundError:
                continue
        return package
    return "none"


_own = threading.local()  # `context` of a thread; `made`: the future of the call that it runs


def context() -> Any:
    """Returns this thread's MLIR context.

    Loading the dialects again would cost 4 ms per kernel, and MLIR translates without the GIL.
    """
    if not hasattr(_own, "context"):
        _own.context = bindings().ir.Context()
        # MLIR's own worker threads would only take cores from measurements
        _own.context.enable_multithreading(False)
    return _own.context


# ---- objects of the bindings and of the C library

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, _POINTER, ctypes.c_char_p, _POINTER)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_name_in = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_pointer_in = ctypes.PYFUNCTYPE(_POINTER, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _address(value: Any) -> int:
    """The address of the C object behind an object of the bindings."""
    capsule = value._CAPIPtr
    return _pointer_in(capsule, _name_in(capsule))


def _wrapped(part: str, kind: str, pointer: int) -> Any:
    """The object of the bindings, of class `kind` in their module `part`, that owns a C object."""
    mlir = bindings()
    name = f"{mlir.package}.{part}.{kind}._CAPIPtr".encode()  # the capsule has only its address
    return getattr(getattr(mlir, part), kind)._CAPICreate(_new_capsule(pointer, name, None))


# ---- from text to object code


@_Diagnostic
def _unprinted(diagnostic: int, data: int) -> int:
    return 1  # the diagnostic is handled


@phase("MLIR")
def lowered(text: str, located: bool = False) -> Any:
    """Returns the module of a text in the llvm dialect; with debug information if `located`.

    Raises CompileError.
    """
    mlir, own, raw = bindings(), context(), text.encode()
    passes = mlir.passmanager.PassManager.parse(PIPELINE, own)
    # the parser has verified the text; llvm-dialect ops are verified again on translation
    passes.enable_verifier(False)
    is_done, module = False, None
    handler = mlir.c.mlirContextAttachDiagnosticHandler(_address(own), _unprinted, None, None)
    try:
        if made := mlir.c.mlirModuleCreateParse(_address(own), _Text(raw, len(raw))):
            module = _wrapped("ir", "Module", made)
            done = mlir.c.mlirPassManagerRunOnOp(_address(passes), _address(module.operation))
            is_done = bool(done.is_success)
    finally:
        mlir.c.mlirContextDetachDiagnosticHandler(_address(own), handler)
    try:
        if module is None or not is_done:  # the bindings raise an error with the reason
            module = mlir.ir.Module.parse(text, own)
            passes.run(module.operation)
        if located:
            locations.add_debug_info(mlir, module, own)
    except (mlir.ir.MLIRError, ValueError) as error:
        raise CompileError(_with_lines(str(error), text)) from error
    return module


def _with_lines(message: str, text: str) -> str:
    lines = text.splitlines()
    found = [
        int(part) for piece in message.split('"-":')[1:] if (part := piece.split(":")[0]).isdigit()
    ]
    shown = [f"  {n}: {lines[n - 1]}" for n in sorted(set(found))[:8] if 0 < n <= len(lines)]
    return "\n".join([message, *shown])


@phase("LLVM")
def engine_of(module: Any, text: str, level: int) -> Any:
    """The engine of a module of this text, at an optimization level. Raises CompileError."""
    create = bindings().c.mlirExecutionEngineCreate
    made = caught(module, create, _address(module), level, 0, None, True, False)
    if not made:
        raise CompileError("LLVM: Failure while creating the ExecutionEngine.")
    engine = _wrapped("execution_engine", "ExecutionEngine", made)
    if threads.DECLARED in text:
        # only code that `elf` cannot load runs in the engine, so that the native pool may be late
        entry = ctypes.cast(portable_pool.dispatch, ctypes.c_void_p)
        engine.raw_register_runtime(threads.SYMBOL, entry)
    return engine


def _look_up(engine: Any, name: str) -> int:
    """The address of a function with packed arguments, or 0. The first look-up compiles the whole
    module. Raises CompileError.
    """
    look_up, raw = bindings().c.mlirExecutionEngineLookupPacked, name.encode()
    return caught(engine, look_up, _address(engine), _Text(raw, len(raw))) or 0


@phase("codegen")
def object_of(engine: Any, name: str) -> bytes:
    """The object file of a module that exports a function `name`."""
    # Dumping looks up every function in order to compile it, and fails for internal ones. Looking
    # up an exported one first compiles the module, so that the dump only writes.
    _look_up(engine, name)
    # MLIR writes objects only to files, and returns without an error if it cannot
    with tempfile.TemporaryDirectory(prefix="stack-mlir-") as folder:
        path = Path(folder, "kernel.o")
        engine.dump_to_object_file(str(path))
        if not path.exists():
            raise CompileError("MLIR wrote no object file")
        return path.read_bytes()


def functions_in(engine: Any, names: Sequence[str]) -> tuple[dict[str, int], list[Any]]:
    """Functions inside the engine, for machines whose objects we cannot load ourselves.

    Returns their addresses, and what they need as long as they are called.
    """
    found: dict[str, int] = {}
    keep: list[Any] = [engine]
    for name in names:
        packed = _look_up(engine, name)
        if not packed:
            raise CompileError(f"no such kernel: {name}")
        function = _unpacked(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(packed))
        keep.append(function)
        found[name] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found, keep


def _unpacked(packed: Callable[[int], None]) -> Any:
    """Adapts the engine's entries, which take the address of each argument's address."""

    def call(slots: int) -> None:
        first = ctypes.c_void_p(slots)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(first))
        packed(ctypes.addressof(arguments))

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)


# ---- fatal errors


def caught(owner: Any, call: Callable[..., Made], *args: Any) -> Made:
    """Runs a call in which LLVM generates code, and returns its result.

    Args:
        owner: the object that LLVM works on. It is never freed after a fatal error.

    Raises:
        CompileError: LLVM would have terminated the process. The message is LLVM's.
    """
    made: Future[Made] = Future()

    def run() -> None:
        _own.made = made
        try:
            made.set_result(call(*args))
        except BaseException as error:
            made.set_exception(error)

    try:
        threading.Thread(target=run, name="stack-llvm", daemon=True).start()
    except RuntimeError:  # Python is shutting down and starts no threads
        return call(*args)
    try:
        wait([made])
    except BaseException:  # an interrupt: wait, as the caller will free what LLVM uses
        wait([made])
        raise
    if isinstance(made.exception(), CompileError):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    return made.result()


@_FatalError
def _pass_on(message: bytes) -> None:
    """Handles LLVM's fatal errors in threads that `caught` started."""
    made: Future[Any] | None = getattr(_own, "made", None)
    if made is None:
        return  # another user of this LLVM: the process terminates as usual
    made.set_exception(CompileError(f"LLVM: {message.decode(errors='replace').strip()}"))
    forever = threading.Lock()
    forever.acquire()
    forever.acquire()
