"""The record of a run, with the questions that people ask about it."""

from __future__ import annotations

import html
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.ir.func import Func
from stack.run.backend import Executable
from stack.run.record import Run
from stack.wings import missing, wing

if TYPE_CHECKING:
    from stack.explore.memory import MemoryPeak
    from stack.explore.steps import KernelSteps

# The methods import what answers them, so that `import stack` does not load it.


class ExploredRun(Run):
    """The record of one compilation, as `compiled.run` and `stack.capture()` give it.

    It shares stages, kernels and notes with the record of the compiler.
    """

    def diff(self, before: str, after: str) -> str:
        """The difference between two stages, or between two steps of a kernel, as `y.step1` and
        `y.step2`.
        """
        from stack.explore.in_memory_run import diff_text

        return diff_text(self, before, after)

    def steps(self, value: str) -> KernelSteps:
        """The kernel of a value, step by step. It prints as the list of its steps with their
        reasons; `.steps[2].func` is the kernel after the second step, `.steps[0].func` the initial
        loop nest.

        Raises UsageError if no kernel of a value with this name is built in steps.
        """
        from stack.explore.in_memory_run import steps_of_value

        return steps_of_value(self, value)

    def where(self, what: str) -> str:
        """Traces a source line ("block.py:42"), a value or a kernel through the stages."""
        from stack.explore.in_memory_run import where_text

        return where_text(self, what)

    def explain(self, what: str, other: str = "") -> str:
        """Explains what passes did at a line, a value or a kernel; with two names, why they are one
        kernel or not.
        """
        from stack.explore.in_memory_run import explain_text

        return explain_text(self, what, other)

    def memory(self) -> MemoryPeak:
        """The values that are in memory at the peak; prints as a table of bytes by source line."""
        from stack.explore.in_memory_run import held
        from stack.explore.memory import memory_peak

        return memory_peak(held(self))

    def resume(self, stage: str, func: Func | str | None = None) -> ResumedRun:
        """Compiles again from a recorded stage, optionally with another function or text in its
        place. Returns the compiled callable.
        """
        from stack.explore.in_memory_run import resume

        record, executable = resume(self, stage, func)
        return ResumedRun(explored(record), executable)

    def report(self, path: str | Path) -> Path:
        """Writes the run as one web page and returns its path."""
        Path(path).write_text(wing("report").page_of(self), encoding="utf-8")
        return Path(path)

    def _repr_html_(self) -> str:
        if missing("report") is not None:
            return f"<pre>{html.escape(repr(self))}</pre>"
        return wing("report").tables_of(self)


@dataclass
class ResumedRun:
    """A run continued from one of its stages; call it with NumPy arrays."""

    run: ExploredRun
    executable: Executable

    def __repr__(self) -> str:
        return f"<Resumed {self.run}>"

    def __call__(self, *arrays: Any) -> Any:
        found = self.executable.run(list(arrays))
        return found[0] if len(found) == 1 else tuple(found)


def explored(record: Run) -> ExploredRun:
    """Returns the questions about a record of the compiler."""
    return ExploredRun(**{f.name: getattr(record, f.name) for f in fields(record)})
