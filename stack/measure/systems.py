"""The systems of a comparison: ours, and each peer on our function and on the user's program."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.calls.compiled_callable import compile
from stack.calls.graph import CompiledGraph
from stack.errors import BackendMissing, StackError
from stack.ir.func import Func
from stack.measure.caches import fresh_caches
from stack.measure.roofline import memory_elements
from stack.measure.runners import LocalRunner, Runner, UserRunner, WorkerDied, WorkerRunner
from stack.run.backend import Backend, Executable
from stack.run.compile import lower
from stack.run.frontend import Captured, Frontend
from stack.run.options import target_of
from stack.run.record import Run
from stack.run.specs import BackendSpec

Say = Callable[[str], None]
NO_OPTIONS: Mapping[str, Any] = {}


@dataclass
class BenchProgram:
    """The common input of all systems: one captured function and one set of arguments.

    `given`: bytes of memory of the inputs, in the user's layout.
    """

    captured: Captured
    frontend: Frontend
    storage: list[np.ndarray]
    given: list[float] = field(default_factory=list[float])

    @property
    def func(self) -> Func:
        return self.captured.func


@dataclass
class System:
    """A program compiled by one system, or the reason why it failed.

    `via` is "own", "ir" (our function, replayed) or "native" (the user's callable).
    """

    label: str
    via: str
    runner: Runner | None = None
    compile_s: float | None = None
    problem: str = ""
    is_missing: bool = False
    is_dead: bool = False  # crashed its process
    graph: CompiledGraph | None = None  # our own graph

    @property
    def name(self) -> str:
        """Returns `xla/ir`: the system and how it got the program."""
        return f"{self.label}/{self.via}"


def capture_program(frontend: Frontend, fn: Any, args: Sequence[Any]) -> BenchProgram:
    """Captures a callable and converts its inputs."""
    return program_of(frontend.capture(fn, tuple(args)), frontend)


def program_of(captured: Captured, frontend: Frontend) -> BenchProgram:
    """Converts a captured program's weights, then its example arguments, to storage arrays."""
    arrays = [*captured.bound, *captured.flatten(*captured.args)]
    storage = [
        np.ascontiguousarray(frontend.to_numpy(a, p.dtype)).reshape(np.shape(a))
        for a, p in zip(arrays, captured.func.params, strict=True)
    ]
    given = [_memory(a, held) for a, held in zip(arrays, storage, strict=True)]
    return BenchProgram(captured, frontend, storage, given)


def _memory(array: Any, held: np.ndarray) -> float:
    """Returns the bytes of memory that a user's array occupies; `held` is its dense copy.

    Only torch has strided arrays; elements at one address, as of a broadcast, count once.
    """
    strides = array.stride() if hasattr(array, "stride") else None
    elements = held.size if strides is None else memory_elements(array.shape, strides)
    return elements * held.itemsize


def own_system(
    program: BenchProgram,
    backend: str | None,
    passes: str,
    target: str,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> System:
    """Compiles a program with our compiler, called as users call it, and calls it once.

    A program from IR text is no callable, and is compiled directly. Errors are raised to the
    caller.
    """
    captured, frontend = program.captured, program.frontend
    if not frontend.accepts(captured.original, captured.args):
        with fresh_caches():
            return graph_system(program, backend, passes, target, options)
    with fresh_caches():
        start = time.perf_counter()
        compiled = compile(
            captured.original,
            *captured.args,
            backend=backend,
            passes=passes,
            frontend=frontend.name,
            label=target,
            **options,
        )
        compiled(*captured.args)
        taken = time.perf_counter() - start
    graph = compiled.graph
    # the executable that the call compiled: its graph may take weights as arguments
    executable = next(reversed(graph.executables.values()))
    runner = UserRunner(compiled, captured, frontend, executable, program.storage)
    return System(f"stack-{graph.backend.name}", "own", runner, taken, graph=graph)


def graph_system(
    program: BenchProgram,
    backend: str | None,
    passes: str,
    target: str,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> System:
    """Compiles the captured function itself, which is called on storage arrays, as peers are."""
    start = time.perf_counter()
    captured, frontend = program.captured, program.frontend
    graph = CompiledGraph(captured, frontend, backend, passes, options=dict(options), label=target)
    runner = LocalRunner(graph.executable_for(program.storage), program.storage)
    runner.run(1)
    taken = time.perf_counter() - start
    return System(f"stack-{graph.backend.name}", "own", runner, taken, graph=graph)


def peer_systems(
    program: BenchProgram, peer: BackendSpec, ways: Sequence[str], say: Say
) -> list[System]:
    """Compiles a program with a peer, in each of `ways`: "ir" and "native".

    For "ir" the peer gets our function; for "native" the user's program, if it takes programs of
    the framework. A system that fails is returned with its problem.
    """
    try:
        backend: Backend = plugins.load("stack.backends", peer.backend)
        need = backend.missing()
    except (ImportError, AttributeError) as error:
        return [System(peer.label, "ir", problem=f"cannot be loaded: {error}", is_missing=True)]
    if need is not None:
        return [System(peer.label, "ir", problem=need, is_missing=True)]
    found: list[System] = []
    if "ir" in ways:
        say(f"{peer.label}: compiling our function")
        found.append(_guarded(peer, "ir", lambda: _through_ir(program, peer, backend)))
    died = any(s.is_dead for s in found)
    native = backend.peer and backend.peer.native
    if "native" in ways and native and not died:
        say(f"{peer.label}: compiling the user's program")
        own = _native(program, peer, native)
        found.extend([] if own is None else [own])
    return found


def _guarded(peer: BackendSpec, via: str, make: Callable[[], System]) -> System:
    try:
        return make()
    except BackendMissing as error:
        return System(peer.label, via, problem=error.need, is_missing=True)
    except WorkerDied as error:
        problem = f"{error}; the user's program is not tried in this process"
        return System(peer.label, via, problem=problem, is_dead=True)
    except Exception as error:
        return System(peer.label, via, problem=first_line(error))


def first_line(error: BaseException) -> str:
    """Formats an error of any library in one line."""
    text = str(error).strip().split("\n")[0]
    kind = "" if isinstance(error, StackError) else f"{type(error).__name__}: "
    return f"{kind}{text}"[:300] or type(error).__name__


def _through_ir(program: BenchProgram, peer: BackendSpec, backend: Backend) -> System:
    if backend.peer and backend.peer.isolate:
        with fresh_caches():
            worker = WorkerRunner(peer.backend, program.func, program.storage, peer.options)
        return System(peer.label, "ir", worker, worker.compile_s)
    options = {**peer.options, "call_opaque": program.frontend.call_opaque}
    with fresh_caches():
        start = time.perf_counter()
        lowered = lower(program.func, backend, Run(), target=target_of(backend, options))
        executable = backend.compile(lowered, options)
        return _running(peer, "ir", executable, program, start)


def _native(
    program: BenchProgram, peer: BackendSpec, native: Callable[..., Executable]
) -> System | None:
    """Compiles the user's own program, not our IR, with a peer and returns the system.

    Returns None if the peer does not take programs of this framework.
    """
    with fresh_caches():
        start = time.perf_counter()
        try:
            executable = native(program.captured, dict(peer.options))
        except StackError as error:
            if "natively" in str(error):
                return None
            return System(peer.label, "native", problem=first_line(error))
        except Exception as error:
            return System(peer.label, "native", problem=first_line(error))
        return _guarded(
            peer, "native", lambda: _running(peer, "native", executable, program, start)
        )


def _running(
    peer: BackendSpec, via: str, executable: Executable, program: BenchProgram, start: float
) -> System:
    """Calls a compiled program once, and returns it as a system with its compile time.

    The compile time, from `start`, includes the first call, since some systems compile only then.
    """
    runner = LocalRunner(executable, program.storage)
    runner.run(1)
    return System(peer.label, via, runner, time.perf_counter() - start)
