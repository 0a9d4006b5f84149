"""stream_limits: find the blocks that a data-dependent mask hides, so that streams skip them.

A comparison of positions shows by itself which steps of a stream it hides (step `bound`). A
mask of data, such as equal ids of a row and a column, does not. So the hidden blocks of rows and
columns are found before the stream (`positions.intervals`): the first and the last visible block of
each row of blocks, and the blocks that are fully visible. The stream gets them as arguments. It
compares block numbers with them beside its own condition. This changes no value, gives the tiler
its limits, and lets fully visible blocks skip the mask.

It is profitable if much work shares the mask: heads, and the depth of matmuls.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import constant, make, new_params, remade
from stack.ir.cost import total
from stack.ir.dim import symbol, symbols
from stack.ir.node import Block, Node, topological
from stack.ir.traits import choice, is_input, is_stream
from stack.ir.types import I32, TensorType
from stack.passes.policies.gpu_streams import ProductStreams
from stack.passes.policies.lowerings import has_products
from stack.passes.positions.index_maps import affine
from stack.passes.positions.intervals import BlockIntervals, BlockValue, Span
from stack.passes.positions.streams import index_in_pass, stream_index_maps
from stack.passes.positions.visibility import hiding_selects, is_data_limit
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.target import Gpu


@dataclass(frozen=True)
class StreamLimits(BlockPass, needs=("stream",)):
    """Pass to streams the blocks that their masks hide.

    Attributes:
        always: ignore the cost model.
    """

    always: bool = False

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node] = {}
        for node in block.nodes:
            if not is_stream(node):
                continue
            mask = _mask(node)
            if mask is None:
                continue
            intervals, span = _intervals(node, mask, log.gpu)
            if not (self.always or _pays(node, intervals.read, log.gpu)):
                continue
            if log.spend("stream_limits", block.locs.get(node, ())):
                name = block.names.get(node, "stream")
                log.note(f"%{name}: the blocks visible under {mask.source.op} are computed first")
                changed[node] = _limited(node, mask, intervals, span)
        return replace(block, changed)


@dataclass(frozen=True)
class StreamMask:
    """A condition of a stream that hides elements.

    Attributes:
        select: the select node that uses it.
        shows: True if elements are visible where the condition is true.
        source: the condition before it is broadcast.
        axis: the streamed axis of the source; axes of extent 1 are not counted.
        at: the axes of the select that correspond to those of the source.
    """

    select: Node
    shows: bool
    source: Node
    axis: int
    at: tuple[int, ...]


def _mask(stream: Node) -> StreamMask | None:
    states, correct, ending = stream.blocks
    try:
        places = stream_index_maps(states, correct, ending).states
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
    """Returns a condition without the views around it, and the index at which it is read."""
    while ops.is_whole_view(node):
        index = ops.pull(node, index)[0]
        node = node.args[0]
    return node, index


def _on_axes(
    select: Node, shows: bool, source: Node, place: Index, index: Index
) -> StreamMask | None:
    """Returns a stream's select as a mask. None if an axis of the condition's source does not
    correspond to one axis of the select, or if the source does not have exactly one streamed axis
    and another one."""
    place = tuple(d for d in place if d != 0)
    if not all(symbols(d) and d in index for d in place):
        return None
    at = [index.index(d) for d in place]
    streamed = [i for i, d in enumerate(place) if any(s.name == "streamed" for s in symbols(d))]
    if len(streamed) != 1 or len(place) < 2 or at != sorted(set(at)):
        return None
    return StreamMask(select, shows, source, streamed[0], tuple(at))


def _is_data(source: Node, place: Index) -> bool:
    """True if the mask depends on data, and computing it needs no matmul."""
    nodes = topological([source])
    kinds = {ops.lookup(n.op).kind for n in nodes}
    if not kinds <= {"input", "leaf", "elementwise", "movement"}:
        return False
    if is_input(source):
        return True
    compared = [n for n in nodes if ops.algebra_of(n).negated]
    if any(n.shape != source.shape for n in compared):
        return True
    return not all(_is_told(n, place) for n in compared)


def _is_told(comparison: Node, place: Index) -> bool:
    """True if step `bound` finds the hidden iterations from this comparison alone: both sides are
    affine in positions, or it has a limit that is read as data."""
    if is_data_limit(comparison, place):
        return True
    return all(affine(a, place if a.tensor.rank else ()) is not None for a in comparison.args)


def _intervals(stream: Node, mask: StreamMask, gpu: Gpu) -> tuple[BlockIntervals, Span]:
    """Returns the mask's intervals on blocks of its streamed axis and the longest other one."""
    outside = dict(zip(stream.blocks[0].params, stream.args, strict=True))
    source = remade([mask.source], outside)[mask.source]
    shape = [static(mask.select.shape[a]) for a in mask.at]
    iter_vars = tuple(symbol(f"d{i}", 0, s - 1) for i, s in enumerate(shape))
    rows = max((a for a in range(len(shape)) if a != mask.axis), key=lambda a: shape[a])
    intervals = BlockIntervals(iter_vars, (rows, mask.axis), _block(stream, gpu))
    inner = iter(iter_vars)
    index = tuple(0 if s == 1 else next(inner) for s in source.shape)
    return intervals, intervals.span(source, index)


