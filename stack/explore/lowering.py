"""Compile a target, completely or down to one stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.errors import StackError, UsageError, unknown_name
from stack.explore.saved_run import SavedRun
from stack.explore.target import CommandTarget, ExampleCall
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.phases import phase
from stack.rewrite.inputs import random_inputs
from stack.run.backend import Backend
from stack.run.captured_program import CapturedProgram
from stack.run.compile import (
    DEFAULT_BACKEND,
    build,
    check_native,
    operator_stage,
    stages_of,
    walk_stages,
)
from stack.run.coverage import coverage_of
from stack.run.frontend import Captured, Frontend
from stack.run.options import target_of
from stack.run.pipeline_edits import WEIGHTS, Stages, split_weights
from stack.run.record import Run, Stage
from stack.run.rejected_arguments import capture_as_eager
from stack.run.trace import IRFrontend, captured_of, find_frontend
from stack.run.work import with_work
from stack.schedule import schedules_in
from stack.target import Gpu
from stack.target import Target as Machine
from stack.wings import missing, part, wing


def with_random_inputs(captured: Captured, seed: int = 0) -> Captured:
    """Returns the program with random example arguments; for functions from IR text."""
    drawn = random_inputs(captured.func, seed)
    params = captured.func.params
    args = tuple(encode(a, p.dtype) for a, p in zip(drawn, params, strict=True))
    return replace(captured, args=args)


def own_inputs(captured: Captured, frontend: Frontend) -> list[np.ndarray]:
    """Returns a program's weights and example arguments, in the format of the interpreter.

    Returns an empty list for a function from IR text, which has no arguments of its own.
    """
    if not captured.bound and not captured.args:
        return []
    arrays = [*captured.bound, *captured.flatten(*captured.args)]
    params = captured.func.params
    return [
        decode(frontend.to_numpy(a, p.dtype), p.dtype) for a, p in zip(arrays, params, strict=True)
    ]


@dataclass(frozen=True)
class Settings:
    """Compile settings from the command line."""

    backend: str | None = None
    passes: str = "default"
    strict: bool = False
    dynamic: bool = False
    frontend: str | None = None
    machine: str = ""  # the target to lower for; "": this machine
    chosen: Mapping[str, Any] = field(default_factory=dict[str, Any])  # options of the backend
    schedules: tuple[str, ...] = ()  # `NAME: SCHEDULE`, or files of them

    @property
    def options(self) -> dict[str, Any]:
        """Returns the compile settings that are passed to a backend as its options."""
        asked: dict[str, Any] = {"target": self.machine, "schedule": self.schedules}
        return {**self.chosen, **{name: value for name, value in asked.items() if value}}

    @property
    def rounds(self) -> bool:
        """True if 16-bit floats are rounded after each op."""
        return not self.chosen.get("excess_precision", True)

    @property
    def prefer(self) -> str:
        """The preferred lowering of hosted operators, see pass `hosted`."""
        return self.chosen.get("hosted", "cost")


@phase("capture")
def capture(target: CommandTarget, settings: Settings) -> tuple[Captured, Frontend]:
    """Imports the program or IR text of a target; returns it with the frontend that was used.

    Raises UsageError for a run without IR text, and for a function below the tensor level.
    """
    if isinstance(target, ExampleCall):
        frontend = find_frontend(target.fn, target.args, target.frontend)
        dynamic = settings.dynamic
        return capture_as_eager(frontend, target.fn, target.args, dynamic=dynamic), frontend
    if isinstance(target, SavedRun):
        names = [s for s in target.stages if target.is_ir(s)]
        if not names:
            raise UsageError(f"{target.folder} has no stage of IR text to start from")
        func = target.func(names[0])
    else:
        func = target.func
    if func.level != "tensor":
        raise UsageError(
            f"@{func.name} is at the {func.level} level; programs enter at the tensor level"
            " (`stackc opt` and `stackc run` take any level)"
        )
    return captured_of(func), IRFrontend()


def label(target: CommandTarget) -> str:
    """Returns the name that manifests give to a target: a run's folder, or the user's spelling."""
    return str(target.folder) if isinstance(target, SavedRun) else target.spec


def compile_target(target: CommandTarget, settings: Settings) -> Run:
    """Compiles a target to an executable, and returns the record of its stages and kernels.

    A program is compiled as for its users' calls; without the wing of calls it is captured once.
    """
    if isinstance(target, ExampleCall) and missing("calls") is None:
        return compile_program(target, settings).run
    program = captured_program(*capture(target, settings), target, settings)
    if isinstance(target, ExampleCall):  # sizes may be symbols
        captured = program.captured
        arrays = [*captured.bound, *captured.flatten(*target.args)]
        program.prepare_shapes([array.shape for array in arrays])
    return program.run


def compile_program(target: ExampleCall, settings: Settings) -> Any:
    """Compiles a program as its users do, to a `Compiled`. Raises WingMissing."""
    compiled = wing("calls").Compiled(
        target.fn,
        {"frontend": target.frontend, "dynamic": settings.dynamic},
        backend=settings.backend,
        passes=settings.passes,
        strict=settings.strict,
        label=target.spec,
        **settings.options,
    )
    compiled.prepare(*target.args)
    return compiled


def record_of(target: CommandTarget, settings: Settings) -> Run:
    """Compiles a target and returns the record; for an absent machine, generates kernels only."""
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    if is_printed(backend, settings):
        return inspect_target(target, settings)
    return compile_target(target, settings)


def captured_program(
    captured: Captured, frontend: Frontend, target: CommandTarget, settings: Settings
) -> CapturedProgram:
    """Compiles a captured program with the settings."""
    return CapturedProgram(
        captured,
        frontend,
        settings.backend,
        settings.passes,
        settings.strict,
        settings.options,
        label(target),
    )


def _refuse_freeze(settings: Settings) -> None:
    """Raises UsageError if the option `freeze` is set, in commands that do not run the program."""
    if settings.chosen.get("freeze"):
        raise UsageError("freeze=true needs a program that is compiled completely and runs here")


@phase("rest")
def lower_to(target: CommandTarget, settings: Settings, stage: str) -> Run:
    """Lowers to one stage without the backend's compiler, which need not be installed."""
    _refuse_freeze(settings)
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    leading, passes = split_weights(settings.passes)
    forming, lowering = stages_of(backend, passes, settings.rounds)
    stages = [*forming, *lowering]
    before = ["captured", "imported", *([WEIGHTS] if leading else [])]
    names = [*before, *(name for name, _ in stages)]
    if stage in backend.lowering.artifacts:
        raise UsageError(
            f"stage {stage!r} comes from the {backend.name} backend's own compiler: leave out"
            f" --to, then view it with `stackc show RUN {stage}`"
        )
    if stage not in names:
        raise unknown_name("before the backend there is no stage", stage, names)
    captured, frontend = capture(target, settings)
    if settings.strict:
        check_native(captured.func)
    run = Run(label(target), frontend.name, backend.name, notes=captured.notes)
    run.options = {"passes": settings.passes, "strict": settings.strict, **settings.options}
    run.flags = frontend.flags()
    run.records.append(Stage("captured", make_text=lambda: captured.text))
    if stage != "captured":
        run.records.append(Stage("imported", func=captured.func))
    if leading and stage not in ("captured", "imported"):
        captured, made = part("ops", "with-weights")(captured, frontend, leading)
        run.records.append(made)
    run.count = partial(coverage_of, captured.func)
    if stage in before:
        return run
    first = operator_stage(captured.func, backend, passes, settings.prefer)
    kept = [*first, *stages[: names.index(stage) - len(before) + 1]]
    machine, given = target_of(backend, settings.options), schedules_in(settings.options)
    walk_stages(captured.func, kept, run, machine, given)
    return run


