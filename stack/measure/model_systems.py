"""The systems of a model, called as users call them, with framework arrays in and out."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import stack.plugins as plugins
from stack.calls.compiled_callable import jit
from stack.calls.graph import CompiledGraph
from stack.errors import StackError, UsageError
from stack.measure.caches import fresh_caches
from stack.run.backend import Backend, Executable, Kernel
from stack.run.compile import lower
from stack.run.frontend import Captured
from stack.run.options import target_of
from stack.run.record import Run
from stack.run.specs import BackendSpec, parse_backends
from stack.run.trace import find_frontend

REPLAYS = ("reduce-overhead", "max-autotune")  # modes of Inductor that replay CUDA graphs
WARMED = 16  # size of the warm-up program


class ModelProgram(Protocol):
    """Interface of the suite's programs, see `stack.demos.suite.ModelProgram`."""

    @property
    def framework(self) -> str: ...
    @property
    def fn(self) -> Callable[..., Any]: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def train(self) -> bool: ...


@dataclass
class Counts:
    """Kernel counts of a call; None if unknown."""

    kernels: int | None = None
    library: int | None = None
    fallback: int | None = None
    fallback_ops: str = ""
    stepwise: tuple[str, ...] = ()  # reasons of programs that launch their steps one by one


@dataclass
class ModelSystem:
    """One system on one program.

    Attributes:
        call: one call on the program's arguments; on a GPU it may return before the work is done.
        leaves: converts a result to torch tensors.
        wait: returns when all calls are done.
        count: kernel counts of a call; valid after the first one.
        peak: peak bytes of a call, if the system knows them.
        compiling: context of the first call, with empty caches.
    """

    name: str
    kind: str
    call: Callable[[], Any]
    leaves: Callable[[Any], list[Any]]
    wait: Callable[[], None]
    is_ours: bool = False
    count: Callable[[], Counts] = Counts
    peak: Callable[[], int | None] = lambda: None
    compiling: Callable[[], AbstractContextManager[Any]] = fresh_caches
    note: str = ""


@dataclass(frozen=True)
class ModelEntry:
    """A system that can be built for a program of the suite: its name and how to build it."""

    name: str
    kind: str
    make: Callable[[], ModelSystem]
    is_ours: bool = False


def ways(
    program: ModelProgram, peers: str, own: str, device: str, capture: Callable[[], Captured]
) -> list[ModelEntry]:
    """Returns all systems of a program, ours first; peers are spelled as in `--with`.

    `capture` returns the program as captured by our frontend, for replays.
    """
    makers = _torch_ways if program.framework == "torch" else _jax_ways
    found = [
        ModelEntry(
            f"stack-{p.label}", "generated", lambda p=p: makers["stack"](program, p, device), True
        )
        for p in parse_backends(own)
    ]
    for peer in parse_backends(peers):
        make = makers.get(peer.backend)
        kind = "library" if peer.backend == "eager" else "peer"
        if make is not None:
            found.append(ModelEntry(peer.label, kind, lambda p=peer, m=make: m(program, p, device)))
        elif not program.train:
            name = f"{peer.label}/ir"
            found.append(
                ModelEntry(name, "peer", lambda p=peer, n=name: _replayed(capture(), p, n, device))
            )
    return found


def torch_module() -> Any:
    """Imports torch on first use."""
    return importlib.import_module("torch")


def _waiter(device: str) -> Callable[[], None]:
    return (lambda: None) if device == "cpu" else torch_module().cuda.synchronize


# ---- programs of torch


def parameters(program: ModelProgram) -> list[Any]:
    """Returns the parameters of a torch module that need gradients."""
    fn: Any = program.fn
    return [p for p in fn.parameters() if p.requires_grad]


def torch_call(program: ModelProgram, fn: Callable[..., Any]) -> Callable[[], Any]:
    """Returns a function that runs a torch module, compiled or not, on the program's arguments.

    It returns the results; in training, the gradients of the loss by all parameters.
    """
    torch = torch_module()
    args = program.args
    if program.train:
        wanted = parameters(program)
        return lambda: torch.autograd.grad(fn(*args), wanted, allow_unused=True)

    def forward() -> Any:
        with torch.no_grad():
            return fn(*args)

    return forward


def _private() -> Any:
    """Returns our functions for torch's private names; loads torch."""
    return importlib.import_module("stack.frameworks.torch_private")


