"""Output of lessons: tables and pictures in a notebook, text in a terminal."""

from __future__ import annotations

import base64
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from stack.explore.dump import stage_table
from stack.explore.table import table
from stack.ir.func import Func
from stack.measure.timing import Timing, interleave, repeat
from stack.releases import install_hint
from stack.report.drawing import draw_graph, standalone
from stack.report.graph import collapsed, graph_of
from stack.report.graph_layout import layout
from stack.run.record import Run

EXTRAS = {"torch_mlir": "mlir", "mlir": "mlir"}  # packages that are installed by another name
QUICK = bool(os.environ.get("COURSE_QUICK"))  # leaves out what takes seconds, for tests


def show(value: Any) -> None:
    """Shows a value as HTML in a notebook; prints its text elsewhere, of a run the stage table."""
    if "ipykernel" in sys.modules:
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        display(value)
    else:
        print(stage_table(value.manifest()) if isinstance(value, Run) else value)


def has(package: str) -> bool:
    """True if a package is installed; else prints what the cell needs, in one line."""
    if importlib.util.find_spec(package) is not None:
        return True
    extra = EXTRAS.get(package, package)
    print(f"this cell needs {package}: {install_hint(extra)}")
    return False


def race(calls: Mapping[str, Callable[[], object]]) -> dict[str, Timing]:
    """Times several calls in interleaved rounds; returns the timings by name."""
    limits = {"window": 1e-3, "warm": 1e-3} if QUICK else {}
    found = interleave([repeat(call) for call in calls.values()], rounds=5, **limits)
    times: dict[str, Timing] = {}
    for name, timing in zip(calls, found, strict=True):
        if isinstance(timing, Exception):
            raise timing
        times[name] = timing
    return times


class Picture:
    """A drawing of a function's fusion groups and the values between them; prints as a table."""

    def __init__(self, func: Func) -> None:
        self.graph = collapsed(graph_of(func))

    def __str__(self) -> str:
        rows = [[b.name, b.kind, ", ".join(b.ops), b.type] for b in self.graph.boxes]
        return table(["value", "kind", "ops", "type"], rows, widest=48)

    def _repr_html_(self) -> str:
        drawing = standalone(draw_graph(layout(self.graph), lambda _: {}))
        data = base64.b64encode(drawing.encode()).decode()
        return f'<img alt="{str(self).splitlines()[0]}" src="data:image/svg+xml;base64,{data}">'
