"""The graph of a program after fusion, as boxes and arrows in layers; equal layers are drawn once.

Uses the layout of Sugiyama (1981). Ranks are longest paths. An arrow gets a bend in each rank that
it crosses. Boxes are ordered by the mean position of their neighbours, then pulled towards them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stack.ir.func import Func
from stack.ir.node import Block, Node

FREE = ("const", "param", "item")  # these get no box
GAP_X, GAP_Y = 26, 34
LINE = 15  # pixels of a line of text
SWEEPS = 6


@dataclass(frozen=True)
class Box:
    """A fusion group or a single op, as a box in the drawing of a program's dataflow.

    Attributes:
        name: name of its value in the program.
        reads: names of the program's parameters that it reads directly.
        ops: the ops that it computes, in order; several for a group.
        repeats: the number of equal layers that it represents.
        layer: the drawn layer that it belongs to; -1 for none.
    """

    name: str
    kind: str
    type: str
    ops: tuple[str, ...]
    source: tuple[str, ...]
    reads: tuple[str, ...]
    repeats: int = 1
    layer: int = -1


@dataclass(frozen=True)
class Graph:
    """The dataflow of a program: boxes in program order, and arrows as pairs of box indices."""

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PlacedBox:
    """A box with its corner and size in pixels, and its text; the first `heads` lines are ops."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    heads: int


@dataclass(frozen=True)
class Layout:
    """A drawing: boxes, arrows as points from top to bottom, and its size."""

    boxes: tuple[PlacedBox, ...]
    arrows: tuple[tuple[tuple[float, float], ...], ...]
    width: float
    height: float


def graph_of(func: Func) -> Graph:
    """Builds the graph of a function's body: a box for each group or op, an arrow for each use.

    Parameters and constants get no boxes. `Box.reads` has the names of the parameters that a box
    reads; constants are left out.
    """
    nodes = [n for n in func.nodes if n.op not in FREE]
    place = {n: i for i, n in enumerate(nodes)}
    boxes: list[Box] = []
    arrows: dict[tuple[int, int], None] = {}
    for i, node in enumerate(nodes):
        reads: dict[str, None] = {}
        for arg in node.args:
            made = arg.args[0] if arg.op == "item" else arg
            if made in place:
                arrows[place[made], i] = None
            elif made.op == "param":
                reads[str(made.attrs["name"])] = None
        boxes.append(_box(node, func.body, tuple(reads)))
    return Graph(tuple(boxes), tuple(arrows))


def _box(node: Node, body: Block, reads: tuple[str, ...]) -> Box:
    inner = [n.op for n in node.blocks[0].nodes if n.op not in FREE] if node.blocks else [node.op]
    source = dict.fromkeys(s.split(" ")[0] for s in body.locs.get(node, ()))
    kind = str(node.attrs.get("kind", node.op)) if node.blocks else node.op
    shown = body.names.get(node, node.op)
    return Box(shown, kind, str(node.type), tuple(inner), tuple(source), reads)


def _signature(box: Box) -> Hashable:
    return (box.kind, box.type, box.ops)


def collapsed(graph: Graph) -> Graph:
    """Returns the graph with each sequence of equal layers replaced by one layer and its count.

    A layer is a sequence of boxes that repeats directly after itself. The repetition that hides
    most boxes is collapsed first.
    """
    found = graph
    layer = 0
    while True:
        start, period, count = _longest_run([(_signature(b), b.repeats) for b in found.boxes])
        if count < 2:
            return found
        found = _hide(found, start, period, count, layer)
        layer += 1


def _longest_run(keys: Sequence[Hashable]) -> tuple[int, int, int]:
    """Finds the repetition of equal layers in `keys`, one key per box, that hides most boxes.

    Returns its start, the length of a layer, and the number of layers; the number is 1 if there is
    none. A single box is not a layer: a chain of equal ops is not collapsed.
    """
    best = (0, 0, 1)
    for period in range(2, len(keys) // 2 + 1):
        start = 0
        while start + 2 * period <= len(keys):
            count = 1
            while (
                keys[start : start + period]
                == keys[start + count * period : start + (count + 1) * period]
            ):
                count += 1
            if (count - 1) * period > (best[2] - 1) * best[1]:
                best = (start, period, count)
            start += 1 if count == 1 else (count - 1) * period + 1
    return best


def _hide(graph: Graph, start: int, period: int, count: int, layer: int) -> Graph:
    end = start + period * count

    def place(i: int) -> int:
        if start <= i < end:
            return start + (i - start) % period
        return i if i < start else i - period * (count - 1)

    boxes = [b for i, b in enumerate(graph.boxes) if not start + period <= i < end]
    for i in range(start, start + period):
        boxes[i] = replace(boxes[i], repeats=count * boxes[i].repeats, layer=layer)
    moved = {(place(a), place(b)): None for a, b in graph.arrows}
    # drop arrows from one layer to the next, which would point back to the top
    return Graph(tuple(boxes), tuple(a for a in moved if a[0] < a[1]))


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
    for i, (box, (width, height, lines, heads)) in enumerate(zip(graph.boxes, sizes, strict=True)):
        x = centres[i] - width / 2 - left
        placed.append(PlacedBox(box, x, tops[ranks[i]], width, height, lines, heads))
    arrows = [
        _points((placed[a], placed[b]), chain[1:-1], centres, tops, left)
        for (a, b), chain in zip(graph.arrows, chains, strict=True)
    ]
    width = max([p.x + p.width for p in placed], default=0.0) + 10
    return Layout(tuple(placed), tuple(arrows), width, y - GAP_Y + 10)


def _size(box: Box) -> tuple[float, float, tuple[str, ...], int]:
    """Returns the width and height of a box, its lines of text, and how many of these are ops."""
    ops = _wrapped(_counts(box.ops))
    lines = [*ops, box.type]
    if box.source:
        lines.append(" ".join(box.source[:2]) + (" …" if len(box.source) > 2 else ""))
    title = f"x {box.kind}: {box.name}"  # a sign is drawn before it
    width = max(7.0 * max(map(len, lines)), 7.4 * len(title)) + 20
    return width, LINE * (len(lines) + 1) + 12, tuple(lines), len(ops)


def _counts(ops: Sequence[str]) -> list[str]:
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    return [name if n == 1 else f"{name} ×{n}" for name, n in counts.items()]


def _wrapped(words: Sequence[str], most: int = 34) -> list[str]:
    lines = [""]
    for word in words:
        joined = f"{lines[-1]}, {word}" if lines[-1] else word
        if len(joined) > most and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines


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
