"""AArch64 on any machine: kernels through llvmlite's LLVM, which knows all machines, to unicorn.

The emulated CPU has the first version of the instruction set and nothing more. Each array is
alone, its last byte before memory that is not there, so that what leaves an array is a fault.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import unicorn
from unicorn import arm64_const as arm

import stack.plugins as plugins
from stack.backends.mlir import elf, jit, threads
from stack.backends.mlir.compiler import inspect_program
from stack.backends.mlir.host import Host
from stack.backends.mlir.llvm import bindings, context
from stack.backends.mlir.math import BINARY_LIBM, UNARY_LIBM
from stack.backends.mlir.printer import print_kernel
from stack.backends.runtime.device import Bound, RuntimeValue
from stack.backends.runtime.program import BlockProgram
from stack.ir import DTYPES, Func, Node
from stack.ir.data import encode, storage_dtype
from stack.run.backend import Executable
from stack.run.compile import lower
from stack.run.record import Run
from stack.target import as_cpu, load

NEON = as_cpu(load("neon"))
TRIPLE, AARCH64 = "aarch64-unknown-linux-gnu", 183
PAGE = 4096
CODE, STUBS, HALT, STACK, ARRAYS = (n << 24 for n in range(1, 6))
STACK_BYTES, ARRAY_BYTES = 1 << 20, 1 << 24  # an array has that many at most

# ---- text to object code

_NUMBER = re.compile(
    r"\b(half|bfloat|float|double)\b|\bf0x([0-9A-F]+)"
    r"|(?<=[ (])([+-]?(?:inf|q?nan|[\d.]+e[+-]\d+))\b"
)
_KINDS = {
    "half": ("f16", "H"),
    "bfloat": ("bf16", "R"),
    "float": ("f32", ""),
    "double": ("f64", ""),
}


def older(text: str) -> str:
    """LLVM's text with numbers as versions before 23 take them: bits, those of f32 as of f64."""
    kind = ""

    def bits(found: re.Match[str]) -> str:
        nonlocal kind
        if found[1]:
            kind = found[1]
            return kind
        name, letter = _KINDS[kind]
        dtype = DTYPES[name]
        if found[2]:
            held = np.array(int(found[2], 16), f"u{dtype.bytes}").view(storage_dtype(dtype))
        else:
            held = encode(np.array(found[3].replace("q", ""), dtype.numpy), dtype)
        if letter:
            return f"0x{letter}{int(held.view(np.uint16)):04X}"
        return f"0x{int(held.astype(np.float64).view(np.uint64)):016X}"

    return _NUMBER.sub(bits, text)


@cache
def _machine() -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(opt=2, codemodel="small")


