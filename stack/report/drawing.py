"""SVG drawings: the graph of groups, bar charts with spreads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile

from stack.explore.layers import folded, pattern
from stack.report.graph import Box
from stack.report.graph_layout import LINE, Layout, PlacedBox
from stack.report.markup import Html, joined, tag

# a sign for each kind, so that kinds differ by more than colour
SIGNS = {
    "gemm": "▦", "multi_gemm": "▦", "reduction": "Σ", "loop": "≡", "stream": "⟳", "kernel": "▣",
    "dot": "▦", "reduce": "Σ", "custom": "✋", "opaque": "?",
}  # fmt: skip
WIDTH = 720
BAR, LABELS, NOTES = 22, 190, 200
CLIP = 6.0  # bars longer than this multiple of the median are cut


def svg(width: float, height: float, label: str, *inside: object) -> Html:
    """Returns an SVG element with a label for screen readers."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return tag(
        "svg",
        *inside,
        viewBox=box,
        width=f"{width:.0f}",
        height=f"{height:.0f}",
        role="img",
        aria_label=label,
    )


def standalone(drawing: Html) -> str:
    """Returns a drawing as a file of its own, with the style of the page."""
    style = files("stack.report").joinpath("page.css").read_text(encoding="utf-8")
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    return drawing.replace("<svg", head, 1).replace(">", f"><style>{style}</style>", 1)


def text(x: float, y: float, value: object, **attributes: object) -> Html:
    """Returns a line of text in a drawing."""
    return tag("text", value, x=f"{x:.1f}", y=f"{y:.1f}", **attributes)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    """Returns a straight SVG line from (x1, y1) to (x2, y2)."""
    place = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return tag("line", class_=class_, **place)


def rect(x: float, y: float, width: float, height: float, class_: str) -> Html:
    """Returns an SVG rectangle; a negative width becomes 0."""
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    size = {"width": f"{max(width, 0):.1f}", "height": f"{height:.1f}"}
    return tag("rect", class_=class_, **place, **size)


def draw_graph(found: Layout, marks: Callable[[PlacedBox], Mapping[str, object]]) -> Html:
    """Draws the boxes and arrows of a laid-out dataflow graph as SVG.

    `marks` returns the attributes that link a box to its source lines and kernels on the page.
    """
    frames = [_frame(found, layer) for layer in sorted({p.box.layer for p in found.boxes} - {-1})]
    arrows = [tag("path", d=_curve(points), class_="arrow") for points in found.arrows]
    boxes = [_draw_box(p, marks(p)) for p in found.boxes]
    labels = [text(x, y, shown, class_="bytes") for x, y, shown in found.labels]
    head = tag(
        "marker",
        tag("path", d="M0,0 L8,4 L0,8 z"),
        id="head",
        viewBox="0 0 8 8",
        refX="7",
        refY="4",
        markerWidth="7",
        markerHeight="7",
        orient="auto",
    )
    inside = (tag("defs", head), *frames, *arrows, *labels, *boxes)
    # room at the right for the number of repeats of a layer
    return svg(found.width + 70, found.height, "the program after fusion", *inside)


def _frame(found: Layout, layer: int) -> Html:
    """Draws a frame around a layer, with the modules that it represents and their number."""
    inside = [p for p in found.boxes if p.box.layer == layer]
    left, top = min(p.x for p in inside) - 8, min(p.y for p in inside) - 20
    right = max(p.x + p.width for p in inside) + 8
    bottom = max(p.y + p.height for p in inside) + 16
    return joined([
        rect(left, top, right - left, bottom - top, "frame"),
        text(left + 6, top + 14, _common([p.box for p in inside]), class_="path"),
        text(right + 6, top + 16, f"× {inside[0].box.repeats}", class_="times"),
    ])  # fmt: skip


def _common(boxes: Sequence[Box]) -> str:
    """Returns the path that the modules of a layer begin with, with the numbers of its layers:
    `h.0-11`.
    """
    parts = [pattern(m).split(".") for b in boxes for m in b.modules]
    same = list(takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False)))
    first = next((b.modules for b in boxes if b.modules), ())
    return folded(".".join(m.split(".")[: len(same)]) for m in first) if same else ""


def _draw_box(placed: PlacedBox, marks: Mapping[str, object]) -> Html:
    box = placed.box
    sign = SIGNS.get(box.kind, "·")
    kind = f"kind-{box.kind}" if box.kind in SIGNS else "kind-other"
    x, y = placed.x + 10, placed.y + LINE + 2
    lines = [
        text(x, y + LINE * (i + 1), line, class_="faint") for i, line in enumerate(placed.lines)
    ]
    return tag(
        "g",
        rect(placed.x, placed.y, placed.width, placed.height, kind),
        text(x, y, f"{sign} {placed.title}", class_="head"),
        *lines,
        **{**marks, "class_": "box pick", "tabindex": "0", "role": "button"},
    )


def _curve(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.1f},{y:.1f}"]
    for i, (to_x, to_y) in enumerate(rest):
        middle = (y + to_y) / 2
        # an arrow is straight inside a rank and curved between ranks
        is_straight = i % 2 == 1
        bend = f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} "
        parts.append(f"L{to_x:.1f},{to_y:.1f}" if is_straight else f"{bend}{to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(parts)


@dataclass(frozen=True)
class Bar:
    """One bar of a chart: a value with its spread and label."""

    label: str
    value: float
    shown: str
    spread: float = 0.0
    is_ours: bool = False
    note: str = ""


def draw_bars(bars: Sequence[Bar], label: str) -> Html:
    """Draws horizontal bars from zero. A bar much longer than the median is cut and marked."""
    values = sorted(b.value for b in bars)
    middle = values[len(values) // 2] if values else 1.0
    longest = min(values[-1], CLIP * middle) if values and middle else max([*values, 1.0])
    reach = max([b.value + b.spread / 2 for b in bars if b.value <= longest], default=longest)
    room = (WIDTH - LABELS) * longest / max(reach, longest)
    lines: list[Html] = []
    for i, bar in enumerate(bars):
        y = 8 + i * (BAR + 6)
        is_cut = bar.value > longest * 1.001
        length = room * min(bar.value, longest) / longest if longest else 0.0
        lines.append(text(LABELS - 8, y + 15, bar.label, class_="end"))
        lines.append(rect(LABELS, y, length, BAR, "bar ours" if bar.is_ours else "bar"))
        if is_cut:
            x = LABELS + length
            lines.append(tag("path", d=f"M{x - 14:.0f},{y - 3} l6,14 l-6,14", class_="cut"))
        elif bar.spread:
            lines.extend(_whisker(LABELS, y + BAR / 2, bar, room / longest))
        note = " ".join(filter(None, (bar.shown, "(cut)" if is_cut else "", bar.note)))
        extra = 0.0 if is_cut else room / longest * bar.spread / 2 if longest else 0.0
        lines.append(text(LABELS + length + extra + 8, y + 15, note))
    lines.append(line(LABELS, 2, LABELS, 6 + len(bars) * (BAR + 6), "axis"))
    return svg(WIDTH + NOTES, 12 + len(bars) * (BAR + 6), label, *lines)


def _whisker(left: float, y: float, bar: Bar, scale: float) -> list[Html]:
    low, high = (left + scale * (bar.value + side * bar.spread / 2) for side in (-1, 1))
    ends = [line(x, y - 5, x, y + 5, "error") for x in (low, high)]
    return [line(low, y, high, y, "error"), *ends]
