"""hoist: loop-invariant code motion: compute invariant values once, before the loop.

A counted loop carries some values unchanged between iterations, such as weights. A value that is
computed from these alone becomes one more carried value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stack.ir.builder import param, rebuild_block
from stack.ir.node import Block, Node, topological, unique_name
from stack.ir.ops import lookup
from stack.ir.traits import (
    is_alias,
    is_input,
    is_item,
    is_kernel,
    is_known,
    is_while,
    items_of,
    maker,
    place_of,
    repeats,
    runs_once,
    unchanged_in,
)
from stack.ir.types import TensorType, TupleType
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass

STAY = ("control", "foreign")  # kinds of ops that are not moved


@dataclass(frozen=True)
class Hoist(BlockPass, needs=("while",)):
    """Compute loop-invariant values before a loop whose trip count is known."""

    def change(self, block: Block, log: Log) -> Block:
        moved: dict[Node, Replacement] = {}
        for node in block.nodes:
            if not is_while(node):
                continue
            values = _unchanging(node)
            if node.attrs.get("trip_count", 0) < 2:  # the loop may run zero times
                values = {n: outside for n, outside in values.items() if is_made_once(outside)}
            if values and log.spend("hoist", block.locs.get(node, ())):
                names = {made: _name_in(node, old) for old, made in values.items()}
                new = with_values(node, values)
                moved |= _without_unread(node, new, block.nodes, names)
        return replace(block, moved) if moved else block


def _name_in(loop: Node, value: Node) -> str:
    """Returns the name of a value of a loop's body, for messages; its op if it has no name."""
    return loop.blocks[1].names.get(value, value.op)


def _without_unread(
    old: Node, new: Node, nodes: Sequence[Node], names: Mapping[Node, str]
) -> dict[Node, Replacement]:
    """Returns replacements for a loop and its results, without carried values that nobody reads."""
    items = items_of(old, nodes)
    test, body = maker(new).blocks
    read = {a for block in (test, body) for n in block.nodes for a in n.args} | set(test.results)
    read |= {r for p, r in zip(body.params, body.results, strict=True) if r is not p}
    taken = {place_of(item) for item in items}
    unchanged = unchanged_in(maker(new))
    kept = [
        i
        for i, p in enumerate(body.params)
        if p in read or i in taken or p not in unchanged or test.params[i] in read
    ]
    if not isinstance(old.type, TupleType) or len(kept) in (1, len(body.params)):
        return {old: Replacement(new, (), names)}
    blocks = [
        Block([b.params[i] for i in kept], results, b.names, b.locs)
        for b, results in ((test, test.results), (body, [body.results[i] for i in kept]))
    ]
    types = TupleType(tuple(new.types[i] for i in kept))
    less = Node(new.op, [new.args[i] for i in kept], new.attrs, types, blocks)
    return {
        item: Replacement(
            Node("item", (less,), {"index": kept.index(place_of(item))}, item.type), (old,), names
        )
        for item in items
    }


def is_made_once(value: Node) -> bool:
    """True if a value depends on a call with the attribute `once`, which runs once and not in each
    call of the program."""
    return any(runs_once(n) for n in topological([value]))


def _unchanging(loop: Node) -> dict[Node, Node]:
    """Returns the values of a loop's body to hoist, each with the equal value outside of the loop.

    They are loop-invariant and cost something in an iteration. Values that only other hoisted
    values read are left out.
    """
    body = loop.blocks[1]
    known = unchanged_in(loop)
    dear: set[Node] = set()
    for node in body.nodes:
        if is_input(node) or any(a not in known for a in node.args):
            continue
        if not runs_once(node) and not _may_move(node):
            continue
        known[node] = node.rebuilt([known[a] for a in node.args])
        if isinstance(node.type, TupleType):
            continue
        is_dear = _is_result(node) if runs_once(maker(node)) else not _is_free(node)
        if is_dear or not dear.isdisjoint(node.args):
            dear.add(node)
    needed = {a for n in body.nodes if n not in dear for a in n.args} | set(body.results)
    return {n: known[n] for n in body.nodes if n in dear and n in needed}


def _may_move(node: Node) -> bool:
    is_plain = isinstance(node.type, TensorType) and lookup(node.op).kind not in STAY
    return is_plain and (not node.blocks or is_kernel(node))


def _is_result(value: Node) -> bool:
    """True if `value`, a result of a call, is computed by the call's body; False if the body just
    returns one of its parameters."""
    (block,) = maker(value).blocks
    return not is_input(block.results[place_of(value)])


def _is_free(node: Node) -> bool:
    """True if hoisting a node saves nothing, since an iteration computes it at no cost: a value
    known without data, a free view, an item of several results, or a broadcast."""
    return is_known(node) or is_alias(node) or is_item(node) or repeats(node)


def with_values(
    loop: Node, values: Mapping[Node, Node], read: Callable[[Node], Node] = lambda p: p
) -> Node:
    """Returns the loop with a body that reads some values from outside, as carried values.

    Args:
        loop: a `while` loop.
        values: values of the body, each with the outside value that replaces it.
        read: computes the value of one iteration from the carried one.
    """
    test, body = loop.blocks
    taken = {str(p.attrs["name"]) for p in (*test.params, *body.params)}
    given = [param(unique_name("hoisted", taken, {}), v.type) for v in values.values()]
    fresh = {n: read(p) for n, p in zip(values, given, strict=True)}
    tests = Block((*test.params, *given), test.results, test.names, test.locs)
    inner = rebuild_block(
        body, lambda old, args, blocks: fresh.get(old) or old.rebuilt(args, blocks=blocks)
    )
    turn = Block((*inner.params, *given), (*inner.results, *given), inner.names, inner.locs)
    types = TupleType((*loop.types, *(n.tensor for n in given)))
    new = Node(loop.op, (*loop.args, *values.values()), loop.attrs, types, (tests, turn))
    is_tuple = isinstance(loop.type, TupleType)
    return new if is_tuple else Node("item", (new,), {"index": 0}, loop.type)
