"""Cells that several tables of the page have: links to code, times, spreads."""

from __future__ import annotations

from stack.explore.table import number
from stack.measure.timing import is_noisy
from stack.report.content import KernelView
from stack.report.markup import Html, escaped, tag


def code_link(system: int, place: int, kernel: KernelView) -> Html:
    """The name of a kernel, which leads to its code where there is some."""
    if not kernel.text:
        return escaped(kernel.name)
    return tag("a", kernel.name, href=f"#code-{system}-{place}")


def seconds(value: float) -> str:
    """A time with the unit that suits it."""
    for step, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= step:
            return f"{number(value / step)} {unit}"
    return f"{number(value * 1e9)} ns"


def spread_text(middle: float, spread: float, shown: str) -> Html:
    """A spread; one that is too wide for a ratio says so in words."""
    if not is_noisy(middle, spread):
        return escaped(f"± {shown}")
    return tag("span", f"± {shown} ⚠ noisy", class_="noisy")
