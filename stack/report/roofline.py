"""The roofline as SVG: the rate of each kernel with its spread, under this machine's limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stack.explore.table import number, scaled
from stack.measure.roofline import Ceilings
from stack.measure.timing import quantile
from stack.report.content import KernelView
from stack.report.drawing import WIDTH, line, rect, svg, text
from stack.report.markup import Html, tag

HEIGHT, MARGIN, TOP, BOTTOM = 360, 62, 20, 40
_CACHE = 1.2  # the cache gets its own line if it is faster than memory by this factor
Extent = tuple[float, float, float, float]
Places = Sequence[tuple[float, float, str]]
_BELOW, _ABOVE = ((10, 16, ""), (30, 6, "")), ((-8, -8, "end"), (-30, 2, "end"))
_PLACES = ((8, 4, ""), (8, -8, ""), (8, 16, ""), (-8, 4, "end"), (-8, -8, "end"), (-8, 16, "end"))


@dataclass(frozen=True)
class Plane:
    """The axes of a roofline plot, both logarithmic: operations per byte, operations per second."""

    low: tuple[float, float]
    high: tuple[float, float]

    def x(self, value: float) -> float:
        share = math.log(value / self.low[0]) / math.log(self.high[0] / self.low[0])
        return MARGIN + (WIDTH - MARGIN - 20) * share

    def y(self, value: float) -> float:
        share = math.log(value / self.low[1]) / math.log(self.high[1] / self.low[1])
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share

    def holds_y(self, value: float) -> bool:
        """True if a rate in operations per second is inside the drawing."""
        return self.low[1] <= value <= self.high[1]


def draw_roofline(kernels: Sequence[KernelView], ceilings: Ceilings, dtype: str) -> Html:
    """Draws kernels, numbered as in their table, under the limits of arithmetic, memory, cache."""
    points = [
        (i, k, k.flops / k.bytes, k.flops / k.timing.median)
        for i, k in enumerate(kernels)
        if k.timing is not None and k.flops and k.bytes
    ]
    peak = ceilings.of(dtype)
    plane = _plane([(p[2], p[3]) for p in points], peak, ceilings.bytes)
    middles = [(plane.x(x), plane.y(y)) for _, _, x, y in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in middles]
    parts = [*_grid(plane), *_roofs(plane, peak, ceilings, dtype, taken)]
    for (i, kernel, _, _), (x, y) in zip(points, middles, strict=True):
        parts.extend(_whisker(plane, kernel, x))
        parts.append(_point(x, y, kernel))
        parts.append(_label(x, y, str(i + 1), taken, _PLACES))
    return svg(WIDTH, HEIGHT, "roofline of this run", *parts)


def _plane(points: Sequence[tuple[float, float]], peak: float, rate: float) -> Plane:
    ridge = peak / rate
    low_x = min([x for x, _ in points] + [ridge / 8]) / 2
    high_x = max([x for x, _ in points] + [ridge * 8]) * 2
    high_y = max([y for _, y in points] + [peak]) * 2
    low_y = min([y for _, y in points] + [rate * low_x, peak / 64]) / 2
    return Plane((low_x, low_y), (high_x, high_y))


def _roofs(
    plane: Plane, peak: float, ceilings: Ceilings, dtype: str, taken: list[Extent]
) -> list[Html]:
    rates = {"memory": ceilings.bytes}
    cached = ceilings.copies[min(ceilings.copies)]
    if cached > _CACHE * ceilings.bytes:
        rates["cache"] = cached
    parts: list[Html] = []
    for name, rate in rates.items():
        start, ridge = plane.low[0], peak / rate
        slope = f"M{plane.x(start):.1f},{plane.y(rate * start):.1f}"
        slope += f" L{plane.x(ridge):.1f},{plane.y(peak):.1f}"
        parts.append(tag("path", d=slope, class_=f"roof {name}"))
        middle = math.sqrt(start * ridge)
        # label the lower line below it, the upper one above
        places = _BELOW if name == "memory" else _ABOVE
        shown = f"{name}: {scaled(rate, 'B')}/s"
        parts.append(_label(plane.x(middle), plane.y(rate * middle), shown, taken, places))
    first = min(peak / rate for rate in rates.values())
    level = plane.y(peak)
    parts.append(line(plane.x(first), level, plane.x(plane.high[0]), level, "roof"))
    parts.append(text(WIDTH - 24, level - 8, f"{dtype}: {scaled(peak)}flop/s", class_="end"))
    return parts


def _whisker(plane: Plane, kernel: KernelView, x: float) -> list[Html]:
    """Draws a kernel's rates between the quartiles of its times as a line with two caps.

    An end outside the drawing is clipped and has no cap.
    """
    assert kernel.timing is not None
    times = [quantile(kernel.timing.rounds, share) for share in (0.75, 0.25)]
    reached = [kernel.flops / t if t else math.inf for t in times]
    ends = [min(max(r, plane.low[1]), plane.high[1]) for r in reached]
    caps = [
        line(x - 4, plane.y(r), x + 4, plane.y(r), "error") for r in reached if plane.holds_y(r)
    ]
    return [line(x, plane.y(ends[0]), x, plane.y(ends[1]), "error"), *caps]


def _point(x: float, y: float, kernel: KernelView) -> Html:
    name = tag("title", kernel.name)
    if kernel.kind == "generated":
        return tag("circle", name, cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", class_="point")
    return tag("g", name, rect(x - 5, y - 5, 10, 10, "point other"))


def _label(x: float, y: float, shown: str, taken: list[Extent], around: Places) -> Html:
    """Draws a label at the first position where it covers nothing, and adds it to `taken`.

    `around` are the positions to try, relative to (x, y); if none is free, the first is used.
    """
    width = 7.0 * len(shown)
    places = [(x + dx, y + dy, side) for dx, dy, side in around]
    found = next((p for p in places if not _is_over(_extent(*p, width), taken)), places[0])
    taken.append(_extent(*found, width))
    return text(found[0], found[1], shown, class_=found[2] or None)


def _extent(x: float, y: float, side: str, width: float) -> Extent:
    left = x - width if side else x
    return (left, y - 9, left + width, y + 1)


def _is_over(one: Extent, others: Sequence[Extent]) -> bool:
    return any(one[0] < b[2] and b[0] < one[2] and one[1] < b[3] and b[1] < one[3] for b in others)


def _grid(plane: Plane) -> list[Html]:
    parts = [text(WIDTH / 2, HEIGHT - 6, "operations for each byte", class_="middle")]
    parts.append(text(6, 12, "operations each second"))
    bottom, top = plane.y(plane.low[1]), plane.y(plane.high[1])
    left, right = plane.x(plane.low[0]), plane.x(plane.high[0])
    for value in _powers(plane.low[0], plane.high[0]):
        x = plane.x(value)
        parts.append(line(x, top, x, bottom, "grid"))
        label = number(value).removesuffix(".00")
        parts.append(text(x, HEIGHT - 24, label, class_="middle"))
    for value in _powers(plane.low[1], plane.high[1]):
        y = plane.y(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(MARGIN - 6, y + 4, scaled(value), class_="end"))
    return parts


def _powers(low: float, high: float) -> list[float]:
    """Returns the powers of ten between two numbers."""
    first, last = math.ceil(math.log10(low)), math.floor(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]
