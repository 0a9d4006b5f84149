"""Timelines: a trace for Perfetto and chrome://tracing, and an SVG drawing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from xml.sax.saxutils import escape

from stack.sim.pipeline import Timetable
from stack.sim.run import Event, Simulation

COLORS = {
    "compute": "#1b6ca8",
    "communicate": "#c8553d",
    "F": "#1b6ca8",
    "B": "#2e7d32",
    "W": "#b8860b",
}
WIDTH, ROW, EDGE = 1000, 26, 110


def perfetto(simulation: Simulation) -> str:
    """Returns a JSON trace: a process per class of ranks, a thread per stream, and memory."""
    counts = dict(simulation.classes)
    found: list[dict[str, object]] = []
    for rank, count in simulation.classes:
        name = f"rank {rank}" + (f" and {count - 1} alike" if count > 1 else "")
        found.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
    for e in simulation.events:
        span = {"ts": e.start * 1e6, "dur": (e.end - e.start) * 1e6}
        found.append({"ph": "X", "name": e.name, "pid": e.rank, "tid": e.stream, **span})
    first = next(iter(counts))
    for time, held in simulation.memory:
        args = {"bytes": held}
        found.append({"ph": "C", "name": "memory", "pid": first, "ts": time * 1e6, "args": args})
    return json.dumps({"traceEvents": found, "displayTimeUnit": "ms"})


def timeline(simulation: Simulation) -> str:
    """Returns an SVG document: a row for each stream of each class, with memory below."""
    rows = [(rank, s) for rank, _ in simulation.classes for s in ("compute", "communicate")]
    scale = WIDTH / simulation.seconds
    parts: list[str] = []
    for number, (rank, stream) in enumerate(rows):
        y = EDGE // 4 + number * ROW
        parts.append(_label(f"{rank} {stream}", y))
        own = [e for e in simulation.events if (e.rank, e.stream) == (rank, stream)]
        parts.extend(_box(e, y, scale, COLORS[stream]) for e in own)
    bottom = EDGE // 4 + len(rows) * ROW + 100
    most = simulation.peak
    points = " ".join(
        f"{EDGE + t * scale:.1f},{bottom - 90 * held / most:.1f}" for t, held in simulation.memory
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="#8e44ad"/>')
    parts.append(_label(f"{most / 2**20:.3g} MiB", bottom - 80))
    parts.append(_label(f"{simulation.seconds * 1e3:.3g} ms", bottom + 4))
    return _document(parts, bottom + 30)


def pipeline_timeline(schedule: Timetable) -> str:
    """Returns an SVG document: a row per rank, with F, B and W and the microbatch number."""
    scale = WIDTH / schedule.seconds
    parts: list[str] = []
    for rank, placed in enumerate(schedule.ranks):
        y = EDGE // 4 + rank * ROW
        parts.append(_label(f"rank {rank}", y))
        for p in placed:
            name = f"{p.work.kind}{p.work.batch} of chunk {p.work.chunk}"
            event = Event(rank, p.work.kind, name, p.start, p.end)
            parts.append(_box(event, y, scale, COLORS[p.work.kind]))
    return _document(parts, EDGE // 4 + len(schedule.ranks) * ROW + 20)


def _box(event: Event, y: int, scale: float, color: str) -> str:
    x, width = EDGE + event.start * scale, max((event.end - event.start) * scale, 0.3)
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="{color}"'
        f' stroke="white" stroke-width="0.4"><title>{escape(event.name)}</title></rect>'
    )


def _label(text: str, y: int) -> str:
    return f'<text x="4" y="{y + 14}" font-size="12" font-family="sans-serif">{escape(text)}</text>'


def _document(parts: Sequence[str], height: int) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH + EDGE + 20}" height="{height}">'
    return "\n".join((head, *parts, "</svg>\n"))
