"""The explorer: source, graph and views of stages or kernels, in which a choice marks what belongs
together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from stack.explore.dump import op_counts
from stack.explore.layers import folded as folded_modules
from stack.explore.table import scaled
from stack.report.content import Report, StageView
from stack.report.drawing import draw_graph
from stack.report.graph import Graph, collapsed, graph_of
from stack.report.graph_layout import PlacedBox, layout
from stack.report.lines import Index, joined_numbers, source_view
from stack.report.markup import Html, figure, joined, table, tag

KEYS = (
    "Choose a line, a value or a kernel: everything that belongs to it is marked ▸ in every view"
    " and in the graph. Arrow keys move in a view, Enter chooses, Escape clears the choice, [ and ]"
    " show the stage before and after, / searches. The address contains the choice, so you can"
    " share it."
)


def explorer_section(report: Report, index: Index) -> Html:
    """Returns the tools, the graph, the source, and views of any stage or kernel."""
    source = _pane("s", tag("label", "source"), tag("pre", source_view(report, index), **_BOX))
    views = [
        _pane(letter, tag("label", title, select), tag("div", class_="view"))
        for letter, title, select in _selects(report)
    ]
    panes = [_graph(report, index), source, tag("div", *views, class_="views")]
    grid = tag("div", *panes, class_="panes many" if report.beside else "panes")
    return joined([tag("p", KEYS, class_="faint"), _tools(report), grid, _data(report, index)])


_BOX = {
    "class_": "text", "tabindex": "0", "role": "region", "aria_label": "source", "data_lang": "py",
}  # fmt: skip


def _pane(letter: str, *inside: object) -> Html:
    return tag("div", *inside, class_="pane", id=f"pane-{letter}")


def _tools(report: Report) -> Html:
    """Returns the search box and the switches."""
    search = '<input type="search" id="search" placeholder="op, value, line, module, name">'
    parts = [tag("label", "search ", Html(search)), tag("span", "", id="found")]
    parts.append(tag("label", Html('<input type="checkbox" id="wrap">'), " wrap lines"))
    if report.errors:
        box = Html('<input type="checkbox" id="errors">')
        parts.append(tag("label", box, " rounding errors"))
    if report.beside:
        box = Html('<input type="checkbox" id="together" checked>')
        parts.append(tag("label", box, " same stage and place in all runs"))
    return tag("div", *parts, class_="tools", role="search")


def _selects(report: Report) -> Iterator[tuple[str, str, Html]]:
    """Yields the letter, the title and the list of choices of each view.

    A report of one run has two views of it; one of several runs has a view for each.
    """
    grouped = report.grouped
    first = f"stage-{grouped.name}" if grouped is not None else ""
    if report.beside:
        for n, run in enumerate((report, *report.beside)):
            prefix = f"r{n}-" if n else ""
            options = [_stages(run, prefix), *_kernels(report, [n])]
            start = f"{prefix}{first}"
            yield chr(97 + n), f"{run.name} ", tag("select", *options, data_start=start)
        return
    second = "code-0-0" if report.kernels and report.kernels[0].text else first
    options = [_stages(report, ""), *_kernels(report, range(len(report.systems)))]
    for letter, start in (("a", first), ("b", second)):
        yield letter, f"view {letter} ", tag("select", *options, data_start=start)


def _stages(report: Report, prefix: str) -> Html:
    found: list[Html] = []
    for before, stage in zip((None, *report.stages), report.stages, strict=False):
        found.append(tag("option", stage.name, value=f"{prefix}stage-{stage.name}"))
        if can_differ(before, stage):
            value = f"{prefix}diff-{stage.name}"
            found.append(tag("option", f"{stage.name}: changes", value=value))
    return tag("optgroup", *found, label="stages")


def _kernels(report: Report, systems: Sequence[int]) -> Iterator[Html]:
    for n in systems:
        view = report.systems[n]
        named = [
            tag("option", f"{numbers(same)} {view.kernels[i].title}", value=f"code-{n}-{i}")
            for i, same in view.code.items()
        ]
        yield tag("optgroup", *named, label=view.name)


def numbers(places: Sequence[int]) -> str:
    """Formats the numbers of kernels with one code: `2` or `2, 10`, of many the first."""
    shown = ", ".join(str(i + 1) for i in places[:2])
    return f"{shown}, …" if len(places) > 2 else shown


def can_differ(before: StageView | None, stage: StageView) -> bool:
    """True if a diff can be shown: a stage and the one before are IR, and their texts differ."""
    if before is None or before.func is None or stage.func is None:
        return False
    return before.text != stage.text


def _data(report: Report, index: Index) -> Html:
    """Returns what the page says about a place under the pointer, as JSON."""
    code = {name: text.splitlines() for name, text in report.sources.items()}

    def line(place: str) -> str:
        file, _, number = place.rpartition(":")
        rows = code.get(file, [])
        at = int(number) - 1 if number.isdigit() else -1
        return f"{place}  {rows[at].strip()}" if 0 <= at < len(rows) else place

    held = {
        "lines": [line(place) for place in index.lines],
        "kernels": [k.title for k in report.kernels],
        "errors": {name: float(f"{e:.2g}") for name, e in report.errors.items()},
    }
    text = json.dumps(held, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return tag("script", Html(text), type="application/json", id="data")


def _graph(report: Report, index: Index) -> Html:
    stage = report.grouped
    if stage is None or stage.func is None or not stage.func.nodes:
        return Html("")
    whole = graph_of(stage.func)
    drawn = collapsed(whole)

    def marks(placed: PlacedBox) -> dict[str, object]:
        box = placed.box
        kernels = dict.fromkeys(k for v in box.values for k in index.by_value.get(v, []))
        return {
            "data_n": " ".join(box.values),
            "data_s": joined_numbers(index.numbers(box.source)),
            "data_k": joined_numbers(list(kernels)),
            "data_ops": op_counts(list(box.ops)),
        }

    hidden = len(whole.boxes) - len(drawn.boxes)
    count = len(whole.boxes)
    caption = f"stage {stage.name}: {count} {'group or op' if count == 1 else 'groups and ops'}"
    caption += f", {hidden} of them in equal layers that are drawn once" if hidden else ""
    caption += ". Arrows carry the bytes below their box; lone reshapes are left out"
    buttons = [
        tag("button", sign, type="button", data_zoom=by, aria_label=label)
        for sign, by, label in (
            ("−", "0.8", "smaller"),
            ("+", "1.25", "larger"),
            ("fit", "fit", "fit"),
        )
    ]
    drawing = figure(draw_graph(layout(drawn), marks), caption, _table(whole, index), "canvas")
    bar = tag("div", tag("span", "graph "), *buttons, class_="bar")
    return tag("div", bar, drawing, class_="pane", id="graph")


def _table(graph: Graph, index: Index) -> Html:
    users: dict[int, list[str]] = {}
    for a, b in graph.arrows:
        size = graph.sizes.get((a, b))
        carried = f" ({scaled(size, 'B')})" if size is not None else ""
        users.setdefault(b, []).append(graph.boxes[a].name + carried)
    rows = [
        [
            b.name,
            b.computes,
            op_counts(list(b.ops)),
            b.type,
            ", ".join((*users.get(i, ()), *b.reads)),
            folded_modules(b.modules),
            " ".join(b.source),
            ", ".join(str(k + 1) for k in index.by_value.get(b.name, ())) or None,
        ]
        for i, b in enumerate(graph.boxes)
    ]
    head = ["value", "computes", "ops", "type", "reads", "module", "source", "kernel"]
    return table(head, rows, "groups and ops after fusion")
