"""Compiles MLIR text to native code: lower, compile, cache, load, call.

A kernel takes one pointer, to a table of 8-byte slots that contain buffer addresses and integers.
The thread pool passes the same pointer to every thread, so arguments are packed only once, and a
call from Python costs one ctypes call.

The printer must emit `!llvm.ptr` with `llvm.getelementptr`, `llvm.load` and `llvm.store` for
memory, `i64` (not `index`) for loops, and `arith`, `math`, `vector`, `scf` for the rest. That needs
three passes. memref would need eight, and store sizes twice.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack.phases import phase
from stack.run.cache import Cache

from ..runtime.device import Bound
from ..runtime.values import RuntimeValue
from . import bindings, c_api, elf, execution_engine, locations, pool, portable_pool, threads
from .fatal_errors import CompileError

PIPELINE = "builtin.module(convert-scf-to-cf,convert-to-llvm,reconcile-unrealized-casts)"
# Printed kernels are already vectorized, unrolled, and without common subexpressions. LLVM's passes
# over its IR make them no faster, but take as long as code generation. Code generation (registers,
# instruction order, loop-invariant code) is the same at every level; a test checks this.
OPT_LEVEL = 0
MADE_OF_OTHERS = 2  # for functions that need inlining, and memory promoted to registers

# Increase it when text is compiled differently without a change of any other part of the key.
FORMAT = "stack.mlir/2"

Address = int


@dataclass(frozen=True)
class KernelLibrary:
    """Loaded kernels of one module, by name. Their code exists as long as this object."""

    addresses: dict[str, Address]
    owner: Any

    def __getitem__(self, name: str) -> NativeKernel:
        return NativeKernel(name, self.addresses[name], self.owner)


class NativeKernel:
    """A native function with one argument, the table.

    Attributes:
        text: a module with only this kernel, named `kernel`; "" if not known.
        fixed: addresses that follow those of operands and results in the table.
    """

    text = ""
    fixed: tuple[Address, ...] = ()

    def __init__(self, name: str, address: Address, owner: Any) -> None:
        self.name = name
        self.address = address
        # kept for callers that have prepared a table and call this with its address
        self.raw = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._owner = owner

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        """Returns a function that runs the kernel on the arrays of these values."""
        values = [*args, *outs]
        kept = table([0] * len(values) + [*self.fixed])
        for slot, value in enumerate(values):
            value.tell(kept, slot)
        raw, address = self.raw, ctypes.addressof(kept)

        def run(_: int, keep: object = kept) -> None:
            raw(address)

        return run

    def __call__(self, *slots: int) -> None:
        """Run the kernel on the given buffer addresses and integers."""
        kept = table(slots)
        self.raw(ctypes.addressof(kept))


def table(slots: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    """The slots as memory. Keep it while a kernel uses it; slots can be changed in place."""
    return (ctypes.c_int64 * len(slots))(*slots)


def lower(text: str) -> str:
    """Returns the module in the llvm dialect with locations, as text: the `llvm` stage."""
    module = _lowered(text, located=True)
    return module.operation.get_asm(enable_debug_info=True)


@phase("MLIR")
def _lowered(text: str, located: bool = False) -> Any:
    """The module in the llvm dialect; with debug information if `located`."""
    mlir, context = bindings.bindings(), bindings.context()
    passes = mlir.passmanager.PassManager.parse(PIPELINE, context)
    # the parser has verified the text; llvm-dialect ops are verified again on translation
    passes.enable_verifier(False)
    try:
        module = c_api.lowered(text, passes, context)
        if module is None:  # the bindings know the reason
            module = mlir.ir.Module.parse(text, context)
            passes.run(module.operation)
        if located:
            locations.add_debug_info(mlir, module, context)
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


def _engine(module: Any, text: str, level: int = OPT_LEVEL) -> Any:
    """The engine of a module. Raises CompileError."""
    engine = execution_engine.engine(module, level)
    if threads.are_asked_for(text):
        # only code that `elf` cannot load runs in the engine, so that the native pool may be late
        entry = ctypes.cast(portable_pool.dispatch, ctypes.c_void_p)
        engine.raw_register_runtime(threads.SYMBOL, entry)
    return engine


def compile_object(text: str) -> bytes:
    """Returns the object file of a module in the dialects above, with DWARF lines."""
    module = _lowered(text, located=True)
    return execution_engine.object_of(_engine(module, text), _public(module))


def _public(module: Any) -> str:
    """The name of a function that the module defines and exports."""
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and len(op.operation.regions[0].blocks) > 0:
            if "internal" not in str(op.operation.attributes["linkage"]):
                return op.operation.attributes["sym_name"].value
    raise CompileError("the module exports no function")


@functools.cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@functools.cache
def _math() -> ctypes.CDLL | None:
    import ctypes.util  # which runs another process to find a library

    path = ctypes.util.find_library("m")
    return ctypes.CDLL(path) if path else None


def resolve(symbol: str, cache: Cache | None = None) -> Address | None:
    """The address of a function of libm or libc, or of the pool, which may come from the cache."""
    if symbol == threads.SYMBOL:
        return pool.address(cache)
    function = getattr(_process(), symbol, None) or getattr(_math(), symbol, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _host() -> str:
    """Everything that determines the machine code besides the text: CPU, bindings, options."""
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU part")
    try:
        told = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        told = []
    cpu = "\n".join(line for line in told if line.split("\t")[0].strip() in wanted)
    cpu = cpu or platform.node()  # an unknown CPU shares objects with no other machine
    parts = [FORMAT, platform.machine(), cpu, bindings.version(), PIPELINE, str(OPT_LEVEL)]
    return "\n".join(parts)


def key(text: str, level: int = OPT_LEVEL) -> str:
    """The cache key of a module's object code on this machine."""
    own = "" if level == OPT_LEVEL else f"level {level}\n"
    return hashlib.sha256(f"{_host()}\n{own}{text}".encode()).hexdigest()