def object_of(text: str) -> bytes:
    """The object file of a module, optimized as the backend has it done."""
    from torch_mlir.dialects.llvm import translate_module_to_llvmir

    lowered = bindings().ir.Module.parse(jit.lower(text), context())
    module = llvm.parse_assembly(older(translate_module_to_llvmir(lowered.operation)))
    module.triple, module.data_layout = TRIPLE, str(_machine().target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(_machine(), options)
    passes.getModulePassManager().run(module, passes)
    return _machine().emit_object(module)


def relocate(memory: elf.Memory, where: int, place: int, kind: int, value: int) -> None:
    """ELF for the Arm 64-bit Architecture, static relocations."""
    if kind == 257:  # ABS64
        struct.pack_into("<Q", memory, where, value)
        return
    (word,) = struct.unpack_from("<I", memory, where)
    if kind == 275:  # ADR_PREL_PG_HI21: of pages, the low two bits apart
        pages = (value // PAGE - place // PAGE) & 0x1FFFFF
        word |= (pages & 3) << 29 | pages >> 2 << 5
    elif kind in LOW_BITS:
        word |= value % PAGE >> LOW_BITS[kind] << 10
    elif kind in (282, 283):  # JUMP26, CALL26
        word |= (value - place) // 4 & 0x3FFFFFF
    else:
        raise elf.LoadError(f"relocation type {kind} is not handled")
    struct.pack_into("<I", memory, where, word)


# ADD_ABS_LO12_NC, and LDST*_ABS_LO12_NC by the size of what is loaded
LOW_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}

# ---- running

# what kernels share their iterations by, on one thread: body, table, count become table, 0, count
ALONE = struct.pack("<4I", 0xAA0003E9, 0xAA0103E0, 0xAA1F03E1, 0xD61F0120)  # mov mov mov br
RETURN = struct.pack("<I", 0xD65F03C0)
STUB = len(ALONE)
S, D = (np.uint32, np.float32, arm.UC_ARM64_REG_S0), (np.uint64, np.float64, arm.UC_ARM64_REG_D0)


class Kernel:
    """A kernel of a program; it runs on NumPy's arrays, from numbers to numbers."""

    def __init__(self, node: Node) -> None:
        self.cpu = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.calls: list[str] = []  # functions of libm and libc
        code = elf.Object(object_of(print_kernel(node, "kernel", target=NEON)), AARCH64)
        memory = bytearray(-(-code.size // PAGE) * PAGE)
        self.entry = code.place(memory, CODE, self._stub, relocate)["kernel"]
        stubs = b"".join((ALONE if c == threads.SYMBOL else RETURN).ljust(STUB) for c in self.calls)
        self._put(CODE, bytes(memory))
        self._put(STUBS, stubs.ljust(PAGE))
        self._put(STACK, bytes(STACK_BYTES))
        self.cpu.hook_add(unicorn.UC_HOOK_CODE, self._call, begin=STUBS, end=STUBS + len(stubs))

    def _stub(self, name: str) -> int:
        self.calls.append(name)
        return STUBS + STUB * (len(self.calls) - 1)

    def _put(self, at: int, data: bytes) -> int:
        """Map memory from `at` on; the data is at its end, and nothing follows it. Its address."""
        pages = -(-len(data) // PAGE) * PAGE
        if pages:
            self.cpu.mem_map(at, pages)
        self.cpu.mem_write(at + pages - len(data), data)
        return at + pages - len(data)

    def _call(self, cpu: Any, address: int, *_: object) -> None:
        """Do what a function does that the code calls."""
        name = self.calls[(address - STUBS) // STUB]
        if name in ("memset", "memcpy", "memmove"):
            to, other, count = (cpu.reg_read(arm.UC_ARM64_REG_X0 + i) for i in range(3))
            is_set = name == "memset"
            cpu.mem_write(
                to, bytes([other & 255]) * count if is_set else bytes(cpu.mem_read(other, count))
            )
        elif name != threads.SYMBOL:
            is_wide = name in (*UNARY_LIBM, *BINARY_LIBM)
            bits, kind, first = D if is_wide else S
            count = 2 if name.removesuffix("" if is_wide else "f") in BINARY_LIBM else 1
            c = ctypes.c_double if is_wide else ctypes.c_float
            function = ctypes.CFUNCTYPE(c, *[c] * count)(jit.resolve(name))
            given = [bits(cpu.reg_read(first + i)).view(kind) for i in range(count)]
            cpu.reg_write(first, int(kind(function(*given)).view(bits)))

    def bind(self, args: Sequence[RuntimeValue], outs: Sequence[RuntimeValue]) -> Bound:
        return lambda _: self.run([v.get() for v in args], [v.get() for v in outs])

    def run(self, args: Sequence[np.ndarray], outs: Sequence[np.ndarray]) -> None:
        """Read operands, write results; each has memory of its own."""
        cpu = self.cpu
        arrays = [*args, *outs]
        starts = [ARRAYS + i * ARRAY_BYTES for i in range(len(arrays) + 1)]
        places = [self._put(at, a.tobytes()) for at, a in zip(starts, arrays)]
        table = struct.pack(f"<{len(places)}Q", *places)
        cpu.reg_write(arm.UC_ARM64_REG_X0, self._put(starts[-1], table))
        cpu.reg_write(arm.UC_ARM64_REG_SP, STACK + STACK_BYTES)
        cpu.reg_write(arm.UC_ARM64_REG_LR, HALT)
        cpu.emu_start(self.entry, HALT)
        for place, array in zip(places[len(args) :], outs, strict=True):
            found = bytes(cpu.mem_read(place, array.nbytes))
            array[...] = np.frombuffer(found, array.dtype).reshape(array.shape)
        for first, last, _ in list(cpu.mem_regions()):
            if first >= ARRAYS:
                cpu.mem_unmap(first, last - first + 1)


def emulated(func: Func) -> Executable:
    """A function as the backend compiles it for NEON."""
    made = lower(func, plugins.load("stack.backends", "mlir"), Run(func.name), target=NEON)
    kernels, _ = inspect_program(made, {"target": NEON.name})
    return Executable(BlockProgram(made.body, Host(), Kernel).run, kernels)
