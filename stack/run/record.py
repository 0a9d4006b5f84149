"""The record of a run: every stage, kernel and fallback of one compilation, and its folder."""

from __future__ import annotations

import html
import json
import platform
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stack.errors import unknown_name
from stack.ir.func import Func
from stack.ir.untrusted_files import read_text
from stack.phases import phases_now
from stack.rewrite.check import EXACT, Inexact
from stack.rewrite.pipeline import Record
from stack.run.backend import Kernel, Kernels, LazyKernel
from stack.run.coverage import coverage_of, walk
from stack.run.decisions import FILE as DECISIONS
from stack.run.decisions import SCHEMA as DECISIONS_SCHEMA
from stack.run.decisions import Decisions
from stack.run.flags import as_json, environment
from stack.run.frontend import Captured, runs_loops
from stack.run.sources import lines_of, source_files
from stack.schedule import ScheduleChoice

SCHEMA = "stack.run/1"
PACKAGES = (
    "stack-compiler",
    "numpy",
    "torch",
    "jax",
    "jaxlib",
    "triton",
    "torch-mlir",
    "apache-tvm",
)
_EXTENSIONS = {
    "mlir": "mlir",
    "llvm": "ll",
    "asm": "s",
    "captured": "txt",
    "cuda": "cu",
    "ptx": "ptx",
    "sass": "sass",
}


@dataclass(repr=False)
class Stage:
    """One state of the program: IR (with `func`) or another compiler's text.

    `passes` is the pipeline that led here, `changed` is True if it changed anything, `ms` is its
    time. `decisions` are those of each pass, `choices` the schedules that were considered.
    `inexact` is how far its rules may change results. `comments` are notes that no pass made. A
    text may be computed lazily.
    """

    name: str
    func: Func | None = None
    make_text: Callable[[], str] | None = None
    passes: str = ""
    changed: bool = True
    ms: float = 0.0
    choices: list[ScheduleChoice] = field(default_factory=list[ScheduleChoice])
    decisions: list[Decisions] = field(default_factory=list[Decisions])
    inexact: Inexact = EXACT
    comments: Sequence[str] = ()

    @property
    def rewrites(self) -> dict[str, int]:
        """Number of rewrites by rule."""
        return dict(Counter(r.rule for made in self.decisions for r in made.rewrites))

    @property
    def notes(self) -> list[str]:
        """The passes' notes (derivations, decisions, refusals), and comments."""
        return [*(str(n) for made in self.decisions for n in made.remarks), *self.comments]

    @property
    def text(self) -> str:
        if self.func is not None:
            return str(self.func)
        return self.make_text() if self.make_text is not None else ""

    def __repr__(self) -> str:
        made = f" by {self.passes}" if self.passes else ""
        return f"<Stage {self.name}{made}: print its text>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"

    @property
    def extension(self) -> str:
        return "stack" if self.func is not None else _EXTENSIONS.get(self.name, "txt")

    @property
    def skipped(self) -> dict[str, str]:
        """Passes that had nothing to do, and why."""
        return {d.name: d.idle for d in self.decisions if d.idle}

    @property
    def ops(self) -> int:
        """Number of nodes, including those inside fusions and kernels."""
        return sum(1 for _ in walk(self.func)) if self.func is not None else 0

    @property
    def groups(self) -> int:
        """Number of top-level `fusion`, `stream` and `kernel` nodes; 0 if a stage is text."""
        nodes = self.func.nodes if self.func is not None else ()
        return sum(node.op in ("fusion", "stream", "kernel") for node in nodes)


def decided(records: Iterable[Record]) -> list[Decisions]:
    """Returns the decisions (rewrites, near misses, groups, notes) of passes that have just run,
    from the records of these passes.
    """
    return [
        Decisions(r.name, r.rewrites, r.misses, r.formed, r.refused, r.remarks, r.idle)
        for r in records
    ]


def _file_name(title: str) -> str:
    """A file name without path separators."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in title)


def versions() -> dict[str, str]:
    """Versions of the relevant installed packages."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@dataclass(repr=False)
