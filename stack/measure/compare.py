"""Compare compilers on one program: correctness, kernel counts, and times in the same rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import stack.plugins as plugins
from stack.errors import StackError
from stack.explore.inventory import machine
from stack.explore.table import number, scaled, table
from stack.explore.terminal import Loud, filled
from stack.ir.func import Func
from stack.measure.groups import Group, align, alignment_table
from stack.measure.reference import error_of, reference
from stack.measure.roofline import thread_count
from stack.measure.runners import LocalRunner
from stack.measure.systems import NO_OPTIONS, BenchProgram, Say, System, own_system, peer_systems
from stack.measure.timing import (
    LEAST,
    NOISY,
    ROUNDS,
    Interrupted,
    Timing,
    interleave,
    ratio,
    ratio_cell,
)
from stack.processors import usable_processors
from stack.rewrite.check import TOLERANCE
from stack.run.record import Run
from stack.run.specs import BackendSpec, parse_backends

SCHEMA = "stack.compare/1"
WAYS = ("ir", "native")
COLUMNS = (
    *("system", "via", "ok", "kernels", "library_calls", "counts_what", "compile_s", "run_ms"),
    *("run_ms_spread", "rounds_ms", "peak_bytes", "max_error", "error_vs_eager", "note"),
)


@dataclass
class Comparison:
    """Results of a comparison. `rows` have the keys of COLUMNS, `given` is as in `BenchProgram`."""

    device: str
    func: Func
    rows: list[dict[str, Any]]
    groups: list[Group]
    systems: list[System] = field(default_factory=list[System])
    run: Run | None = None
    given: Sequence[float] = ()
    is_cut: bool = False  # an interrupt ended it: it has the systems and rounds until then

    @property
    def exit_code(self) -> int:
        """1 if a system fails or disagrees, 5 if one is missing, else 0."""
        missing = {s.name for s in self.systems if s.is_missing}
        failed = {f"{r['system']}/{r['via']}" for r in self.rows if not r["ok"]} - missing
        return 1 if failed else 5 if missing else 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the document of `--json`."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "rows": [{k: _plain(v) for k, v in row.items()} for row in self.rows],
            "groups": self.groups,
        }

    def close(self) -> None:
        """Releases arrays and workers."""
        for system in self.systems:
            if system.runner is not None:
                system.runner.close()


def _plain(value: Any) -> Any:
    """Converts infinities and nan to text, since JSON has none; shortens floats."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return round(value, 6) if isinstance(value, float) and abs(value) > 1 else value


def device_text() -> str:
    """Describes the machine."""
    cores = usable_processors()
    return f"{machine()}, {cores} cores, {thread_count()} threads"


def compare(
    programs: Sequence[BenchProgram],
    peers: Sequence[BackendSpec],
    *,
    backend: str | None = None,
    passes: str | Sequence[str] = "default",
    options: Mapping[str, Any] = NO_OPTIONS,
    target: str = "",
    rounds: int = ROUNDS,
    ways: Sequence[str] = WAYS,
    ir_only: Sequence[str] = (),
    say: Say = lambda _: None,
) -> Comparison:
    """Compiles with every system, checks the results, and times all in interleaved rounds.

    The first program goes through our compiler, and through each peer, both replayed and natively.
    Further programs are the same computation in another framework; they go only to that framework's
    compiler. Each of several `passes` or backends is one system. `ways` selects how peers get the
    program. Peers in `ir_only` do not run it natively.
    """
    first = programs[0]
    say("compiling with stack")
    texts = [passes] if isinstance(passes, str) else list(passes)
    own = parse_backends(backend) if backend else [BackendSpec("", "")]
    systems: list[System] = []
    for spec in own:
        for text in texts:
            given = {**spec.options, **options}
            system = own_system(first, spec.backend or None, text, target, given)
            system.label = f"stack-{spec.label}" if len(own) > 1 else system.label
            system.label += f" {text}" if len(texts) > 1 else ""
            systems.append(system)
    is_cut = False
    for peer in peers:
        taken = WAYS[:1] if peer.backend in ir_only else ways
        try:
            found = peer_systems(first, peer, taken, say)
            for other in programs[1:]:
                if "native" in taken and all(s.via != "native" for s in found):
                    found.extend(peer_systems(other, peer, ("native",), say))
        except KeyboardInterrupt:
            say(f"interrupted while {peer.label} compiled; again to stop at once")
            is_cut = True
            break
        systems.extend(found)
    made = measure(first, systems, rounds, say)
    made.is_cut |= is_cut
    return made


