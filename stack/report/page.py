"""The page: one file without addresses; its bytes depend only on the report."""

from __future__ import annotations

from importlib.resources import files

from stack.explore.diff import diff_texts, summary
from stack.explore.dump import coverage_line, intensity, op_counts
from stack.explore.sharding import collectives
from stack.explore.table import number, scaled
from stack.measure.kernels import floor_of
from stack.report.cells import code_link, seconds, spread_text
from stack.report.comparison import bar_table, comparison_section
from stack.report.content import KernelView, Report, StageView
from stack.report.drawing import Bar, draw_bars, draw_graph
from stack.report.graph import Graph, PlacedBox, collapsed, graph_of, layout
from stack.report.lines import (
    Index,
    code_lines,
    diff_lines,
    joined_numbers,
    source_view,
    stage_lines,
)
from stack.report.markup import Html, escaped, figure, folded, joined, table, tag, text_box
from stack.report.roofline import draw_roofline
from stack.report.steps import steps_section

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page(report: Report) -> str:
    """Returns the report as a web page."""
    index = Index(report)
    sections = [
        ("summary", "Summary", _summary(report)),
        ("explore", "Source, ops, kernels", _explorer(report, index)),
        ("graph", "Fusion groups", _graph(report, index)),
        ("kernels", "Kernels", _kernels(report, index)),
        ("compare", "Other compilers", comparison_section(report, index)),
        ("schedules", "Schedules", _schedules(report)),
        ("steps", "Step by step", steps_section(report.steps)),
        ("sharding", "Sharding", _sharding(report)),
        ("stages", "Stages", _stages(report, index)),
        ("code", "Generated code", _code(report, index)),
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
        tag("script", Html(_asset("page.js"))),
    ], "\n")  # fmt: skip
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang='en')}\n"


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


def _explorer(report: Report, index: Index) -> Html:
    """Returns the source at the left and two views at the right, each of any stage or kernel."""
    keys = tag(
        "p",
        "Choose a line, a value or a kernel: everything that belongs to it is marked ▸ in every"
        " view and in the graph. Arrow keys move in a view, Enter chooses, Escape clears the"
        " choice, [ and ] show the stage before and after. The address contains the choice, so"
        " you can share it.",
        class_="faint",
    )
    groups = [tag("optgroup", *_options(report), label="stages")]
    for n, system in enumerate(report.systems):
        named = [
            tag("option", f"{i + 1} {k.name}", value=f"code-{n}-{i}")
            for i, k in enumerate(system.kernels)
            if k.text
        ]
        groups.append(tag("optgroup", *named, label=system.name))
    grouped = report.grouped
    first = f"stage-{grouped.name}" if grouped is not None else ""
    second = "code-0-0" if report.kernels and report.kernels[0].text else first
    panes = [
        tag(
            "div",
            tag("label", f"view {letter} ", tag("select", *groups, data_start=start)),
            tag("div", class_="view"),
            class_="pane",
            id=f"pane-{letter}",
        )
        for letter, start in (("a", first), ("b", second))
    ]
    box = {"class_": "text", "tabindex": "0", "role": "region", "aria_label": "source"}
    source = tag("div", tag("label", "source"), tag("pre", source_view(report, index), **box))
    left = Html(source.replace("<div>", '<div class="pane" id="pane-s">', 1))
    return joined([keys, tag("div", left, *panes, class_="panes")])


def _options(report: Report) -> list[Html]:
    found: list[Html] = []
    for before, stage in zip((None, *report.stages), report.stages, strict=False):
        found.append(tag("option", stage.name, value=f"stage-{stage.name}"))
        if _can_differ(before, stage):
            found.append(tag("option", f"{stage.name}: changes", value=f"diff-{stage.name}"))
    return found


def _can_differ(before: StageView | None, stage: StageView) -> bool:
    """True if a diff can be shown: a stage and the one before are IR, and their texts differ."""
    if before is None or before.func is None or stage.func is None:
        return False
    return before.text != stage.text


def _graph(report: Report, index: Index) -> Html:
    stage = report.grouped
    if stage is None or stage.func is None or not stage.func.nodes:
        return Html("")
    whole = graph_of(stage.func)
    drawn = collapsed(whole)

    def marks(placed: PlacedBox) -> dict[str, object]:
        box = placed.box
        return {
            "data_n": box.name,
            "data_s": joined_numbers(index.numbers(box.source)),
            "data_k": joined_numbers(index.by_value.get(box.name, [])),
        }

    hidden = len(whole.boxes) - len(drawn.boxes)
    caption = f"stage {stage.name}: {len(whole.boxes)} groups and ops"
    caption += f", {hidden} of them in equal layers that are drawn once" if hidden else ""
    return figure(draw_graph(layout(drawn), marks), caption, _graph_table(whole, index))


def _graph_table(graph: Graph, index: Index) -> Html:
    users: dict[int, list[str]] = {}
    for a, b in graph.arrows:
        users.setdefault(b, []).append(graph.boxes[a].name)
    rows = [
        [
            b.name,
            b.kind,
            op_counts(list(b.ops)),
            b.type,
            ", ".join((*users.get(i, ()), *b.reads)),
            " ".join(b.source),
            ", ".join(str(k + 1) for k in index.by_value.get(b.name, ())) or None,
        ]
        for i, b in enumerate(graph.boxes)
    ]
    head = ["value", "kind", "ops", "type", "reads", "source", "kernel"]
    return table(head, rows, "groups and ops after fusion")


