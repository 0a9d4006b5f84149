"""Compiles MLIR text to native code: lower, compile, cache, load, call.

The kernels of a program are compiled in one module per core, or fewer if there is little text. A
module costs LLVM as much as a small kernel, whatever it contains, and functions that several of its
kernels call are compiled once. Modules are compiled concurrently. Each kernel has a cache entry
that names its module, and its name in it, so that a program finds kernels it shares with another.

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
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.phases import phase
from stack.run.cache import Cache

from ..runtime.device import Bound, RuntimeValue
from . import elf, llvm, locations, pool, threads
from .llvm import CompileError

# Printed kernels are already vectorized, unrolled, and without common subexpressions. LLVM's passes
# over its IR make them no faster, but take as long as code generation. Code generation (registers,
# instruction order, loop-invariant code) is the same at every level; a test checks this.
OPT_LEVEL = 0
MADE_OF_OTHERS = 2  # for functions that need inlining, and memory promoted to registers

# Increase it when text is compiled differently without a change of any other part of the key.
FORMAT = "stack.mlir/2"
ENTRY = "kernel"  # the function of a kernel's text
PLACE = "place of\n"  # begins the keys of the entries that name the module of a kernel
# bytes of text that take LLVM several times as long as the overhead of a module and a thread
LEAST_TEXT = 1 << 15
_FUNCTIONS = re.compile(r"^(?=llvm\.func)", re.MULTILINE)

Address = int


class NativeKernel:
    """A native function with one argument, the table.

    Attributes:
        owner: the code exists as long as this object.
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
        self.owner = owner

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
    module = llvm.lowered(text, located=True)
    return module.operation.get_asm(enable_debug_info=True)


def compile_object(text: str) -> bytes:
    """Returns the object file of a module in the dialects above, with DWARF lines."""
    module = llvm.lowered(text, located=True)
    return llvm.object_of(llvm.engine_of(module, text, OPT_LEVEL), _public(module))


def _public(module: Any) -> str:
    """The name of a function that the module defines and exports."""
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and len(op.operation.regions[0].blocks) > 0:
            if "internal" not in str(op.operation.attributes["linkage"]):
                return op.operation.attributes["sym_name"].value
    raise CompileError("the module exports no function")


@functools.cache
def _math() -> ctypes.CDLL | None:
    import ctypes.util  # which runs another process to find a library

    path = ctypes.util.find_library("m")
    return ctypes.CDLL(path) if path else None


def resolve(symbol: str, cache: Cache | None = None) -> Address | None:
    """The address of a function of libm or libc, or of the pool, which may come from the cache."""
    if symbol == threads.SYMBOL:
        return pool.address(cache)
    function = getattr(ctypes.pythonapi, symbol, None) or getattr(_math(), symbol, None)
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
    parts = [FORMAT, platform.machine(), cpu, llvm.version(), llvm.PIPELINE, str(OPT_LEVEL)]
    return "\n".join(parts)


def key(text: str, level: int = OPT_LEVEL) -> str:
    """The cache key of a module's object code on this machine."""
    own = "" if level == OPT_LEVEL else f"level {level}\n"
    return hashlib.sha256(f"{_host()}\n{own}{text}".encode()).hexdigest()


def build_all(texts: Sequence[str], cache: Cache | None) -> dict[str, NativeKernel]:
    """Returns the function `kernel` of each text, by text, except in modules that MLIR refuses.

    Args:
        texts: modules of functions. Names other than `kernel`, or beginning with it, must denote
            equal functions in all of them.
    """
    found: dict[str, NativeKernel] = {}
    modules: dict[str, dict[str, str]] = {}  # by cache entry: texts by the names of their kernels
    if cache is not None:
        for text in texts:
            if place := cache.get(key(PLACE + text)):
                module, _, name = place.decode().partition(" ")
                modules.setdefault(module, {})[name] = text
        for module, wanted in modules.items():
            kernels = _loaded(cache.get(module), list(wanted), cache) or {}
            found |= {wanted[name]: kernel for name, kernel in kernels.items()}
    left = sorted((text for text in texts if text not in found), key=len, reverse=True)
    if any(threads.DECLARED in text for text in left):
        pool.ahead(cache)
    count = min(threads.cores(), math.ceil(sum(map(len, left)) / LEAST_TEXT))
    parts: list[list[str]] = [[] for _ in range(count)]  # of about equal compile time
    for text in left:
        min(parts, key=lambda part: sum(map(len, part))).append(text)
    parts = [part for part in parts if part]
    others = [threads.submit(_built_together, part, cache) for part in parts[1:]]
    if parts:
        found |= _built_together(parts[0], cache)
    for one in others:
        with phase("codegen"):
            found |= one.result()
    return found


def _built_together(texts: Sequence[str], cache: Cache | None) -> dict[str, NativeKernel]:
    """Compiles kernels in one module; returns none of them if MLIR refuses one."""
    names = [f"{ENTRY}{number}" for number in range(len(texts))]
    module = module_of(texts, names)
    try:
        kernels = build(module, names, cache)
    except CompileError:
        return {}
    if cache is not None and elf.IS_SUPPORTED:
        entry = key(module)
        for text, name in zip(texts, names, strict=True):
            cache.put(key(PLACE + text), f"{entry} {name}".encode())
    return dict(zip(texts, kernels.values(), strict=True))


def module_of(texts: Sequence[str], names: Sequence[str]) -> str:
    """Merges texts to one module, with a new name for each `kernel`, and equal functions once."""
    functions: dict[str, None] = {}
    for text, name in zip(texts, names, strict=True):
        own = text.replace(f"@{ENTRY}", f"@{name}")
        functions.update(dict.fromkeys(_FUNCTIONS.split(own)))
    return "".join(functions)


def build(
    text: str, names: Sequence[str], cache: Cache | None = None, optimized: bool = False
) -> dict[str, NativeKernel]:
    """Compiles a module, or gets its object code from the cache, and loads the named kernels.

    Args:
        optimized: run LLVM's passes over its IR, for functions that call each other.
    """
    if not names:
        return {}
    level = MADE_OF_OTHERS if optimized else OPT_LEVEL
    entry = key(text, level)
    found = _loaded(cache.get(entry), names, cache) if cache is not None else None
    if found is not None:
        return found
    engine = llvm.engine_of(llvm.lowered(text), text, level)
    code = llvm.object_of(engine, names[0]) if elf.IS_SUPPORTED else None
    found = _loaded(code, names, cache)
    if found is None:  # the engine can always run what it compiled; it is only not cached
        addresses, keep = llvm.functions_in(engine, names)
        return {name: NativeKernel(name, at, keep) for name, at in addresses.items()}
    if cache is not None and code is not None:
        cache.put(entry, code)
    return found


def _loaded(
    code: bytes | None, names: Sequence[str], cache: Cache | None
) -> dict[str, NativeKernel] | None:
    """Loads the kernels of an object; None if there is none, or none that can be loaded here."""
    if code is None or not elf.IS_SUPPORTED:
        return None
    try:
        with phase("load"):
            image = elf.load(code, functools.partial(resolve, cache=cache))
        return {name: NativeKernel(name, image.addresses[name], image) for name in names}
    except (elf.LoadError, KeyError):
        return None


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
