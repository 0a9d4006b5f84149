"""Draws a schedule: ranks side by side, steps downwards, an arrow per message."""

from __future__ import annotations

from xml.sax.saxutils import escape

from stack.ops.collectives.schedule import Schedule, Transfer

COLUMN = 110  # pixels between ranks
ROW = 74  # between steps
EDGE = 50
COLORS = ("#1b6ca8", "#c8553d", "#2e7d32", "#8e44ad", "#b8860b", "#00838f", "#ad1457", "#5d4037")


def svg(schedule: Schedule) -> str:
    """Returns an SVG document: solid arrows replace, dashed ones add; colours are slots."""
    width = 2 * EDGE + COLUMN * max(1, schedule.ranks - 1)
    height = 2 * EDGE + ROW * len(schedule.steps) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{EDGE}" y="18" font-size="13">{escape(_title(schedule))}</text>',
        _heads(),
    ]
    for rank in range(schedule.ranks):
        x = EDGE + rank * COLUMN
        parts.append(
            f'<line x1="{x}" y1="{EDGE}" x2="{x}" y2="{height - EDGE / 2}" stroke="#bbb"/>'
            f'<text x="{x}" y="{EDGE - 8}" text-anchor="middle">rank {rank}</text>'
        )
    for number, step in enumerate(schedule.steps):
        parts += [_arrow(t, EDGE + 14 + number * ROW) for t in step]
    return "\n".join([*parts, "</svg>"])


def _title(schedule: Schedule) -> str:
    sent = max(schedule.sent) / schedule.chunks
    return (
        f"{schedule.collective}, {schedule.algorithm}: {len(schedule.steps)} steps, a rank sends"
        f" {sent:.3g} times its input"
    )


def _heads() -> str:
    made = "".join(
        f'<marker id="h{i}" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        f'<path d="M0,0 L7,3 L0,6 z" fill="{color}"/></marker>'
        for i, color in enumerate(COLORS)
    )
    return f"<defs>{made}</defs>"


def _arrow(transfer: Transfer, top: float) -> str:
    number = transfer.reads[0] % len(COLORS)
    color = COLORS[number]
    x1, x2 = (EDGE + rank * COLUMN for rank in (transfer.source, transfer.target))
    dash = ' stroke-dasharray="5 3"' if transfer.adds else ""
    style = f'fill="none" stroke="{color}" stroke-width="1.6"{dash} marker-end="url(#h{number})"'
    slots = ",".join(map(str, transfer.reads))
    if transfer.is_local:
        loop = f"M{x1},{top + 20} c26,2 26,22 2,24"
        return f'<path d="{loop}" {style}/>'
    end = top + ROW - 24
    label = f'<text x="{(3 * x1 + x2) / 4}" y="{(3 * top + end) / 4 - 3}" fill="{color}">'
    return f'<path d="M{x1},{top} L{x2},{end}" {style}/>{label}{slots}</text>'
