"""Finds the first wrong rewrite of a pass by bisection over the number of rewrites."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError
from stack.ir.func import Func
from stack.rewrite.log import Fuel, Log, Rewrite
from stack.rewrite.passes import Pass
from stack.target import Target


@dataclass(frozen=True)
class Blame:
    """The first rewrite of a pass that made the function wrong, its number in the pass (from 1),
    and what is wrong after it.
    """

    rewrite: Rewrite
    number: int
    problem: str

    def __str__(self) -> str:
        text = f"rewrite {self.number}, by {self.rewrite.rule}"
        text += f", at {self.rewrite.node}" if self.rewrite.node else ""
        return text + (f", from {', '.join(self.rewrite.source)}" if self.rewrite.source else "")


def shown(error: Exception) -> str:
    """An error in one line; for an unexpected exception also its type and source position."""
    said = next(iter(str(error).splitlines()), "")
    if isinstance(error, StackError):
        return said
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {said}, at {Path(last.filename).name}:{last.lineno}"


def first_wrong(
    one: Pass, before: Func, problem: Callable[[Func], str], target: Target | None = None
) -> Blame | None:
    """Finds the first rewrite after which the function that a pass makes is wrong, by running the
    pass with limited numbers of rewrites. None if no rewrite is the cause.

    Args:
        problem: returns the problem of a function that the pass made; "" if there is none.
    """

    def after(fuel: int | None) -> tuple[str, list[Rewrite]]:
        log = Log(fuel=Fuel(fuel), target=target)
        try:
            return problem(one.run(before, log)), log.rewrites
        except Exception as error:
            return shown(error), log.rewrites

    said, rewrites = after(None)
    low, high = 0, len(rewrites)  # right with `low` rewrites, wrong with `high`
    if not said or not high or after(0)[0]:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        wrong = after(middle)[0]
        low, high, said = (low, middle, wrong) if wrong else (middle, high, said)
    said, rewrites = after(high)
    return Blame(rewrites[-1], high, said) if said else None
