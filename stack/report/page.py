"""The page: one file without addresses; its bytes depend only on the report."""

from __future__ import annotations

from importlib.resources import files

from stack.explore.dump import coverage_line
from stack.explore.sharding import collectives
from stack.explore.table import scaled
from stack.report.cells import seconds
from stack.report.comparison import comparison_section
from stack.report.content import Report
from stack.report.explorer import explorer_section
from stack.report.kernels_section import kernels_section
from stack.report.lines import Index
from stack.report.markup import Html, escaped, folded, joined, table, tag
from stack.report.memory import memory_section
from stack.report.runs import runs_section
from stack.report.stages_section import code_section, stages_section
from stack.report.steps import passes_section, steps_section

SCRIPTS = ("choice", "views", "colour", "search", "graph", "hover", "sliders", "start", "live")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(report: Report) -> str:
    """Returns the report as a web page."""
    index = Index(report)
    sections = [
        ("summary", "Summary", _summary(report)),
        ("explore", "Source, graph, ops, kernels", explorer_section(report, index)),
        ("runs", "Runs", runs_section(report, index)),
        ("kernels", "Kernels", kernels_section(report, index)),
        ("memory", "Memory", memory_section(report.lowered, index)),
        ("compare", "Other compilers", comparison_section(report, index)),
        ("schedules", "Schedules", _schedules(report)),
        ("passes", "Pass by pass", passes_section(report.passes, index)),
        ("steps", "Kernel step by step", steps_section(report.steps)),
        ("sharding", "Sharding", _sharding(report)),
        ("stages", "Stages", stages_section(report, index)),
        ("code", "Generated code", code_section(report, index)),
    ]
    shown = [(key, title, body) for key, title, body in sections if body]
    links = joined((tag("a", title, href=f"#{key}") for key, title, _ in shown), " ")
    parts = [tag("section", tag("h2", title), body, id=key) for key, title, body in shown]
    head = joined([
        Html('<meta charset="utf-8">'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{escaped(POLICY)}">'),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", f"{report.title} - stack"),
        tag("style", Html(_asset("page.css"))),
    ], "\n")  # fmt: skip
    body = joined([
        tag("a", "to the content", href="#summary", class_="skip"),
        tag("header", tag("h1", report.title), tag("p", report.origin), tag("nav", links)),
        tag("main", *parts),
        tag("p", "", id="said", role="status", aria_live="polite"),
        tag("div", "", id="hover", hidden=True),
        tag("script", Html(_script())),
    ], "\n")  # fmt: skip
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


def _script() -> str:
    """Returns the scripts of the page, each a file of one idea, as one block of names."""
    parts = "\n".join(_asset(f"scripts/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n{{\n{parts}}}\n'


def _asset(name: str) -> str:
    return files("stack.report").joinpath(name).read_text(encoding="utf-8")


def _summary(report: Report) -> Html:
    kernels = report.kernels
    counts: dict[str, int] = {}
    for kernel in kernels:
        counts[kernel.kind] = counts.get(kernel.kind, 0) + 1
    facts = [
        (", ".join(f"{n} {kind}" for kind, n in counts.items()) or "none", "kernels and calls"),
        (f"{scaled(sum(k.flops for k in kernels))}flop", "of work"),
        (scaled(sum(k.bytes for k in kernels), "B"), "to and from memory"),
        (f"{report.compile_s:.2f} s" if report.compile_s else "–", "to compile"),
    ]
    total = sum(k.timing.median for k in kernels if k.timing is not None)
    if total:
        facts.append((seconds(total), "in kernels"))
    cards = [tag("div", tag("strong", value), tag("span", what)) for value, what in facts]
    told = [n for s in report.stages for n in s.notes if "\n" in n]
    notes = [folded("what the passes derived", tag("pre", "\n\n".join(told)))] if told else []
    return joined(
        [tag("div", *cards, class_="cards"), tag("p", coverage_line(dict(report.coverage))), *notes]
    )


def _schedules(report: Report) -> Html:
    rows: list[list[object]] = []
    for stage in report.stages:
        for node in stage.func.nodes if stage.func is not None else ():
            if "schedule" in node.attrs and stage.func is not None:
                source = stage.func.body.locs.get(node, ())
                lines = dict.fromkeys(s.split(" ")[0] for s in source)
                value = stage.func.body.names.get(node, "")
                rows.append([stage.name, f"%{value}", node.attrs["schedule"], " ".join(lines)])
    if not rows:
        return Html("")
    caption = "tile sizes and bindings of axes; --schedule sets others"
    return table(["stage", "group", "schedule", "source"], rows, caption)


def _sharding(report: Report) -> Html:
    rows: list[list[object]] = []
    for stage in report.stages:
        for row in collectives(stage.func) if stage.func is not None else ():
            over, moved = row["over"], scaled(row["bytes"], "B")
            rows.append(
                [stage.name, f"%{row['value']}", row["op"], over, moved, " ".join(row["source"])]
            )
    if not rows:
        return Html("")
    head = ["stage", "value", "collective", "over", "bytes that a rank sends", "source"]
    return table(head, rows, "communication between ranks")
