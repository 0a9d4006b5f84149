"""The training step of a program, where its frontend can make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import UsageError
from stack.explore.target import Program
from stack.run.compile import find_frontend

Step = Callable[[Any, tuple[Any, ...]], tuple[Callable[..., Any], tuple[Any, ...]]]


def train_step(program: Program) -> Program:
    """A program that returns its results and the gradient of their sum for every parameter.

    The frontend's `train_step(fn, args) -> (fn, args)` makes it; raises UsageError without one.
    """
    frontend = find_frontend(program.fn, program.args, program.frontend)
    make: Step | None = getattr(frontend, "train_step", None)
    if make is None:
        raise UsageError(f"the {frontend.name} frontend cannot make a training step yet")
    fn, args = make(program.fn, program.args)
    return Program(f"{program.spec} (train)", fn, args, program.frontend)
