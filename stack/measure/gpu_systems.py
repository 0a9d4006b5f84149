"""The systems of a GPU case: ours, compilers on the same naive source, hand-written rivals."""

from __future__ import annotations

import copy
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import stack.plugins as plugins
from stack.calls.compiled_callable import compile
from stack.errors import StackError, UsageError
from stack.measure.gpu_program import GpuProgram, Rival
from stack.run.backend import Backend, Executable
from stack.run.compile import find_backend, lower
from stack.run.options import target_of
from stack.run.record import Run
from stack.run.specs import BackendSpec, parse_backends
from stack.run.trace import find_frontend

RIVALS = "rivals"
PART = 1 << 26  # elements of a result that are compared at once


@dataclass
class GpuSystem:
    """One system's program.

    Attributes:
        call: takes the output of `prepare` for a set of arguments.
        results: converts the output of `call` to tensors, in the order of the program's results.
        wait: see `Clock`.
        spoils: True if it writes to its arguments.
        library_calls: number of our steps that are library calls, of `steps`.
    """

    name: str
    kind: str
    call: Callable[[Any], Any]
    prepare: Callable[[Sequence[Any]], Any]
    results: Callable[[Any], list[Any]]
    wait: Callable[[], None] | None = None
    is_ours: bool = False
    spoils: bool = False
    steps: int = 0
    library_calls: int = 0
    fallbacks: int = 0
    note: str = ""


@dataclass(frozen=True)
class SystemEntry:
    """A system that can be built for a program: its name and the function that builds it."""

    name: str
    kind: str
    make: Callable[[], GpuSystem]
    is_ours: bool = False


def ways(program: GpuProgram, peers: str, own: str, device: str) -> list[SystemEntry]:
    """Returns all systems that can run a program: ours first, then the named peers.

    `peers` is spelled as in `--with`; "rivals" stands for other implementations of this case.
    """
    found = [_own_way(program, peer) for peer in parse_backends(own)]
    names = [p.strip() for p in peers.split(",")]
    compilers = ",".join(p for p in peers.split(",") if p.strip() != RIVALS)
    for peer in parse_backends(compilers):
        if peer.backend in ("eager", "inductor"):
            make = _eager if peer.backend == "eager" else _inductor
            kind = "library" if peer.backend == "eager" else "peer"
            found.append(SystemEntry(peer.label, kind, lambda p=peer, m=make: m(program, p)))
        elif program.mode == "forward":
            found.append(
                SystemEntry(f"{peer.label}/ir", "peer", lambda p=peer: _ir(program, p, device))
            )
    for name, rival in program.rivals.items() if RIVALS in names else ():
        found.append(_rival_way(program, name, rival))
    return found


def _own_way(program: GpuProgram, peer: BackendSpec) -> SystemEntry:
    name = f"stack-{peer.label}"
    if program.mode == "forward":
        return SystemEntry(name, "generated", lambda: _own(program, peer, name), True)
    return SystemEntry(name, "generated", lambda: _own_training(program, peer, name), True)


def _rival_way(program: GpuProgram, name: str, rival: Rival) -> SystemEntry:
    def make() -> GpuSystem:
        system = _called(name, rival.kind, rival.make(), program)
        system.spoils = rival.spoils
        if rival.wait is not None:
            system.wait = rival.wait
            system.note = "wall clock"
        return system

    return SystemEntry(name, rival.kind, make, rival.kind == "hand")


# ---- torch callables


def _torch() -> Any:
    return importlib.import_module("torch")


def _private() -> Any:
    """Imports our module of functions for torch's private names, which loads torch."""
    return importlib.import_module("stack.frameworks.torch_private")


