"""From printed source to a Triton function, and to machine code for a GPU that need not be here."""

from __future__ import annotations

import hashlib
import linecache
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stack.errors import StackError, UsageError
from stack.ir.node import Node

from .expressions import TYPES
from .printer import Source

STAGES = ("ttir", "ttgir", "llir", "ptx")
POINTERS = {
    **{kind: f"*{kind}" for kind in TYPES},
    **{"bool": "*i1", "f16": "*fp16", "f32": "*fp32", "f64": "*fp64"},
}
DESCRIBED = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}


@dataclass
class Binary:
    """Code of one kernel at every stage, and what it takes of a multiprocessor."""

    stages: dict[str, str]
    cubin: bytes
    resources: dict[str, int] = field(default_factory=dict[str, int])


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
    resources = {"shared": int(made.metadata.shared), "warps": source.warps}
    resources |= usage(bytes(made.asm["cubin"]))
    return Binary(stages, bytes(made.asm["cubin"]), resources)


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
