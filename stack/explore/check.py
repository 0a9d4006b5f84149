"""Check that every stage computes the same as the program, by interpreting both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.errors import StackError
from stack.ir.interpreter import evaluate
from stack.ir.node import Func
from stack.ir.streaming import TiledSpace
from stack.rewrite.check import TOLERANCE, difference, sample_sizes
from stack.rewrite.edges import KINDS, edge_inputs
from stack.run.overlap import overlaps
from stack.run.record import Stage


@dataclass(frozen=True)
class Verdict:
    """Result of checking one stage on one kind of inputs; `problem` is "" if it agrees."""

    stage: str
    kind: str
    error: float = 0.0
    problem: str = ""


class ReferenceResults:
    """The reference results of a function on every kind of inputs.

    Inputs that the function rejects, such as indices out of bounds, are left out; `kinds` lists the
    rest. Symbolic sizes are bound to small numbers.
    """

    def __init__(self, func: Func, seed: int = 0) -> None:
        self.sizes = sample_sizes(func, np.random.default_rng(seed)) if func.symbols else {}
        self.func = func.bind(self.sizes) if self.sizes else func
        self.inputs: dict[str, list[np.ndarray]] = {}
        self.results: dict[str, list[Any]] = {}
        for kind in KINDS:
            inputs = edge_inputs(self.func, kind, seed)
            try:
                results = interpreted(self.func, inputs)
            except (StackError, TypeError, ValueError, IndexError):
                continue
            self.inputs[kind], self.results[kind] = inputs, results

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of inputs that the function accepts."""
        return tuple(self.inputs)

    def error(self, kind: str, found: Sequence[Any]) -> tuple[float, str]:
        """Returns the largest relative error of results, and a description if it is too large."""
        worst = 0.0
        for i, (want, have) in enumerate(zip(self.results[kind], found, strict=True)):
            dtype = self.func.results[i].dtype
            error = difference(want, have, dtype)
            if error > TOLERANCE.get(dtype.name, 0.0):
                return error, f"result {i} differs by {error:.3g} of its largest value"
            worst = max(worst, error)
        return worst, ""

    def problem(self, func: Func, kinds: Sequence[str] = KINDS) -> str:
        """Compares another function on some kinds of inputs; returns the problem, or "" if none."""
        bound = func.bind(self.sizes) if func.symbols else func
        for kind in kinds:
            if kind in self.inputs:
                problem = self.verdict("", kind, bound).problem
                if problem:
                    return f"{problem} ({kind})"
        return ""

    def verdict(self, stage: str, kind: str, func: Func) -> Verdict:
        """Compares a stage with the reference results on one kind of inputs."""
        try:
            found = interpreted(func, self.inputs[kind])
        except (StackError, TypeError, ValueError, IndexError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            return Verdict(stage, kind, np.inf, f"it cannot be interpreted: {said}")
        return Verdict(stage, kind, *self.error(kind, found))


def interpreted(func: Func, inputs: Sequence[np.ndarray]) -> list[Any]:
    """Runs the reference interpreter, with streams in tiles; infinities and nan do not warn."""
    return list(evaluate(func.body, inputs, TiledSpace()))


def check_stages(stages: Sequence[Stage]) -> Iterator[Verdict]:
    """Compares every IR stage with the first on all kinds of inputs; checks the memory plan."""
    funcs = [(s.name, s.func) for s in stages if s.func is not None]
    truth = ReferenceResults(funcs[0][1])
    for name, func in funcs[1:]:
        bound = func.bind(truth.sizes) if func.symbols else func
        for kind in truth.kinds:
            yield truth.verdict(name, kind, bound)
        for overlap in overlaps(func):
            yield Verdict(name, "memory", 0.0, str(overlap))