def measure(
    program: BenchProgram, systems: list[System], rounds: int = ROUNDS, say: Say = lambda _: None
) -> Comparison:
    """Times compiled systems in interleaved rounds, and checks their results on one program."""
    running = [s for s in systems if s.runner is not None]
    say(f"timing {len(running)} systems in {max(rounds, LEAST)} interleaved rounds")
    timings: dict[int, Timing] = {}
    repeats = [s.runner.run for s in running if s.runner is not None]
    is_cut = False
    try:
        timed = interleave(repeats, rounds)
    except Interrupted as stop:
        say("interrupted; the rounds so far count")
        timed, is_cut = stop.timings, True
    for system, timing in zip(running, timed, strict=True):
        if isinstance(timing, Timing):
            timings[id(system)] = timing
        else:
            system.problem = f"failed while it ran: {timing}"
    say("checking results against double precision")
    checks = Checks(program, systems)
    rows = [_row(system, timings.get(id(system)), checks) for system in systems]
    graph = systems[0].graph
    groups = align(systems)
    run = graph.run if graph is not None else None
    given = program.given
    return Comparison(device_text(), program.func, rows, groups, systems, run, given, is_cut)


class Checks:
    """Compares results with two references: double precision, and the framework op by op."""

    def __init__(self, program: BenchProgram, systems: Sequence[System]) -> None:
        self.types = [r.tensor for r in program.func.results]
        self.note = ""
        self.exact: list[np.ndarray] | None = None
        try:
            self.exact = reference(program.func, program.storage)
        except StackError as error:
            self.note = f"no error: {error}"
        self.eager = _eager_results(program, systems)
        allowed = max((TOLERANCE.get(t.dtype.name, 0.0) for t in self.types), default=0.0)
        if self.exact is not None and self.eager is not None:
            allowed = max(allowed, 4 * self.against(self.exact, self.eager))
        self.allowed = allowed

    def against(self, expected: Sequence[np.ndarray] | None, found: Sequence[np.ndarray]) -> float:
        """Returns the largest error of any result in `found` relative to `expected`.

        Returns nan if `expected` is None.
        """
        return math.nan if expected is None else error_of(expected, found, self.types)

    def errors(self, results: Sequence[np.ndarray]) -> tuple[float | None, float | None, bool]:
        """Returns the errors relative to double precision and to eager, and if results are right.

        An error is None if its reference is missing. Results are right if the first error (without
        it, the second) is at most the tolerance of the types, or four times eager's own error.
        """
        eager = None
        if self.eager is not None:
            held = [e.copy() for e in self.eager]
            eager = error_of(_held(held, self.types), results, self.types)
        exact = None if self.exact is None else error_of(self.exact, results, self.types)
        decisive = exact if exact is not None else eager
        return exact, eager, decisive is None or decisive <= self.allowed


def _held(arrays: Sequence[np.ndarray], types: Sequence[Any]) -> list[np.ndarray]:
    from stack.measure.reference import held

    return [held(a, t.dtype) for a, t in zip(arrays, types, strict=True)]


def _eager_results(program: BenchProgram, systems: Sequence[System]) -> list[np.ndarray] | None:
    """Returns the results of op-by-op execution by the framework, as a second reference.

    Takes them from the eager peer if it is among `systems`. Returns None if the framework cannot
    run the program.
    """
    for system in systems:
        if system.label == "eager" and system.via == "native" and system.runner is not None:
            return system.runner.results()
    try:
        backend = plugins.load("stack.backends", "eager")
        native = backend.peer and backend.peer.native
        if backend.missing() is None and native:
            return native(program.captured, {}).run(program.storage)
    except (StackError, ImportError, AttributeError):
        pass
    return None


