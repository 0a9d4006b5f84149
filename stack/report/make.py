"""Build reports of programs: compile, run if times are needed, add other compilers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

import stack.plugins as plugins
from stack.errors import StackError, UsageError
from stack.explore.lowering import (
    Settings,
    capture,
    compile_target,
    inspect_target,
    is_printed,
    own_inputs,
)
from stack.explore.target import CommandTarget
from stack.imports import function_of
from stack.ir.func import Func
from stack.measure.compare import Comparison
from stack.measure.kernels import widest_dtype
from stack.measure.profile import profile, profile_of
from stack.measure.runners import LocalRunner
from stack.measure.systems import BenchProgram, Say
from stack.report.content import Report, StageView, report_of, with_comparison
from stack.report.value_errors import value_errors
from stack.rewrite.inputs import random_inputs
from stack.run.backend import Backend
from stack.run.compile import DEFAULT_BACKEND
from stack.target import Target, load

InnerPasses = Callable[[Sequence[str], Func, Target | None], Iterable[tuple[str, str]]]


def fresh_report(target: CommandTarget, settings: Settings) -> Report:
    """Compiles a target and builds its report.

    For a machine that may be absent, kernels are generated but not loaded.
    """
    backend: Backend = plugins.load("stack.backends", settings.backend or DEFAULT_BACKEND)
    if is_printed(backend, settings):
        return report_of(inspect_target(target, settings))
    return report_of(compile_target(target, settings))


def profiled_report(target: CommandTarget, settings: Settings, say: Say) -> Report:
    """Compiles a target and times its kernels."""
    return report_of(profile(target, settings, say).run)


def with_errors(report: Report, target: CommandTarget, settings: Settings) -> Report:
    """Adds the rounding error of each value of a program, on its own arguments or random ones."""
    captured, frontend = capture(target, settings)
    arrays = own_inputs(captured, frontend) or random_inputs(captured.func)
    return replace(report, errors=value_errors(captured.func, arrays))


def with_inner_passes(report: Report) -> Report:
    """Adds the text after each pass inside of the backend's own compiler, as stages of their own.

    Raises UsageError if the backend cannot print them.
    """
    backend: Backend = plugins.load("stack.backends", report.backend)
    if not backend.lowering.inner or report.lowered is None:
        raise UsageError(f"backend {backend.name} has no compiler whose passes can be shown")
    inner = cast("InnerPasses", function_of(backend.lowering.inner))
    machine = load(report.machine) if report.machine else None
    kernels = [k.text for k in report.kernels if k.text]
    found = [
        StageView(f"{backend.name}.{i}.{name}", text, None)
        for i, (name, text) in enumerate(inner(kernels, report.lowered, machine), 1)
    ]
    return replace(report, stages=(*report.stages, *found))


def compared_report(found: Comparison, program: BenchProgram, say: Say) -> Report:
    """Builds the report of a comparison, with all stages and kernel times of our own run.

    Raises StackError if the comparison has no run of our compiler.
    """
    own = found.systems[0]
    if found.run is None or own.graph is None or not isinstance(own.runner, LocalRunner):
        raise StackError("the comparison has no run of our compiler to show")
    dtype = widest_dtype(found.func)
    made = profile_of(found.run, own.runner.executable, program.storage, dtype, say)
    return with_comparison(report_of(made.run), found)
