"""Profile a program: compile it, time every kernel, compare with the ceilings of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stack.calls.compiled_callable import Compiled
from stack.errors import StackError
from stack.explore.lowering import (
    Settings,
    capture,
    captured_program,
    compile_program,
    with_random_inputs,
)
from stack.explore.target import CommandTarget
from stack.explore.target import ExampleCall as Source
from stack.measure.gpu_ceilings import gpu_ceilings, load_torch
from stack.measure.kernels import above_roof, kernel_report, kernel_timings, widest_dtype
from stack.measure.roofline import Ceilings, measure_ceilings
from stack.measure.systems import BenchProgram, Say, program_of
from stack.measure.timing import Timing
from stack.phases import phase
from stack.run.backend import Executable
from stack.run.captured_program import CapturedProgram
from stack.run.record import Run


@dataclass(frozen=True)
class Profile:
    """Measurements of a program. `timings` has an entry per kernel, or is None if not supported.

    `dtype` is the element type of most operations; its peak is the roof.
    """

    run: Run
    executable: Executable
    timings: list[Timing] | None
    ceilings: Ceilings
    dtype: str

    def as_dict(self) -> dict[str, Any]:
        """The entry of the run's manifest: the rounds of each kernel in order, and the ceilings."""
        rounds = None if self.timings is None else [list(t.rounds) for t in self.timings]
        return {"seconds": rounds, "dtype": self.dtype, "ceilings": asdict(self.ceilings)}

    def __str__(self) -> str:
        times = None if self.timings is None else [t.median for t in self.timings]
        return kernel_report(self.executable.kernels, times, self.ceilings, self.dtype)


def profile(target: CommandTarget, settings: Settings, say: Say) -> Profile:
    """Compiles a target and times its kernels on its example arguments; IR text on random ones.

    A program is compiled as `stackc dump` does without a profile, so that their stages are equal.
    """
    with phase("rest"):
        graph, storage = _compiled(target, settings)
        executable = graph.executable_for(storage)
        with phase("first call"):
            executable.run(storage)
    return profile_of(graph.run, executable, storage, widest_dtype(graph.func), say)


def _compiled(
    target: CommandTarget, settings: Settings
) -> tuple[CapturedProgram, list[np.ndarray]]:
    """Returns the compiled graph of a target, and its arguments."""
    graph = _graph(compile_program(target, settings)) if isinstance(target, Source) else None
    captured, frontend = capture(target, settings)
    if not isinstance(target, Source):
        captured = with_random_inputs(captured)
    found = _in_order(graph, program_of(captured, frontend)) if graph is not None else None
    if graph is None or found is None:  # several graphs, or parameters that only one of them has
        graph = captured_program(captured, frontend, target, settings)
        found = program_of(graph.captured, frontend).storage
    return graph, found


def _graph(compiled: Compiled) -> CapturedProgram | None:
    try:
        return compiled.graph
    except StackError:
        return None


def _in_order(graph: CapturedProgram, program: BenchProgram) -> list[np.ndarray] | None:
    """Returns a program's arrays in the order of a graph's parameters; None if names differ."""
    params = program.captured.func.params
    held = {str(p.attrs["name"]): a for p, a in zip(params, program.storage, strict=True)}
    names = [str(p.attrs["name"]) for p in graph.func.params]
    return [held[name] for name in names] if sorted(names) == sorted(held) else None


def profile_of(
    run: Run, executable: Executable, storage: Sequence[np.ndarray], dtype: str, say: Say
) -> Profile:
    """Profiles a compiled program."""
    say("measuring kernels, and the ceilings of this machine")
    timings = kernel_timings(executable, storage)
    ceilings = _ceilings(executable)
    times = [t.median for t in timings or ()]
    if above_roof(executable.kernels, times, ceilings, dtype):
        say("a kernel is above the roof: measuring the ceilings again")
        ceilings = ceilings.or_better(_ceilings(executable))
    found = Profile(run, executable, timings, ceilings, dtype)
    run.profile = found.as_dict()
    return found


def _ceilings(executable: Executable) -> Ceilings:
    if executable.device.startswith("cuda"):
        return gpu_ceilings(load_torch(), rounds=3, kinds=("bf16", "f32"))
    return measure_ceilings(quick=True)
