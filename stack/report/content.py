"""Contents of a report: a run, its kernels with times, and the kernels of other compilers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from stack.explore.in_memory_run import held
from stack.explore.provenance import places
from stack.explore.saved_run import SavedRun
from stack.explore.steps import KernelSteps, steps_of
from stack.ir.func import Func
from stack.measure.compare import Comparison
from stack.measure.roofline import Ceilings
from stack.measure.timing import Timing
from stack.report.passes import PassView, passes_of
from stack.run.record import Run

GROUPS = ("fusion", "stream", "kernel")


@dataclass(frozen=True)
class StageView:
    """One stage of a run as shown on the page. `func` is None for text of another compiler."""

    name: str
    text: str
    func: Func | None
    pipeline: str = ""
    ms: float = 0.0
    changed: bool = True
    ops: int = 0
    groups: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class KernelView:
    """A kernel, a library call or a fallback of one system.

    `node` is its name in our last stage. `timing` is its own time, if the backend can measure it.
    `computes` is the name that people know, such as "attention".
    """

    name: str
    kind: str
    text: str
    source: tuple[str, ...]
    ops: tuple[str, ...]
    flops: float
    bytes: float
    node: str = ""
    timing: Timing | None = None
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    warning: str = ""
    computes: str = ""
    modules: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The name that people know with its own name: `attention (max_sum_dot)`."""
        return f"{self.computes} ({self.name})" if self.computes else self.name


@dataclass(frozen=True)
class SystemView:
    """The kernels of one compiler for the program."""

    name: str
    kernels: tuple[KernelView, ...]

    @cached_property
    def code(self) -> Mapping[int, list[int]]:
        """Maps the first of the kernels with equal code to all of them; kernels without code are
        left out. Equal layers share their code.
        """
        found: dict[str, list[int]] = {}
        for i, kernel in enumerate(self.kernels):
            if kernel.text:
                found.setdefault(kernel.text, []).append(i)
        return {same[0]: same for same in found.values()}

    def code_of(self, place: int) -> int:
        """Returns the first kernel with the same code as the kernel at `place`."""
        return next((first for first, same in self.code.items() if place in same), place)


@dataclass(frozen=True)
class Report:
    """All data of a page.

    `systems` starts with ours. `comparison` is None if there is none. `steps` has the kernels with
    schedule steps. `passes` has the passes in order. `errors` has the rounding error of values by
    name. `beside` are reports of other runs, which are shown side by side with this one,
    each with its `name`.
    """

    title: str
    origin: str
    stages: tuple[StageView, ...]
    systems: tuple[SystemView, ...]
    sources: Mapping[str, str]
    coverage: Mapping[str, Any]
    compile_s: float = 0.0
    ceilings: Ceilings | None = None
    dtype: str = "f32"
    comparison: Comparison | None = None
    steps: tuple[KernelSteps, ...] = ()
    passes: tuple[PassView, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict[str, float])
    beside: tuple[Report, ...] = ()
    name: str = ""
    backend: str = ""
    machine: str = ""

    @property
    def kernels(self) -> tuple[KernelView, ...]:
        """The kernels of the first system, which is our compiler."""
        return self.systems[0].kernels

    @property
    def grouped(self) -> StageView | None:
        """The last stage with groups that are not lowered to kernels: its values are tensors.

        Without groups, the last stage at the tensor level; None if there is none.
        """
        found = [s for s in self.stages if s.func is not None and s.func.level == "tensor"]
        formed = [s for s in found if s.func and any(n.op in GROUPS for n in s.func.nodes)]
        whole = [s for s in formed if s.func and all(n.op != "kernel" for n in s.func.nodes)]
        return (whole or found or [None])[-1]

    @property
    def lowered(self) -> Func | None:
        """The function of the last stage of IR, whose groups are kernels and library calls."""
        return next((s.func for s in reversed(self.stages) if s.func is not None), None)

    @property
    def lines(self) -> tuple[str, ...]:
        """Source lines of the program's nodes and kernels, in program order."""
        first = next((s.func for s in self.stages if s.func is not None), None)
        found: dict[str, None] = {}
        for place in places(first) if first is not None else ():
            found.update(dict.fromkeys(s.split(" ")[0] for s in place.source))
        for kernel in self.kernels:
            found.update(dict.fromkeys(kernel.source))
        for other in self.beside:
            found.update(dict.fromkeys(other.lines))
        return tuple(found)


