"""Compiles a lowered function to an executable: each distinct kernel once; plans the rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stack.errors import ParseError, StackError
from stack.ir.func import Func
from stack.ir.node import Node, unique_name, walk
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_kernel
from stack.phases import phase
from stack.run.backend import Executable, Inspected, Kernel
from stack.run.cache import Cache, cache_folder
from stack.target import Cpu
from stack.wings import part_if_here

from ..runtime.control import has_only_kernels
from ..runtime.names import argument_names, function_name
from ..runtime.program import BlockProgram
from ..runtime.records import describe_kernel, described, kernel_lines, steps_of
from . import jit, module_batches
from .elementwise import Unprintable
from .host import Host
from .instructions import check_runs_here, check_text_runs_here, cpu_of, is_assembled_here
from .module_batches import ENTRY
from .printer import print_kernel

_PLACE = re.compile(r'"-":(\d+):(\d+): (?:error: )?(.*)')
Artifacts = dict[str, str | Callable[[], str]]
Bare = tuple[tuple[Node, ...], tuple[Node, ...]]  # parameters and results of a kernel's body
# bytes of a kernel's text: LLVM compiles in this process, where its time has no other limit
MOST_TEXT = 1 << 20


class Compiler:
    """Native kernels by text: equal kernels are compiled once and share a name."""

    def __init__(
        self, cache: Cache | None, cpu: Cpu, given: Mapping[str, str] | None = None
    ) -> None:
        self.cache, self.cpu = cache, cpu
        self.given = given or {}  # texts by kernel name, which replace printed ones
        self.kernels: dict[str, jit.NativeKernel] = {}
        self.texts: dict[Bare, str] = {}
        self.names: dict[str, str] = {}
        self.readable: dict[str, Callable[[], str]] = {}
        self.located: dict[str, Callable[[], str]] = {}
        self.taken: set[str] = set()
        self.arguments: dict[Node, tuple[str, ...]] = {}
        self.origins: dict[Node, tuple[str, ...]] = {}

    def look(self, func: Func) -> list[Node]:
        """Returns the kernels of a function; records operand names and source lines of each."""
        found = [(block, node) for block, node in walk(func.body) if is_kernel(node)]
        self.arguments.update((node, argument_names(block, node)) for block, node in found)
        self.origins.update((n, kernel_lines(n, b.locs.get(n, ()))) for b, n in found)
        return [node for _, node in found]

    def load_all(self, func: Func) -> None:
        """Load all kernels of a function. Raises KernelRefused with all that cannot be compiled."""
        nodes, whys = self.print_all(func), dict[Node, str]()
        texts = [self.text(node) for node in nodes if self.name(node) not in self.given]
        few = [text for text in dict.fromkeys(texts) if len(text) <= MOST_TEXT]
        self.kernels.update(module_batches.build(few, self.cache))
        for node in nodes:  # the rest one by one, so that an error belongs to one kernel
            try:
                self.load(node)
            except jit.CompileError as error:
                whys[node] = f"MLIR refuses it: {error}"
        if whys:
            raise KernelRefused(whys)

    def print_all(self, func: Func) -> list[Node]:
        """Returns a function's printed kernels. Raises KernelRefused with all unprintable ones."""
        nodes, whys = self.look(func), dict[Node, str]()
        for node in nodes:
            try:
                self.name(node)
            except Unprintable as why:
                whys[node] = str(why)
        if whys:
            raise KernelRefused(whys)
        return nodes

    def load(self, node: Node) -> jit.NativeKernel:
        """The native kernel of a kernel node. Raises CompileError."""
        text = self.text(node)
        if text not in self.kernels:
            if len(text) > MOST_TEXT:
                raise jit.CompileError(f"{len(text)} bytes of text, the limit is {MOST_TEXT}")
            given = self.given.get(self.name(node))
            if given is None:
                self.kernels[text] = jit.build(text, [ENTRY], self.cache)[ENTRY]
            else:
                self.kernels[text] = self._build_given(text, given)
        kernel = self.kernels[text]
        kernel.text = "" if self.names.get(text) in self.given else text
        return kernel

    def _build_given(self, text: str, given: str) -> jit.NativeKernel:
        """Compiles a kernel from MLIR text that a person has written in place of ours, `text`.

        Raises ParseError with line and column if MLIR reports them, else StackError; UsageError if
        this CPU lacks instructions that the text requires.
        """
        check_text_runs_here(given)
        self.readable[text] = self.located[text] = lambda: given
        symbol = function_name(self.names[text])
        try:
            return jit.build(given, [symbol], self.cache)[symbol]
        except jit.CompileError as error:
            place = _PLACE.search(str(error))
            if place is None:
                raise StackError(f"kernel {self.names[text]}: {error}") from error
            raise ParseError(place[3], int(place[1]), int(place[2])) from error

    def name(self, node: Node) -> str:
        """The name of a kernel. The first of several equal kernels is the one shown to readers."""
        text = self.text(node)
        if text not in self.names:
            name = self.names[text] = unique_name(str(node.attrs["name"]), self.taken, {})
            self.readable[text] = lambda: self._readable(node, name)
            self.located[text] = lambda: self._readable(node, name, self.origins.get(node, ()))
        return self.names[text]

    @phase("print")
    def _readable(self, node: Node, name: str, origin: Sequence[str] | None = None) -> str:
        arguments = self.arguments.get(node, ())
        return print_kernel(node, function_name(name), True, self.cpu, arguments, origin)

    def text(self, node: Node) -> str:
        """The text to compile: the kernel without the program's names and source lines."""
        block = node.blocks[0]
        body = block.params, block.results
        if body not in self.texts:
            with phase("print"):
                self.texts[body] = print_kernel(node, ENTRY, target=self.cpu)
        return self.texts[body]

    def describe(self, func: Func, node: Node) -> Kernel:
        """Returns the record of a kernel node: its name, text, source lines and cost."""
        text = self.text(node)
        return describe_kernel(func, node, self.names[text], self.readable[text], "mlir")

    def stage(self, lower: Callable[[str], str]) -> str:
        """Returns a stage of every distinct kernel as text; `lower` converts MLIR text to it."""
        return "".join(
            f"// ---- {self.names[text]}\n{lower(located())}\n"
            for text, located in self.located.items()
        )

    def artifacts(self) -> Artifacts:
        """Later stages of every kernel as text, made on demand."""
        return {
            "mlir": lambda: self.stage(str),
            "llvm": lambda: self.stage(jit.lower),
            "asm": lambda: self.stage(self._assembly),
        }

    def _assembly(self, text: str) -> str:
        if is_assembled_here(self.cpu):
            return jit.assembly(text)
        return f"; the LLVM of this machine has no code for {self.cpu.name}\n"


