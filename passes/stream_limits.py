"""stream_limits: where a mask made of data hides whole runs, a stream is told which.

A comparison of positions tells by itself which steps of a stream it hides (`block_limits`). One of
data, such as equal ids of a row and a column, does not. What it hides is found before the stream
begins: for each row the first and the last visible place, two reductions over the mask alone. The
stream gets them as arguments and compares positions with them beside its own condition, which
changes no value and gives the tiler its limits.

It pays where the mask is shared by much more work: heads, and the depth of products.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import constant, make, param
from stack.ir.cost import total
from stack.ir.dim import symbols
from stack.ir.node import Block, Func, Node, topological
from stack.ir.types import I32, TensorType
from stack.passes.affine import affine
from stack.passes.block_limits import data_limit, hiding_selects, index_in_pass
from stack.passes.block_stream_places import stream_places
from stack.passes.tile_frame import CannotTile, static
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

# of an H100: what the reductions may take of the time of the stream
TESTS = 3e12  # elements of a mask a second
PRODUCTS = 700e12  # flops a second
LAUNCH = 5e-6  # seconds
SHARE = 0.1
COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
MOVED = ("broadcast", "reshape", "transpose")


@dataclass(frozen=True)
class StreamLimits(Pass):
    """Tell streams which places their masks hide.

    Attributes:
        always: leave the price aside.
    """

    name: ClassVar[str] = "stream_limits"
    always: bool = False

    def run(self, func: Func, log: Log) -> Func:
        changed: dict[Node, Replacement] = {}
        for node in func.nodes:
            if node.op != "stream":
                continue
            mask = _mask(node)
            if mask is None or not (self.always or _pays(node, mask)):
                continue
            if log.spend("stream_limits", func.body.locs.get(node, ())):
                name = func.body.names.get(node, "stream")
                log.note(f"%{name}: the places that {mask.source.op} leaves are found first")
                changed[node] = Replacement(_limited(node, mask))
        return Func(func.name, replace(func.body, changed), func.level) if changed else func


@dataclass(frozen=True)
class Mask:
    """A condition of a stream.

    Attributes:
        select: what it chooses for.
        shows: whether elements are visible where it holds.
        source: the condition before it is spread over axes that it does not have.
        axis: of the source, the streamed one; axes of extent 1 are not counted.
        at: where the select has the axes of the source.
    """

    select: Node
    shows: bool
    source: Node
    axis: int
    at: tuple[int, ...]


def _mask(stream: Node) -> Mask | None:
    states, correct, ending = stream.blocks
    try:
        places = stream_places(states, correct, ending).states
    except CannotTile:
        return None
    for select, visible in hiding_selects(states):
        index = index_in_pass(states, places, select)
        if index is None or any(len(symbols(d)) > 1 for d in index):
            continue
        source, place = _source(select.args[0], index)
        mask = _on_axes(select, visible == 1, source, place, index)
        if mask is not None and _is_data(source, place):
            return mask
    return None


def _source(node: Node, index: Index) -> tuple[Node, Index]:
    """A condition without the movement around it, and where it is read."""
    while node.op in MOVED:
        index = ops.pull(node, index)[0]
        node = node.args[0]
    return node, index


def _on_axes(select: Node, shows: bool, source: Node, place: Index, index: Index) -> Mask | None:
    """The mask where each axis of its source is one of the select's; None where it is not."""
    place = tuple(d for d in place if d != 0)
    if not all(symbols(d) and d in index for d in place):
        return None
    at = [index.index(d) for d in place]
    streamed = [i for i, d in enumerate(place) if any(s.name == "streamed" for s in symbols(d))]
    if len(streamed) != 1 or len(place) < 2 or at != sorted(set(at)):
        return None
    return Mask(select, shows, source, streamed[0], tuple(at))


def _is_data(source: Node, place: Index) -> bool:
    """Whether positions alone do not tell the mask, and it needs no product."""
    nodes = topological([source])
    kinds = {ops.lookup(n.op).kind for n in nodes if n.op not in ("param", "const", "iota")}
    if not kinds <= {"elementwise", "movement"}:
        return False
    if source.op == "param":
        return True
    compared = [n for n in nodes if n.op in COMPARED]
    if any(n.shape != source.shape for n in compared):
        return True
    return not all(_is_told(n, place) for n in compared)


def _is_told(comparison: Node, place: Index) -> bool:
    """Whether `block_limits` sees by itself what a comparison hides."""
    if data_limit(comparison, place, True) is not None:
        return True
    return all(affine(a, place if a.tensor.rank else ()) is not None for a in comparison.args)


def _pays(stream: Node, mask: Mask) -> bool:
    tested = static(mask.source.tensor.size) / TESTS + LAUNCH
    work = total(stream.blocks[0].nodes).flops
    return isinstance(work, int | float) and tested < SHARE * work / PRODUCTS


def _limited(stream: Node, mask: Mask) -> Node:
    """The stream with the first and the past-the-last visible place of each row."""
    states, correct, ending = stream.blocks
    outside = dict(zip(states.params, stream.args, strict=True))
    seen = _copied(mask.source, outside)
    shape = tuple(mask.select.shape[a] for a in mask.at)
    if seen.shape != shape:
        seen = make("reshape", (seen,), hint=TensorType(seen.dtype, shape))
    if not mask.shows:
        seen = make("not", (seen,))
    extent = static(seen.shape[mask.axis])
    places = make("iota", (), {"axis": mask.axis}, hint=seen.tensor.with_dtype(I32))
    none, end = constant(extent, I32), constant(0, I32)
    after = make("add", (places, constant(1, I32)))
    rows = {"axes": (mask.axis,)}
    low = make("reduce", (make("select", (seen, places, none)),), {"kind": "min", **rows})
    high = make("reduce", (make("select", (seen, after, end)),), {"kind": "max", **rows})

    count = len(states.params)
    new = [param(f"p{count + i}", n.type) for i, n in enumerate((low, high))]
    condition = _between(mask, *new)
    old = mask.select.args[0]
    both = make("and", (old, condition)) if mask.shows else make("or", (old, condition))
    select = make("select", (both, *mask.select.args[1:]))
    wider = Block((*states.params, *new), states.results, states.names, states.locs)
    inside = replace(wider, {mask.select: Replacement(select)})
    same = [param(f"p{count + i}", n.type) for i, n in enumerate((low, high))]
    last = Block((*ending.params, *same), ending.results, ending.names, ending.locs)
    blocks = (inside, correct, last)
    return Node("stream", (*stream.args, low, high), stream.attrs, stream.type, blocks)


def _between(mask: Mask, low: Node, high: Node) -> Node:
    """Whether a place lies within the limits (or, where the mask hides, without)."""
    shape = mask.select.shape
    axis = mask.at[mask.axis]
    kept = tuple(a for i, a in enumerate(mask.at) if i != mask.axis)
    full = TensorType(I32, shape)
    places = make("iota", (), {"axis": axis}, hint=full)
    first, end = (make("broadcast", (n,), {"axes": kept}, hint=full) for n in (low, high))
    if mask.shows:
        return make("and", (make("ge", (places, first)), make("lt", (places, end))))
    return make("or", (make("lt", (places, first)), make("ge", (places, end))))


def _copied(node: Node, known: Mapping[Node, Node]) -> Node:
    """A node with other parameters."""
    made = dict(known)
    for old in topological([node]):
        if old not in made:
            args = [made[a] for a in old.args]
            made[old] = Node(old.op, args, old.attrs, old.type, old.blocks)
    return made[node]
