"""A lowered function to an executable: compile each distinct kernel once, plan the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import KernelRefused
from stack.ir.names import unique_name
from stack.ir.node import Block, Func, Node, walk
from stack.run.backend import Executable, Kernel
from stack.run.cache import Cache, cache_folder

from ..runtime.program import Program
from ..runtime.records import describe, describe_kernel
from . import jit
from .host import Host
from .printer import print_kernel

ENTRY = "kernel"
# bytes of a kernel's text: LLVM compiles in this process, where nothing else bounds its time
MOST_TEXT = 1 << 20


class Compiler:
    """Native kernels by text: equal bodies are compiled once, and have one name."""

    def __init__(self, cache: Cache | None) -> None:
        self.cache = cache
        self.kernels: dict[str, jit.Kernel] = {}
        self.texts: dict[Block, str] = {}
        self.names: dict[str, str] = {}
        self.readable: dict[str, str] = {}
        self.taken: set[str] = set()

    def load_all(self, func: Func) -> None:
        """Every kernel of a function. Raises KernelRefused with all that cannot be compiled."""
        whys: dict[Node, str] = {}
        for _, node in walk(func.body):
            if node.op == "kernel":
                try:
                    self.load(node)
                except jit.CompileError as error:
                    whys[node] = f"MLIR refuses it: {error}"
        if whys:
            raise KernelRefused(whys)

    def load(self, node: Node) -> jit.Kernel:
        """The native kernel of a kernel node. Raises CompileError."""
        text = self.text(node)
        if text not in self.kernels:
            if len(text) > MOST_TEXT:
                raise jit.CompileError(f"{len(text)} bytes of text, at most {MOST_TEXT} are taken")
            self.kernels[text] = jit.build(text, [ENTRY], self.cache)[ENTRY]
            name = unique_name(str(node.attrs["name"]), self.taken, {})
            self.names[text] = name
            symbol = "".join(c if c.isalnum() else "_" for c in name)
            self.readable[text] = print_kernel(node, symbol, readable=True)
        return self.kernels[text]

    def text(self, node: Node) -> str:
        """What is compiled: the kernel without names and source lines."""
        body = node.blocks[0]
        if body not in self.texts:
            self.texts[body] = print_kernel(node, ENTRY)
        return self.texts[body]

    def describe(self, func: Func, node: Node) -> Kernel:
        """The record of a kernel."""
        text = self.text(node)
        return describe_kernel(func, node, self.names[text], self.readable[text], "mlir")

    def stage(self, lower: Callable[[str], str]) -> str:
        """A stage of every distinct kernel, one after another."""
        return "".join(
            f"// ---- {self.names[text]}\n{lower(readable)}\n"
            for text, readable in self.readable.items()
        )


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Vectorized, multi-threaded CPU code through MLIR and LLVM, in process.

    Options:
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: what runs `opaque` nodes.
    """
    use_cache = options.get("cache", True)
    compiler = Compiler(Cache(cache_folder() / "mlir") if use_cache else None)
    compiler.load_all(func)
    device = Host(compiler.cache)
    program = Program(func.body, device, compiler.load, options.get("call_opaque"))
    return Executable(
        run=program.run,
        kernels=[
            compiler.describe(func, step.node)
            if step.node.op == "kernel"
            else describe(func, step.node, step.library)
            for step in program.steps
        ],
        artifacts={
            "mlir": lambda: compiler.stage(str),
            "llvm": lambda: compiler.stage(jit.lower),
            "asm": lambda: compiler.stage(jit.assembly),
        },
        counts_what="steps of the program: generated kernels and library calls",
        peak_bytes=program.arena_bytes,
        profile=program.profile,
    )