def report_of(given: SavedRun | Run, timings: Sequence[Timing] = ()) -> Report:
    """Builds the report of a saved or new run.

    `timings` has an entry per kernel; if it is empty, those of the run's profile are shown.
    """
    run = held(given) if isinstance(given, Run) else given
    manifest = run.manifest
    measured: list[list[float]] = run.profile.get("seconds") or []
    timings = timings or [Timing(tuple(rounds)) for rounds in measured]
    stages = tuple(_stage(run, entry) for entry in manifest["stages"])
    texts = [run.kernel_text(str(k["name"])) if k["file"] else "" for k in run.kernels]
    known: list[Timing | None] = [*timings] or [None] * len(texts)
    entries = zip(manifest["kernels"], texts, known, strict=True)
    kernels = tuple(_kernel(entry, text, timing) for entry, text, timing in entries)
    machine = f" for {manifest['machine']}" if manifest.get("machine") else ""
    return Report(
        title=str(manifest["target"] or "a function"),
        origin=f"{manifest['frontend']} to {manifest['backend']}{machine}",
        stages=stages,
        systems=(SystemView(f"stack-{manifest['backend']}", kernels),),
        sources=run.sources,
        coverage=manifest["coverage"],
        compile_s=float(manifest.get("compile_s") or 0.0),
        steps=tuple(steps_of(run)),
        passes=passes_of(run),
        backend=str(manifest["backend"]),
        machine=str(manifest.get("machine") or ""),
        ceilings=Ceilings.read(run.profile["ceilings"]) if run.profile else None,
        dtype=str(run.profile.get("dtype", "f32")),
    )


def with_comparison(report: Report, comparison: Comparison) -> Report:
    """Adds the kernels of other compilers to a report."""
    others = [
        SystemView(system.name, tuple(_peer_kernel(k) for k in system.runner.kernels))
        for system in comparison.systems[1:]
        if system.runner is not None
    ]
    return replace(report, systems=(report.systems[0], *others), comparison=comparison)


def _stage(run: SavedRun, entry: Mapping[str, Any]) -> StageView:
    name = str(entry["name"])
    text, func = run.text(name), run.func(name) if run.is_ir(name) else None
    return StageView(
        name,
        text,
        func,
        str(entry["pass"]),
        float(entry["ms"]),
        bool(entry["changed"]),
        int(entry["ops"]),
        int(entry["groups"]),
        tuple(map(str, entry["notes"])),
    )


def _kernel(entry: Mapping[str, Any], text: str, timing: Timing | None) -> KernelView:
    return KernelView(
        str(entry["name"]),
        str(entry["kind"]),
        text,
        tuple(dict.fromkeys(str(s).split(" ")[0] for s in entry["source"])),
        tuple(map(str, entry["ops"])),
        float(entry["flops"]),
        float(entry["bytes"]),
        str(entry["stage_node"]),
        timing,
        entry.get("resources", {}),
        str(entry.get("warning", "")),
        str(entry.get("computes", "")),
        tuple(map(str, entry.get("modules", ()))),
    )


def _peer_kernel(kernel: Any) -> KernelView:
    lines = tuple(dict.fromkeys(str(s).split(" ")[0] for s in kernel.source))
    return KernelView(
        kernel.name, kernel.kind, kernel.text, lines, tuple(kernel.ops), kernel.flops, kernel.bytes
    )
