"""Scalar operations and bytes of a node, from its axis rule; hardly any op is special.

For a contraction or reduction, the operations are its cost per element times the sizes of all axes
of its rule. For other ops they are the cost times the size of the result. Bytes are compulsory
traffic: each operand is read once (of windows and gathers only the selected elements) and each
result is written once. A group reads its inputs and writes its outputs once; values inside are
free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stack.ir.dim import Dim, add, maximum, minimum, mul, product
from stack.ir.kernel_ops import iterations
from stack.ir.node import Block, Node, is_inline
from stack.ir.ops import lookup, rule_of
from stack.ir.relation import axis_sizes
from stack.ir.traits import (
    is_alias,
    is_array,
    is_formula,
    is_group,
    is_input,
    is_item,
    is_loop,
    is_number,
    is_part,
    moved,
    reads_by_data,
)
from stack.ir.types import TensorType, TupleType, Type


class Cost(NamedTuple):
    """The cost of a node; symbolic if its sizes are."""

    flops: Dim = 0
    read: Dim = 0
    written: Dim = 0

    @property
    def bytes(self) -> Dim:
        """The sum of bytes read and written."""
        return add(self.read, self.written)

    def plus(self, other: Cost) -> Cost:
        """Returns the sum of two costs: that of running one node after the other."""
        return Cost(*(add(a, b) for a, b in zip(self, other, strict=True)))

    def times(self, count: Dim) -> Cost:
        """The cost of `count` repetitions."""
        return Cost(*(mul(a, count) for a in self))


def cost(node: Node) -> Cost:
    """Operations, bytes read and bytes written of one node.

    A `while` counts its body once, and a `cond` counts its most expensive branch. `call` is the sum
    over its body. `fusion`, `kernel` and `custom` read only their inputs and write only their
    outputs.
    """
    if node.op == "stream":
        return _stream_cost(node)
    if is_group(node) or (node.op == "custom" and node.blocks):
        return group_cost(node.blocks[0], node.args)
    if node.op == "call":
        return total(node.blocks[0].nodes)
    if node.op == "while":
        return _sum(total(b.nodes) for b in node.blocks)
    if node.op == "cond":
        branches = [total(b.nodes) for b in node.blocks]
        return Cost(*(_largest(column) for column in zip(*branches, strict=True)))
    if is_loop(node):
        return total(node.blocks[0].nodes).times(iterations(node))
    if _is_free(node):
        return Cost()
    tile = moved(node)
    if tile is not None:
        size = tile.tensor.bytes
        return Cost(read=size) if tile is node else Cost(written=size)
    if any(_is_tile(a.type) for a in (node, *node.args)):
        return Cost(_flops(node))
    read = [_read(node, i) for i in range(len(node.args))]
    return Cost(_flops(node), _add_all(read), _type_bytes(node.type))


def _is_free(node: Node) -> bool:
    """True if a node causes no memory traffic of its own: an input, a view, or a constant array."""
    is_name = is_input(node) or is_item(node) or is_alias(node) or node.op == "alloc"
    return is_name or is_array(node) or (is_formula(node) and not node.shape)


def total(nodes: Iterable[Node]) -> Cost:
    """The sum of the costs of nodes, if each of them runs as a kernel of its own."""
    return _sum(cost(n) for n in nodes)


def group_cost(block: Block, args: Sequence[Node] = ()) -> Cost:
    """The cost of a block that runs as one kernel: all its operations, and the bytes of inputs and
    outputs.

    An input that is only sliced or gathered from counts the bytes read.
    """
    read = _add_all(group_reads(block, args).values())
    written = _add_all(r.tensor.bytes for r in block.results)
    return Cost(total(block.nodes).flops, read, written)


def group_reads(block: Block, args: Sequence[Node] = ()) -> dict[Node, Dim]:
    """Bytes that a block which runs as one kernel reads from each input or constant."""
    inputs = block.params[: len(args)] if args else block.params
    amounts: dict[Node, list[Dim]] = {}
    for node in _with_open_blocks(block):
        for i, arg in enumerate(node.args):
            if arg in inputs or is_array(arg) or is_number(arg):
                amounts.setdefault(arg, []).append(_read(node, i))
    for result in block.results:
        if result in inputs:
            amounts.setdefault(result, []).append(result.tensor.bytes)
    return {
        n: n.tensor.bytes
        if n.tensor.space == "global"
        else minimum(_add_all(found), n.tensor.bytes)
        for n, found in amounts.items()
    }


def _stream_cost(node: Node) -> Cost:
    """The cost of a `stream`: one pass over the arguments, and another pass over those that block
    `finish` reads again.
    """
    states, _, finish = node.blocks
    run = group_cost(states, node.args)
    end = group_cost(finish)
    read = {a for n in finish.nodes for a in n.args} | set(finish.results)
    again = _add_all(p.tensor.bytes for p in finish.params[len(states.results) :] if p in read)
    return Cost(add(run.flops, end.flops), add(run.read, again), end.written)


def _with_open_blocks(block: Block) -> Iterator[Node]:
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            if inner.is_open:
                yield from _with_open_blocks(inner)


def node_axes(node: Node) -> dict[str, Dim]:
    """Returns the size of each axis in a node's axis rule; empty if the op has no rule."""
    rule = rule_of(node)
    if rule is None:
        return {}
    results = [t.shape for t in node.types]
    return axis_sizes(rule, [a.shape for a in node.args], results)


def _flops(node: Node) -> Dim:
    op = lookup(node.op)
    if op.operations is not None:
        return op.operations(node)
    if op.kind in ("reduction", "contraction"):
        return mul(product(list(node_axes(node).values())), int(op.flops))
    return 0 if isinstance(node.type, TupleType) else mul(node.tensor.size, int(op.flops))


def _read(node: Node, position: int) -> Dim:
    """Bytes that a node reads of its operand number `position`. A slice or gather reads only the
    elements of its result; a scalar constant is not read from memory.
    """
    if position == 0 and (is_part(node) or reads_by_data(node)):
        return _type_bytes(node.type)
    arg = node.args[position]
    return 0 if is_inline(arg) else _type_bytes(arg.type)  # a scalar constant is in the code


def _type_bytes(type_: Type) -> Dim:
    items = type_.items if isinstance(type_, TupleType) else (type_,)
    return _add_all(t.bytes for t in items)


def _is_tile(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.space == "tile"


def _sum(costs: Iterable[Cost]) -> Cost:
    done = Cost()
    for c in costs:
        done = done.plus(c)
    return done


def _add_all(dims: Iterable[Dim]) -> Dim:
    done: Dim = 0
    for d in dims:
        done = add(done, d)
    return done


def _largest(dims: Iterable[Dim]) -> Dim:
    done: Dim = 0
    for d in dims:
        done = maximum(done, d)
    return done
