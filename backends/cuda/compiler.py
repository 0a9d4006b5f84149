"""Compiles a lowered function to machine code; kernels with equal text are compiled once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stack.ir.func import Func
from stack.ir.node import Node, unique_name, walk
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_kernel
from stack.run.backend import Executable, Inspected, Kernel
from stack.run.cache import Cache, cache_folder

from ..device.machine import arch_of
from ..device.symbols import ENTRY, symbol_of
from ..device.tools import disassemble
from ..device.worker_pool import Work
from ..runtime.control import is_replayed
from ..runtime.names import argument_names, function_name, in_full, origin
from ..runtime.records import describe_kernel, described, kernel_lines, steps_of
from . import nvrtc
from .expressions import Unprintable
from .printer import print_kernel
from .values import Source

if TYPE_CHECKING:
    from ..device.launch import LoadedKernel

Artifacts = dict[str, str | Callable[[], str]]
_LOC = re.compile(r"^\s*\.loc\s+1 (\d+).*$", re.MULTILINE)


class Compiler:
    """The kernels of a function, by text. Equal kernels are compiled once and share a name."""

    def __init__(self, func: Func, target: str, store: Cache | None) -> None:
        self.func = func
        kernels = [(block, n) for block, n in walk(func.body) if is_kernel(n)]
        self.lines = {n: block.locs.get(n, ()) for block, n in kernels}
        self.arguments = {n: argument_names(block, n) for block, n in kernels}
        self.target = nvrtc.check_target(target)
        self.store = store
        self.sources: dict[Node, Source] = {}
        self.binaries: dict[str, nvrtc.Binary] = {}
        self.readable: dict[str, tuple[str, str]] = {}  # a name, and text with the program's names
        self.origins: dict[str, tuple[str, ...]] = {}
        self.taken: set[str] = set()

    def source(self, node: Node) -> Source:
        """The source to compile: the kernel without the program's names and source lines."""
        if node not in self.sources:
            self.sources[node] = print_kernel(node, ENTRY)
        return self.sources[node]

    def build_all(self, meanwhile: Work = None) -> None:
        """Build the machine code of every kernel of the function, several concurrently.

        Raises KernelRefused with all kernels that cannot be compiled.
        """
        texts: dict[Node, str] = {}
        refused: dict[Node, str] = {}
        for node in (n for _, n in walk(self.func.body) if is_kernel(n)):
            try:
                texts[node] = self.source(node).text
            except Unprintable as why:
                refused[node] = str(why)
        left = [text for text in dict.fromkeys(texts.values()) if text not in self.binaries]
        made = nvrtc.compile_all(left, ENTRY, self.target, self.store, meanwhile)
        self.binaries |= {t: found for t, found in made.items() if not isinstance(found, str)}
        whys = {text: found for text, found in made.items() if isinstance(found, str)}
        refused |= {n: whys[text] for n, text in texts.items() if text in whys}
        if refused:
            raise KernelRefused(refused)

    def binary(self, node: Node) -> nvrtc.Binary:
        """The machine code of a kernel node."""
        text = self.source(node).text
        if text not in self.binaries:
            self.binaries[text] = nvrtc.compile_cubin(text, ENTRY, self.target, self.store)
        if text not in self.readable:
            name = unique_name(str(node.attrs["name"]), self.taken, {})
            lines, arguments = self.lines.get(node, ()), self.arguments.get(node, ())
            shown = print_kernel(node, function_name(name), True, lines, arguments)
            self.readable[text] = name, shown.text
            self.origins[text] = in_full(self.source(node).origins, kernel_lines(node, lines))
        return self.binaries[text]

    def describe(self, node: Node) -> Kernel:
        """Returns the record of a kernel node: its text, cost, and use of registers and memory."""
        binary, source = self.binary(node), self.source(node)
        name, shown = self.readable[source.text]
        return describe_kernel(
            self.func,
            node,
            name,
            shown,
            "cu",
            resources={
                "registers": binary.registers,
                "spilled": binary.spilled,
                "stack": binary.stack,
                "shared": source.shared + source.static_shared,
                "threads": source.threads,
                "blocks": source.blocks,
            },
        )

    def symbol(self, node: Node) -> str:
        """The kernel's symbol in profilers, named after the first node it was printed for."""
        name, _ = self.readable[self.source(node).text]
        return symbol_of(name, kernel_lines(node, self.lines.get(node, ())))

    def artifacts(self) -> Artifacts:
        """Later stages of every distinct kernel as text, made on demand."""

        def stage(make: Callable[[str], str]) -> Callable[[], str]:
            return lambda: "".join(
                f"// ---- {name}\n{make(text)}\n" for text, (name, _) in self.readable.items()
            )

        return {
            "cuda": stage(lambda text: self.readable[text][1]),
            "ptx": stage(self._ptx),
            "sass": stage(self._sass),
        }

    def _ptx(self, text: str) -> str:
        lines = self.origins[text]
        return _LOC.sub(
            lambda m: f"{m[0]} // {origin(lines, int(m[1])) or 'no source line'}",
            nvrtc.compile_ptx(text, self.target),
        )

    def _sass(self, text: str) -> str:
        cubin, lines = nvrtc.cubin_with_lines(text, self.target), self.origins[text]
        return disassemble(cubin, lambda _, number: origin(lines, number))


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Plan a function with loop-level kernels on a device; see `compile_cuda`."""
    import torch

    from ..device.executable import executable
    from ..device.launch import refused_on_load
    from ..device.torch_device import TorchDevice
    from ..runtime.program import BlockProgram
    from .launch import device_target, loaded

    device = torch.device(options.get("device") or "cuda")
    compiler = Compiler(func, device_target(device), _store(options))
    compiler.build_all(options.get("meanwhile"))
    launches: dict[Source, LoadedKernel] = {}  # equal code may be launched with different grids

    def load(node: Node) -> LoadedKernel:
        source, binary = compiler.source(node), compiler.binary(node)
        if source not in launches:
            with refused_on_load(node):
                launches[source] = loaded(source, binary, device, compiler.symbol(node))
        return launches[source]

    graph = bool(options.get("graph", True))
    opaque = options.get("call_opaque")
    program = BlockProgram(func.body, TorchDevice(device), load, opaque, keeps=graph)
    kernels = program.describe(func, compiler.describe, is_replayed)
    return executable(func, program, kernels, compiler.artifacts(), graph)


def inspect_program(func: Func, options: dict[str, Any]) -> Inspected:
    """Kernels and later stages of a lowered function, without a device.

    Options:
        target: the GPU, such as "sm_90", or a file that describes one.
        cache: False to keep nothing on disk.
    """
    compiler = Compiler(func, arch_of(options), _store(options))
    compiler.build_all()
    kernels = described(func, steps_of(func, "torch"), compiler.describe, is_replayed)
    return kernels, compiler.artifacts()


def _store(options: dict[str, Any]) -> Cache | None:
    return Cache(cache_folder() / "cuda") if options.get("cache", True) else None
