"""Several runs side by side: their sizes and times, and their kernels for each source line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stack.errors import UsageError
from stack.explore.table import scaled
from stack.report.cells import code_link, seconds
from stack.report.content import Report, SystemView
from stack.report.lines import Index, joined_numbers
from stack.report.markup import Html, joined, table


def side_by_side(reports: Sequence[Report], names: Sequence[str]) -> Report:
    """Returns the report of the first run with the others beside it.

    The page calls the runs by their `names`. Raises UsageError if two names are equal.
    """
    if len(set(names)) < len(names):
        raise UsageError(f"runs side by side need different names, not {', '.join(names)}")
    first, *others = (replace(r, name=n) for r, n in zip(reports, names, strict=True))
    systems = [SystemView(f"{r.name}: {r.systems[0].name}", r.kernels) for r in (first, *others)]
    return replace(first, systems=tuple(systems), beside=tuple(others))


def runs_section(report: Report, index: Index) -> Html:
    """Returns tables that compare the runs; nothing for a report of one run."""
    if not report.beside:
        return Html("")
    runs = (report, *report.beside)
    rows: list[list[object]] = [
        ["program", *(r.title for r in runs)],
        ["compiled for", *(r.origin for r in runs)],
        ["kernels and calls", *(len(r.kernels) for r in runs)],
        ["operations", *(scaled(sum(k.flops for k in r.kernels)) for r in runs)],
        ["bytes to and from memory", *(scaled(sum(k.bytes for k in r.kernels), "B") for r in runs)],
        ["time to compile", *(f"{r.compile_s:.2f} s" if r.compile_s else None for r in runs)],
        ["time in kernels", *map(_time, runs)],
    ]
    names = list(dict.fromkeys(s.name for r in runs for s in r.stages))
    for name in names:
        found = [next((s for s in r.stages if s.name == name), None) for r in runs]
        ops = [f"{s.ops} ops, {s.groups} groups" if s and s.func else None for s in found]
        if any(ops):
            same = len({s.text for s in found if s}) == 1 and None not in found
            rows.append([f"stage {name}" + (" (the same)" if same else ""), *ops])
    head = ["", *(r.name for r in runs)]
    return joined([table(head, rows, "the runs"), _by_line(report, runs, index)])


def _time(report: Report) -> str | None:
    total = sum(k.timing.median for k in report.kernels if k.timing is not None)
    return seconds(total) if total else None


def _by_line(report: Report, runs: Sequence[Report], index: Index) -> Html:
    """Returns a table of the kernels of every run, by source line, with links to their code."""
    rows: list[list[object]] = []
    marks: list[dict[str, object]] = []
    for line, place in index.lines.items():
        cells: list[Html | None] = []
        for n, run in enumerate(runs):
            held = [(i, k) for i, k in enumerate(run.kernels) if line in k.source]
            links = [joined([f"{i + 1} ", code_link(report, n, i, k.computes)]) for i, k in held]
            cells.append(joined(links, ", ") if links else None)
        if any(cells):
            rows.append([line, *cells])
            kernels = joined_numbers(index.of_line(place))
            marks.append({"class_": "pick", "data_s": place, "data_k": kernels})
    head = ["source line", *(r.name for r in runs)]
    return table(head, rows, "kernels of each run for a source line", marks)
