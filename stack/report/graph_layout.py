"""Positions of boxes and arrows in the drawing of a graph.

Uses the layout of Sugiyama (1981). Ranks are longest paths. An arrow gets a bend in each rank that
it crosses. Boxes are ordered by the mean position of their neighbours, then pulled towards them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stack.explore.kernel_rows import source_text
from stack.explore.layers import folded
from stack.explore.table import scaled
from stack.report.graph import Box, Graph

GAP_X, GAP_Y = 26, 40
LINE = 15  # pixels of a line of text
SWEEPS = 6
CHARACTER = 7.0  # pixels
MOST = 40  # characters of a line of a box


@dataclass(frozen=True)
class PlacedBox:
    """A box with its corner and size in pixels, its title, and its lines of text."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """A drawing: boxes, arrows as points from top to bottom, and its size.

    `labels` are the bytes that arrows carry, as text with its position.
    """

    boxes: tuple[PlacedBox, ...]
    arrows: tuple[tuple[tuple[float, float], ...], ...]
    labels: tuple[tuple[float, float, str], ...]
    width: float
    height: float


def layout(graph: Graph) -> Layout:
    """Computes the positions of all boxes and arrows of a graph, in rows from top to bottom."""
    sizes = [_size(b) for b in graph.boxes]
    ranks = _ranks(graph)
    chains = _chains(graph, ranks)
    rows = _rows(graph, ranks, chains)
    neighbours = _neighbours(chains)
    for sweep in range(SWEEPS):
        _order(rows, neighbours, is_down=sweep % 2 == 0)
    widths: dict[Hashable, float] = {i: s[0] for i, s in enumerate(sizes)}
    centres = _centres(rows, widths, neighbours)
    tops: list[float] = []
    y = 10.0
    for row in rows:
        tops.append(y)
        y += max([sizes[i][1] for i in row if isinstance(i, int)], default=0.0) + GAP_Y
    left = min([centres[v] - widths.get(v, 0) / 2 for row in rows for v in row], default=0.0) - 10
    placed: list[PlacedBox] = []
    for i, (box, (width, height, lines)) in enumerate(zip(graph.boxes, sizes, strict=True)):
        x = centres[i] - width / 2 - left
        placed.append(PlacedBox(box, x, tops[ranks[i]], width, height, lines[0], lines[1:]))
    arrows = [
        _points((placed[a], placed[b]), chain[1:-1], centres, tops, left)
        for (a, b), chain in zip(graph.arrows, chains, strict=True)
    ]
    width = max([p.x + p.width for p in placed], default=0.0) + 10
    return Layout(tuple(placed), tuple(arrows), _labels(graph, placed), width, y - GAP_Y + 10)


def _labels(graph: Graph, placed: Sequence[PlacedBox]) -> tuple[tuple[float, float, str], ...]:
    """Returns the bytes of arrows, below the box that they leave; equal ones are merged."""
    found: dict[int, dict[str, None]] = {}
    for (start, _), size in graph.sizes.items():
        found.setdefault(start, {})[scaled(size, "B")] = None
    return tuple(
        (
            placed[i].x + placed[i].width / 2 + 7,
            placed[i].y + placed[i].height + 13,
            ", ".join(held),
        )
        for i, held in found.items()
    )


def _size(box: Box) -> tuple[float, float, tuple[str, ...]]:
    """Returns the width and height of a box, and its lines of text."""
    texts = [
        f"%{box.name} : {box.type}",
        folded(box.modules),
        source_text(list(box.source)),
    ]
    title = box.computes or box.kind
    lines = (title, *(_cut(t) for t in texts if t))
    width = max(CHARACTER * max(map(len, lines)), 7.8 * (len(title) + 2)) + 20
    return width, LINE * len(lines) + 12, lines


def _cut(text: str) -> str:
    """Shortens the end of a long line."""
    return text if len(text) <= MOST else f"{text[: MOST - 1]}…"


def _ranks(graph: Graph) -> list[int]:
    ranks = [0] * len(graph.boxes)
    for a, b in sorted(graph.arrows, key=lambda e: e[1]):
        ranks[b] = max(ranks[b], ranks[a] + 1)
    return ranks


Vertex = Any  # the index of a box, or (arrow, rank) for a bend of an arrow
Chain = list[Vertex]


def _chains(graph: Graph, ranks: Sequence[int]) -> list[Chain]:
    """Returns for each arrow its first box, a bend in every row that it crosses, and its last box.

    `ranks` gives the row of each box.
    """
    return [
        [a, *((k, rank) for rank in range(ranks[a] + 1, ranks[b])), b]
        for k, (a, b) in enumerate(graph.arrows)
    ]


def _rows(graph: Graph, ranks: Sequence[int], chains: Sequence[Chain]) -> list[list[Vertex]]:
    rows: list[list[Vertex]] = [[] for _ in range(max(ranks, default=-1) + 1)]
    for i in range(len(graph.boxes)):
        rows[ranks[i]].append(i)
    for chain in chains:
        for bend in chain[1:-1]:
            rows[bend[1]].append(bend)
    return rows


def _neighbours(chains: Sequence[Chain]) -> Mapping[Vertex, tuple[list[Vertex], list[Vertex]]]:
    """Maps each box or bend of an arrow to those that arrows connect it to, above and below."""
    found: dict[Vertex, tuple[list[Vertex], list[Vertex]]] = {}
    for chain in chains:
        for above, below in pairwise(chain):
            found.setdefault(below, ([], []))[0].append(above)
            found.setdefault(above, ([], []))[1].append(below)
    return found


def _order(
    rows: list[list[Vertex]],
    neighbours: Mapping[Vertex, tuple[list[Vertex], list[Vertex]]],
    is_down: bool,
) -> None:
    """Sorts boxes and bends in each row by the mean position of their neighbours in other rows.

    So fewer arrows cross. The neighbours are those above if `is_down`, else those below.
    """
    place = {v: i / max(1, len(row) - 1) for row in rows for i, v in enumerate(row)}
    for row in rows if is_down else reversed(rows):
        means: dict[Vertex, float] = {}
        for v in row:
            near = neighbours.get(v, ([], []))[0 if is_down else 1]
            means[v] = sum(place[n] for n in near) / len(near) if near else place[v]
        row.sort(key=means.__getitem__)
        place.update({v: i / max(1, len(row) - 1) for i, v in enumerate(row)})


def _centres(
    rows: Sequence[Sequence[Vertex]],
    widths: Mapping[Hashable, float],
    neighbours: Mapping[Vertex, tuple[list[Vertex], list[Vertex]]],
) -> dict[Vertex, float]:
    centres: dict[Vertex, float] = {}
    for row in rows:
        x = 0.0
        for v in row:
            half = widths.get(v, 0.0) / 2
            centres[v] = x + half
            x += 2 * half + GAP_X
        for v in row:
            centres[v] -= (x - GAP_X) / 2
    for _ in range(2 * SWEEPS):
        for row in rows:
            _pull(row, centres, widths, neighbours)
    return centres


def _pull(
    row: Sequence[Vertex],
    centres: dict[Vertex, float],
    widths: Mapping[Hashable, float],
    neighbours: Mapping[Vertex, tuple[list[Vertex], list[Vertex]]],
) -> None:
    """Moves the boxes and bends of a row towards the neighbours that arrows connect them to.

    Their order stays the same, and they do not overlap. Writes the new positions to `centres`.
    """
    wanted: list[float] = []
    for v in row:
        above, below = neighbours.get(v, ([], []))
        near = [*above, *below]
        wanted.append(sum(centres[n] for n in near) / len(near) if near else centres[v])
    for side in (1, -1):
        order = list(zip(row, wanted, strict=True))[::side]
        edge = None
        for v, x in order:
            half = widths.get(v, 0.0) / 2
            least = x if edge is None else max(side * x, edge + half) * side
            centres[v] = least if side == 1 else (centres[v] + least) / 2
            edge = side * least + half + GAP_X
    edge = None
    for v in row:
        half = widths.get(v, 0.0) / 2
        centres[v] = centres[v] if edge is None else max(centres[v], edge + half)
        edge = centres[v] + half + GAP_X


def _points(
    ends: tuple[PlacedBox, PlacedBox],
    bends: Chain,
    centres: Mapping[Vertex, float],
    tops: Sequence[float],
    left: float,
) -> tuple[tuple[float, float], ...]:
    first, last = ends
    points = [(first.x + first.width / 2, first.y + first.height)]
    for bend in bends:
        x, rank = centres[bend] - left, int(bend[1])
        points.extend([(x, tops[rank]), (x, tops[rank + 1] - GAP_Y)])
    points.append((last.x + last.width / 2, last.y))
    return tuple(points)
