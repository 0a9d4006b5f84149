"""Compiles a lowered function to an executable: each distinct kernel once; plans the rest."""

from __future__ import annotations

import functools
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.errors import ParseError, StackError, UsageError
from stack.ir.func import Func
from stack.ir.node import Block, Node, unique_name, walk
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_kernel
from stack.phases import phase
from stack.run.backend import Executable, Inspected, Kernel
from stack.run.cache import Cache, cache_folder
from stack.target import Cpu, as_cpu, cpu_at_hand, load
from stack.target.host import NATIVE, missing_here
from stack.wings import call_if_here

from ..runtime.control import has_only_kernels
from ..runtime.names import argument_names, function_name
from ..runtime.program import BlockProgram
from ..runtime.records import describe_kernel, described, kernel_lines, steps_of
from . import jit
from .elementwise import Unprintable
from .host import Host
from .jit import ENTRY
from .printer import print_kernel

_FEATURES = re.compile(r"#llvm\.target_features<\[(.*?)\]>")
_PLACE = re.compile(r'"-":(\d+):(\d+): (?:error: )?(.*)')
Artifacts = dict[str, str | Callable[[], str]]
# bytes of a kernel's text: LLVM compiles in this process, where its time has no other limit
MOST_TEXT = 1 << 20


@dataclass(eq=False)
class DistinctKernel:
    """The kernels of a program with one text: they are compiled once and share a name.

    Attributes:
        node, block: the first of them, and its block. Readers see its names and source lines.
        text: the module to compile, without the program's names and source lines.
        given: MLIR text that a person has written in place of ours; None if there is none.
    """

    node: Node
    block: Block
    cpu: Cpu
    text: str
    name: str
    given: str | None

    def readable(self) -> str:
        """The text with the program's names, and source lines as comments."""
        return self._printed(None)

    def located(self) -> str:
        """The readable text with MLIR locations, which become line numbers of machine code."""
        return self._printed(kernel_lines(self.node, self.block.locs.get(self.node, ())))

    @phase("print")
    def _printed(self, origin: Sequence[str] | None) -> str:
        if self.given is not None:
            return self.given
        arguments = argument_names(self.block, self.node)
        return print_kernel(self.node, function_name(self.name), True, self.cpu, arguments, origin)

    def compile(self, cache: Cache | None) -> jit.NativeKernel:
        """Compiles the kernel in a module of its own. Raises CompileError."""
        if self.given is not None:
            return self._compile_given(self.given, cache)
        if len(self.text) > MOST_TEXT:
            raise jit.CompileError(f"{len(self.text)} bytes of text, the limit is {MOST_TEXT}")
        return jit.build(self.text, [ENTRY], cache)[ENTRY]

    def _compile_given(self, given: str, cache: Cache | None) -> jit.NativeKernel:
        """Compiles the text that a person has written.

        Raises ParseError with line and column if MLIR reports them, else StackError; UsageError if
        this CPU lacks instructions that the text requires.
        """
        check_text_runs_here(given)
        symbol = function_name(self.name)
        try:
            return jit.build(given, [symbol], cache)[symbol]
        except jit.CompileError as error:
            place = _PLACE.search(str(error))
            if place is None:
                raise StackError(f"kernel {self.name}: {error}") from error
            raise ParseError(place[3], int(place[1]), int(place[2])) from error


class Compiler:
    """The distinct kernels of a function, printed.

    Args:
        given: texts by kernel name, which replace printed ones.

    Raises:
        KernelRefused: with all kernels that cannot be printed.
    """

    def __init__(
        self, func: Func, cpu: Cpu, cache: Cache | None, given: Mapping[str, str] | None = None
    ) -> None:
        self.func, self.cpu, self.cache = func, cpu, cache
        self.kernels: dict[Node, DistinctKernel] = {}
        self.by_text: dict[str, DistinctKernel] = {}
        texts: dict[tuple[object, ...], str] = {}  # by parameters and results of a kernel's block
        taken, whys = set[str](), dict[Node, str]()
        for block, node in walk(func.body):
            if not is_kernel(node):
                continue
            body = node.blocks[0].params, node.blocks[0].results
            try:
                if body not in texts:
                    with phase("print"):
                        texts[body] = print_kernel(node, ENTRY, target=cpu)
            except Unprintable as why:
                whys[node] = str(why)
                continue
            text = texts[body]
            if text not in self.by_text:
                name = unique_name(str(node.attrs["name"]), taken, {})
                own = (given or {}).get(name)
                self.by_text[text] = DistinctKernel(node, block, cpu, text, name, own)
            self.kernels[node] = self.by_text[text]
        if whys:
            raise KernelRefused(whys)

    def compile(self) -> dict[Node, jit.NativeKernel]:
        """Compiles all kernels; returns those of kernel nodes. Raises KernelRefused with all that
        cannot be compiled.
        """
        kernels, whys = self.by_text.values(), dict[DistinctKernel, str]()
        made: dict[DistinctKernel, jit.NativeKernel] = {}
        ours = [k.text for k in kernels if k.given is None and len(k.text) <= MOST_TEXT]
        found = jit.build_all(ours, self.cache)
        for kernel in kernels:  # the rest one by one, so that an error belongs to one kernel
            try:
                made[kernel] = found.get(kernel.text) or kernel.compile(self.cache)
                made[kernel].text = kernel.text if kernel.given is None else ""
            except jit.CompileError as error:
                whys[kernel] = f"MLIR refuses it: {error}"
        if whys:
            raise KernelRefused({n: whys[k] for n, k in self.kernels.items() if k in whys})
        return {node: made[kernel] for node, kernel in self.kernels.items()}

    def describe(self, node: Node) -> Kernel:
        """Returns the record of a kernel node: its name, text, source lines and cost."""
        kernel = self.kernels[node]
        return describe_kernel(self.func, node, kernel.name, kernel.readable, "mlir")

    def stage(self, lower: Callable[[str], str]) -> str:
        """Returns a stage of every distinct kernel as text; `lower` converts MLIR text to it."""
        return "".join(
            f"// ---- {kernel.name}\n{lower(kernel.located())}\n"
            for kernel in self.by_text.values()
        )

    def artifacts(self) -> Artifacts:
        """Later stages of every kernel as text, made on demand."""
        return {
            "mlir": lambda: self.stage(str),
            "llvm": lambda: self.stage(jit.lower),
            "asm": lambda: self.stage(self._assembly),
        }

    def _assembly(self, text: str) -> str:
        # the LLVM of this process has one architecture
        is_arm = platform.machine().lower() in ("aarch64", "arm64")
        if self.cpu.arch != NATIVE and is_arm != ("neon" in self.cpu.features):
            return f"; the LLVM of this machine has no code for {self.cpu.name}\n"
        return jit.assembly(text)


