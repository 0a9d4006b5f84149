"""Caches facts of a block, and those of a node by equivalence class, so each is computed once.

Nodes are equivalent if op, attributes, blocks and the types of operands and results are equal, as
in repeated layers and across the stages of one program. What computes the operands does not matter,
nor do names and source lines: blocks that compute the same nodes are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from stack.ir.node import Block, Node

Answer = TypeVar("Answer")
Where = TypeVar("Where", Block, Node)


class _Facts(dict[Any, Any]):
    """Cached results for one equivalence class, by the function that computed them. It is a dict of
    which weak references are possible.
    """

    __slots__ = ("__weakref__",)


_FACTS: WeakValueDictionary[tuple[Any, ...], _Facts] = WeakValueDictionary()


def equivalence_key(node: Node) -> tuple[Any, ...]:
    """Returns the key of a node's equivalence class."""
    types = tuple([a.type for a in node.args])
    places = node.type.sharding, *(t.sharding for t in types)  # not part of type equality
    blocks = [(b.params, b.results) for b in node.blocks]
    return node.key, types, node.type, *places, *blocks


def facts_of(node: Node) -> dict[Any, Any]:
    """The cache that a node shares with all equivalent nodes."""
    found = node.facts
    if found is None:
        found = node.facts = _FACTS.setdefault(equivalence_key(node), _Facts())
    return found


def class_representative(node: Node) -> Node:
    """Returns the representative of a node's equivalence class: the node with parameters in place
    of its operands, and with blocks without names and source lines.
    """
    return node.rebuilt(stand_ins(node), blocks=[Block(b.params, b.results) for b in node.blocks])


def stand_ins(node: Node) -> list[Node]:
    """Returns a parameter for each operand, of the operand's type. Equivalent nodes get the same
    parameters, so they become the same node when rebuilt on these.
    """
    return [Node("param", (), {"name": f"x{i}"}, a.type) for i, a in enumerate(node.args)]


def cached_by_class(ask: Callable[[Node], Answer]) -> Callable[[Node], Answer]:
    """Decorator: caches a function of a node by equivalence class.

    The function may depend on the node's op, attributes, types and blocks, but on its operands only
    through their types. Its result must not contain a node.
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


def once_in(ask: Callable[[Where], Answer]) -> Callable[[Where], Answer]:
    """Decorator: caches the results of a function of a block in the block, which is immutable. Of a
    kernel or a loop, the function must depend on its first block only, which caches the results.

    Callers must not change a result. It must not contain a node that contains the block.
    """

    @wraps(ask)
    def answer(where: Where) -> Answer:
        facts = where.facts if isinstance(where, Block) else where.blocks[0].facts
        if ask not in facts:
            facts[ask] = ask(where)
        return facts[ask]

    return answer
