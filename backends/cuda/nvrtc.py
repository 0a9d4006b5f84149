"""CUDA C++ to machine code through NVRTC: no GPU is needed, and no CUDA toolkit."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stack.errors import StackError, UsageError
from stack.run.cache import Cache

TARGETS = re.compile(r"sm_\d+[af]?")
STANDARD = "c++17"
THREADS = 16
LOG_LINES = 24  # of the compiler's messages that an error shows


@dataclass(frozen=True)
class Binary:
    """Machine code of one kernel.

    Attributes:
        registers: of each thread.
        spilled: bytes that a thread stores because registers ran out.
        stack: bytes of memory of its own that each thread has.
        shared: bytes of shared memory that the code declares.
    """

    name: str
    target: str
    cubin: bytes
    registers: int
    spilled: int
    stack: int
    shared: int


def missing_compiler() -> str | None:
    """What must be installed before CUDA C++ can be compiled, or None."""
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"):
        return None
    return "install the extra: pip install 'stack-compiler[cuda]'"


@cache
def version() -> str:
    """Versions of what compiles; code is only valid with them."""
    from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

    status, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}" if int(status) == 0 else "nvrtc"


def check_target(target: str) -> str:
    """A GPU's name as `sm_90`. Raises UsageError."""
    if not TARGETS.fullmatch(target):
        raise UsageError(f"--target {target!r} is not a GPU as sm_90, sm_90a or sm_100")
    return target


def compile_cubin(text: str, name: str, target: str, store: Cache | None = None) -> Binary:
    """Machine code of a kernel. Raises StackError with NVRTC's log and the text's lines."""
    from cuda.core import Program, ProgramOptions  # pyright: ignore[reportAttributeAccessIssue]

    key = hashlib.sha256(f"{version()}\n{STANDARD}\n{target}\n{name}\n{text}".encode()).hexdigest()
    found = store.get(key) if store is not None else None
    if found is not None:
        return _unpack(found, name, target)
    log = _Log()
    options = ProgramOptions(arch=check_target(target), std=STANDARD, ptxas_options=["-v"])
    try:
        code = Program(text, "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        log_lines = str(error).splitlines()[:LOG_LINES]
        shown = "\n".join([*log_lines, _numbered(text)])
        raise StackError(f"NVRTC refused a kernel for {target}: {shown}") from error
    binary = Binary(name, target, bytes(code), *_usage(log.text))
    if store is not None:
        store.put(key, _pack(binary))
    return binary


def compile_all(
    texts: Sequence[str], name: str, target: str, store: Cache | None = None
) -> dict[str, Binary]:
    """Machine code of several kernels by text, compiled side by side; raises as `compile_cubin`."""
    import cuda.core  # noqa: F401 - its first import must not be in several threads at once

    def one(text: str) -> Binary:
        return compile_cubin(text, name, target, store)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        return dict(zip(texts, pool.map(one, texts), strict=True))


def compile_ptx(text: str, target: str) -> str:
    """A kernel as PTX text. Without cuda.core, which asks the driver what PTX it would load."""
    from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise StackError(f"NVRTC refused a kernel for {target}: {result[0]}")
        return result[1] if len(result) == 2 else None

    options = [f"-arch={check_target(target)}", f"-std={STANDARD}"]
    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
    size = check(nvrtc.nvrtcGetPTXSize(program))
    found = bytearray(size)
    check(nvrtc.nvrtcGetPTX(program, found))
    check(nvrtc.nvrtcDestroyProgram(program))
    return found.decode().rstrip("\0")


class _Log:
    """Where the compiler writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


def _numbered(text: str) -> str:
    return "\n".join(f"{i:4d}  {line}" for i, line in enumerate(text.splitlines(), 1))


def _usage(log: str) -> tuple[int, int, int, int]:
    """Registers, spilled bytes, stack and static shared memory from the assembler's report."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found.group(1)) if found else 0

    return (
        number(r"Used (\d+) registers"),
        number(r"(\d+) bytes spill stores"),
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
    )


def _pack(binary: Binary) -> bytes:
    head = {k: getattr(binary, k) for k in ("registers", "spilled", "stack", "shared")}
    return json.dumps(head).encode() + b"\n" + binary.cubin


def _unpack(entry: bytes, name: str, target: str) -> Binary:
    head, _, code = entry.partition(b"\n")
    return Binary(name, target, code, **json.loads(head))


# ---- disassembly


def find_tool(name: str) -> str | None:
    """A tool of CUDA's on the path, or in the triton wheel."""
    found = shutil.which(name)
    if found:
        return found
    spec = importlib.util.find_spec("triton")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "backends" / "nvidia" / "bin" / name
        if path.is_file():
            return str(path)
    return None


def disassemble(binary: Binary) -> str:
    """SASS text, or a note on what is missing."""
    tool = find_tool("cuobjdump")
    if tool is None:
        return "// no cuobjdump: install triton or the CUDA toolkit to see machine code\n"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.cubin)
        file.flush()
        done = subprocess.run(
            [tool, "-sass", file.name], capture_output=True, text=True, check=False, timeout=60
        )
    if done.returncode:
        return f"// {tool} failed: {done.stderr.strip()}\n"
    return done.stdout
