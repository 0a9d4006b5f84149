"""`check`: an architecture through the compiler, beside eager and an f64 run."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from strangers.report_row import Absent, Report

import stack

Factory = Callable[[], tuple[Any, tuple[Any, ...]]]
Results = dict[str, np.ndarray]


class Program(Protocol):
    """The interface to a framework: results, and parameters and buffers after three steps.

    `start` numbers the starting weights: those of the module, and others that differ from them by
    rounding.
    """

    def start(self) -> Results: ...
    def exact(self) -> Results: ...
    def eager(self, start: int) -> Results: ...
    def found(self) -> Results: ...
    def trained_exact(self) -> Results: ...
    def trained_eager(self, start: int) -> Results: ...
    def trained_found(self, start: int) -> Results: ...


STARTS = range(3)


def program(model: Any, args: tuple[Any, ...]) -> Program:
    """A module of torch, or else a function of JAX whose first argument is its parameters."""
    if hasattr(model, "named_parameters"):
        from strangers.torch_program import TorchProgram

        return TorchProgram(model, args)
    from strangers.jax_program import JaxProgram

    return JaxProgram(model, args)


def check(factory: Factory, name: str = "", program: Callable[..., Program] = program) -> Report:
    """Build, compile, call and train one architecture; what fails is a figure, not an exception.

    Args:
        factory: makes the module and its arguments. What it cannot import is skipped.
        program: how the framework runs it.
    """
    report = Report(name or getattr(factory, "__name__", str(factory)))
    at = "build"
    try:
        made = program(*seeded(factory))
        at = "eager"
        exact, eager = made.exact(), [made.eager(i) for i in STARTS]
        at = "capture"
        began, busy = time.perf_counter(), cpu_seconds()
        with stack.capture() as seen:
            found = made.found()
        report.seconds, report.cpu = time.perf_counter() - began, cpu_seconds() - busy
        report.captured, report.parts = bool(seen.runs), len(seen.runs)
        report.ops, report.native = _count(report, seen.runs)
        report.compare_results(exact, eager, found)
        at = "train in f64"
        start, exact = made.start(), made.trained_exact()
        at = "train in eager"
        runs = [made.trained_eager(i) for i in STARTS]
        at = "train"
        began = time.perf_counter()
        with stack.capture() as seen:
            trained = [made.trained_found(0)]
        report.train_seconds = time.perf_counter() - began
        report.graphs = len(seen.runs)
        report.train_ops, report.train_native = _count(report, seen.runs)
        report.compare_training(start, exact, runs, trained)
        if report.leaving:
            trained += [made.trained_found(i) for i in STARTS[1:]]
            report.compare_training(start, exact, runs, trained)
    except Exception as error:
        if at == "build" and is_absent(error):
            report.skipped = first_line(error)
        else:
            report.failed = f"{at}: {first_line(error)}"
    return report


def cpu_seconds() -> float:
    """CPU seconds of this process so far, with its threads and ended children."""
    return sum(os.times()[:4])


def is_absent(error: Exception) -> bool:
    """True if a factory needs what is not installed; False if its imports fail otherwise."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return importlib.util.find_spec(error.name.partition(".")[0]) is None
    return isinstance(error, Absent)


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0].strip()}"


def seeded(factory: Factory) -> tuple[Any, tuple[Any, ...]]:
    """The result of a factory for the random numbers of one seed."""
    try:
        import torch
    except ImportError:
        return factory()
    torch.manual_seed(0)
    return factory()


def _count(report: Report, runs: list[Any]) -> tuple[int, int]:
    """All ops of some graphs and the compiled ones; fallbacks are added to the report."""
    for run in runs:
        for op, times in run.coverage["fallback_ops"].items():
            report.fallback[op] = report.fallback.get(op, 0) + times
    return (
        sum(run.coverage["ops"] for run in runs),
        sum(run.coverage["native"] for run in runs),
    )