def is_printed(backend: Backend, settings: Settings) -> bool:
    """True if GPU kernels are only generated as text, since this machine may be unable to run them.

    That is so if the backend is for GPUs, or if the user names a target machine. Returns False for
    a backend that cannot generate kernels without running them.
    """
    if backend.inspect is None:
        return False
    return bool(settings.machine) or isinstance(target_of(backend, {}), Gpu)


def all_stages(func: Func, settings: Settings) -> tuple[Stages, Machine | None]:
    """Returns the stages from an imported function to a backend, and the target machine."""
    _refuse_freeze(settings)
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    _, passes = split_weights(settings.passes)
    first = operator_stage(func, backend, passes, settings.prefer)
    forming, lowering = stages_of(backend, passes, settings.rounds)
    return [*first, *forming, *lowering], target_of(backend, settings.options)


@phase("rest")
def inspect_target(target: CommandTarget, settings: Settings) -> Run:
    """Lowers a target and generates kernels for a machine that may be absent; runs nothing."""
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    leading, passes = split_weights(settings.passes)
    run = lower_to(target, settings, WEIGHTS if leading else "imported")
    return _inspect(run, backend, replace(settings, passes=passes))


@phase("rest")
def inspect_again(run: Run, settings: Settings) -> Run:
    """Lowers the imported function of a run for a machine that may be absent; runs nothing."""
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    imported = run["imported"].func
    assert imported is not None
    made = Run(run.target, run.frontend, backend.name, notes=run.notes)
    made.options = {"passes": settings.passes, **settings.options}
    made.flags = run.flags
    made.records.append(run["captured"])
    made.records.append(run["imported"])
    return _inspect(made, backend, settings)


def _inspect(run: Run, backend: Backend, settings: Settings) -> Run:
    imported, inspect = run[run.stages[-1]].func, backend.inspect
    assert imported is not None
    assert inspect is not None
    _refuse_freeze(settings)
    options = settings.options
    start = time.perf_counter()
    kernels, artifacts = build(
        imported,
        backend,
        run,
        lambda f: inspect(f, options),
        settings.passes,
        rounds=settings.rounds,
        target=target_of(backend, options),
        hosted=settings.prefer,
        schedules=schedules_in(options),
    )
    run.kernels = with_work(kernels, run.functions)
    run.add_texts(artifacts)
    run.compile_s = time.perf_counter() - start
    run.cover(imported)
    return run


def report_failure(error: StackError) -> str:
    """Formats an error for the command line, with its notes."""
    notes: list[str] = list(getattr(error, "__notes__", ()))
    return "\n".join([str(error), *(f"  {note}" for note in notes)])