def leaves(value: Any) -> list[Any]:
    """Returns the tensors in a result of nested containers, in order."""
    torch = _torch()
    return [x for x in _private().pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def parameters(fn: Any) -> list[Any]:
    """Returns the parameters of a module; none for a function."""
    return list(fn.parameters()) if isinstance(fn, _torch().nn.Module) else []


def wanted(program: GpuProgram, args: Sequence[Any]) -> list[Any]:
    """Returns the tensors to compute gradients of: chosen arguments, and all parameters."""
    return [args[i] for i in program.wanted] + parameters(program.fn)


def ready_for_gradients(program: GpuProgram, args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the arguments without their autograd history; those in `wanted` require gradients."""
    return tuple(
        a.detach().requires_grad_() if i in program.wanted else a for i, a in enumerate(args)
    )


def cotangents(outs: Sequence[Any]) -> list[Any]:
    """Returns the gradients of the results `outs` that start a backward pass.

    They are random numbers with fixed seeds; 1 for a scalar result.
    """
    torch = _torch()
    made: list[Any] = []
    for number, out in enumerate(outs):
        if not out.dim():
            made.append(torch.ones_like(out))
            continue
        generator = torch.Generator(device=out.device).manual_seed(number)
        drawn = torch.randn(out.shape, generator=generator, device=out.device)
        made.append(drawn.to(out.dtype))
    return made


def _called(name: str, kind: str, fn: Callable[..., Any], program: GpuProgram) -> GpuSystem:
    """Makes a system from a torch callable; `program.mode` selects the timed part.

    That is the forward pass, the backward pass, or both.
    """
    torch = _torch()
    if program.mode == "forward":

        def forward(args: Sequence[Any]) -> Any:
            with torch.no_grad():
                return fn(*args)

        return GpuSystem(name, kind, forward, tuple, leaves)
    if program.mode == "train":
        gradients: list[Any] = []

        def step(args: Sequence[Any]) -> Any:
            outs = [o for o in leaves(fn(*args)) if o.requires_grad]
            if not gradients:
                gradients.extend(cotangents(outs))
            return torch.autograd.grad(outs, wanted(program, args), gradients)

        return GpuSystem(name, kind, step, lambda a: ready_for_gradients(program, a), list)

    def prepare(args: Sequence[Any]) -> Any:
        ready = ready_for_gradients(program, args)
        outs = [o for o in leaves(fn(*ready)) if o.requires_grad]
        return outs, wanted(program, ready), cotangents(outs)

    def backward(held: Any) -> Any:
        outs, inputs, gradients = held
        return torch.autograd.grad(outs, inputs, gradients, retain_graph=True)

    return GpuSystem(name, kind, backward, prepare, list)


def _eager(program: GpuProgram, peer: BackendSpec) -> GpuSystem:
    return _called(peer.label, "library", program.fn, program)


def _inductor(program: GpuProgram, peer: BackendSpec) -> GpuSystem:
    torch = _torch()
    options = dict(peer.options)
    mode = options.pop("mode", None)
    if options:
        raise UsageError(f"inductor takes mode= here, not {', '.join(options)}")
    fn = torch.compile(program.fn, mode=mode, dynamic=False)
    return _called(peer.label, "peer", fn, program)


# ---- through the IR


def retained() -> Any:
    """Returns the context in which all systems are built and run.

    It disables buffer donation, since backward graphs may run again.
    """
    return _private().aot_settings(donated_buffer=False)


def _one_by_one(peer: BackendSpec) -> dict[str, Any]:
    """Returns a peer's options without its own CUDA graphs: `Clock` captures all systems itself."""
    taken = plugins.load("stack.backends", peer.backend).options
    graph = {} if taken is not None and "graph" not in taken else {"graph": False}
    return {**graph, **peer.options}


def _own(program: GpuProgram, peer: BackendSpec, name: str) -> GpuSystem:
    options = _one_by_one(peer)
    with _torch().no_grad():
        fn = compile(program.fn, *program.args, backend=peer.backend, label=name, **options)
    system = _called(name, "generated", fn, program)
    system.is_ours = True
    _count(system, fn.run.kernels)
    return system


def _count(system: GpuSystem, kernels: Sequence[Any]) -> None:
    system.steps += len(kernels)
    system.library_calls += sum(k.kind == "library" for k in kernels)
    system.fallbacks += sum(k.kind == "fallback" for k in kernels)
    if system.library_calls:
        system.kind = "library"
    system.note = (
        f"{system.steps - system.library_calls - system.fallbacks} generated,"
        f" {system.library_calls} library, {system.fallbacks} fallback"
    )


def _through(name: str, kind: str, executable: Executable, captured: Any) -> GpuSystem:
    if executable.accept is None or executable.call is None:
        raise StackError(f"{name} takes no arrays of a device")
    accept, call = executable.accept, executable.call
    back = find_frontend(captured.original, captured.args).from_device

    def prepare(args: Sequence[Any]) -> Any:
        return accept([*captured.bound, *captured.flatten(*args)])

    def results(found: Any) -> list[Any]:
        return leaves(captured.unflatten(back(found)))

    return GpuSystem(name, kind, call, prepare, results)


def _ir(program: GpuProgram, peer: BackendSpec, device: str) -> GpuSystem:
    backend: Backend = plugins.load("stack.backends", peer.backend)
    need = backend.missing()
    if need is not None:
        raise StackError(need)
    frontend = find_frontend(program.fn, program.args)
    captured = frontend.capture(program.fn, program.args)
    options = {"device": device, "call_opaque": frontend.call_opaque, **peer.options}
    lowered = lower(captured.func, backend, Run(), target=target_of(backend, options))
    executable = backend.compile(lowered, options)
    system = _through(f"{peer.label}/ir", "peer", executable, captured)
    if peer.backend in ("xla", "tvm"):
        # its work is on its own streams: use the wall clock, which includes its dispatch
        system.wait = executable.wait
        system.note = "; ".join(filter(None, ("wall clock", executable.note)))
    return system


def _own_training(program: GpuProgram, peer: BackendSpec, name: str) -> GpuSystem:
    torch = _torch()
    find_backend(peer.backend)
    options = {"backend": peer.backend, **_one_by_one(peer)}
    compiled = torch.compile(program.fn, backend="stack", dynamic=False, options=options)
    frontend = importlib.import_module("stack.frontends.torch")
    known = len(frontend.runs())
    system = _called(name, "generated", compiled, program)
    system.is_ours = True
    inner = system.results

    def results(found: Any) -> list[Any]:
        if not system.steps:
            for run in frontend.runs()[known:]:
                _count(system, run.kernels)
        return inner(found)

    system.results = results
    return system


# ---- in double precision


def exact_results(program: GpuProgram) -> list[Any]:
    """Returns the results of the naive source in double precision, on the device, in parts."""
    torch = _torch()
    fn: Any = program.fn
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(program.fn)
        fn = fn.double()
    args = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a
        for a in program.args
    ]
    wide = GpuProgram(fn, tuple(args), mode=program.mode, wanted=program.wanted)
    if program.mode != "forward" or not program.split or program.parts == 1:
        system = _called("exact", "peer", fn, wide)
        found = system.results(system.call(system.prepare(args)))
        return [f.detach() for f in found]
    pieces: list[list[Any]] = []
    for number in range(program.parts):
        part = [
            a if axis is None else a.tensor_split(program.parts, axis)[number]
            for a, axis in zip(args, program.split, strict=True)
        ]
        with torch.no_grad():
            pieces.append(leaves(fn(*part)))
    return [torch.cat(same, program.join) for same in zip(*pieces, strict=True)]


def source_error(program: GpuProgram, exact: Sequence[Any]) -> float:
    """Returns the error of the program's source in eager torch relative to `exact` results.

    This error comes only from the precision of the element types.
    """
    system = _called("eager", "library", program.fn, program)
    return error_of(exact, system.results(system.call(system.prepare(program.args))))


def error_of(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """Returns the largest error of any result, relative to the largest value of that result.

    Infinite if shapes, infinities or nans differ. Results are compared in parts, since a comparison
    as a whole may not fit into free memory.
    """
    if len(expected) != len(found):
        return math.inf
    return max((_error(w, h) for w, h in zip(expected, found, strict=True)), default=0.0)


def _error(want: Any, have: Any) -> float:
    torch = _torch()
    if want.shape != have.shape:
        return math.inf
    if not want.numel():
        return 0.0
    scale, worst = 1e-30, 0.0
    parts = zip(want.reshape(-1).split(PART), have.reshape(-1).split(PART), strict=True)
    for a, part in parts:
        b = part.to(a.dtype)
        finite = torch.isfinite(a)
        same = (a == b) | (a.isnan() & b.isnan())
        if not bool((same | (finite & torch.isfinite(b))).all()):
            return math.inf
        zero = torch.zeros((), dtype=a.dtype, device=a.device)
        scale = max(scale, float(torch.where(finite, a, zero).abs().max()))
        worst = max(worst, float(torch.where(same, zero, a - b).abs().max()))
    return worst / scale
