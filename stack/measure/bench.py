"""Run suites of cases, every system in one run; rows for JSON and CSV, and ratio tables."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stack.errors import StackError
from stack.explore.table import number, table
from stack.explore.target import ExampleCall, resolve
from stack.explore.terminal import filled
from stack.measure.cold_compile import OWN, cold_compile
from stack.measure.compare import WAYS, Comparison, compare, device_text
from stack.measure.gpu_ceilings import gpu_ceilings, gpu_text, load_torch
from stack.measure.reproduce import Failure
from stack.measure.roofline import (
    ABOVE,
    Ceilings,
    floor_seconds,
    measure_ceilings,
    thread_limit,
)
from stack.measure.suite import Case, title_of
from stack.measure.systems import BenchProgram, Say, System, capture_program
from stack.measure.timing import NOISY, ROUNDS, Ratio, ratio, ratio_cell
from stack.run.compile import DEFAULT_BACKEND
from stack.run.record import versions
from stack.run.specs import parse_backends
from stack.run.trace import find_frontend

SCHEMA = "stack.bench/1"
COLUMNS = (
    *("row", "case", "system", "kind", "ms", "spread", "ratio_to_best_peer", "share_of_limit"),
    *("ratio_text", "compile_s", "error", "kernels", "note", "rounds_ms"),
)
OURS = ("generated", "hand")
Row = dict[str, Any]


@dataclass
class Bench:
    """Results of a benchmark. `rows` have the keys of COLUMNS.

    `problems` lists systems that failed or disagreed (`failures`), and times below the floor.
    `missing` lists peers that are not installed. `skipped` gives the reason for each case that was
    not run. `notes` describe the setup of each system. `measure` measures the ceilings again.
    """

    device: str
    ceilings: Ceilings
    rows: list[Row] = field(default_factory=list[Row])
    problems: list[str] = field(default_factory=list[str])
    missing: dict[str, str] = field(default_factory=dict[str, str])
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])
    failures: list[Failure] = field(default_factory=list[Failure])
    measure: Callable[[], Ceilings] | None = None

    def fail(self, case: Case, system: str, problem: str) -> None:
        """Records that a system failed on a case, or that its results are wrong."""
        self.failures.append(Failure(case, system, problem))
        self.problems.append(f"{case.row} {case.title}: {system}: {problem}")

    def turn_to_gpu(self) -> None:
        """Measures the ceilings of the GPU, for a program whose arrays are on one."""
        torch = load_torch()
        self.measure = partial(gpu_ceilings, torch, kinds=("bf16", "f16", "f32"))
        self.device, self.ceilings = gpu_text(torch), self.measure()

    def skip(self, case: Case, backend: str) -> None:
        """Adds a row for a case that is not run, with the reason as its note."""
        row = entry_of(case.row, case.case, f"stack-{backend}", "generated")
        row.update(note=f"skipped: {case.skip}", is_ours=True)
        self.rows.append(row)
        self.skipped[f"{case.row} {case.title}"] = case.skip

    @property
    def exit_code(self) -> int:
        """The command's exit code: 1 if there are problems, 5 if a peer is missing, else 0."""
        return 1 if self.problems else 5 if self.missing else 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the document of `--json`."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "versions": versions(),
            "ceilings": self.ceilings.as_dict(),
            "rows": self.rows,
            "notes": self.notes,
            "problems": self.problems,
            "missing": self.missing,
            "skipped": self.skipped,
        }

    def as_csv(self) -> str:
        """Formats the rows as CSV, with a column for each key of a case."""
        keys = list(dict.fromkeys(k for r in self.rows for k in r["case"]))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        rest = [c for c in COLUMNS if c not in ("row", "case", "rounds_ms")]
        writer.writerow(["row", *keys, *rest])
        for row in self.rows:
            case = [row["case"].get(k, "") for k in keys]
            writer.writerow([row["row"], *case, *(row[c] for c in rest)])
        return text.getvalue()


