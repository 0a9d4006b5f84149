"""Profile a program: compile it, time every kernel, compare with the ceilings of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stack.explore.lowering import Settings, capture, graph_of, with_random_inputs
from stack.explore.target import CommandTarget, ExampleCall
from stack.measure.gpu_ceilings import gpu_ceilings, load_torch
from stack.measure.kernels import kernel_report, kernel_timings, widest_dtype
from stack.measure.roofline import Ceilings, measure_ceilings
from stack.measure.systems import Say, program_of
from stack.measure.timing import Timing
from stack.phases import phase
from stack.run.backend import Executable
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

    def __str__(self) -> str:
        times = None if self.timings is None else [t.median for t in self.timings]
        return kernel_report(self.executable.kernels, times, self.ceilings, self.dtype)


def profile(target: CommandTarget, settings: Settings, say: Say) -> Profile:
    """Compiles a target and times its kernels on its example arguments; IR text on random ones."""
    with phase("capture"):
        captured, frontend = capture(target, settings)
        if not isinstance(target, ExampleCall):
            captured = with_random_inputs(captured)
        program = program_of(captured, frontend)
        graph = graph_of(captured, frontend, target, settings)
        executable = graph.executable_for(program.storage)
        with phase("first call"):
            executable.run(program.storage)
    return profile_of(graph.run, executable, program.storage, widest_dtype(graph.func), say)


def profile_of(
    run: Run, executable: Executable, storage: Sequence[np.ndarray], dtype: str, say: Say
) -> Profile:
    """Profiles a compiled program."""
    say("measuring kernels, and the ceilings of this machine")
    timings = kernel_timings(executable, storage)
    if executable.device.startswith("cuda"):
        ceilings = gpu_ceilings(load_torch(), rounds=3, kinds=("bf16", "f32"))
    else:
        ceilings = measure_ceilings(quick=True)
    return Profile(run, executable, timings, ceilings, dtype)