def _block(stream: Node, gpu: Gpu) -> int:
    """Returns the extent of a block along both axes: that of the stream's tiles, so that the limits
    and the test for full visibility are scalars in a tile, but not less than the target's least."""
    least = gpu.streams.mask_block
    if not has_products(stream):
        return least
    try:
        made = ProductStreams(stream, gpu).schedule
    except CannotTile:
        return least
    return max(least, made.block("m"), made.block("k"))


def _pays(stream: Node, read: int, gpu: Gpu) -> bool:
    work = total(stream.blocks[0].nodes).flops
    tested = read / gpu.memory_rate + gpu.streams.mask_kernels * gpu.launch
    if not isinstance(work, int | float):
        return False
    return tested < gpu.streams.mask_share * work / gpu.bf16_rate


def _limited(stream: Node, mask: StreamMask, intervals: BlockIntervals, span: Span) -> Node:
    """Returns the stream with three more arguments: the first and the end of the visible blocks of
    each row of blocks, and the blocks that are fully visible. The mask's condition compares with
    them, for all selects that use it."""
    can, must = span[::-1] if mask.shows else (intervals.apply("not", p) for p in span)
    axes = tuple(range(len(mask.at)))
    can, must = (BlockValue(intervals.spread(p, axes), axes) for p in (can, must))
    number = intervals.numbers(mask.axis, I32)
    after = intervals.apply("add", number, BlockValue(constant(1, I32)))
    none, end = BlockValue(constant(intervals.count(mask.axis), I32)), BlockValue(constant(0, I32))

    def found(kind: str, *sides: BlockValue) -> Node:
        each = intervals.apply("select", can, *sides)
        return make("reduce", (each.node,), {"axes": (mask.axis,), "kind": kind})

    first, last = found("min", number, none), found("max", after, end)
    told = (first, last, must.node)

    states, correct, ending = stream.blocks
    new = new_params("limit", [n.type for n in told], states.params)
    test = _condition(mask, intervals, *new)
    wider = Block((*states.params, *new), states.results, states.names, states.locs)
    alike = (n for n in states.nodes if choice(n) and n.args[0] is mask.select.args[0])
    inside = replace(wider, {n: n.rebuilt([test, *n.args[1:]]) for n in alike})
    same = new_params("limit", [n.type for n in told], ending.params)
    finish = Block((*ending.params, *same), ending.results, ending.names, ending.locs)
    blocks = (inside, correct, finish)
    return Node("stream", (*stream.args, *told), stream.attrs, stream.type, blocks)


def _condition(
    mask: StreamMask, intervals: BlockIntervals, first: Node, last: Node, must: Node
) -> Node:
    """Returns the mask's condition, combined with the block limits: elements of blocks outside of
    `first` to `last` are hidden, and those of blocks in `must` are visible without the test."""
    shape = mask.select.shape

    def wide(node: Node, axes: tuple[int, ...]) -> Node:
        each = intervals.elements(BlockValue(node, axes))
        at = tuple(mask.at[a] for a in axes)
        return make("broadcast", (each,), {"axes": at}, hint=TensorType(node.dtype, shape))

    axes = tuple(range(len(mask.at)))
    kept = tuple(a for a in axes if a != mask.axis)
    number = wide(intervals.numbers(mask.axis, I32).node, (mask.axis,))
    first, last, seen = wide(first, kept), wide(last, kept), wide(must, axes)
    old = mask.select.args[0]
    if mask.shows:
        inside = make("and", (make("ge", (number, first)), make("lt", (number, last))))
        return make("and", (make("or", (old, seen)), inside))
    outside = make("or", (make("lt", (number, first)), make("ge", (number, last))))
    return make("or", (make("and", (old, make("not", (seen,)))), outside))