def build(
    text: str, names: Iterable[str], cache: Cache | None = None, optimized: bool = False
) -> KernelLibrary:
    """Compile a module, or get its object code from the cache, and load the named kernels.

    Args:
        optimized: run LLVM's passes over its IR, for functions that call each other.
    """
    level = MADE_OF_OTHERS if optimized else OPT_LEVEL
    wanted = list(names)
    if not wanted:
        return KernelLibrary({}, None)
    entry = key(text, level)
    found = stored(entry, wanted, cache)
    if found is not None:
        return found
    engine = _engine(_lowered(text), text, level)
    if elf.supported():
        code = execution_engine.object_of(engine, wanted[0])
        try:
            library = _loaded(code, wanted, cache)
        except elf.LoadError:
            pass  # the engine can always run what it compiled; it is only not cached
        else:
            if cache is not None:
                cache.put(entry, code)
            return library
    return KernelLibrary(*execution_engine.kernels_in(engine, wanted))


def stored(entry: str, names: Sequence[str], cache: Cache | None) -> KernelLibrary | None:
    """The kernels of the object in a cache entry; None if there is none."""
    code = cache.get(entry) if cache is not None and elf.supported() else None
    if code is None:
        return None
    try:
        return _loaded(code, names, cache)
    except elf.LoadError:
        return None  # not an object that can be loaded here: treat it as missing


@phase("load")
def _loaded(code: bytes, names: Sequence[str], cache: Cache | None) -> KernelLibrary:
    """Loads the kernels of an object. Raises LoadError."""
    image = elf.load(code, functools.partial(resolve, cache=cache))
    missing = [name for name in names if name not in image.addresses]
    if missing:
        raise elf.LoadError(f"no such kernel: {', '.join(missing)}")
    return KernelLibrary({name: image.addresses[name] for name in names}, image)


def assembly(text: str) -> str:
    """Returns the disassembly of a compiled module, or why there is none: the `asm` stage."""
    return disassemble(compile_object(text))


def disassemble(code: bytes) -> str:
    """An object as text, through objdump if it is installed."""
    tool = shutil.which("objdump") or shutil.which("llvm-objdump")
    if tool is None:
        return f"; no disassembly: neither objdump nor llvm-objdump is installed ({len(code)} B)\n"
    with tempfile.TemporaryDirectory(prefix="stack-mlir-") as folder:
        path = os.path.join(folder, "kernel.o")
        Path(path).write_bytes(code)
        command = [tool, "-d", "-l", "--no-show-raw-insn", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"; no disassembly: {tool} failed: {done.stderr.strip()}\n"
    # the first lines name the temporary file
    text = done.stdout[done.stdout.find("Disassembly") :]
    return "\n".join(locations.listing(text.splitlines())) + "\n"
