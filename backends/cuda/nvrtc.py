"""Compiles CUDA C++ to machine code through NVRTC, without a GPU or a CUDA toolkit."""

from __future__ import annotations

import importlib.util
import re
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import StringIO
from typing import Any

from stack.errors import StackError, UsageError
from stack.releases import install_hint
from stack.run.cache import Cache

from ..device.worker_pool import Reply, Work, WorkerPool, worker_pool_for

# the target with warpgroup instructions; machine code runs on no other GPU anyway
SPECIFIC = {"sm_90": "sm_90a"}
TARGETS = re.compile(r"sm_\d+[af]?")
STANDARD = "c++17"
NOTHING = 'extern "C" __global__ void nothing() {}'
USAGE = {
    "registers": r"Used (\d+) registers",
    "spilled": r"(\d+) bytes spill stores",
    "stack": r"(\d+) bytes stack frame",
    "shared": r"(\d+) bytes smem",
}
LOG_LINES = 24  # lines of the compiler's messages that an error shows


@dataclass(frozen=True)
class Binary:
    """Machine code of one kernel.

    Attributes:
        registers: per thread.
        spilled: bytes per thread that are spilled from registers.
        stack: bytes of local memory per thread.
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
    """The package to install before CUDA C++ can be compiled, or None."""
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.core"):
        return None
    return f"install the extra: {install_hint('cuda')}"


@cache
def version() -> str:
    """The version of the compiler; cached code is valid only for it."""
    from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

    status, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}, {STANDARD}" if int(status) == 0 else "nvrtc"


def check_target(target: str) -> str:
    """Returns the name of a GPU such as `sm_90` unchanged. Raises UsageError for any other text."""
    if not TARGETS.fullmatch(target):
        raise UsageError(f"--target {target!r} is not a GPU; write sm_90, sm_90a or sm_100")
    return target


def _specific(target: str) -> str:
    """The architecture-specific target of a GPU, with the instructions that only it has."""
    return SPECIFIC.get(target, target)


def load() -> None:
    """Import the compiler and compile an empty kernel, so that forks find everything loaded."""
    answer({"text": NOTHING, "target": "sm_90"})


def answer(asked: Reply) -> Reply:
    """Compiles the kernel of one request to a compile server, in this process.

    The reply has the machine code and its resource usage, or `error` if NVRTC refuses the kernel.
    """
    from cuda.core import Program, ProgramOptions  # pyright: ignore[reportAttributeAccessIssue]

    log = StringIO()
    options = ProgramOptions(
        arch=_specific(asked["target"]),
        std=STANDARD,
        ptxas_options=["-v"],
        lineinfo=bool(asked.get("lines")),
    )
    try:
        code = Program(asked["text"], "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        log_lines = str(error).splitlines()[:LOG_LINES]
        shown = "\n".join([*log_lines, _numbered(asked["text"])])
        return {"error": f"NVRTC refused a kernel for {asked['target']}: {shown}"}
    return {"cubin": b64encode(bytes(code)).decode(), **_usage(log.getvalue())}


def worker_pool() -> WorkerPool:
    """The pool that compiles kernels concurrently, with limits on the time and memory of each."""
    return worker_pool_for(__name__)


def compile_all(
    texts: Sequence[str], name: str, target: str, store: Cache | None = None, meanwhile: Work = None
) -> dict[str, Binary | str]:
    """Returns the machine code, or an error text, of several kernels, by source text."""
    check_target(target)
    asked = [{"text": text, "target": target} for text in texts]
    replies = worker_pool().compile(asked, store, meanwhile)
    return {t: _binary(reply, name, target) for t, reply in zip(texts, replies, strict=True)}


def compile_cubin(text: str, name: str, target: str, store: Cache | None = None) -> Binary:
    """The machine code of a kernel. Raises StackError with NVRTC's log and the numbered text."""
    made = compile_all([text], name, target, store)[text]
    if isinstance(made, str):
        raise StackError(made)
    return made


def _binary(reply: Reply, name: str, target: str) -> Binary | str:
    if "error" in reply:
        return str(reply["error"])
    used = {k: int(reply[k]) for k in USAGE}
    return Binary(name, target, b64decode(reply["cubin"]), **used)


def cubin_with_lines(text: str, target: str) -> bytes:
    """Machine code with line numbers of the source text. Raises StackError."""
    (reply,) = worker_pool().compile([{"text": text, "target": target, "lines": True}])
    if "error" in reply:
        raise StackError(str(reply["error"]))
    return b64decode(reply["cubin"])


def compile_ptx(text: str, target: str) -> str:
    """A kernel as PTX text with line numbers.

    Does not use cuda.core, which asks the driver for the PTX version that it can load.
    """
    from cuda.bindings import nvrtc  # pyright: ignore[reportAttributeAccessIssue]

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]):
            raise StackError(f"NVRTC refused a kernel for {target}: {result[0]}")
        return result[1] if len(result) == 2 else None

    options = [f"-arch={_specific(check_target(target))}", f"-std={STANDARD}", "-lineinfo"]
    program = check(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    check(nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options]))
    size = check(nvrtc.nvrtcGetPTXSize(program))
    found = bytearray(size)
    check(nvrtc.nvrtcGetPTX(program, found))
    check(nvrtc.nvrtcDestroyProgram(program))
    return found.decode().rstrip("\0")


def _numbered(text: str) -> str:
    return "\n".join(f"{i:4d}  {line}" for i, line in enumerate(text.splitlines(), 1))


def _usage(log: str) -> dict[str, int]:
    """A kernel's resource usage, from the assembler's report."""
    found = {name: re.search(pattern, log) for name, pattern in USAGE.items()}
    return {name: int(number[1]) if number else 0 for name, number in found.items()}
