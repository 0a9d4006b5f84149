"""A timeline of memory: which intermediate is where in the arena, and during which steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.explore.table import scaled
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_alias, is_group, is_item, maker, place_of
from stack.ir.types import TensorType, TupleType
from stack.report.drawing import line, rect, svg, text
from stack.report.lines import Index, joined_numbers
from stack.report.markup import Html, figure, table, tag
from stack.run.memory import Lifetime, place

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1100, 300, 70, 14, 34
CHARACTER = 6.6  # pixels
TICKS = 4


@dataclass(frozen=True)
class Buffer:
    """An intermediate in memory: bytes `offset` to `offset + size`, from step `first` to `last`.

    `value` is its name.
    """

    value: str
    offset: int
    size: int
    first: int
    last: int


def buffers_of(func: Func) -> tuple[list[Buffer], bool]:
    """Returns the intermediates of a function whose steps are kernels and library calls.

    The second result is True if the pass `memory` placed them, False if they are placed here, by
    the same method. Results of the program are not among them: the caller owns these.
    """
    steps = [n for n in func.nodes if is_group(n)]
    number = {n: i for i, n in enumerate(steps)}
    keys: dict[Node, tuple[Node, int]] = {}
    last: dict[tuple[Node, int], int] = {}
    for node in func.nodes:
        made = maker(node) if is_item(node) else node
        if is_alias(node) and node.args[0] in keys:
            keys[node] = keys[node.args[0]]
        elif made in number:
            keys[node] = (made, place_of(node))
            last.setdefault(keys[node], number[made])
        if node in number:
            for arg in node.args:
                if arg in keys:
                    last[keys[arg]] = number[node]
    returned = {keys[r] for r in func.body.results if r in keys}
    lives = {
        key: Lifetime(size, number[key[0]], end)
        for key, end in last.items()
        if key not in returned and (size := _bytes(*key)) > 0
    }
    offsets = _offsets(lives)
    placed = offsets is not None
    if offsets is None:
        offsets = dict(zip(lives, place(list(lives.values()))[0], strict=True))
    names = func.body.names
    return [
        Buffer(
            names.get(node, node.op),
            offsets[node, i], life.size, life.first, life.last,
        )
        for (node, i), life in lives.items()
        if (node, i) in offsets
    ], placed  # fmt: skip


def _bytes(node: Node, index: int) -> int:
    types: Sequence[TensorType] = (
        node.type.items if isinstance(node.type, TupleType) else (node.type,)
    )
    size = types[index].bytes
    return size if isinstance(size, int) else 0


def _offsets(
    lives: Mapping[tuple[Node, int], Lifetime],
) -> dict[tuple[Node, int], int] | None:
    """Returns the offsets that the pass `memory` recorded; None if it did not run."""
    found = {
        (node, i): int(node.attrs["at"][i])
        for node, i in lives
        if "at" in node.attrs and i < len(node.attrs["at"])
    }
    kept = {key: offset for key, offset in found.items() if offset >= 0}
    return kept if kept or not lives else None


def memory_section(func: Func | None, index: Index) -> Html:
    """Returns the timeline of a function's intermediates; nothing if there are none."""
    if func is None:
        return Html("")
    found, is_planned = buffers_of(func)
    steps = sum(is_group(n) for n in func.nodes)
    if not found:
        return Html("")
    top = max(b.offset + b.size for b in found)
    whole = sum(b.size for b in found)
    how = "as planned by the compiler" if is_planned else "as their live ranges allow"
    caption = (
        f"Intermediates over the steps, as bytes of an arena of {scaled(top, 'B')}, {how}."
        f" All {len(found)} together have {scaled(whole, 'B')}"
    )
    rows = [[b.value, b.first + 1, b.last + 1, b.offset, scaled(b.size, "B")] for b in found]
    head = ["value", "from step", "to step", "offset", "size"]
    return figure(_draw(found, steps, top, index), caption, table(head, rows, "intermediates"))


def _draw(found: Sequence[Buffer], steps: int, top: int, index: Index) -> Html:
    """Draws a rectangle for each intermediate: its steps from left to right, its bytes upwards."""
    step = (WIDTH - LEFT - 10) / steps
    scale = (HEIGHT - TOP - BOTTOM) / top
    base = HEIGHT - BOTTOM
    parts: list[Html] = []
    for i in range(TICKS + 1):
        y = base - scale * top * i / TICKS
        parts.append(line(LEFT, y, WIDTH - 10, y, "grid"))
        parts.append(text(LEFT - 6, y + 4, scaled(top * i / TICKS, "B"), class_="end"))
    every = max(1, round(24 / step))
    for i in range(0, steps, every):
        parts.append(text(LEFT + step * (i + 0.5), base + 16, i + 1, class_="middle"))
    parts.append(text(LEFT, HEIGHT - 3, "step"))
    for b in found:
        x, width = LEFT + step * b.first + 1, step * (b.last - b.first + 1) - 2
        y, height = base - scale * (b.offset + b.size), max(scale * b.size, 2.0)
        shown = f"%{b.value}"
        fits = width > CHARACTER * len(shown) + 8 and height > 14
        told = f"%{b.value}: {scaled(b.size, 'B')}, steps {b.first + 1} to {b.last + 1}"
        parts.append(
            tag(
                "g",
                tag("title", told),
                rect(x, y, width, height, "buffer"),
                *([text(x + 4, y + min(height / 2 + 4, 14), shown)] if fits else []),
                class_="box pick",
                data_n=b.value,
                data_k=joined_numbers(index.by_value.get(b.value, [])),
                tabindex="0",
                role="button",
            )
        )
    return svg(WIDTH, HEIGHT, "memory of intermediates over the steps", *parts)