def _kernels(report: Report, index: Index) -> Html:
    if not report.kernels:
        return Html("")
    times = [k.timing for k in report.kernels if k.timing is not None]
    total = sum(t.median for t in times)
    rows: list[list[object]] = []
    marks: list[dict[str, object]] = []
    for i, kernel in enumerate(report.kernels):
        rows.append([i + 1, code_link(0, i, kernel), *_kernel_row(report, kernel, total)])
        marks.append({
            "class_": "pick", "tabindex": "0", "data_k": i, "id": f"kernel-{i + 1}",
            "data_s": joined_numbers(index.kernels[0][i]),
        })  # fmt: skip
    head = ["number", "kernel", "kind", "time", "spread", "share of time", "share of roof"]
    head += ["operations", "bytes", "operations for each byte", "registers, spills", "source"]
    parts = [table(head, rows, "kernels in the order in which they run", marks)]
    warned = [f"{k.name}: {k.warning}" for k in report.kernels if k.warning]
    parts.extend(tag("p", line, class_="noisy") for line in warned)
    if report.ceilings is not None and times:
        roof = draw_roofline(report.kernels, report.ceilings, report.dtype)
        caption = (
            "Roofline of this run, with the numbers of the table: circles are generated kernels,"
            " squares calls. Whiskers are quartiles; one without an end is cut off. Limits of the"
            f" machine: {report.ceilings.how}"
        )
        ceilings = [[k, v] for k, v in report.ceilings.as_dict().items() if not isinstance(v, dict)]
        parts.append(figure(roof, caption, table(["what", "value"], ceilings, "ceilings")))
    elif not times:
        parts.append(tag("p", "Times need a run: stackc report TARGET --profile", class_="faint"))
    return joined(parts)


def _kernel_row(report: Report, kernel: KernelView, total: float) -> list[object]:
    timing = kernel.timing
    shares: list[object] = [None, None, None, None]
    if timing is not None and timing.median:
        floor = None
        if report.ceilings is not None:
            least = floor_of(kernel, report.ceilings, report.dtype)
            floor = f"{100 * least / timing.median:.0f} %"
        shares = [
            seconds(timing.median),
            spread_text(timing.median, timing.spread, seconds(timing.spread)),
            f"{100 * timing.median / total:.0f} %",
            floor,
        ]
    held = kernel.resources
    spilled = f", {held['spills']} B spilled" if held.get("spills") else ""
    taken = f"{held['registers']}{spilled}" if "registers" in held else None
    work = [scaled(kernel.flops), scaled(kernel.bytes, "B"), intensity(kernel.flops, kernel.bytes)]
    return [kernel.kind, *shares, *work, taken, " ".join(kernel.source)]


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


def _stages(report: Report, index: Index) -> Html:
    rows = [
        [
            tag("a", s.name, href=f"#stage-{s.name}"),
            f"{number(s.ms)} ms" if s.pipeline else None,
            s.ops if s.func is not None else None,
            s.groups if s.func is not None else None,
            "yes" if s.changed else "no",
            s.pipeline,
        ]
        for s in report.stages
    ]
    head = ["stage", "time", "ops", "groups", "changed", "passes"]
    bars = [Bar(s.name, s.ms, f"{number(s.ms)} ms") for s in report.stages if s.pipeline]
    parts = [table(head, rows, "stages in order")]
    if bars:
        caption = "compile time by stage, in milliseconds"
        parts.append(figure(draw_bars(bars, caption), caption, bar_table(bars, "ms")))
    for before, stage in zip((None, *report.stages), report.stages, strict=False):
        lines = stage_lines(stage, index) if stage.func is not None else _artifact(stage, index)
        parts.append(folded(stage.name, text_box(lines, stage.name), id_=f"stage-{stage.name}"))
        if before is not None and _can_differ(before, stage):
            changes = diff_texts(before.text, stage.text, (before.name, stage.name))
            title = f"{before.name} to {stage.name}: {summary(changes)}"
            box = text_box(diff_lines(changes), title)
            parts.append(folded(title, box, id_=f"diff-{stage.name}"))
    return joined(parts)


def _artifact(stage: StageView, index: Index) -> Html:
    return code_lines(stage.text, index)


def _code(report: Report, index: Index) -> Html:
    parts: list[Html] = []
    for n, system in enumerate(report.systems):
        inside = [
            folded(
                f"{i + 1} {k.name}" + (f" ({' '.join(k.source)})" if k.source else ""),
                text_box(code_lines(k.text, index, i if n == 0 else None), k.name),
                id_=f"code-{n}-{i}",
                data_of=joined_numbers(index.kernels[n][i]),
            )
            for i, k in enumerate(system.kernels)
            if k.text
        ]
        calls = sum(not k.text for k in system.kernels)
        note = f"{calls} library calls, without code" if calls else ""
        parts.append(tag("h3", system.name))
        parts.extend(inside)
        parts.append(tag("p", note, class_="faint"))
    return joined(parts)
