"""The graph of a program after fusion: boxes and arrows; equal layers are drawn once.

Lone reshapes get no box: they move no data, so their names go to the box that they show.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_alias, is_item
from stack.ir.types import TensorType
from stack.naming.group_names import group_name
from stack.run.backend import module_paths

FREE = ("const", "param", "item")  # these get no box


@dataclass(frozen=True)
class Box:
    """A fusion group or a single op, as a box in the drawing of a program's dataflow.

    Attributes:
        name: name of its value in the program.
        reads: names of the program's parameters that it reads directly.
        ops: the ops that it computes, in order; several for a group.
        computes: the name of what it computes, such as "attention".
        values: all names of its results, with those of reshapes of them.
        modules: paths of the modules that it comes from, of all layers that it represents.
        repeats: the number of equal layers that it represents.
        layer: the drawn layer that it belongs to; -1 for none.
    """

    name: str
    kind: str
    type: str
    ops: tuple[str, ...]
    source: tuple[str, ...]
    reads: tuple[str, ...]
    computes: str = ""
    values: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    repeats: int = 1
    layer: int = -1


@dataclass(frozen=True)
class Graph:
    """The dataflow of a program: boxes in program order, and arrows as pairs of box indices.

    `sizes` has the bytes that an arrow carries, if they are known.
    """

    boxes: tuple[Box, ...]
    arrows: tuple[tuple[int, int], ...]
    sizes: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])


def graph_of(func: Func) -> Graph:
    """Builds the graph of a function's body: a box for each group or op, an arrow for each use.

    Parameters, constants and lone reshapes get no boxes. `Box.reads` has the names of the
    parameters that a box reads; constants are left out.
    """
    makers: dict[Node, Node] = {}  # by value: the node with a box, or the parameter
    shown: dict[Node, list[str]] = {}
    nodes: list[Node] = []
    for node in (*func.params, *func.nodes):
        read = makers.get(node.args[0]) if is_alias(node) or is_item(node) else None
        if read is None:
            makers[node] = node
            nodes += [node] if node.op not in FREE else []
        else:
            makers[node] = read
            shown.setdefault(read, []).append(func.body.names.get(node, ""))
    place = {n: i for i, n in enumerate(nodes)}
    boxes: list[Box] = []
    sizes: dict[tuple[int, int], int] = {}
    arrows: dict[tuple[int, int], None] = {}
    for i, node in enumerate(nodes):
        reads: dict[str, None] = {}
        for arg in node.args:
            made = makers[arg]
            if made in place:
                arrow = (place[made], i)
                arrows[arrow] = None
                if isinstance(arg.type, TensorType) and isinstance(arg.type.bytes, int):
                    sizes[arrow] = sizes.get(arrow, 0) + arg.type.bytes
            elif made.op == "param":
                reads[str(made.attrs["name"])] = None
        boxes.append(_box(node, func.body, tuple(reads), shown.get(node, ())))
    return Graph(tuple(boxes), tuple(arrows), sizes)


def _box(node: Node, body: Block, reads: tuple[str, ...], others: Sequence[str]) -> Box:
    inner = [n.op for n in node.blocks[0].nodes if n.op not in FREE] if node.blocks else [node.op]
    lines = body.locs.get(node, ())
    kind = str(node.attrs.get("kind", node.op)) if node.blocks else node.op
    name = body.names.get(node, node.op)
    return Box(
        name,
        kind,
        str(node.type),
        tuple(inner),
        tuple(dict.fromkeys(s.split(" ")[0] for s in lines)),
        reads,
        group_name(node),
        (name, *filter(None, others)),
        module_paths(lines),
    )


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
        same = graph.boxes[i:end:period]
        boxes[i] = replace(
            boxes[i],
            repeats=count * boxes[i].repeats,
            layer=layer,
            values=tuple(v for b in same for v in b.values),
            modules=tuple(dict.fromkeys(m for b in same for m in b.modules)),
        )
    moved = {(place(a), place(b)): size for (a, b), size in _sized(graph)}
    # drop arrows from one layer to the next, which would point back to the top
    kept = {arrow: size for arrow, size in moved.items() if arrow[0] < arrow[1]}
    sizes = {arrow: size for arrow, size in kept.items() if size is not None}
    return Graph(tuple(boxes), tuple(kept), sizes)


def _sized(graph: Graph) -> Iterator[tuple[tuple[int, int], int | None]]:
    """Yields each arrow with its bytes, or None if they are not known."""
    return ((arrow, graph.sizes.get(arrow)) for arrow in graph.arrows)
