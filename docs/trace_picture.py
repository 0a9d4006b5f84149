"""Draws docs/profile.svg: a Llama block in the trace that torch.profiler writes for Chrome.

`python docs/trace_picture.py` compiles the block, records some calls, and draws the shortest one.
Each of our events is a row: module path, kernel, source lines, and a bar from start to end.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch

import stack
from stack.demos.transformer import llama_block

OUT = Path(__file__).with_name("profile.svg")
CALLS = 30
NAME = re.compile(r"stack::(?P<kernel>\S+)(?: \[(?P<module>[^]]*)\])?(?: (?P<lines>\S.*))?")
WIDTH, TEXT, ROW, TOP, MARGIN = 940, 520, 22, 46, 14
COLUMNS = (MARGIN, 120, 300)  # module, kernel, lines
LONGEST = 30  # characters of a list of source lines


class Event(NamedTuple):
    """One event of a trace, in microseconds."""

    name: str
    start: float
    duration: float


def main() -> int:
    """Record, and write the picture."""
    OUT.write_text(picture(recorded()), encoding="utf-8")
    print(f"{OUT.name}: {OUT.stat().st_size} bytes")
    return 0


def recorded() -> list[Event]:
    """Returns our events in the trace of the shortest of some calls; the first is the call."""
    model, args = llama_block()
    compiled = stack.compile(model, *args)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        compiled(*args)
        traces: list[list[Event]] = []
        for number in range(CALLS):
            with torch.profiler.profile() as found:
                compiled(*args)
            file = Path(folder) / f"{number}.json"
            found.export_chrome_trace(str(file))
            traces.append(events(json.loads(file.read_text(encoding="utf-8"))["traceEvents"]))
    return min(traces, key=lambda trace: trace[0].duration)


def events(trace: Sequence[dict[str, object]]) -> list[Event]:
    """Returns our events of a Chrome trace by start; an event contains those that follow inside."""
    mine = [e for e in trace if str(e.get("name")).startswith("stack::") and e.get("ph") == "X"]
    found = [Event(str(e["name"]), float(str(e["ts"])), float(str(e["dur"]))) for e in mine]
    return sorted(found, key=lambda event: (event.start, -event.duration))


def picture(trace: Sequence[Event]) -> str:
    """Returns the rows as SVG."""
    whole, height = trace[0], TOP + ROW * len(trace) + MARGIN
    scale = (WIDTH - TEXT - 2 * MARGIN) / whole.duration
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img">',
        "<title>Kernels of a Llama block in a trace of torch.profiler</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *heads(whole),
    ]
    for number, event in enumerate(trace):
        parts += row(event, whole, TOP + ROW * number, scale, number == 0)
    return "\n".join([*parts, "</svg>", ""])


def heads(whole: Event) -> list[str]:
    """Returns the heads of the columns; that of the bars says how long the call took."""
    names = ("module", "kernel", "source", f"{whole.duration / 1000:.2f} ms")
    places = (*COLUMNS, TEXT + MARGIN)
    return [text(name, x, 26, "#5a6472") for name, x in zip(names, places, strict=True)]


def row(event: Event, whole: Event, y: float, scale: float, is_whole: bool) -> list[str]:
    """Returns the words and the bar of one event."""
    found = NAME.fullmatch(event.name)
    assert found is not None, event.name
    lines = found["lines"] or ""
    short = lines if len(lines) <= LONGEST else lines[: lines.rindex(",", 0, LONGEST)] + ", ..."
    words = (found["module"] or "", found["kernel"], short)
    colour = "#8a94a3" if is_whole else "#0072b2"
    x, width = TEXT + MARGIN + scale * (event.start - whole.start), max(1, scale * event.duration)
    bar = f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 7}" fill="{colour}"/>'
    named = [text(word, at, y + 15) for word, at in zip(words, COLUMNS, strict=True) if word]
    return [*named, bar]


def text(words: str, x: float, y: float, colour: str = "#1c2430") -> str:
    """Returns a line of text."""
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11"'
    return f'<text x="{x}" y="{y}" fill="{colour}" {font}>{escape(words)}</text>'


if __name__ == "__main__":
    sys.exit(main())
