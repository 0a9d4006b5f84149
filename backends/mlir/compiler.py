"""A lowered function to an executable: compile each distinct kernel once, plan the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import KernelRefused
from stack.ir.cost import total
from stack.ir.node import Block, Func, Node, unique_name, walk
from stack.run.backend import Executable, Kernel
from stack.run.cache import Cache, cache_folder
from stack.target import Cpu

from ..peer import files
from . import jit
from .executor import Program
from .instructions import check_runs_here, cpu_of, is_assembled_here
from .library import result_types
from .printer import print_kernel

ENTRY = "kernel"
Artifacts = dict[str, str | Callable[[], str]]
# bytes of a kernel's text: LLVM compiles in this process, where nothing else bounds its time
MOST_TEXT = 1 << 20


class Compiler:
    """Native kernels by text: equal bodies are compiled once, and have one name."""

    def __init__(self, cache: Cache | None, cpu: Cpu) -> None:
        self.cache, self.cpu = cache, cpu
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
            self.name(node)
        return self.kernels[text]

    def name(self, node: Node) -> str:
        """What a kernel is called; the first of equal ones is printed for readers."""
        text = self.text(node)
        if text not in self.names:
            name = self.names[text] = unique_name(str(node.attrs["name"]), self.taken, {})
            symbol = "".join(c if c.isalnum() else "_" for c in name)
            self.readable[text] = print_kernel(node, symbol, readable=True, target=self.cpu)
        return self.names[text]

    def text(self, node: Node) -> str:
        """What is compiled: the kernel without names and source lines."""
        body = node.blocks[0]
        if body not in self.texts:
            self.texts[body] = print_kernel(node, ENTRY, target=self.cpu)
        return self.texts[body]

    def stage(self, lower: Callable[[str], str]) -> str:
        """A stage of every distinct kernel, one after another."""
        return "".join(
            f"// ---- {self.names[text]}\n{lower(readable)}\n"
            for text, readable in self.readable.items()
        )

    def artifacts(self) -> Artifacts:
        """Later stages of every kernel, made when asked for."""
        return {
            "mlir": lambda: self.stage(str),
            "llvm": lambda: self.stage(jit.lower),
            "asm": lambda: self.stage(self._assembly),
        }

    def _assembly(self, text: str) -> str:
        if is_assembled_here(self.cpu):
            return jit.assembly(text)
        return f"; the LLVM of this machine has no code for {self.cpu.name}\n"


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Compile a function whose kernels are at the loop level.

    Options:
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: what runs `opaque` nodes.
        target: the CPU, a name or a file (default: the one at hand). Raises UsageError where this
            CPU does not run its code.
    """
    use_cache, cpu = options.get("cache", True), cpu_of(options)
    check_runs_here(cpu)
    compiler = Compiler(Cache(cache_folder() / "mlir") if use_cache else None, cpu)
    compiler.load_all(func)
    program = Program(func.body, compiler.load, options.get("call_opaque"), compiler.cache)
    return Executable(
        run=program.run,
        kernels=[_describe(func, step.node, step.library, compiler) for step in program.steps],
        artifacts=compiler.artifacts(),
        counts_what="steps of the program: generated kernels and library calls",
        peak_bytes=program.arena_bytes,
        profile=program.profile,
    )


def inspect_program(func: Func, options: dict[str, Any]) -> tuple[list[Kernel], Artifacts]:
    """Kernels and later stages of a lowered function; nothing is compiled to run here.

    Options:
        target: the CPU, a name or a file.
    """
    compiler = Compiler(None, cpu_of(options))
    kernels: list[Kernel] = []
    for node in func.nodes:
        if node.op == "kernel":
            compiler.name(node)
            kernels.append(_describe(func, node, "", compiler))
        elif node.op in ("fusion", "opaque", "call", "cond", "while", "custom"):
            kernels.append(_describe(func, node, "library", compiler))
    return kernels, compiler.artifacts()


def _describe(func: Func, node: Node, library: str, compiler: Compiler) -> Kernel:
    lines = list(func.body.locs.get(node, ()))
    stage_node = func.body.names.get(node, "")
    moved = sum(map(_size, [t for a in node.args for t in result_types(a)]))
    moved += sum(map(_size, result_types(node)))
    if node.op == "kernel":
        body = node.blocks[0]
        text = compiler.text(node)
        lines += [line for places in body.locs.values() for line in places]
        return Kernel(
            compiler.names[text],
            "generated",
            compiler.readable[text],
            "mlir",
            stage_node,
            files(lines),
            tuple(node.attrs.get("ops") or ()),
            float(total(body.nodes).flops),
            moved,
        )
    kinds = {"opaque": "fallback", "fusion": "library"}
    inner = node.blocks[0].nodes if node.op == "fusion" else ()
    what = str(node.attrs.get("name") or node.attrs.get("target") or node.op)
    return Kernel(
        f"{library}.{what}" if library and node.op == "fusion" else what,
        kinds.get(node.op, "generated"),
        stage_node=stage_node,
        source=files(lines),
        ops=tuple(dict.fromkeys(n.op for n in inner)) or (node.op,),
        flops=float(total(inner).flops),
        bytes=moved,
    )


def _size(type_: Any) -> float:
    size = type_.bytes
    return float(size) if isinstance(size, int) else 0.0