def bench(
    cases: Sequence[Case],
    *,
    peers: str | None = None,
    backend: str | None = None,
    passes: Sequence[str] = ("default",),
    rounds: int = ROUNDS,
    quick: bool = False,
    ways: Sequence[str] = WAYS,
    budget: float | None = None,
    say: Say = lambda _: None,
) -> Bench:
    """Runs every case.

    Args:
        peers: replaces those of the cases.
        passes: each pipeline is a system.
        ways: how peers get the program: "ir", "native".
        budget: seconds after which no new case starts; `notes` list the cases left out. An
            interrupt also ends the run, with the rows so far.
    """
    say("measuring the ceilings of this machine")
    found = Bench(device_text(), measure_ceilings(quick), measure=partial(measure_ceilings, quick))
    end = math.inf if budget is None else time.monotonic() + budget
    for i, case in enumerate(cases, 1):
        left = ", ".join(f"{c.row} {c.title}" for c in cases[i - 1 :])
        if time.monotonic() > end:
            found.notes[f"left out after {budget:g} seconds"] = left
            say(f"the budget is spent; left out: {left}")
            break
        say(f"{case.row} {case.title} ({i} of {len(cases)})")
        chosen = case.peers if peers is None else peers
        try:
            if case.skip:
                found.skip(case, DEFAULT_BACKEND)
            elif case.kind == "cold":
                _cold_rows(found, case, chosen, say)
            else:
                own = backend or case.own or None
                before = len(found.rows)
                try:
                    _run_rows(found, case, chosen, own, passes, rounds, ways, say)
                finally:
                    say(line_of(found.rows[before:]))
        except KeyboardInterrupt:
            found.notes["interrupted, not finished"] = left
            break
    else:
        if found.measure is not None:
            say("measuring the ceilings again")
            found.ceilings = found.ceilings.or_better(found.measure())
    finish_rows(found)
    return found


def programs_of(case: Case) -> list[BenchProgram]:
    """Captures the case's program in its frontend, then in those of its native compilers."""
    programs: list[BenchProgram] = []
    for name in (case.frontend, *case.native):
        try:
            target = resolve(case.spec, name, case.inputs, case.options)
        except (StackError, ImportError):
            if programs:
                continue  # the other framework is not installed: skip its native way
            raise
        assert isinstance(target, ExampleCall)
        frontend = find_frontend(target.fn, target.args, target.frontend)
        programs.append(capture_program(frontend, target.fn, target.args))
    return programs


def _run_rows(
    found: Bench,
    case: Case,
    peers: str,
    backend: str | None,
    passes: Sequence[str],
    rounds: int,
    ways: Sequence[str],
    say: Say,
) -> None:
    with thread_limit(case.threads):
        comparison = compare(
            programs_of(case),
            parse_backends(peers),
            backend=backend,
            passes=passes,
            target=case.spec,
            rounds=rounds,
            ways=ways,
            ir_only=case.ir_only,
            say=say,
        )
    graph = comparison.systems[0].graph
    if graph is not None and graph.on_device:
        say("measuring the ceilings of the GPU")
        found.turn_to_gpu()
    try:
        _take(found, case, comparison)
    finally:
        comparison.close()
    if comparison.is_cut:
        raise KeyboardInterrupt


def _take(found: Bench, case: Case, comparison: Comparison) -> None:
    limit = 1e3 * floor_seconds(comparison.func, found.ceilings, comparison.given, case.work)
    for system, row in zip(comparison.systems, comparison.rows, strict=True):
        if system.is_missing:
            found.missing[system.label] = system.problem
            continue
        name = system.label if system.via == "own" else system.name
        if row["note"]:
            found.notes[name] = row["note"]
        if not row["ok"]:
            found.fail(case, name, row["note"])
        if system.via == "own":
            kind = _kind(system)
        else:
            kind = "library" if system.label == "eager" else "peer"
        entry = entry_of(case.row, case.case, name, kind)
        entry.update(ms=row["run_ms"], spread=row["run_ms_spread"], compile_s=row["compile_s"])
        entry.update(error=row["max_error"] if row["ok"] else None, note=row["note"])
        entry.update(kernels=row["kernels"])
        entry["rounds_ms"] = row["rounds_ms"]
        entry["limit_ms"] = limit
        entry["is_ours"] = system.via == "own"
        if not row["ok"]:
            entry["ms"] = entry["spread"] = None
        found.rows.append(entry)


def _kind(system: System) -> str:
    """Returns the kind of our kernels in a compiled program: "hand", "library" or "generated".

    It is "hand" if any kernel is hand-written, else "library" if any is a library's.
    """
    kinds = {k.kind for k in system.runner.kernels} if system.runner else set[str]()
    return next((k for k in ("hand", "library") if k in kinds), "generated")


