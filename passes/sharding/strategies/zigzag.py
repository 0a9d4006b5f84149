"""Zigzag order of a sequence: each rank has a block from its beginning and one from its end.

Under a causal mask the last token sees all others, and the first one only itself. In the order of
the sequence, the last rank computes nearly all scores of its rows, and the first one few. Of 2n
blocks, rank r of n gets blocks r and 2n - 1 - r: then every rank computes as many scores with the
keys of each rank.

Source: context parallelism of Llama 3 (Grattafiori et al., The Llama 3 Herd of Models, 2024,
section 3.3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stack.errors import UsageError
from stack.ir.builder import constant, make, remade, reshaped, sliced
from stack.ir.func import Func
from stack.ir.node import Node, topological
from stack.ir.traits import is_number, is_positions
from stack.passes.sharding.retype import mapped
from stack.passes.sharding.strategies.sequence_dims import Parts, SequenceDims


class Zigzag(NamedTuple):
    """A program that computes along a sequence in zigzag order.

    Attributes:
        func: the program.
        starts: the permuted parameters that the strategy starts from, with the dim of the sequence.
        border: the nodes that permute results back.
    """

    func: Func
    starts: Mapping[Node, int]
    border: frozenset[Node]


def zigzagged(func: Func, starts: Mapping[Node, int], ranks: int) -> Zigzag:
    """Returns an equal program that computes along a sequence in zigzag order: what comes from
    outside is permuted, and results are permuted back.

    Args:
        func: the program.
        starts: parameters with the dim that is the sequence.
        ranks: the number of parts.

    Raises UsageError if the order of the sequence matters to a node, or 2 * ranks do not divide it.
    """
    dims = SequenceDims(func, starts)
    if dims.size % (2 * ranks):
        raise UsageError(f"{dims.size} tokens do not divide into {2 * ranks} blocks")
    there = [number for rank in range(ranks) for number in (rank, 2 * ranks - 1 - rank)]
    back = [there.index(number) for number in range(2 * ranks)]
    done: dict[Node, Node] = {p: _permuted(p, dims.found.get(p, {}), there) for p in func.params}
    for node in func.nodes:
        if not node.args and node in dims.found:
            done[node] = _leaf(node, dims.found[node], ranks, there)
    made = remade(func.results, done)
    inner = frozenset(topological(made[r] for r in func.results))
    results = {r: _permuted(made[r], dims.found.get(r, {}), back) for r in func.results}
    border = frozenset(topological(results.values())) - inner
    body = mapped(func.body, {**made, **{p: p for p in func.params}, **results})
    moved = {done[p]: dim for p, dim in starts.items()}
    return Zigzag(Func(func.name, body, func.level), moved, border)


def _permuted(x: Node, parts: Parts, order: Sequence[int]) -> Node:
    """Returns a value with the blocks of its sequences in another order."""
    for dim, (outer, inner) in parts.items():
        shape = x.shape
        size = int(str(shape[dim])) // (outer * inner)
        whole = (*shape[:dim], outer, size, inner, *shape[dim + 1 :])
        is_alone = outer == inner == 1
        x = _blocks(x, dim, order) if is_alone else _blocks(reshaped(x, whole), dim + 1, order)
        x = reshaped(x, shape)
    return x


def _blocks(x: Node, dim: int, order: Sequence[int]) -> Node:
    """Returns the blocks of a dim in an order."""
    size = int(str(x.shape[dim])) // len(order)
    starts, limits = [0] * x.tensor.rank, list(x.shape)
    blocks: list[Node] = []
    for number in order:
        starts[dim], limits[dim] = number * size, (number + 1) * size
        blocks.append(sliced(x, starts, limits))
    return make("concat", blocks, {"axis": dim})


def _leaf(node: Node, parts: Parts, ranks: int, order: Sequence[int]) -> Node:
    """Returns a constant or positions in zigzag order."""
    if is_number(node):
        return node
    if not is_positions(node):
        return _permuted(node, parts, order)
    axis = int(node.attrs["axis"])
    return _positions(node, axis, parts[axis].outer, ranks) if axis in parts else node


def _positions(iota: Node, axis: int, outer: int, ranks: int) -> Node:
    """Returns positions in zigzag order as a formula, so that each rank computes its own. `outer`:
    the number of sequences, one after another."""
    count, whole = 2 * ranks, int(str(iota.shape[axis])) // outer
    size = whole // count
    place = _by("rem", iota, whole) if outer > 1 else iota
    block = _by("div", place, size)
    rank, is_late = _by("div", block, 2), _by("rem", block, 2)
    last = make("sub", (constant(count - 1, iota.dtype), _by("mul", rank, 2)))
    source = make("add", (rank, make("mul", (is_late, last))))  # rank, or count - 1 - rank
    return make("add", (iota, _by("mul", make("sub", (source, block)), size)))


def _by(op: str, x: Node, number: int) -> Node:
    """Builds an op of an integer and a number."""
    return make(op, (x, constant(number, x.dtype)))
