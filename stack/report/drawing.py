"""Drawings as SVG: the graph of groups, the roofline, bars with their spreads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from stack.explore.table import number, scaled
from stack.measure.roofline import Ceilings
from stack.report.content import KernelView
from stack.report.graph import LINE, Layout, Placed
from stack.report.markup import Html, joined, tag

# a sign for each kind, so that no kind is told by its colour alone
SIGNS = {
    "gemm": "▦", "multi_gemm": "▦", "reduction": "Σ", "loop": "≡", "stream": "⟳", "kernel": "▣",
    "dot": "▦", "reduce": "Σ", "custom": "✋", "opaque": "?",
}  # fmt: skip
WIDTH, HEIGHT, MARGIN = 720, 330, 62
BAR, LABELS, NOTES = 22, 190, 200
CLIP = 6.0  # bars longer than so many times the middle one are cut


def svg(width: float, height: float, label: str, *inside: object) -> Html:
    """A drawing with a name for those who do not see it."""
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
    """A drawing as a file of its own, with the style of the page."""
    style = files("stack.report").joinpath("page.css").read_text(encoding="utf-8")
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    return drawing.replace("<svg", head, 1).replace(">", f"><style>{style}</style>", 1)


def text(x: float, y: float, value: object, **attributes: object) -> Html:
    """A line of text in a drawing."""
    return tag("text", value, x=f"{x:.1f}", y=f"{y:.1f}", **attributes)


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    place = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    return tag("line", class_=class_, **place)


def _box(x: float, y: float, width: float, height: float, class_: str) -> Html:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    size = {"width": f"{max(width, 0):.1f}", "height": f"{height:.1f}"}
    return tag("rect", class_=class_, **place, **size)


def draw_graph(found: Layout, marks: Callable[[Placed], Mapping[str, object]]) -> Html:
    """Boxes and arrows. `marks` gives the attributes that link a box with lines and kernels."""
    frames = [_frame(found, layer) for layer in sorted({p.box.layer for p in found.boxes} - {-1})]
    arrows = [tag("path", d=_curve(points), class_="arrow") for points in found.arrows]
    boxes = [_draw_box(p, marks(p)) for p in found.boxes]
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
    inside = (tag("defs", head), *frames, *arrows, *boxes)
    # room at the right for how often a layer repeats
    return svg(found.width + 70, found.height, "the program after fusion", *inside)


def _frame(found: Layout, layer: int) -> Html:
    inside = [p for p in found.boxes if p.box.layer == layer]
    left, top = min(p.x for p in inside) - 8, min(p.y for p in inside) - 8
    right = max(p.x + p.width for p in inside) + 8
    bottom = max(p.y + p.height for p in inside) + 8
    return joined([
        _box(left, top, right - left, bottom - top, "frame"),
        text(right + 6, top + 16, f"× {inside[0].box.repeats}", class_="times"),
    ])  # fmt: skip


def _draw_box(placed: Placed, marks: Mapping[str, object]) -> Html:
    box = placed.box
    sign = SIGNS.get(box.kind, "·")
    kind = f"kind-{box.kind}" if box.kind in SIGNS else "kind-other"
    x, y = placed.x + 10, placed.y + LINE
    lines = [
        text(x, y + LINE * (i + 1), line, class_=None if i < placed.heads else "faint")
        for i, line in enumerate(placed.lines)
    ]
    return tag(
        "g",
        _box(placed.x, placed.y, placed.width, placed.height, kind),
        text(x, y, f"{sign} {box.kind}: {box.name}", class_="head"),
        *lines,
        **{**marks, "class_": "box pick", "tabindex": "0", "role": "button"},
    )


def _curve(points: Sequence[tuple[float, float]]) -> str:
    (x, y), *rest = points
    parts = [f"M{x:.1f},{y:.1f}"]
    for i, (to_x, to_y) in enumerate(rest):
        middle = (y + to_y) / 2
        # inside of a rank an arrow runs straight, between ranks it bends
        is_straight = i % 2 == 1
        bend = f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} "
        parts.append(f"L{to_x:.1f},{to_y:.1f}" if is_straight else f"{bend}{to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(parts)


@dataclass(frozen=True)
class Bar:
    """A value with its spread, and what is written beside it."""

    label: str
    value: float
    shown: str
    spread: float = 0.0
    is_ours: bool = False
    note: str = ""


def draw_bars(bars: Sequence[Bar], label: str) -> Html:
    """Bars side by side, from zero. One that is far longer than most is cut, and says so."""
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
        lines.append(_box(LABELS, y, length, BAR, "bar ours" if bar.is_ours else "bar"))
        if is_cut:
            x = LABELS + length
            lines.append(tag("path", d=f"M{x - 14:.0f},{y - 3} l6,14 l-6,14", class_="cut"))
        elif bar.spread:
            lines.extend(_whisker(LABELS, y + BAR / 2, bar, room / longest))
        note = " ".join(filter(None, (bar.shown, "(cut)" if is_cut else "", bar.note)))
        extra = 0.0 if is_cut else room / longest * bar.spread / 2 if longest else 0.0
        lines.append(text(LABELS + length + extra + 8, y + 15, note))
    lines.append(_line(LABELS, 2, LABELS, 6 + len(bars) * (BAR + 6), "axis"))
    return svg(WIDTH + NOTES, 12 + len(bars) * (BAR + 6), label, *lines)


def _whisker(left: float, y: float, bar: Bar, scale: float) -> list[Html]:
    low, high = (left + scale * (bar.value + side * bar.spread / 2) for side in (-1, 1))
    ends = [_line(x, y - 5, x, y + 5, "error") for x in (low, high)]
    return [_line(low, y, high, y, "error"), *ends]


def draw_roofline(kernels: Sequence[KernelView], ceilings: Ceilings, dtype: str) -> Html:
    """What each kernel reaches under what this machine can do; both axes logarithmic."""
    points = [
        (i, k, k.flops / k.bytes, k.flops / k.timing.median)
        for i, k in enumerate(kernels)
        if k.timing is not None and k.flops and k.bytes
    ]
    peak, rate = ceilings.of(dtype), ceilings.bytes
    ridge = peak / rate
    low_x = min([p[2] for p in points] + [ridge / 8]) / 2
    high_x = max([p[2] for p in points] + [ridge * 8]) * 2
    high_y = max([p[3] for p in points] + [peak]) * 2
    low_y = min([p[3] for p in points] + [rate * low_x, peak / 64]) / 2

    def x_of(value: float) -> float:
        span = math.log(high_x / low_x)
        return MARGIN + (WIDTH - MARGIN - 20) * math.log(value / low_x) / span

    def y_of(value: float) -> float:
        span = math.log(high_y / low_y)
        return HEIGHT - 40 - (HEIGHT - 60) * math.log(value / low_y) / span

    parts = [*_grid(low_x, high_x, low_y, high_y, x_of, y_of)]
    slope = f"M{x_of(low_x):.1f},{y_of(rate * low_x):.1f} L{x_of(ridge):.1f},{y_of(peak):.1f}"
    parts.append(tag("path", d=f"{slope} L{x_of(high_x):.1f},{y_of(peak):.1f}", class_="roof"))
    parts.append(text(WIDTH - 24, y_of(peak) - 8, f"{dtype}: {scaled(peak)}flop/s", class_="end"))
    middle = math.sqrt(low_x * ridge)
    x, y = x_of(middle) - 8, y_of(rate * middle) - 8
    parts.append(text(x, y, f"{scaled(rate, 'B')}/s", class_="end"))
    for i, kernel, intensity, reached in points:
        x, y = x_of(intensity), y_of(reached)
        parts.append(_point(x, y, kernel))
        # numbers are those of the table of kernels: names would lie over each other
        parts.append(text(x + 8, y + 4 - 11 * (i % 2), i + 1))
    return svg(WIDTH, HEIGHT, "roofline of this run", *parts)


def _point(x: float, y: float, kernel: KernelView) -> Html:
    name = tag("title", kernel.name)
    if kernel.kind == "generated":
        return tag("circle", name, cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", class_="point")
    return tag("g", name, _box(x - 5, y - 5, 10, 10, "point other"))


def _grid(
    low_x: float,
    high_x: float,
    low_y: float,
    high_y: float,
    x_of: Callable[[float], float],
    y_of: Callable[[float], float],
) -> list[Html]:
    parts = [text(WIDTH / 2, HEIGHT - 6, "operations for each byte", class_="middle")]
    parts.append(text(6, 12, "operations each second"))
    for power in range(math.floor(math.log10(low_x)), math.ceil(math.log10(high_x)) + 1):
        if low_x <= 10.0**power <= high_x:
            x = x_of(10.0**power)
            parts.append(_line(x, y_of(high_y), x, y_of(low_y), "grid"))
            label = number(10.0**power).removesuffix(".00")
            parts.append(text(x, HEIGHT - 24, label, class_="middle"))
    for power in range(math.floor(math.log10(low_y)), math.ceil(math.log10(high_y)) + 1):
        if low_y <= 10.0**power <= high_y:
            y = y_of(10.0**power)
            parts.append(_line(x_of(low_x), y, x_of(high_x), y, "grid"))
            parts.append(text(MARGIN - 6, y + 4, scaled(10.0**power), class_="end"))
    return parts