def _row(system: System, timing: Timing | None, checks: Checks) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row.update(system=system.label, via=system.via, ok=False, compile_s=system.compile_s)
    row["note"] = system.problem
    runner = system.runner
    if runner is None or timing is None:
        return row
    try:
        results = runner.results()
        kernels = list(runner.kernels)
        row["peak_bytes"] = runner.peak_bytes
        row["counts_what"] = runner.counts_what
    except Exception as error:
        row["note"] = f"failed after it ran: {error}"
        return row
    row["kernels"] = sum(k.kind == "generated" for k in kernels)
    row["library_calls"] = sum(k.kind != "generated" for k in kernels)
    row["run_ms"] = timing.median * 1e3
    row["run_ms_spread"] = timing.spread * 1e3
    row["rounds_ms"] = [1e3 * s for s in timing.rounds]
    row["max_error"], row["error_vs_eager"], row["ok"] = checks.errors(results)
    notes = [runner.note, checks.note]
    if not row["ok"]:
        notes.insert(0, f"disagrees (allowed: {checks.allowed:.2g})")
    row["note"] = "; ".join(filter(None, notes))
    return row


def comparison_table(comparison: Comparison, ratios: bool = True) -> str:
    """Formats the rows for a terminal, with ratios to our own times."""
    own = next((r for r in comparison.rows if r["via"] == "own"), None)
    rows: list[list[object]] = []
    for row in comparison.rows:
        times = row["run_ms"]
        ratio = ratio_text(own, row) if ratios else "-"
        rows.append(
            [
                row["system"],
                row["via"],
                "ok" if row["ok"] else Loud("NO"),
                row["kernels"],
                row["library_calls"],
                None if row["compile_s"] is None else number(row["compile_s"]),
                None if times is None else number(times),
                None if times is None else number(row["run_ms_spread"]),
                ratio,
                scaled(row["peak_bytes"], "B"),
                _error_text(row["max_error"]),
                _error_text(row["error_vs_eager"]),
            ]
        )
    head = ["system", "via", "ok", "kernels", "library", "compile s", "run ms", "spread", "vs ours"]
    drop = ["vs eager", "library", "peak", "spread", "kernels", "compile s"]
    return table([*head, "peak", "error", "vs eager"], rows, drop=drop)


def ratio_text(own: dict[str, Any] | None, row: dict[str, Any], is_race: bool = True) -> str:
    """Formats the time of a row relative to ours: median and quartiles over rounds, and if noisy.

    Returns "-" if one of the two rows has no time. A lost race has to be noticed.
    """
    if own is None or not own["run_ms"] or not row["run_ms"]:
        return "-"
    return ratio_cell(str(ratio(own["rounds_ms"], row["rounds_ms"])), is_race)


def _error_text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def legend(comparison: Comparison) -> str:
    """Explains the columns of the comparison table, and which kernels each system counts."""
    counts = dict.fromkeys(
        f"{r['system']}/{r['via']} counts {r['counts_what']}"
        for r in comparison.rows
        if r["counts_what"]
    )
    columns = (
        "error: largest difference from a double precision run, relative to the largest value."
        " compile s: from the user's program (via ir: from our function) to the end of the first"
        " call, caches empty for each system. vs ours: the median and the quartiles of the rounds;"
        f" noisy if these are more than {100 * NOISY:.0f} % apart. via ir: our function replayed;"
        " native: the user's own program; own: ours, called as its user calls it."
    )
    return columns + "\n" + "\n".join(counts)


def describe(comparison: Comparison) -> str:
    """Formats the tables of a comparison, with a legend."""
    notes = [f"{r['system']}/{r['via']}: {r['note']}" for r in comparison.rows if r["note"]]
    if comparison.is_cut:
        notes.append("interrupted: the systems and rounds until then")
    return "\n\n".join(
        [
            filled(comparison.device),
            comparison_table(comparison),
            *([filled("\n".join(notes))] if notes else []),
            filled(legend(comparison), indent=""),
            "fusion groups by source line (numbers of kernels; L: a library call)",
            alignment_table(comparison.func, comparison.groups),
        ]
    )


__all__ = [
    "COLUMNS",
    "SCHEMA",
    "Comparison",
    "LocalRunner",
    "compare",
    "comparison_table",
    "describe",
    "device_text",
    "legend",
    "measure",
    "ratio_text",
]