def entry_of(row: str, case: dict[str, Any], system: str, kind: str) -> Row:
    """Returns a new result row of a system on a case; all its measurements are still None."""
    entry: Row = dict.fromkeys(COLUMNS)
    entry.update(row=row, case=case, system=system, kind=kind)
    return entry


def _cold_rows(found: Bench, case: Case, peers: str, say: Say) -> None:
    """Adds rows of compile times, measured in a fresh process, to the results `found` of a case.

    Our compiler gets a row for every frontend of the case; a peer gets one for every program that
    it takes natively, and one for our IR.
    """
    frontends = [f for f in (case.frontend, *case.native) if f]
    ways: list[tuple[str, Any, str, str]] = [
        (f"stack-{DEFAULT_BACKEND} from {f}", None, OWN, f) for f in frontends
    ]
    for peer in parse_backends(peers):
        for frontend in frontends:
            ways.append((f"{peer.label}/native", peer, "native", frontend))
        if case.frontend:
            ways.append((f"{peer.label}/ir", peer, "ir", case.frontend))
    for label, peer, via, frontend in ways:
        say(f"{label}: {case.title} in a fresh process")
        cold = cold_compile(case, peer, via, frontend)
        if cold.problem and "no native way" in cold.problem:
            continue
        if cold.problem:
            found.fail(case, label, cold.problem)
        kind = "peer" if peer else "generated"
        graphs = ("first", "second") if case.second else ("first",)
        for graph, seconds in zip(graphs, [*cold.seconds, *[None] * 2], strict=False):
            entry = entry_of(case.row, {**case.case, "graph": graph}, label, kind)
            entry.update(compile_s=seconds, ms=None if seconds is None else seconds * 1e3)
            entry["is_ours"] = peer is None
            found.rows.append(entry)


def finish_rows(found: Bench, rows: Sequence[Row] | None = None) -> None:
    """Fills in ratios and shares of rows (default: all), once all times and ceilings are known.

    A ratio that varies by more than NOISY is left out, and the note of its row gives its interval.
    """
    held = found.rows if rows is None else rows
    for case in by_case(held):
        timed = [r for r in case if not r["is_ours"] and r["ms"]]
        for row in case:
            if row["ms"] and timed:
                ratios = {r["system"]: _ratio(r, row) for r in timed}
                best = min(ratios, key=lambda name: ratios[name].median)
                noisy = _noisy(best, ratios[best])
                row["ratio_to_best_peer"] = None if noisy else ratios[best].median
                row["ratio_text"] = str(ratios[best])
                row["note"] = "; ".join(filter(None, (row.get("note"), noisy)))
            limit = row.pop("limit_ms", None)
            if row["ms"] and limit:
                row["share_of_limit"] = limit / row["ms"]
                if limit > ABOVE * row["ms"]:
                    name = f"{row['row']} {title_of(row['case'])}: {row['system']}"
                    what = f"{name} took {row['ms']:.3g} ms"
                    floor = f"below the floor of {limit:.3g} ms"
                    why = "impossible, so the roof was measured under load; do not report it"
                    found.problems.append(f"{what}, {floor}: {why}")
    for row in held:
        row.pop("is_ours", None)


def _noisy(system: str, found: Ratio) -> str:
    """Returns the note of a row if its ratio to `system` varies too much to be shown, else ""."""
    if not found.is_noisy:
        return ""
    share = f"more than {100 * NOISY:.0f} %"
    return f"noisy: the ratio of {system} is {found}, its quartiles are {share} apart"


def _ratio(other: Row, own: Row) -> Ratio:
    """Returns the ratio of the times of two result rows: `other` to `own`, a row of our compiler.

    The ratio is taken in each round, or from the single times if there are no rounds.
    """
    return ratio(*(r["rounds_ms"] or [r["ms"]] for r in (own, other)))


