"""Facts of a node that follow from what it is, wherever it stands: asked once for all alike.

Two nodes are alike where op, attributes, blocks and the types of operands and results are equal,
as in equal layers and at all stages of one program. What lies behind the operands is no part of it,
nor are names and source lines: blocks are equal that compute the same nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stack.ir.node import Block, Node

Answer = TypeVar("Answer")


class _Facts(dict[Any, Any]):
    """Answers by what was asked."""

    __slots__ = ("__weakref__",)


_FACTS: WeakValueDictionary[tuple[Any, ...], _Facts] = WeakValueDictionary()


def likeness(node: Node) -> tuple[Any, ...]:
    """What nodes that are alike have in common, as a key."""
    types = tuple([a.type for a in node.args])
    places = node.type.sharding, *(t.sharding for t in types)  # no part of equality
    blocks = [(b.params, b.results) for b in node.blocks]
    return node.key, types, node.type, *places, *blocks


def facts_of(node: Node) -> dict[Any, Any]:
    """The answers that a node shares with all that are alike."""
    found = node.facts
    if found is None:
        found = node.facts = _FACTS.setdefault(likeness(node), _Facts())
    return found


def alone(node: Node) -> Node:
    """What all nodes that are alike have in common: the node on parameters, its blocks bare."""
    return node.rebuilt(stand_ins(node), blocks=[Block(b.params, b.results) for b in node.blocks])


def stand_ins(node: Node) -> list[Node]:
    """A parameter for each operand: all that nodes which are alike know of theirs."""
    return [Node("param", (), {"name": f"x{i}"}, a.type) for i, a in enumerate(node.args)]


def once_alike(ask: Callable[[Node], Answer]) -> Callable[[Node], Answer]:
    """Decorator: a question whose answer is that of all nodes alike is answered once.

    It looks at a node's op, attributes, types and blocks, and at no operand but for its type; its
    answer names no value.
    """

    @wraps(ask)
    def answer(node: Node) -> Answer:
        facts = node.facts
        if facts is None:
            facts = facts_of(node)
        if ask in facts:
            return facts[ask]
        found = facts[ask] = ask(node)
        return found

    return answer
