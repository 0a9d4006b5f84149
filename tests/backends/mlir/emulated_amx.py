"""AMX on any CPU: the text of a kernel with functions of NumPy for instructions of tiles."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace

import numpy as np

from stack.backends.mlir import jit, threads
from stack.backends.mlir.printer import print_kernel
from stack.ir import Node
from stack.ir.data import decode
from stack.ir.types import BF16
from stack.target import Cpu, as_cpu, load

NATIVE = replace(as_cpu(load("avx512")), arch="native")
TILES = replace(as_cpu(load("amx")), arch="native")  # what is emulated needs no instruction

ROWS, ROW_BYTES = 16, 64
REGISTERS = np.zeros((8, ROWS, ROW_BYTES), np.uint8)
HEIGHTS, HEIGHTS_AT = [ROWS] * len(REGISTERS), 48  # rows of each, and where a layout has them

_CALL = re.compile(r'llvm\.call_intrinsic "llvm\.x86\.(ldtilecfg|t\w+)"')
_STATE = re.compile(r'llvm\.call_intrinsic "llvm\.x86\.tilerelease".*')
# on one thread: there is one set of registers
_ALONE = f"""\
llvm.func internal @{threads.SYMBOL}(%body: !llvm.ptr, %table: !llvm.ptr, %n: i64, %grain: i64) {{
  %none = llvm.mlir.constant(0 : i64) : i64
  llvm.call %body(%table, %none, %n) : !llvm.ptr, (!llvm.ptr, i64, i64) -> ()
  llvm.return
}}
"""


def _tilezero(tile: int) -> None:
    REGISTERS[tile] = 0


def _ldtilecfg(start: int) -> None:
    HEIGHTS[:] = (ctypes.c_uint8 * len(HEIGHTS)).from_address(start + HEIGHTS_AT)


def _tileloadd64(tile: int, start: int, step: int) -> None:
    REGISTERS[tile] = 0
    REGISTERS[tile, : HEIGHTS[tile]] = _memory(tile, start, step)


def _tilestored64(tile: int, start: int, step: int) -> None:
    _memory(tile, start, step)[:] = REGISTERS[tile, : HEIGHTS[tile]]


def _tdpbf16ps(sums: int, left: int, right: int) -> None:
    x, y = (decode(REGISTERS[t].view(np.uint16), BF16).reshape(ROWS, -1, 2) for t in (left, right))
    REGISTERS[sums].view(np.float32)[:] += np.einsum("mkp,knp->mn", x, y)


def _tdpbssd(sums: int, left: int, right: int) -> None:
    x, y = (REGISTERS[t].view(np.int8).astype(np.int32).reshape(ROWS, -1, 4) for t in (left, right))
    REGISTERS[sums].view(np.int32)[:] += np.einsum("mkp,knp->mn", x, y)


def _memory(tile: int, start: int, step: int) -> np.ndarray:
    """Rows of a tile, so many bytes apart."""
    rows = HEIGHTS[tile]
    held = (ctypes.c_uint8 * ((rows - 1) * step + ROW_BYTES)).from_address(start)
    return np.ndarray((rows, ROW_BYTES), np.uint8, held, strides=(step, 1))


_TYPES = {"i8": ctypes.c_uint8, "!llvm.ptr": ctypes.c_void_p, "i64": ctypes.c_int64}
_FUNCTIONS = {
    "ldtilecfg": (_ldtilecfg, ["!llvm.ptr"]),
    "tilezero": (_tilezero, ["i8"]),
    "tileloadd64": (_tileloadd64, ["i8", "!llvm.ptr", "i64"]),
    "tilestored64": (_tilestored64, ["i8", "!llvm.ptr", "i64"]),
    "tdpbf16ps": (_tdpbf16ps, ["i8"] * 3),
    "tdpbssd": (_tdpbssd, ["i8"] * 3),
}
# kept: kernels call them by address
_CALLABLE = {
    name: ctypes.CFUNCTYPE(None, *(_TYPES[t] for t in types))(function)
    for name, (function, types) in _FUNCTIONS.items()
}


def _call(name: str) -> str:
    """The function of an instruction in a module."""
    types = _FUNCTIONS[name][1]
    names = [f"%x{i}" for i in range(len(types))]
    params = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    address = ctypes.cast(_CALLABLE[name], ctypes.c_void_p).value
    return f"""\
llvm.func internal @{name}({params}) {{
  %address = llvm.mlir.constant({address} : i64) : i64
  %function = llvm.inttoptr %address : i64 to !llvm.ptr
  llvm.call %function({", ".join(names)}) : !llvm.ptr, ({", ".join(types)}) -> ()
  llvm.return
}}
"""


def emulated(text: str) -> str:
    """A module whose instructions of tiles are calls."""
    text = _CALL.sub(r"llvm.call @\1", _STATE.sub("", text)).replace(threads.DECLARATION, _ALONE)
    return text + "".join(map(_call, _FUNCTIONS))


def compiled(kernel: Node, cpu: Cpu) -> tuple[str, jit.NativeKernel]:
    """The text of a kernel for `NATIVE` or `TILES`, and what it does."""
    text = print_kernel(kernel, "k", target=cpu)
    return text, jit.build(emulated(text) if cpu is TILES else text, ["k"])["k"]
