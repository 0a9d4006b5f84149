"""Evaluates a `stream` tile by tile, with corrected running values.

It is the reference for lowerings of a stream, and it checks the `correct` block: the result must
equal that of separate passes for every tile size and every way to split and merge the axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.builder import constant, make, param, remade, reshaped, sliced
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.ops import is_view, rule_of
from stack.ir.space import Array, NumpySpace, identity
from stack.ir.stream_op import streamed_axes, streamed_extent
from stack.ir.traits import fold_of, repeats
from stack.ir.types import TensorType

# an argument or a view of one, and the index of its streamed axis (None: it has none)
View = tuple[Node, int | None]


class Tiled:
    """The reductions of a `stream` node (its states), restricted to the tile of elements `start` to
    `start + size` of the reduced axis.

    Attributes:
        views: arguments and views of them as they are read. An argument that is read both along the
            streamed axis and across it, as in x @ x.T, occurs twice.
        partials: for each state a block that takes the views and then the earlier states, and
            returns the state of these elements alone.
    """

    def __init__(self, stream: Node, start: int, size: int) -> None:
        self.start = start
        self.size = size
        block = stream.blocks[0]
        self._params = set(block.params)
        self._read = set(block.params)  # arguments and views of them, which repeat no element
        for node in block.nodes:
            if is_view(node) and not repeats(node) and node.args[0] in self._read:
                self._read.add(node)
        self._states = {s: param(f"s{i}", s.type) for i, s in enumerate(block.results)}
        self._views: dict[View, Node] = {}
        self._done: dict[tuple[Node, int | None], Node] = {}
        values = [self._state(s) for s in block.results]
        inputs = list(self._views.values())
        earlier = list(self._states.values())
        self.views = tuple(self._views)
        self.partials = tuple(Block([*inputs, *earlier[:i]], [v]) for i, v in enumerate(values))

    def _state(self, state: Node) -> Node:
        args = [self.value(value, axis) for value, axis in streamed_axes(state)]
        return make(state.op, args, state.attrs, hint=state.type)

    def value(self, node: Node, axis: int | None) -> Node:
        """Returns a node that computes `node` for this tile only. `axis` is its dim along the
        reduced axis of the stream, None if it has none.
        """
        key = (node, axis)
        if key not in self._done:
            self._done[key] = self._make(node, axis)
        return self._done[key]

    def _make(self, node: Node, axis: int | None) -> Node:
        if axis is None and node in self._states:
            return self._states[node]
        type_ = node.tensor if axis is None else _resized(node.tensor, axis, self.size)
        if node in self._params or (axis is not None and node in self._read):
            made = param(f"v{len(self._views)}", type_)
            return self._views.setdefault((node, axis), made)
        if axis is None:
            args = [self.value(a, None) for a in node.args]
            return node.rebuilt(args)
        if node.op == "iota":
            made = make("iota", (), node.attrs, hint=type_)
            if node.attrs["axis"] != axis:
                return made
            return make("add", (made, constant(self.start, node.dtype)))
        if node.op == "const":
            array = node.attrs["value"].array
            return constant(_take(array, axis, self.start, self.size), node.dtype)
        args = [self.value(a, found) for a, found in zip(node.args, operand_axes(node, axis))]
        attrs = dict(node.attrs)
        if node.op == "slice":
            limit = list(attrs["limit"])
            limit[axis] = self.size  # the slice keeps all of an axis that passes through
            attrs["limit"] = tuple(limit)
        return make(node.op, args, attrs, node.blocks, type_)


def _resized(type_: TensorType, axis: int, size: int) -> TensorType:
    return type_.with_shape((*type_.shape[:axis], size, *type_.shape[axis + 1 :]))


def _take(array: Array, axis: int, start: int, size: int) -> Array:
    return array[(slice(None),) * axis + (slice(start, start + size),)]


def operand_axes(node: Node, axis: int) -> list[int | None]:
    """The axis of each operand that corresponds to axis `axis` of a node, by its axis rule.

    Raises RuleError if that axis of the node is not a single unmarked axis of its operands.
    """
    rule = rule_of(node)
    if rule is None or rule.outputs[0][axis].mark or len(rule.outputs[0][axis].names) != 1:
        raise RuleError(f"axis {axis} of {node!r} does not pass through")
    (name,) = rule.outputs[0][axis].names
    found: list[int | None] = []
    for operand in rule.inputs:
        here = [i for i, a in enumerate(operand) if name in a.names]
        if len(here) > 1 or any(operand[i].mark or len(operand[i].names) != 1 for i in here):
            raise RuleError(f"axis {axis} of {node!r} does not pass through")
        found.append(here[0] if here else None)
    return found


def expanded(stream: Node) -> Block:
    """Returns a block that computes a stream without online correction: each state in a separate
    pass over the whole axis. If the stream has attribute `part`, each part of the axis has passes
    of its own, and the results are stacked.
    """
    params = stream.blocks[0].params
    part = stream.attrs.get("part")
    if part is None:
        return Block(params, finished(stream, _inlined(stream.blocks[0], params)))
    extent = streamed_extent(stream)
    assert isinstance(extent, int)
    found: list[list[Node]] = []
    for start in range(0, extent, part):
        tiled = Tiled(stream, start, min(part, extent - start))
        views = [v if axis is None else _sliced(v, axis, tiled) for v, axis in tiled.views]
        states: list[Node] = []
        for partial in tiled.partials:
            states.extend(_inlined(partial, [*views, *states]))
        found.append(finished(stream, states))
    return Block(params, [_stacked(results) for results in zip(*found, strict=True)])


def finished(stream: Node, states: Sequence[Node]) -> list[Node]:
    """Returns the results of a `stream` node as nodes, computed by its block `finish` from the
    final values of its reductions, `states`.
    """
    return _inlined(stream.blocks[2], [*states, *stream.blocks[0].params])


def _inlined(block: Block, values: Sequence[Node]) -> list[Node]:
    """The results of a block with its parameters replaced by values."""
    done = remade(block.results, dict(zip(block.params, values, strict=True)))
    return [done[r] for r in block.results]


def _sliced(value: Node, axis: int, tiled: Tiled) -> Node:
    """Returns a `slice` node with the elements of `value` that belong to one tile, along dim
    `axis`.
    """
    start, limit = [0] * value.tensor.rank, list(value.shape)
    start[axis], limit[axis] = tiled.start, tiled.start + tiled.size
    return sliced(value, start, limit)


def _stacked(values: Sequence[Node]) -> Node:
    """Returns a `concat` node that stacks values of one type along a new first axis."""
    return make("concat", [reshaped(v, (1, *v.shape)) for v in values], {"axis": 0})


def run_states(stream: Node, args: Sequence[Array], start: int, stop: int, tile: int) -> list[Any]:
    """Evaluates the reductions of a `stream` node over elements `start` to `stop` of the reduced
    axis, in tiles of `tile` elements. Returns the values of the reductions.
    """
    params = stream.blocks[0].params
    read = dict(zip(params, args, strict=True))  # arguments, and views of them once they are read
    states = [_identity(s) for s in stream.blocks[0].results]
    for first in range(start, stop, tile):
        size = min(tile, stop - first)
        tiled = Tiled(stream, first, size)
        views: list[Array] = []
        for node, axis in tiled.views:
            if node not in read:
                (read[node],) = evaluate(Block(params, [node]), args, NumpySpace())
            views.append(read[node] if axis is None else _take(read[node], axis, first, size))
        new = list[Any]()
        for i, partial in enumerate(tiled.partials):
            (found,) = evaluate(partial, [*views, *new], NumpySpace())
            new.append(_combine(stream, i, (_corrected(stream, i, states, new), found)))
        states = new
    return states


def merge_states(stream: Node, parts: Sequence[Sequence[Array]]) -> list[Any]:
    """Merges the values that the reductions of a `stream` node have on disjoint parts of the
    reduced axis.
    """
    new = list[Any]()
    for i in range(len(stream.blocks[0].results)):
        new.append(_combine(stream, i, [_corrected(stream, i, part, new) for part in parts]))
    return new


def interpret_in_tiles(
    stream: Node, args: Sequence[Array], tile: int, splits: int = 1
) -> tuple[Array, ...]:
    """Results of a stream, computed by a running pass over tiles of `tile` elements.

    Args:
        args: NumPy arrays, one for each operand of the node.
        splits: number of parts of the axis; each runs on its own, then they merge.
    """
    extent = streamed_extent(stream)
    if not isinstance(extent, int):
        raise TypeError(f"the streamed axis has the symbolic size {extent}; bind it (Func.bind)")
    part = max(1, -(-extent // splits))
    starts = range(0, extent, part) if extent else (0,)
    parts = [run_states(stream, args, s, min(s + part, extent), tile) for s in starts]
    return evaluate(stream.blocks[2], [*merge_states(stream, parts), *args], NumpySpace())


class TiledSpace(NumpySpace):
    """The reference semantics, but streams run in pieces of the axis, each in tiles. This reveals
    an incorrect block `correct`, which separate passes never use.
    """

    PIECES, TILES = 2, 2

    def stream(self, stream: Node, args: Sequence[Array]) -> tuple[Array, ...]:
        """Evaluates a `stream` node on the whole reduced axis and returns its results."""
        extent = streamed_extent(stream)
        assert isinstance(extent, int)
        tile = max(1, -(-extent // (self.PIECES * self.TILES)))
        return interpret_in_tiles(stream, args, tile, self.PIECES)


def _identity(state: Node) -> Array:
    return np.full(state.shape, identity(fold_of(state), state.dtype), dtype=state.dtype.numpy)


def _corrected(stream: Node, index: int, old: Sequence[Array], new: Sequence[Array]) -> Array:
    """Applies the stream's block `correct` to state `index` of the elements so far, `old`: rescales
    it to the states `new` of the next tile. `new` needs only the states before `index`.
    """
    return evaluate(stream.blocks[1], [*old, *new, *old[len(new) :]], NumpySpace())[index]


def _combine(stream: Node, index: int, values: Sequence[Array]) -> Array:
    state = stream.blocks[0].results[index]
    held = param("x", TensorType(state.dtype, (len(values), *state.shape)))
    node = make("reduce", (held,), {"kind": fold_of(state), "axes": (0,)})
    (result,) = evaluate(Block((held,), (node,)), [np.stack(values)], NumpySpace())
    return result