def cache_of(options: Mapping[str, Any]) -> Cache | None:
    """The cache of compiled kernels; None if `options` turn it off."""
    return Cache(cache_folder() / "mlir") if options.get("cache", True) else None


def resume_program(func: Func, texts: Mapping[str, str], options: dict[str, Any]) -> Executable:
    """Compiles a program, some of whose kernels are given as MLIR text, by name."""
    compiler = Compiler(cache_of({}), cpu_of(options), texts)
    return _executable(func, compiler, options)


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Compiles to vectorized, multi-threaded CPU code through MLIR and LLVM, in process.

    Options:
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: the function that executes `opaque` nodes.
        target: the CPU, a name or a file (default: this machine's). Raises UsageError if this CPU
            cannot run its code.

        `freeze=True`: computes everything that depends only on weights once; see `stack.compile`.
    """
    cpu = cpu_of(options)
    check_runs_here(cpu)
    return _executable(func, Compiler(cache_of(options), cpu), options)


def _executable(func: Func, compiler: Compiler, options: dict[str, Any]) -> Executable:
    compiler.load_all(func)
    device = Host(compiler.cache)
    program = BlockProgram(func.body, device, compiler.load, options.get("call_opaque"))
    kernels = described(
        func,
        ((step.node, step.library) for step in program.steps),
        partial(compiler.describe, func),
        has_only_kernels,
    )
    program.describe(func.name, kernels)
    by_address, foreign = part_if_here("mlir-addresses"), part_if_here("mlir-xla")
    return Executable(
        run=program.run,
        kernels=kernels,
        artifacts=compiler.artifacts(),
        by_address=by_address and by_address(program, compiler.cache),
        counts_what="steps of the program: generated kernels and library calls",
        peak_bytes=program.arena_bytes,
        profile=program.profile,
        drain=program.run,
        foreign=foreign and foreign(func, program, compiler.load, compiler.cache),
    )


def inspect_program(func: Func, options: dict[str, Any]) -> Inspected:
    """Returns kernels and later stages of a lowered function, without compiling it to run.

    Raises KernelRefused with all kernels that cannot be printed.

    Options:
        target: the CPU, a name or a file.
    """
    compiler = Compiler(None, cpu_of(options))
    compiler.print_all(func)
    steps, own = steps_of(func, "library"), partial(compiler.describe, func)
    kernels = described(func, steps, own, has_only_kernels)
    return kernels, compiler.artifacts()
