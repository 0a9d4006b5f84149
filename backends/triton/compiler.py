"""Compiles a lowered function to Triton kernels; equal kernels are built once.

Triton's stages show source lines in place of line numbers of the printed module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.node import Node, unique_name, walk
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_kernel
from stack.run.backend import Executable, Inspected, Kernel
from stack.run.cache import Cache, cache_folder

from ..device.executable import default_device, executable
from ..device.launch import refused_on_load
from ..device.machine import arch_of
from ..device.symbols import ENTRY, symbol_of
from ..device.tools import disassemble
from ..device.torch_device import TorchDevice
from ..device.worker_pool import Work
from ..runtime.control import is_replayed
from ..runtime.device import DeviceKernel
from ..runtime.names import OWN, argument_names, function_name, in_full, origin, place_of
from ..runtime.program import BlockProgram
from ..runtime.records import describe_kernel, described, kernel_lines, steps_of
from . import build
from .launch import interpreted, loaded
from .printer import print_kernel
from .source import Code, Source

Artifacts = dict[str, str | Callable[[], str]]


class Compiler:
    """The kernels of a function. Kernels with equal machine code are built once, under one name."""

    def __init__(self, func: Func, target: str) -> None:
        self.func = func
        kernels = [(block, n) for block, n in walk(func.body) if is_kernel(n)]
        self.lines = {n: block.locs.get(n, ()) for block, n in kernels}
        self.arguments = {n: argument_names(block, n) for block, n in kernels}
        self.target = target
        self.sources: dict[Node, Source] = {}
        self.named: dict[Code, tuple[str, Node]] = {}  # the name and the first kernel of a source
        self.binaries: dict[Code, build.Binary] = {}
        self.taken: set[str] = set()

    def source(self, node: Node) -> Source:
        """The printed source to compile."""
        if node not in self.sources:
            made = self.sources[node] = entry_source(node)
            if made.code not in self.named:
                name = unique_name(str(node.attrs["name"]), self.taken, {})
                self.named[made.code] = name, node
        return self.sources[node]

    def readable(self, code: Code) -> str:
        """The text of a kernel with the names of the first node that it was printed for."""
        name, node = self.named[code]
        return print_kernel(node, function_name(name), True, self.arguments.get(node, ())).text

    def binary(self, source: Source) -> build.Binary:
        """The machine code of a printed kernel."""
        if source.code not in self.binaries:
            self.binaries[source.code] = build.build(source, self.target)
        return self.binaries[source.code]

    def build_all(
        self, store: Cache | None, limit: int = build.UNLIMITED, meanwhile: Work = None
    ) -> None:
        """Build the machine code of every kernel of the function, several concurrently.

        Raises KernelRefused with all kernels that cannot be compiled.
        """
        nodes = [node for _, node in walk(self.func.body) if is_kernel(node)]
        left = list({source.code: source for source in map(self.source, nodes)}.values())
        asked = [build.request(source, self.target, limit) for source in left]
        replies = build.worker_pool().compile(asked, store, meanwhile)
        whys: dict[Code, str] = {}
        for source, reply in zip(left, replies, strict=True):
            if "error" in reply:
                whys[source.code] = reply["error"]
            else:
                self.binaries[source.code] = build.binary(reply, source)
        if whys:
            codes = {node: self.source(node).code for node in nodes}
            raise KernelRefused({n: whys[code] for n, code in codes.items() if code in whys})

    def describe(self, node: Node, assembled: bool = False) -> Kernel:
        """Returns the record of a kernel; `assembled` adds what the assembler reports."""
        source = self.source(node)
        name, _ = self.named[source.code]
        built = self.binaries.get(source.code)
        return describe_kernel(
            self.func,
            node,
            name,
            self.readable(source.code),
            "py",
            resources={
                **(built.resources() if built and assembled else {"warps": source.warps}),
                "programs": source.programs,
                "stages": built.ahead if built else source.stages,
            },
            warning=built.warning() if built and assembled else "",
        )

    def symbol(self, node: Node) -> str:
        """The kernel's symbol in profilers, named after the first node it was printed for."""
        name, _ = self.named[self.source(node).code]
        return symbol_of(name, kernel_lines(node, self.lines.get(node, ())))

    def artifacts(self) -> Artifacts:
        """Later stages of every distinct kernel as text, made on demand."""

        kernels = {s.code: s for s in self.sources.values()}

        def stage(make: Callable[[Source], str]) -> Callable[[], str]:
            return lambda: "".join(
                f"# ---- {self.named[code][0]}\n{make(source)}\n"
                for code, source in kernels.items()
            )

        def at(name: str) -> Callable[[], str]:
            return stage(lambda s: with_lines(self.binary(s).stages[name], self._origins(s)))

        return {
            "triton": stage(lambda source: self.readable(source.code)),
            **{name: at(name) for name in build.STAGES},
            "sass": stage(self._disassembled),
        }

    def _disassembled(self, source: Source) -> str:
        lines = self._origins(source)
        return disassemble(self.binary(source).cubin, lambda *place: line_of(lines, *place))

    def _origins(self, source: Source) -> tuple[str, ...]:
        _, node = self.named[source.code]
        lines = in_full(source.origins, kernel_lines(node, self.lines.get(node, ())))
        return with_functions(source.text, lines)


