"""`stack.first_nan`: where a nan or an infinity first appears in a program."""

from __future__ import annotations

from typing import Any

from stack.explore.lowering import Settings
from stack.explore.target import ExampleCall
from stack.faults.first_nan import first_nan_of
from stack.run.trace import entry_of


def first_nan(fn: Any, *args: Any, inf: bool = False, backend: str | None = None) -> Any:
    """Finds where a nan first appears in a program: op, source line, module, kernel and operands.

    Interprets the program of torch or JAX on these arguments, or on the example arguments that its
    target has. If no value is nan, finds where the infinities of the results first appear. If a
    result is nan, the first place whose nans may reach a result is named, and others after it.
    Returns a `stack.faults.first_nan.FirstNan`, which prints as text.

    Args:
        inf: find where infinities of the results first appear, also if there are nans.
        backend: the backend whose kernel is named.
    """
    entry = entry_of(fn)
    label = getattr(fn, "__name__", type(fn).__name__)
    target = ExampleCall(label, entry.fn, args or entry.args or ())
    return first_nan_of(target, Settings(backend), inf)
