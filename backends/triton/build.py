"""Compiles printed source to a Triton function, and to machine code for any GPU, present or not."""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stack.errors import StackError, UsageError
from stack.ir.types import STORAGE_TYPES

from ..device.tools import run_tool
from ..device.worker_pool import WorkerPool, worker_pool_for
from .expressions import TYPES

if TYPE_CHECKING:
    from .source import Source

FORMAT = 1  # version of cache entries
UNLIMITED = 1 << 62
STAGES = ("ttir", "ttgir", "llir", "ptx")
NOTHING = {
    "text": "import triton\n\n\n@triton.jit\ndef nothing():\n    pass\n",
    "name": "nothing",
    "kinds": [],
    "warps": 1,
    "stages": 1,
    "contracts": True,
}
POINTERS = {
    **{kind: f"*{kind}" for kind in TYPES},
    **{"bool": "*i1", "f16": "*fp16", "f32": "*fp32", "f64": "*fp64"},
    **{name: f"*{d.numpy[0]}8" for name, d in STORAGE_TYPES.items()},
}
DESCRIBED = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}


@dataclass(frozen=True)
class Binary:
    """The code of one kernel at every stage, and Triton's metadata."""

    stages: dict[str, str]
    cubin: bytes
    meta: dict[str, Any]

    @property
    def shared(self) -> int:
        """Bytes of shared memory per program."""
        return int(self.meta["shared"])

    @property
    def ahead(self) -> int:
        """The number of pipeline stages of the kernel's loops: iterations that are prefetched."""
        return int(self.meta["num_stages"])

    def resources(self) -> dict[str, int]:
        """The resources it uses of a multiprocessor; calls a CUDA tool."""
        known = {"shared": self.shared, "warps": int(self.meta["num_warps"])}
        return known | usage(self.cubin)

    def warning(self) -> str:
        """The assembler's performance warning; "" if there is none."""
        return serialized(self.stages["ptx"])


@cache
def function(text: str, name: str) -> Any:
    """Executes the text of a printed module, and returns its kernel `name`.

    The text is registered as a source file, because Triton reads a kernel's source.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = f"<stack triton {digest}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module: dict[str, Any] = {"__name__": f"stack_triton_{digest}"}
    exec(compile(text, path, "exec"), module)  # text from our own printer
    return module[name]


def request(source: Source, target: str, limit: int = UNLIMITED) -> dict[str, Any]:
    """Everything that determines the machine code, as JSON. `limit`: bytes of shared memory."""
    memory = dict(zip(source.parameters, source.kinds, strict=True))
    described = [
        f"tensordesc<{DESCRIBED.get(memory[d.memory], memory[d.memory])}{list(d.block)}>"
        for d in source.descriptors
    ]
    return {
        "text": source.text,
        "name": source.name,
        "kinds": [*(POINTERS[k] for k in source.kinds), *described],
        "warps": source.warps,
        "stages": source.stages,
        "contracts": source.contracts,
        "capability": capability(target),
        "limit": limit,
    }


def capability(target: str) -> int:
    """The compute capability, such as 90 of "sm_90". Raises UsageError."""
    match = re.fullmatch(r"sm_(\d+)a?", target)
    if match is None:
        raise UsageError(f"target {target!r} is not a GPU; write sm_90 or sm_80")
    return int(match[1])


def load() -> None:
    """Import the compiler and compile an empty kernel, so that forks find everything loaded."""
    triton = import_module("triton")
    cache: Any = import_module("triton.runtime.cache")
    if hasattr(cache, "triton_key"):
        # Triton's own key hashes all of its code; the cache here is keyed by its version anyway
        cache.triton_key = lambda: f"stack {triton.__version__}"
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        answer({**NOTHING, "capability": 90, "limit": UNLIMITED})


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Compile one request, in this process. The reply is JSON, with `error` if it failed.

    A kernel that needs more shared memory than the limit is compiled again with fewer pipeline
    stages, until that saves nothing. Only compiling shows how much memory Triton needs beside the
    stages.
    """
    stages, before = int(asked["stages"]), 0
    while True:
        try:
            made = _compile(asked, stages)
        except Exception as error:  # from Triton, LLVM or the assembler
            return {"error": f"triton refuses it: {str(error) or type(error).__name__}"}
        shared = int(made.metadata.shared)
        if shared <= asked["limit"]:
            break
        if stages == 1 or shared == before:
            return {
                "error": f"it does not fit the GPU: it needs {shared} bytes of shared memory, a"
                f" program may have {asked['limit']}"
            }
        stages, before = stages - 1, shared
    return {
        "stages": {name: str(made.asm[name]) for name in STAGES},
        "cubin": b64encode(bytes(made.asm["cubin"])).decode(),
        "meta": json.loads(json.dumps(made.metadata._asdict(), default=vars)),
    }


def _compile(asked: dict[str, Any], stages: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = function(asked["text"], asked["name"])
    kinds = dict(zip(kernel.arg_names, asked["kinds"], strict=True))
    aligned = {(i,): [["tt.divisibility", 16]] for i, k in enumerate(kinds.values()) if k[0] == "*"}
    return triton.compile(
        ASTSource(fn=kernel, signature=kinds, constexprs={}, attrs=aligned),
        target=GPUTarget("cuda", asked["capability"], 32),
        options={
            "num_warps": asked["warps"],
            "num_stages": stages,
            "enable_fp_fusion": asked["contracts"],
        },
    )


def binary(reply: dict[str, Any], source: Source) -> Binary:
    """The code in a reply. Raises StackError if it has an error."""
    if "error" in reply:
        raise StackError(f"kernel {source.name}: {reply['error']}")
    return Binary(reply["stages"], b64decode(reply["cubin"]), reply["meta"])


def build(source: Source, target: str) -> Binary:
    """Compile for a GPU, which need not be present. Raises StackError with Triton's message."""
    return binary(answer(request(source, target)), source)


def version() -> str:
    """The version of the compiler; cached code is valid only for it."""
    # by module name: the distribution may have another name
    return f"{FORMAT} {import_module('triton').__version__}"


def worker_pool() -> WorkerPool:
    """The pool that compiles kernels concurrently, with limits on the time and memory of each."""
    return worker_pool_for(__name__)


def usage(cubin: bytes) -> dict[str, int]:
    """Registers and stack bytes (spills) of machine code; empty if cuobjdump is not found."""
    text = run_tool("cuobjdump", cubin, "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    return {"registers": int(found[1]), "stack": int(found[2])} if found else {}


def serialized(ptx: str) -> str:
    """The reason why the assembler serializes WGMMA instructions; "" if it does not.

    Triton hides the assembler's remarks, so this runs ptxas again, if it is found.
    """
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    if target is None or "wgmma" not in ptx:
        return ""
    text = run_tool("ptxas", ptx.encode(), "-v", f"-arch={target[1]}", "-o", os.devnull)
    found = re.search(
        r"wgmma\S* instructions are serialized due to (.+?) (?:in|for) the func", text
    )
    return f"products are serialized: {found[1]}" if found else ""
