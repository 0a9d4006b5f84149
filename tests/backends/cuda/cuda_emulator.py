"""Runs a kernel's CUDA text on the CPU, through emulator.h: every thread a thread."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from stack.backends.cuda.printer import print_kernel
from stack.backends.cuda.values import Source
from stack.ir import Node, TensorType, TupleType
from stack.ir.data import decode, encode

HEADER = Path(__file__).with_name("emulator.h")
COMPILER = shutil.which("g++")
ALIGNMENT = 64


def loaded(source: Source, folder: Path) -> Callable[[Sequence[int]], None]:
    """Returns a function that runs a printed kernel on memory. Its text is left in `folder`."""
    body = source.text[source.text.index('extern "C" __global__') :]
    body = (
        re.sub(r"extern __shared__ .*? shared_memory\[\];", "", body)
        .replace("#pragma unroll", "")
        .replace('_Pragma("unroll")', "")
    )
    found = re.search(rf"{source.name}\((.*?)\) \{{", body)
    assert found is not None
    types = [a.split(" __restrict__ ")[0].strip() for a in found.group(1).split(",")]
    call = ", ".join(f"({t})p[{i}]" for i, t in enumerate(types))
    text = (
        f'{body}\nextern "C" void go(void** p) {{'
        f" run_grid({source.blocks}, {source.warps}, [=] {{ {source.name}({call}); }}); }}\n"
    )
    go = built(text, folder).go
    return lambda addresses: go((ctypes.c_void_p * len(addresses))(*addresses))


def built(text: str, folder: Path) -> ctypes.CDLL:
    """Compiles C++ text that uses the emulator; the text is left in `folder`."""
    path, library = folder / "kernel.cpp", folder / "kernel.so"
    header = Path(_precompiled().name) / HEADER.name
    path.write_text(f'#include "{header}"\n{text}')
    _compile("-shared", "-o", str(library), str(path))
    return ctypes.CDLL(str(library))


@cache
def _precompiled() -> tempfile.TemporaryDirectory[str]:
    """A folder with emulator.h and its compiled form, which g++ reads in a third of the time."""
    folder = tempfile.TemporaryDirectory(prefix="emulator-")
    header = Path(folder.name) / HEADER.name
    shutil.copy(HEADER, header)
    _compile("-x", "c++-header", "-o", f"{header}.gch", str(header))
    return folder


def _compile(*arguments: str) -> None:
    assert COMPILER is not None
    flags = ["-std=c++20", "-O1", "-fPIC", "-pthread", "-w"]
    subprocess.run([COMPILER, *flags, *arguments], check=True)


def emulate(kernel: Node, arrays: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    """Results of a kernel's text. The compiled text is left in `folder`."""
    run = loaded(print_kernel(kernel, "emulated", readable=True), folder)
    results = kernel.type.items if isinstance(kernel.type, TupleType) else (kernel.type,)
    constants = [n.attrs["value"].array for n in kernel.args[len(arrays) :]]
    inputs = [
        _aligned(encode(a, p.dtype))
        for a, p in zip([*arrays, *constants], kernel.blocks[0].params, strict=False)
    ]
    outputs = [_aligned(_garbage(t)) for t in results]
    run([m.ctypes.data for m in (*inputs, *outputs)])
    return [decode(o, t.dtype) for o, t in zip(outputs, results, strict=True)]


def _garbage(type_: TensorType) -> np.ndarray:
    shape = [int(s) for s in type_.shape]  # pyright: ignore[reportArgumentType]
    return encode(np.full(shape, 77, type_.dtype.numpy), type_.dtype)


def _aligned(array: np.ndarray) -> np.ndarray:
    raw = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    held = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    held[...] = array
    return held