def torch_leaves(found: Any) -> list[Any]:
    """Returns the tensors of a result, in order; missing gradients are skipped."""
    torch = torch_module()
    return [x.detach() for x in _private().pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def eager_torch(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    """Returns the unmodified torch module, run op by op, as one of the measured systems."""
    call = torch_call(program, program.fn)
    return ModelSystem(peer.label, "library", call, torch_leaves, _waiter(device))


def _inductor_torch(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    torch = torch_module()
    options = dict(peer.options)
    mode, freezing = options.pop("mode", None), bool(options.pop("freezing", False))
    if options:
        raise UsageError(f"inductor takes mode= and freezing= here, not {', '.join(options)}")
    # pass settings with the call: another system of this module is a separate entry of Dynamo
    settings = _private().inductor_modes(mode or "default")
    if freezing:
        settings["freezing"] = True
    inner = torch_call(program, torch.compile(program.fn, options=settings, dynamic=False))
    call = inner
    if mode in REPLAYS:

        def call() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return inner()

    code: list[str] = []
    return ModelSystem(
        peer.label,
        "peer",
        call,
        torch_leaves,
        _waiter(device),
        count=lambda: _inductor_counts(code),
        compiling=lambda: _empty_inductor(code),
    )


@contextmanager
def _empty_inductor(code: list[str]) -> Generator[None]:
    """Provides empty caches; collects the wrappers that Inductor writes."""
    with fresh_caches(), _private().inductor_record(code.append):
        yield


_WRAPPER = re.compile(r"^(?:def call|    def call)\(.*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"\b(?:triton|cpp_fused)\w*(?:\.run)?\(")
_LIBRARY = re.compile(r"\b(?:extern_kernels|torch\.ops)\.\S+?\(")


def _inductor_counts(code: Sequence[str]) -> Counts:
    """Counts the launches in the wrappers that Inductor wrote."""
    calls = [m[0] for text in dict.fromkeys(code) for m in _WRAPPER.finditer(text)]
    if not calls:
        return Counts()
    text = "\n".join(calls)
    return Counts(len(_GENERATED.findall(text)), len(_LIBRARY.findall(text)), 0)


def _own_torch(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    torch = torch_module()
    options = {"backend": peer.backend, **peer.options}
    fn = torch.compile(program.fn, backend="stack", dynamic=False, options=options)
    frontend = importlib.import_module("stack.frontends.torch")
    graphs: Sequence[CompiledGraph] = importlib.import_module(
        "stack.frontends.torch.compile.dynamo_backend"
    ).GRAPHS
    known, first = len(frontend.runs()), len(graphs)
    call = torch_call(program, fn)
    return ModelSystem(
        f"stack-{peer.label}",
        "generated",
        call,
        torch_leaves,
        _waiter(device),
        is_ours=True,
        count=lambda: _own_counts(frontend.runs()[known:]),
        peak=lambda: _own_peak(list(graphs)[first:]) if device == "cpu" else None,
        note="torch.compile(backend='stack')",
    )


def _own_counts(runs: Sequence[Run]) -> Counts:
    kernels: list[Kernel] = [k for run in runs for k in run.kernels]
    if not runs:
        return Counts()
    names = [op for run in runs for op in run.coverage.get("fallback_ops", {})]
    return Counts(
        sum(k.kind == "generated" for k in kernels),
        sum(k.kind == "library" for k in kernels),
        sum(k.kind == "fallback" for k in kernels),
        ", ".join(dict.fromkeys(names)),
        tuple(why for run in runs if (why := run.stepwise())),
    )


def _own_peak(graphs: Sequence[CompiledGraph]) -> int | None:
    """Returns the peak bytes of our compiler's code: the sum over the executables of all graphs.

    Of each graph, the newest executable counts. Returns None if one peak is unknown, or if nothing
    was compiled.
    """
    held = [next(reversed(g.executables.values())).peak_bytes for g in graphs if g.executables]
    known = [h for h in held if h is not None]
    return sum(known) if known and len(known) == len(held) else None


# ---- programs of JAX


def _jax_leaves(found: Any) -> list[Any]:
    jax, torch = importlib.import_module("jax"), torch_module()
    return [torch.from_dlpack(x) for x in jax.tree.leaves(found)]


def _called_jax(
    name: str, kind: str, fn: Callable[..., Any], program: ModelProgram, note: str = ""
) -> ModelSystem:
    jax = importlib.import_module("jax")
    newest: list[Any] = []

    def call() -> Any:
        newest[:] = [fn(*program.args)]
        return newest[0]

    def wait() -> None:
        jax.block_until_ready(newest)

    return ModelSystem(name, kind, call, _jax_leaves, wait, note=note)


def eager_jax(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    """Returns the JAX function without `jit`, run op by op, as one of the measured systems."""
    return _called_jax(peer.label, "library", program.fn, program, "without jit")


def _xla_jax(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    jax = importlib.import_module("jax")
    fn = jax.jit(program.fn)
    system = _called_jax(peer.label, "peer", fn, program, "jax.jit")

    def peak() -> int | None:
        found = fn.lower(*program.args).compile().memory_analysis()
        return int(found.temp_size_in_bytes + found.output_size_in_bytes) if found else None

    system.peak = peak
    return system


def _own_jax(program: ModelProgram, peer: BackendSpec, device: str) -> ModelSystem:
    fn = jit(program.fn, backend=peer.backend, options=dict(peer.options))
    system = _called_jax(f"stack-{peer.label}", "generated", fn, program, "stack.jit")
    system.is_ours = True
    system.count = lambda: _own_counts([fn.run])
    system.peak = lambda: _own_peak([fn.graph])
    return system


# ---- programs of the other framework, through our function


def _replayed(captured: Captured, peer: BackendSpec, name: str, device: str) -> ModelSystem:
    backend: Backend = plugins.load("stack.backends", peer.backend)
    need = backend.missing()
    if need is not None:
        raise StackError(need)
    frontend = find_frontend(captured.original, captured.args)
    options = {"device": device, "call_opaque": frontend.call_opaque, **peer.options}
    held: list[tuple[Executable, Any]] = []

    def call() -> Any:
        if not held:  # compiling is part of the first call, capturing is not
            lowered = lower(captured.func, backend, Run(), target=target_of(backend, options))
            made = backend.compile(lowered, options)
            held.append((made, _arrays_for(made, captured)))
        executable, prepared = held[0]
        assert executable.call is not None
        return executable.call(prepared)

    def wait() -> None:
        if held and held[0][0].wait is not None:
            held[0][0].wait()

    def leaves(found: Any) -> list[Any]:
        torch = torch_module()
        flat = [x if isinstance(x, torch.Tensor) else torch.from_dlpack(x) for x in found]
        tree = _private().pytree.tree_leaves
        # drop what a graph returns besides the user's results (state that it sets)
        return [x.detach() for x in tree(captured.unflatten(flat)) if hasattr(x, "detach")]

    def count() -> Counts:
        kernels = held[0][0].kernels
        generated = sum(k.kind == "generated" for k in kernels)
        return Counts(generated, len(kernels) - generated, 0)

    return ModelSystem(
        name,
        "peer",
        call,
        leaves,
        wait,
        count=count,
        peak=lambda: held[0][0].peak_bytes,
        note="our function replayed; its capture is left out of the first result",
    )


def _arrays_for(executable: Executable, captured: Captured) -> Any:
    """Converts weights and inputs to the arrays that an executable takes, before it is timed."""
    arrays = [*captured.bound, *captured.flatten(*captured.args)]
    if executable.device != "cpu" and executable.accept is not None:
        return executable.accept(arrays)
    frontend = find_frontend(captured.original, captured.args)
    pairs = zip(arrays, captured.func.params, strict=True)
    storage = [frontend.to_numpy(a, p.dtype) for a, p in pairs]
    return executable.prepare(storage) if executable.prepare is not None else storage


Make = Callable[[ModelProgram, BackendSpec, str], ModelSystem]
_torch_ways: dict[str, Make] = {
    "stack": _own_torch,
    "eager": eager_torch,
    "inductor": _inductor_torch,
}
_jax_ways: dict[str, Make] = {"stack": _own_jax, "eager": eager_jax, "xla": _xla_jax}


def settle(framework: str, peers: str, own: str, device: str) -> None:
    """Warms up each compiler with a one-op program.

    After it, a first result excludes the startup costs of the compilers.
    """
    backends = {p.backend for p in parse_backends(peers)}
    torch = torch_module()
    x = torch.ones(WARMED, WARMED, device=device)

    def tiny(x: Any) -> Any:
        return (x @ x).tanh() + 1.0

    if "inductor" in backends and framework == "torch":
        torch.compile(tiny, dynamic=False)(x)
    for peer in parse_backends(own):
        if framework == "torch":
            options = {"backend": peer.backend, **peer.options}
            torch.compile(tiny, backend="stack", dynamic=False, options=options)(x)
    if framework == "jax" or "xla" in backends:
        jax = importlib.import_module("jax")
        numpy = importlib.import_module("jax.numpy")
        y = numpy.asarray(1.0)
        jax.block_until_ready(jax.jit(numpy.tanh)(y))
        if framework == "jax":
            for peer in parse_backends(own):
                jit(numpy.tanh, backend=peer.backend)(y)