class Run:
    """The record of one compilation. `run["fused"].text` is the text of a stage."""

    target: str = ""
    frontend: str = ""
    backend: str = ""
    records: list[Stage] = field(default_factory=list)
    kernels: Sequence[Kernel] = ()
    notes: dict[str, str] = field(default_factory=dict)
    compile_s: float = 0.0
    machine: str = ""  # the target that it was lowered for
    profile: dict[str, Any] = field(default_factory=dict[str, Any])  # see `stack.measure.profile`
    stepwise: Callable[[], str] = str  # see `Executable.stepwise`
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the compilation
    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])  # see `Frontend.flags`
    phases: Mapping[str, float] = field(default_factory=phases_now)  # seconds, see `stack.phases`
    count: Callable[[], dict[str, Any]] = dict  # the ops, for `coverage`
    on_kernel: Callable[[Any], object] | None = None  # see `Machine.start`
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])  # see `Captured.known`

    @property
    def stages(self) -> list[str]:
        """Stage names in order."""
        return [s.name for s in self.records]

    @property
    def functions(self) -> list[Func]:
        """The stages of our IR in order."""
        return [s.func for s in self.records if s.func is not None]

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the stages, as `stages` lists them."""
        return iter(self.stages)

    def __getitem__(self, name: str) -> Stage:
        for stage in self.records:
            if stage.name == name:
                return stage
        raise KeyError(str(unknown_name("no stage", name, self.stages)))

    @property
    def coverage(self) -> dict[str, Any]:
        """The ops of the imported function that are compiled, library calls, hosted or fallbacks,
        see `coverage_of`. They are counted on the first read.
        """
        return self.count()

    def cover(self, imported: Func) -> None:
        """Completes the record of a compiled program: `coverage` counts the ops of `imported`."""
        lowered = next((s.func for s in reversed(self.records) if s.func is not None), None)
        kernels = self.kernels
        self.kernels = whole = Kernels(lambda: self._stepped(kernels))
        self.count = cache(lambda: coverage_of(imported, lowered, whole))

    def _stepped(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        """Returns the kernels without steps of loops in Python if the framework runs its loops."""
        if not runs_loops(self.frontend):
            return kernels
        return [LazyKernel(k, {}, loop_steps=0) if k.loop_steps else k for k in kernels]

    def func(self, name: str) -> Func:
        """A stage as a function. Raises KeyError, or ValueError for another compiler's text."""
        found = self[name].func
        if found is None:
            raise ValueError(f"stage {name!r} is another compiler's text, not IR")
        return found

    def __repr__(self) -> str:
        way = f"{self.frontend} to {self.backend}"
        counts = f"{len(self.records)} stages, {len(self.kernels)} kernels"
        return f"<Run of {self.target or 'a function'}: {way}, {counts}>"

    def add_texts(self, artifacts: Mapping[str, str | Callable[[], str]]) -> None:
        """Adds the stages of the backend's own compiler, see `Executable.artifacts`."""
        for name, text in artifacts.items():
            make_text = (lambda t=text: t) if isinstance(text, str) else text
            self.records.append(Stage(name, make_text=make_text))

    @property
    def sources(self) -> dict[str, str]:
        """Returns the texts of the user's files that the program's source lines name, by file name,
        if this process has read the files.
        """
        functions = self.functions
        return source_files(lines_of(functions[0])) if functions else {}

    def manifest(self) -> dict[str, Any]:
        """The content of manifest.json."""
        stages = [
            {
                "name": s.name,
                "file": f"{i:02d}-{s.name}.{s.extension}",
                "pass": s.passes,
                "changed": s.changed,
                "ms": round(s.ms, 3),
                "ops": s.ops,
                "groups": s.groups,
                "rewrites": s.rewrites,
                "notes": s.notes,
                **({"skipped": skipped} if (skipped := s.skipped) else {}),
                **({"choices": [c.record() for c in s.choices]} if s.choices else {}),
            }
            for i, s in enumerate(self.records)
        ]
        kernels = [
            {
                "name": k.name,
                "file": f"kernels/{_file_name(k.name)}.{k.extension}" if k.text else "",
                "stage_node": k.stage_node,
                "source": list(k.source),
                "ops": list(k.ops),
                "flops": k.flops,
                "bytes": k.bytes,
                "kind": k.kind,
                **({"resources": k.resources} if k.resources else {}),
                **({"warning": k.warning} if k.warning else {}),
                **({"modules": list(k.modules)} if k.modules else {}),
                **({"computes": k.computes} if k.computes else {}),
                **({"loop_steps": k.loop_steps} if k.loop_steps else {}),
            }
            for k in self.kernels
        ]
        return {
            "schema": SCHEMA,
            "target": self.target,
            "frontend": self.frontend,
            "backend": self.backend,
            "machine": self.machine,
            "versions": versions(),
            "options": as_json(self.options),
            "flags": as_json(self.flags),
            "environment": environment(),
            "stages": stages,
            "kernels": kernels,
            "coverage": self.coverage,
            "compile_s": round(self.compile_s, 4),
            "phases": [
                {"phase": name, "ms": round(1e3 * seconds, 3)}
                for name, seconds in self.phases.items()
            ],
            **({"profile": self.profile} if self.profile else {}),
        }

    def decisions(self) -> dict[str, Any]:
        """The content of decisions.json: by stage, the decisions of each pass."""
        held = {s.name: [d.as_dict() for d in s.decisions] for s in self.records if s.decisions}
        return {"schema": DECISIONS_SCHEMA, "stages": held}

    def save(self, folder: str | Path) -> Path:
        """Writes every stage, kernel and note, and manifest.json last. Removes the other stages and
        kernels of a run that the folder held before. Returns the folder.
        """
        from stack.ir.files import replace_file, save_constants

        root = Path(folder)
        manifest = self.manifest()
        sources = {_file_name(name): text for name, text in self.sources.items()}
        manifest["sources"] = list(sources)
        files = {f"sources/{name}": text for name, text in sources.items()}
        entries = (*manifest["stages"], *manifest["kernels"])
        for made, entry in zip((*self.records, *self.kernels), entries, strict=True):
            files |= {entry["file"]: made.text} if entry["file"] else {}
        told = {s.name: "\n\n".join(s.notes) + "\n" for s in self.records if s.notes}
        for title, text in (*self.notes.items(), *told.items()):
            files[f"notes/{_file_name(title)}.txt"] = text
        files[DECISIONS] = json.dumps(self.decisions(), indent=1) + "\n"
        files["manifest.json"] = json.dumps(manifest, indent=2) + "\n"
        stale = _files_of(root / "manifest.json") - files.keys()
        root.mkdir(parents=True, exist_ok=True)
        save_constants(self.functions, root)
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            replace_file(root / name, text.encode())
        for name in stale:
            (root / name).unlink(missing_ok=True)
        return root


def _files_of(manifest: Path) -> set[str]:
    """Returns the names of the stages and kernels that a manifest lists; none for other files."""
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        held = json.loads(read_text(manifest))
        kernels = {f"kernels/{Path(k['file']).name}" for k in held["kernels"] if k["file"]}
        return kernels | {Path(s["file"]).name for s in held["stages"]}
    return set()


_OPEN: list[list[Run]] = []  # of every `recording()`


@contextmanager
def recording() -> Generator[list[Run]]:
    """Collects the records of all compilations inside, oldest first."""
    records: list[Run] = []
    _OPEN.append(records)
    try:
        yield records
    finally:
        _OPEN[:] = [other for other in _OPEN if other is not records]


def announce(run: Run) -> None:
    """Adds the record of a compiled graph to every `recording()` that is open."""
    for records in _OPEN:
        records.append(run)


def recorded(captured: Captured, frontend: str, target: str = "", backend: str = "") -> Run:
    """The record of a captured program that is not compiled."""
    run = Run(target, frontend, backend, notes=captured.notes)
    run.records.append(Stage("captured", make_text=lambda: captured.text))
    run.records.append(Stage("imported", func=captured.func))
    run.count = cache(lambda: coverage_of(captured.func))
    return run
