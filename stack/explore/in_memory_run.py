"""Give an in-memory run the interface of a saved run, and answer questions about it as text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import stack.plugins as plugins
from stack.errors import UsageError, unknown_name
from stack.explore.diff import diff_texts, without_lines
from stack.explore.kernel_sharing import explain_pairs, told
from stack.explore.provenance import explain, where
from stack.explore.retrace import retrace
from stack.explore.saved_run import SavedRun
from stack.explore.steps import STAGE as STEPS
from stack.explore.steps import KernelSteps, is_step, step_text, stepped
from stack.ir.func import Func
from stack.ir.parser import parse
from stack.ir.verifier import verify
from stack.run.backend import Backend, Executable
from stack.run.compile import walk_stages
from stack.run.decisions import Decisions
from stack.run.options import target_of
from stack.run.record import Run, Stage
from stack.target import Target


@dataclass(frozen=True)
class InMemoryRun(SavedRun):
    """A run of this process with the interface of a saved run; it has no folder."""

    run: Run

    def text(self, name: str) -> str:
        if is_step(name) and name not in self.run.stages:
            backend: Backend = plugins.load("stack.backends", self.run.backend)
            return step_text(name, self.func(STEPS), backend, _machine(self.run))
        if name not in self.run.stages:
            raise unknown_name("no stage", name, self.run.stages)
        return self.run[name].text

    def func(self, name: str) -> Func:
        found = self.run[name].func
        if found is None:
            raise UsageError(f"stage {name!r} is another compiler's text, not IR")
        return found

    def decisions(self, stage: str) -> list[Decisions]:
        return self.run[stage].decisions

    @cached_property
    def sources(self) -> dict[str, str]:
        return self.run.sources

    def kernel_text(self, name: str) -> str:
        for kernel in self.run.kernels:
            if kernel.name == name:
                return kernel.text
        raise unknown_name("no kernel", name, [k.name for k in self.run.kernels])


def held(run: Run) -> InMemoryRun:
    """Wraps a run of this process as `InMemoryRun`, for functions that expect a saved run."""
    return InMemoryRun(Path(run.target or "the run"), run.manifest(), run)


class Text(str):
    """A string that prints without quotes in notebooks and at prompts."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def diff_text(run: Run, before: str, after: str) -> Text:
    """Returns the diff of two stages without source lines, or "" if they are equal."""
    view = held(run)
    old, new = (without_lines(view.text(name)) for name in (before, after))
    return Text(diff_texts(old, new, (before, after)))


def where_text(run: Run, what: str) -> Text:
    """Lists the nodes of each stage, and the kernels, that belong to a line, value or kernel."""
    found = where(held(run), what)
    lines = [f"{what}: from {', '.join(found.source) or 'no source line'}"]
    for stage, places in found.stages.items():
        lines.append(f"{stage}:")
        lines.extend(f"  {without_lines(p.text)}" for p in places)
    return Text("\n".join([*lines, f"kernels: {', '.join(found.kernels) or 'none'}"]))


def explain_text(run: Run, what: str, other: str = "") -> Text:
    """Explains what passes did to the nodes of a source line, value or kernel `what`.

    With `other`, also a line, value or kernel: why one kernel computes both, or why separate ones
    do.
    """
    if other:
        return Text(told(explain_pairs(retrace(held(run)), what, other)))
    reasons = [f"{r.stage}, {r.pass_name}: {r.text}" for r in explain(held(run), what)]
    return Text("\n".join(reasons) or f"no pass touched {what}")


def steps_of_value(run: Run, value: str) -> KernelSteps:
    """Returns the schedule steps of the kernel that computes `value`.

    Raises UsageError, with the known values, if no kernel with schedule steps computes it.
    """
    backend: Backend = plugins.load("stack.backends", run.backend)
    known = {k.value: k for k in stepped(held(run).func(STEPS), backend, _machine(run))}
    found = known.get(value.removeprefix("%"))
    if found is None:
        raise unknown_name("no kernel with schedule steps computes", value, list(known))
    return found


def _machine(run: Run) -> Target | None:
    """Returns the target machine of a run: the one that it names, else its backend's default.

    Returns None if the backend has no target.
    """
    backend: Backend = plugins.load("stack.backends", run.backend)
    return target_of(backend, {"target": run.machine} if run.machine else {})


def resume(run: Run, stage: str, func: Func | str | None = None) -> tuple[Run, Executable]:
    """Lowers and compiles the rest of a run: the stages after `stage`, with their pipelines.

    Returns the new record and the executable.

    `func`, a function or IR text, replaces that of the stage. Raises UsageError if no stage of IR
    has this name, and VerifyError, before anything is compiled, if `func` is invalid.
    """
    at = [s.name for s in run.records]
    if stage not in at or run[stage].func is None:
        known = [s.name for s in run.records if s.func is not None]
        raise unknown_name("no stage of IR", stage, known)
    taken = parse(func) if isinstance(func, str) else func or run[stage].func
    assert taken is not None
    verify(taken)
    place = at.index(stage)
    made = Run(
        f"{run.target or 'a function'} from {stage}", run.frontend, run.backend, run.records[:place]
    )
    made.records.append(
        Stage(stage, func=taken, passes=run[stage].passes, changed=taken is not run[stage].func)
    )
    backend: Backend = plugins.load("stack.backends", run.backend)
    machine = _machine(run)
    left = [(s.name, s.passes) for s in run.records[place + 1 :] if s.func is not None and s.passes]
    lowered = walk_stages(taken, left, made, machine)
    executable = backend.compile(lowered, {})
    made.kernels = executable.kernels
    made.add_texts(executable.artifacts)
    first = next(s.func for s in made.records if s.func is not None)
    made.cover(first)
    return made, executable
