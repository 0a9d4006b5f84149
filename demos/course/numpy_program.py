"""Programs of lessons that need only NumPy: traced by `stack.mini`, lowered by the compiler.

`stack.mini` prints the text that `stack.parse` reads, with source lines. So a lesson writes Python
functions without a framework.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import stack.mini as mini
from stack.explore.explored_run import ExploredRun, explored
from stack.explore.lowering import Settings, lower_to
from stack.explore.target import IRText
from stack.ir import Func, parse


def traced(fn: Callable[..., Any], *arrays: mini.Array) -> Func:
    """Returns the IR of a function of arrays with these shapes, written with `stack.mini`."""
    return parse(str(mini.trace(fn, *arrays)))


def lowered(func: Func, stage: str, *schedules: str, passes: str = "default") -> ExploredRun:
    """Returns the stages of a function down to `stage`, for an H100 that need not be here.

    `schedules` has texts such as "dot: bind i grid", for the value `%dot`.
    """
    settings = Settings("triton", machine="sm_90", schedules=schedules, passes=passes)
    return explored(lower_to(IRText(f"@{func.name}", func), settings, stage))