def entry_source(kernel: Node) -> Source:
    """The source of a kernel to compile, printed once: the program's names are not in it."""
    body = kernel.blocks[0]
    key = entry_source, *(kernel.attrs.get(name) for name in ("warps", "stages", "programs"))
    if key not in body.facts:
        body.facts[key] = print_kernel(kernel, ENTRY)
    return body.facts[key]


def compile_program(func: Func, options: dict[str, Any]) -> Executable:
    """Plan a function with tile-level kernels on a device; see `compile_triton`."""
    device = torch.device(options.get("device") or default_device())
    compiler = _for_device(func, device, options)
    launches: dict[Source, DeviceKernel] = {}

    def load(node: Node) -> DeviceKernel:
        source = compiler.source(node)
        if source not in launches:
            with refused_on_load(node):
                launches[source] = _launcher(compiler, node, device)
        return launches[source]

    graph = bool(options.get("graph", True))
    opaque = options.get("call_opaque")
    program = BlockProgram(func.body, TorchDevice(device), load, opaque, keeps=graph)
    own = partial(compiler.describe, assembled=bool(options.get("assembled")))
    kernels = program.describe(func, own, is_replayed)
    return executable(func, program, kernels, compiler.artifacts(), graph)


def start(options: dict[str, Any], kernel: Node) -> None:
    """Starts to compile a kernel for a GPU; `compile_program` waits for it."""
    device = torch.device(options.get("device") or default_device())
    if device.type == "cuda":
        with suppress(StackError):  # which `compile_program` raises
            asked = build.request(entry_source(kernel), *_machine(device))
            build.worker_pool().start(asked, _store(options))


def _machine(device: torch.device) -> tuple[str, int]:
    """The target of a GPU, and the bytes of shared memory that a program may have."""
    found = torch.cuda.get_device_properties(device)
    return f"sm_{found.major}{found.minor}", int(found.shared_memory_per_block_optin)


def _store(options: dict[str, Any]) -> Cache | None:
    return Cache(cache_folder() / "triton") if options.get("cache", True) else None


def _for_device(func: Func, device: torch.device, options: dict[str, Any]) -> Compiler:
    """A compiler whose kernels are built, if there is a GPU to build them for."""
    if device.type != "cuda":
        return Compiler(func, arch_of({"device": device}))
    target, limit = _machine(device)
    compiler = Compiler(func, target)
    compiler.build_all(_store(options), limit, options.get("meanwhile"))
    return compiler


def _launcher(compiler: Compiler, node: Node, device: torch.device) -> DeviceKernel:
    made, source = None, compiler.source(node)
    if device.type == "cuda":
        made = loaded(source, compiler.binary(source), compiler.symbol(node), device)
    return made or interpreted(source)


def inspect_program(func: Func, options: dict[str, Any]) -> Inspected:
    """Kernels and later stages of a lowered function, without a device.

    Options:
        target: the GPU, such as "sm_90", or a file that describes one.
        cache: False to keep nothing on disk.
    """
    compiler = Compiler(func, arch_of(options))
    compiler.build_all(_store(options))
    steps = steps_of(func, "torch")
    kernels = described(func, steps, partial(compiler.describe, assembled=True), is_replayed)
    return kernels, compiler.artifacts()


_MODULE = r"<stack triton [0-9a-f]+>"
_PLACE = re.compile(rf"{_MODULE}(\"?):(\d+):\d+")
_LLVM = re.compile(r"(!DILocation\(line: (\d+), .*)")


def with_lines(text: str, lines: Sequence[str]) -> str:
    """Returns a stage of Triton as text, with the user's source lines.

    They replace line numbers of the printed module. `lines`: the source line of each line of that
    module; "" for none.
    """
    text = _PLACE.sub(lambda m: "{}{}:{}:0".format(*_file(lines, int(m[2]), m[1])), text)
    return _LLVM.sub(lambda m: f"{m[1]} ; {origin(lines, int(m[2])) or 'no source line'}", text)


def line_of(lines: Sequence[str], file: str, number: int) -> str:
    """The source line of a line in a file that Triton names; "" for any file but the module."""
    return origin(lines, number) if re.fullmatch(_MODULE, file) else ""


def with_functions(text: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Source lines of a module; a function with a single calling line gets that line.

    Inlined machine code refers to the function's lines, because Triton drops the call site.
    """
    found, held = list(lines), text.splitlines()
    starts = [i for i, line in enumerate(held) if line.startswith("def ")]
    for start in reversed(starts[:-1]):  # a caller is defined after its callees
        name = held[start].removeprefix("def ").partition("(")[0]
        after = range(start + 1, len(held))
        callers = {found[i] for i in after if re.search(rf"\b{name}\b", held[i])}
        end = held.index("", start)
        if len(callers) == 1:
            found[start:end] = [*callers] * (end - start)
    return tuple(found)


def _file(lines: Sequence[str], number: int, quote: str) -> tuple[str, str, int]:
    file, at = place_of(origin(lines, number) or f"{OWN}:{number}")
    return file, quote, at
