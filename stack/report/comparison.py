"""The section that compares our kernels, times and errors with other compilers."""

from __future__ import annotations

from collections.abc import Sequence

from stack.explore.table import number, scaled
from stack.measure.compare import legend, ratio_text
from stack.measure.groups import source_lines
from stack.measure.timing import NOISY, is_noisy
from stack.report.cells import code_link, spread_text
from stack.report.content import KernelView, Report
from stack.report.drawing import Bar, draw_bars
from stack.report.lines import Index, joined_numbers
from stack.report.markup import Html, figure, joined, table, tag

MOST = 3  # library calls listed per line


def comparison_section(report: Report, index: Index) -> Html:
    """Returns tables and bar charts of a comparison, or nothing if there is none."""
    found = report.comparison
    if found is None:
        return Html("")
    own = next((r for r in found.rows if r["via"] == "own"), None)
    rows: list[list[object]] = []
    runs: list[Bar] = []
    compiles: list[Bar] = []
    for row in found.rows:
        name, median, spread = f"{row['system']}, {row['via']}", row["run_ms"], row["run_ms_spread"]
        is_ours = row["via"] == "own"
        rows.append(
            [
                row["system"],
                row["via"],
                "yes" if row["ok"] else "✗ no",
                row["kernels"],
                row["library_calls"],
                None if row["compile_s"] is None else f"{number(row['compile_s'])} s",
                None if median is None else f"{number(median)} ms",
                None if median is None else spread_text(median, spread, f"{number(spread)} ms"),
                ratio_text(own, row),
                scaled(row["peak_bytes"], "B"),
                None if row["max_error"] is None else f"{row['max_error']:.1e}",
                None if row["error_vs_eager"] is None else f"{row['error_vs_eager']:.1e}",
                row["note"],
            ]
        )
        if median is not None:
            note = "⚠ noisy" if is_noisy(median, spread) else ""
            shown = f"{number(median)} ms ± {number(spread)}"
            runs.append(Bar(name, median, shown, spread, is_ours, note))
        if row["compile_s"] is not None:
            taken = row["compile_s"]
            compiles.append(Bar(name, taken, f"{number(taken)} s", 0.0, is_ours))
    head = ["system", "program", "agrees", "kernels", "library calls", "time to compile"]
    head += ["time to run", "spread", "vs ours", "peak memory", "error", "error vs eager", "note"]
    whole = table(head, rows, f"on {found.device}")
    told = [tag("p", line, class_="faint") for line in legend(found).split("\n") if line]
    bars = [
        figure(draw_bars(made, caption), caption, bar_table(made, unit))
        for made, caption, unit in (
            (runs, f"time to run; whiskers are quartiles, above {100 * NOISY:.0f} % noisy", "ms"),
            (compiles, "time from the program to the end of its first call, empty caches", "s"),
        )
        if made
    ]
    return joined([whole, *bars, _by_line(report, index), *told])


def bar_table(bars: Sequence[Bar], unit: str) -> Html:
    """Returns the bars of a chart as a table."""
    rows = [[b.label, b.value, b.spread] for b in bars]
    return table(["system", f"time in {unit}", "spread"], rows, "the bars as numbers")


def _by_line(report: Report, index: Index) -> Html:
    """Returns a table of the kernels of every system, by source line, with links to their code."""
    assert report.comparison is not None
    names = [s.name for s in report.systems]
    rows: list[list[object]] = []
    marks: list[dict[str, object]] = []
    for line, ops in source_lines(report.comparison.func).items():
        number_ = index.lines.get(line)
        cells = [
            _of_line(report, n, [(i, k) for i, k in enumerate(system.kernels) if line in k.source])
            for n, system in enumerate(report.systems)
        ]
        rows.append([line, *cells, ", ".join(ops)])
        kernels = index.of_line(number_) if number_ is not None else []
        marks.append({"class_": "pick", "data_s": number_, "data_k": joined_numbers(kernels)})
    caption = "what each compiler runs for a source line; a name leads to its code"
    return table(["source line", *names, "ops"], rows, caption, marks)


def _of_line(report: Report, system: int, kernels: Sequence[tuple[int, KernelView]]) -> Html:
    """Returns the table cell with the kernels of one system for one source line.

    It has links to the generated `kernels` of the line, then one text with its library calls.
    """
    calls = [k.name.removeprefix("torch.ops.") for _, k in kernels if k.kind == "library"]
    links = [code_link(report, system, i) for i, k in kernels if k.kind != "library"]
    return joined([*links, library_calls(calls)] if calls else links, ", ")


def library_calls(names: Sequence[str]) -> str:
    """Formats the number of library calls and the first names.

    For example: `5 library calls: aten.mm, aten.add`.
    """
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    noun = "library call" if len(names) == 1 else "library calls"
    return f"{len(names)} {noun}: {', '.join(known[:MOST])}{more}"
