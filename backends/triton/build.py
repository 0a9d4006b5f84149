"""From printed source to a Triton function, and to machine code for a GPU that need not be here."""

from __future__ import annotations

import hashlib
import linecache
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
from stack.ir.node import Node, walk

from .expressions import TYPES
from .printer import Source

THREADS = 16
STAGES = ("ttir", "ttgir", "llir", "ptx")
POINTERS = {
    **{kind: f"*{kind}" for kind in TYPES},
    **{"bool": "*i1", "f16": "*fp16", "f32": "*fp32", "f64": "*fp64"},
}
DESCRIBED = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}


@dataclass(frozen=True)
class Binary:
    """Code of one kernel at every stage, and what Triton notes about it."""

    stages: dict[str, str]
    cubin: bytes
    meta: dict[str, Any]

    @property
    def shared(self) -> int:
        """Bytes of shared memory that a program takes."""
        return int(self.meta["shared"])

    def resources(self) -> dict[str, int]:
        """What it takes of a multiprocessor; asks a tool of CUDA's."""
        known = {"shared": self.shared, "warps": int(self.meta["num_warps"])}
        return known | usage(self.cubin)


@cache
def function(text: str, name: str) -> Any:
    """The kernel of a printed module. The source is kept where Triton looks for it."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = f"<stack triton {digest}>"
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    module: dict[str, Any] = {"__name__": f"stack_triton_{digest}"}
    exec(compile(text, path, "exec"), module)  # what our own printer wrote
    return module[name]


def signature(source: Source, node: Node) -> dict[str, str]:
    """Triton's types of the arguments."""
    memory = dict(
        zip(source.parameters, (p.dtype.name for p in node.blocks[0].params), strict=True)
    )
    kinds = {name: POINTERS[kind] for name, kind in memory.items()}
    function_ = function(source.text, source.name)
    names = list(function_.arg_names)[len(memory) :]
    for name, d in zip(names, source.descriptors, strict=True):
        kind = memory[d.memory]
        kinds[name] = f"tensordesc<{DESCRIBED.get(kind, kind)}[{d.block[0]}, {d.block[1]}]>"
    return kinds


def capability(target: str) -> int:
    """90 of "sm_90". Raises UsageError."""
    match = re.fullmatch(r"sm_(\d+)a?", target)
    if match is None:
        raise UsageError(f"target {target!r} is no GPU; write sm_90 or sm_80")
    return int(match[1])


def build(source: Source, node: Node, target: str) -> Binary:
    """Compile for a GPU; needs none. Raises StackError with Triton's message."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = function(source.text, source.name)
    kinds = signature(source, node)
    aligned = {(i,): [["tt.divisibility", 16]] for i, k in enumerate(kinds.values()) if k[0] == "*"}
    options = {"num_warps": source.warps, "num_stages": source.stages}
    try:
        made = triton.compile(
            ASTSource(fn=kernel, signature=kinds, constexprs={}, attrs=aligned),
            target=GPUTarget("cuda", capability(target), 32),
            options=options,
        )
    except Exception as error:
        raise StackError(f"triton refuses kernel {source.name}: {error}") from error
    stages = {name: str(made.asm[name]) for name in STAGES}
    return Binary(stages, bytes(made.asm["cubin"]), made.metadata._asdict())


def build_to_fit(source: Source, node: Node, target: str, limit: int) -> Binary:
    """Compile; a kernel that takes more shared memory than `limit` loads fewer steps ahead.

    Triton's own copies beside the steps cannot be told before it has compiled. `source.stages`
    tells. Raises StackError where nothing fits.
    """
    while True:
        binary = build(source, node, target)
        if binary.shared <= limit:
            return binary
        if source.stages == 1:
            raise StackError(
                f"kernel {source.name} does not fit the GPU: it takes {binary.shared} bytes of"
                f" shared memory, a program may have {limit}"
            )
        source.stages -= 1


def build_all(
    kernels: Sequence[tuple[Source, Node]], target: str, limit: int
) -> list[Binary | StackError]:
    """Compile several at a time: LLVM and the assembler run without Python's lock."""
    sizes = [sum(1 for _ in walk(node.blocks[0])) for _, node in kernels]
    order = sorted(range(len(kernels)), key=lambda i: -sizes[i])  # the longest first

    def one(number: int) -> Binary | StackError:
        try:
            return build_to_fit(*kernels[number], target, limit)
        except StackError as error:
            return error

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        made = dict(zip(order, pool.map(one, order), strict=True))
    return [made[i] for i in range(len(kernels))]


def tool(name: str) -> str | None:
    """A CUDA binary tool: the one that comes with Triton, or one on the path."""
    import triton

    own = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


def _run(name: str, cubin: bytes, *options: str) -> str:
    path = tool(name)
    if path is None:
        return ""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([path, *options, file.name], capture_output=True, text=True)
    return done.stdout


def usage(cubin: bytes) -> dict[str, int]:
    """Registers and stack (spills) of machine code, where cuobjdump is found."""
    text = _run("cuobjdump", cubin, "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    return {"registers": int(found[1]), "stack": int(found[2])} if found else {}


def disassemble(cubin: bytes) -> str:
    """SASS."""
    return _run("cuobjdump", cubin, "--dump-sass") or "cuobjdump was not found\n"
