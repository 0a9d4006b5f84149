"""Table cells that several tables of the page share: links to code, times, spreads."""

from __future__ import annotations

from stack.explore.table import number
from stack.measure.timing import is_noisy
from stack.report.content import Report
from stack.report.markup import Html, escaped, tag


def code_link(report: Report, system: int, place: int, shown: str = "") -> Html:
    """Returns the name of a kernel, or the text `shown`, as a link to its code if it has code.

    `system` and `place` are the positions of its system, and of the kernel in that system.
    """
    view = report.systems[system]
    kernel = view.kernels[place]
    if not kernel.text:
        return escaped(shown or kernel.name)
    return tag("a", shown or kernel.name, href=f"#code-{system}-{view.code_of(place)}")


def seconds(value: float) -> str:
    """Formats a time with a suitable unit."""
    for step, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= step:
            return f"{number(value / step)} {unit}"
    return f"{number(value * 1e9)} ns"


def spread_text(middle: float, spread: float, shown: str) -> Html:
    """Formats the spread of a time or ratio whose median is `middle`.

    The text `shown` is marked as noisy if the spread is too wide for the ratio to be meaningful.
    """
    if not is_noisy(middle, spread):
        return escaped(f"± {shown}")
    return tag("span", f"± {shown} ⚠ noisy", class_="noisy")
