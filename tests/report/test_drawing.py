"""Bars and rooflines: values with their spreads, marks on cut bars, names without overlap."""

from __future__ import annotations

import re

from stack.measure.roofline import Ceilings
from stack.measure.timing import Timing
from stack.report.comparison import library_calls
from stack.report.content import KernelView
from stack.report.drawing import Bar, draw_bars
from stack.report.roofline import draw_roofline

CEILINGS = Ceilings({"f32": 1e11}, {16 << 20: 4e10, 256 << 20: 1e10}, 2, "by hand")


def kernel(name: str, flops: float, size: float, *rounds: float) -> KernelView:
    timing = Timing(rounds) if rounds else None
    return KernelView(name, "generated", "", (), (), flops, size, "", timing)


def labels(drawing: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>(\d)</text>', drawing)
    return {shown: (float(x), float(y)) for x, y, shown in found}


def test_bars_have_their_spread_and_long_ones_are_cut_with_a_mark() -> None:
    bars = [Bar("a", 2.0, "2 ms", 0.5), Bar("b", 1.0, "1 ms"), Bar("c", 90.0, "90 ms", 1.0)]
    drawing = draw_bars(bars, "times")
    assert drawing.count('class="error"') == 3  # one whisker with its two ends
    assert drawing.count('class="cut"') == 1
    assert "90 ms (cut)" in drawing
    lengths = list(map(float, re.findall(r'width="([\d.]+)" height="22.0"', drawing)))
    assert lengths[0] > lengths[1]
    assert lengths[2] < 45 * lengths[0]


def test_a_roofline_has_both_roofs_and_the_spread_of_each_kernel() -> None:
    points = [kernel("one", 1e6, 1e6, 9e-5, 1e-4, 2e-4), kernel("untimed", 1e6, 1e6)]
    drawing = draw_roofline(points, CEILINGS, "f32")
    assert 'class="roof memory"' in drawing
    assert 'class="roof cache"' in drawing
    assert drawing.count('class="error"') == 3
    assert drawing.count("<circle") == 1
    flat = Ceilings(CEILINGS.flops, {16 << 20: 1.1e10, 256 << 20: 1e10}, 2, "by hand")
    assert 'class="roof cache"' not in draw_roofline(points, flat, "f32")


def test_a_whisker_that_leaves_the_drawing_has_no_end_there() -> None:
    wild = kernel("wild", 1e6, 1e6, 1e-5, 1e-5, 1e-5, 1000.0, 1000.0)
    drawing = draw_roofline([wild, kernel("calm", 1e6, 1e6, 1e-5)], CEILINGS, "f32")
    calm = 3
    assert drawing.count('class="error"') == calm + 2


def test_numbers_of_equal_points_lie_apart() -> None:
    drawing = draw_roofline([kernel(n, 1e6, 1e6, 1e-4) for n in "abcd"], CEILINGS, "f32")
    found = labels(drawing)
    assert set(found) == set("1234")
    assert len(set(found.values())) == 4


def test_library_calls_of_a_line_are_summed_up() -> None:
    names = ["aten.mm", "aten.mm", "aten.add", "aten.mul", "aten.div"]
    assert library_calls(names) == "5 library calls: aten.mm, aten.add, aten.mul and 1 more"
    assert library_calls(names[:1]) == "1 library call: aten.mm"