def by_case(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups result rows that belong to the same case; groups are in order of first occurrence."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"{row['row']} {row['case']}", []).append(row)
    return list(found.values())


def line_of(rows: Sequence[Row]) -> str:
    """Formats the results of one case as a progress line: each system's time, and ratio to ours.

    The ratio is to the first of our systems that has a time.
    """
    own = next((r for r in rows if r["is_ours"] and r["ms"]), None)
    told = [
        f"{r['system']} {number(r['ms'])} ms"
        + (f", {_ratio(r, own)} of ours" if own is not None and not r["is_ours"] else "")
        for r in rows
        if r["ms"]
    ]
    return "  " + ("; ".join(told) or "no times")


def geomean(values: Sequence[float]) -> float:
    """Returns the geometric mean of `values`, or nan for an empty sequence."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def describe(found: Bench) -> str:
    """Formats tables of ratios between our times and all others, by rounds."""
    parts = [filled(found.device), filled(_ceiling_text(found.ceilings))]
    names = dict.fromkeys(r["row"] for r in found.rows)
    parts += [_row_table(name, [r for r in found.rows if r["row"] == name]) for name in names]
    known = ", ".join(f"{k} {v}" for k, v in versions().items())
    notes = [f"versions: {known}"]
    if found.notes:
        notes.append("how:\n" + "\n".join(f"  {k}: {v}" for k, v in found.notes.items()))
    if found.problems:
        notes.append("problems:\n" + "\n".join(f"  {p}" for p in found.problems))
    if found.skipped:
        notes.append("skipped:\n" + "\n".join(f"  {k}: {v}" for k, v in found.skipped.items()))
    if found.missing:
        notes.append("\n".join(f"{k} is missing: {v}" for k, v in found.missing.items()))
    return "\n\n".join([*parts, *map(filled, notes)])


def _ceiling_text(ceilings: Ceilings) -> str:
    flops = ", ".join(f"{k} {v / 1e9:.0f} Gflop/s" for k, v in ceilings.flops.items())
    return (
        f"ceilings measured in this run: {flops}; copy {ceilings.bytes / 1e9:.1f} GB/s"
        f" ({ceilings.how})"
    )


def _row_table(name: str, rows: Sequence[Row]) -> str:
    """Formats the results of a suite's row `name`: a line per case, a column per other system.

    Cells are times relative to ours. If several systems are ours, each has its own line and column.
    Noisy ratios do not count in the means.
    """
    systems = list(dict.fromkeys(r["system"] for r in rows))
    ours = [s for s in systems if s.startswith("stack-")]
    peers = [s for s in systems if s not in ours]
    columns = peers if len(ours) == 1 else systems
    lines: list[list[object]] = []
    ratios: dict[tuple[str, str], list[float]] = {}
    for case in by_case(rows):
        held = {r["system"]: r for r in case}
        title = " ".join(str(v) for v in case[0]["case"].values())
        for own in ours:
            if own not in held:
                continue
            row = held[own]
            found = {s: _told(held.get(s), row) for s in columns}
            rivals = [times for s in peers if (times := found[s]) is not None]
            found["best"] = min(rivals, key=lambda times: times.median, default=None)
            for system, times in found.items():
                if times is not None and not times.is_noisy:
                    ratios.setdefault((own, system), []).append(times.median)
            shares = row["share_of_limit"]
            lines.append(
                [
                    *([title] if len(ours) == 1 else [title, own]),
                    None if row["ms"] is None else number(row["ms"]),
                    None if row["spread"] is None else number(row["spread"]),
                    row["kernels"],
                    *("-" if times is None else ratio_cell(str(times)) for times in found.values()),
                    "-" if shares is None else f"{100 * shares:.0f} %",
                ]
            )
    for own in ours:
        means = [_mean(ratios.get((own, s), [])) for s in (*columns, "best")]
        label = ["geometric mean"] if len(ours) == 1 else ["geometric mean", own]
        lines.append([*label, "", "", "", *means, ""])
    head = ["case"] if len(ours) == 1 else ["case", "ours"]
    head += ["ours ms", "spread", "kernels"]
    drop = ["spread", "kernels", "of limit", *reversed(columns)]
    text = table([*head, *columns, "best other", "of limit"], lines, drop=drop)
    told = f"{name}: time of each system relative to ours (above 1.00x: ours is faster)"
    return f"{filled(told)}\n{text}"


def _told(row: Row | None, own: Row) -> Ratio | None:
    """Returns the time of `row` relative to `own`, a row of our compiler, as a ratio.

    Returns None if there is no `row`, or if one of the two has no time.
    """
    if row is None or not row["ms"] or not own["ms"]:
        return None
    return _ratio(row, own)


def _mean(values: Sequence[float]) -> str:
    return ratio_cell(f"{geomean(values):.2f}x") if values else "-"
