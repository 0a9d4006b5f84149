"""Streams over columns of rows that begin at odd addresses: several rows are one aligned row.

Column j of such rows has the states of the rows 8 q + s, for one s; see `rules.folded_rows`. They
merge as those of parts of an axis do. The order of elements does not matter: a state is a sum, a
maximum or a minimum. The first position q of a value in such a column is 8 q + s.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from stack.ir.axes import Index
from stack.ir.builder import Builder, make, new_params, param, reshaped, sliced
from stack.ir.dim import symbol
from stack.ir.node import Block, Node, remade_block
from stack.ir.ops import is_view
from stack.ir.stream_op import streamed_axes
from stack.ir.traits import choice, fold_of, is_alias, is_number, is_positions, number
from stack.ir.types import TensorType
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.rules.folded_rows import aligned_rows
from stack.passes.streaming.parts import merged, states_of_parts
from stack.passes.tiling.frame import CannotTile, static


def stream_rows(stream: Node) -> int:
    """Returns how many rows of a stream along the last axis but one make an aligned row; 1 if rows
    are aligned, or if states depend on more than elements of a column and first positions.
    """
    states, correct, _ = stream.blocks
    (value, axis), *_ = streamed_axes(states.results[0])
    sizes = [s for s in value.shape if isinstance(s, int)]
    is_own = all(a.shape == value.shape and (is_alias(a) or not is_view(a)) for a in stream.args)
    if axis != len(sizes) - 2 or len(sizes) < value.tensor.rank or not is_own:
        return 1
    whole = tuple(symbol(f"d{i}", 0, s - 1) for i, s in enumerate(sizes))
    row = (*whole[:axis], whole[-1])
    is_own = _has_indices(states, whole, row) and _has_indices(correct, row, row)
    is_own = is_own and _first_positions(states, axis, sizes[axis]) is not None
    begins_aligned = prod(sizes[:axis]) == 1 or aligned_rows(prod(sizes[axis:]), stream.args) == 1
    return aligned_rows(sizes[-1], stream.args) if is_own and begins_aligned else 1


def _has_indices(block: Block, index: Index, row: Index) -> bool:
    """True if all values of a block have the index of its first parameter, or that of a row."""
    try:
        places = index_maps_of(block, block.params[0], index)
    except CannotTile:
        return False
    arrays = [n for n in block.nodes if any(a.tensor.rank for a in n.args)]
    return all(places.get(n) in (index, row) for n in arrays)


def _first_positions(states: Block, axis: int, size: int) -> set[Node] | None:
    """Returns the states that are first positions along `axis` of elements that pass a test, or its
    size if none does; None if positions have other uses."""
    places = {n for n in states.nodes if is_positions(n)}
    picked = {n: own for n in states.nodes if (own := choice(n)) and own.yes in places}
    firsts = {r for r in states.results if r.args[0] in picked and fold_of(r) == "min"}
    others = [a for n in states.nodes if n not in picked and n not in firsts for a in n.args]
    others += [own.test for own in picked.values()]
    is_known = all(is_number(own.no) and number(own.no) == size for own in picked.values())
    is_known &= all(n.attrs["axis"] == axis for n in places)
    return firsts if is_known and (places | picked.keys()).isdisjoint(others) else None


def folded_stream(stream: Node, rows: int, best: Callable[[Node], int]) -> Node:
    """Returns a stream of aligned rows of `rows` rows each, and a group that merges its states with
    those of the rows that are left over. `best`: the length of parts of the axis, 0 for no parts.
    """
    (value, axis), *_ = streamed_axes(stream.blocks[0].results[0])
    *batch, extent, line = map(static, value.shape)
    whole, rest = divmod(extent, rows)
    firsts = _first_positions(stream.blocks[0], axis, extent) or ()

    def of_columns(state: Node, found: Node) -> Node:
        """Returns a state of each column from `[parts, batch, rows, columns]`."""
        if state in firsts:
            b = Builder()
            here = b.add(b.mul(found, rows), b.iota(axis=1 + axis, type=found.type))
            found = b.select(b.lt(found, extent), here, extent)
        if batch:
            order = (0, axis + 1, *range(1, axis + 1), axis + 2)
            found = make("transpose", (found,), {"perm": order})
        return reshaped(found, (static(found.shape[0]) * rows, *batch, line))

    first = _of_rows(stream, 0, whole, rows)
    states = states_of_parts(first, best(first) or whole)
    parts = [reshaped(s, (s.shape[0], *batch, rows, line)) for s in states]
    left = _of_rows(stream, whole * rows, rest, 1) if rest else None
    return merged(stream, parts, of_columns, left)


def _of_rows(stream: Node, first: int, count: int, rows: int) -> Node:
    """Returns the states of `count` times `rows` rows from row `first` on, as a stream."""
    states, correct, _ = stream.blocks
    (value, axis), *_ = streamed_axes(states.results[0])
    *batch, extent, line = map(static, value.shape)
    shapes = {0: (), axis + 1: (*batch, rows * line), axis + 2: (*batch, count, rows * line)}

    def resized(node: Node) -> TensorType:
        return node.tensor.with_shape(shapes[node.tensor.rank])

    args = [reshaped(a, (*batch, extent * line)) for a in stream.args]
    memory = new_params("p", [a.type for a in args], ())
    ends = (*[0] * axis, first * line), (*batch, (first + count * rows) * line)
    done = {p: reshaped(sliced(m, *ends), shapes[axis + 2]) for p, m in zip(states.params, memory)}
    done |= {p: param(str(p.attrs["name"]), resized(p)) for p in correct.params}
    for node in (*states.nodes, *correct.nodes):
        made = Node(node.op, [done[a] for a in node.args], node.attrs, resized(node))
        done[node] = Builder().add(made, first) if first and is_positions(node) else made
    found = remade_block(states, done, memory)
    last = new_params("s", found.type, memory)
    blocks = found, remade_block(correct, done), Block([*last, *memory], last)
    return make("stream", args, {"name": stream.attrs["name"]}, blocks)