def cpu_of(options: Mapping[str, Any]) -> Cpu:
    """The CPU of `options["target"]`; by default this machine's. Raises UsageError."""
    asked = options.get("target")
    return as_cpu(load(str(asked))) if asked else cpu_at_hand()


def check_runs_here(cpu: Cpu) -> None:
    """Raise UsageError for a CPU with instructions that this one does not have."""
    missing = missing_here(cpu.features)
    if missing:
        raise UsageError(
            f"this CPU does not run code for target {cpu.name!r}: it has no {', '.join(missing)};"
            f" `stackc dump TARGET --target {cpu.name}` prints it"
        )


def check_text_runs_here(text: str) -> None:
    """Raise UsageError for a module that requires instructions which this CPU does not have."""
    asked = (f for found in _FEATURES.findall(text) for f in re.findall(r'"\+([^"]+)"', found))
    missing = missing_here(dict.fromkeys(asked))
    if missing:
        raise UsageError(f"this CPU does not run the kernel: it has no {', '.join(missing)}")


def cache_of(options: Mapping[str, Any]) -> Cache | None:
    """The cache of compiled kernels; None if `options` turn it off."""
    return Cache(cache_folder() / "mlir") if options.get("cache", True) else None


def warm(options: Mapping[str, Any]) -> None:
    """Starts to compile the native function of calls, which all programs share."""
    call_if_here("mlir-ahead", cache_of(options))


def compile_program(
    func: Func, options: dict[str, Any], texts: Mapping[str, str] | None = None
) -> Executable:
    """Compiles to vectorized, multi-threaded CPU code through MLIR and LLVM, in process.

    Options:
        cache: False to keep nothing on disk (default: `cache_folder()`).
        call_opaque: the function that executes `opaque` nodes.
        target: the CPU, a name or a file (default: this machine's). Raises UsageError if this CPU
            cannot run its code.

        `freeze=True`: computes everything that depends only on weights once; see `stack.compile`.
    """
    cpu, cache = cpu_of(options), cache_of(options)
    if options.get("target"):
        check_runs_here(cpu)
    compiler = Compiler(func, cpu, cache, texts)
    kernels = compiler.compile()
    load = kernels.__getitem__
    program = BlockProgram(func.body, Host(cache), load, options.get("call_opaque"))
    return Executable(
        run=program.run,
        kernels=program.describe(func, compiler.describe, has_only_kernels),
        artifacts=compiler.artifacts(),
        by_address=functools.cache(lambda: call_if_here("mlir-addresses", program, cache)),
        counts_what="steps of the program: generated kernels and library calls",
        peak_bytes=program.arena_bytes,
        profile=program.profile,
        drain=program.run,
        foreign=functools.cache(lambda: call_if_here("mlir-xla", func, program, load, cache)),
    )


def resume_program(func: Func, texts: Mapping[str, str], options: dict[str, Any]) -> Executable:
    """Compiles a program, some of whose kernels are given as MLIR text, by name."""
    return compile_program(func, options, texts)


def inspect_program(func: Func, options: dict[str, Any]) -> Inspected:
    """Returns kernels and later stages of a lowered function, without compiling it to run.

    Raises KernelRefused with all kernels that cannot be printed.

    Options:
        target: the CPU, a name or a file.
    """
    compiler = Compiler(func, cpu_of(options), None)
    kernels = described(func, steps_of(func, "library"), compiler.describe, has_only_kernels)
    return kernels, compiler.artifacts()
