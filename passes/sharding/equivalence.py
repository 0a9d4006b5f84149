"""Equivalence classes of values: equal layers are sharded equally, so each is decided once.

Two nodes are of one kind if they are surrounded by the same ops, up to `RADIUS` operands and
readers away (Weisfeiler and Leman's refinement, 1968). A program of many layers is decided on two
members of each kind. Two are needed to include the step from one layer to the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.passes.sharding.factors import alone

RADIUS = 6  # operands and readers away
KEPT = 2  # members of each kind


@dataclass(frozen=True)
class FoldedFunction:
    """A function with few members of each kind.

    Attributes:
        func: the reduced function.
        members: for each node of the whole function, the node of `func` that represents it.
        counts: for each node of `func`, the number of nodes that it represents.
        whole: the whole function.
    """

    func: Func
    members: Mapping[Node, Node]
    counts: Mapping[Node, int]
    whole: Func

    def alike(self) -> Iterator[tuple[str, str]]:
        """Yields pairs of names: a value of the whole function that the reduced one lacks, and the
        value there that represents it."""
        known = {**self.func.body.names, **{p: str(p.attrs["name"]) for p in self.func.params}}
        named = {**self.whole.body.names, **{p: str(p.attrs["name"]) for p in self.whole.params}}
        for node, member in self.members.items():
            if node in named and known.get(member, named[node]) != named[node]:
                yield named[node], known[member]


def folded(func: Func) -> FoldedFunction:
    """Returns the function with two members of each kind; or unchanged if that saves little."""
    block = func.body
    nodes = (*block.params, *block.nodes)
    kinds = _kinds(block)
    kept: defaultdict[int, list[Node]] = defaultdict(list)  # nodes of the new function, by kind
    members: dict[Node, Node] = {}
    for node in nodes:
        own = kept[kinds[node]]
        if len(own) < KEPT:
            args = [members[a] for a in node.args]
            new = node if node.op == "param" else _node(node, args)
            if new not in own:
                own.append(new)
        members[node] = own[-1]
    if 2 * len(set(members.values())) > len(nodes):
        return FoldedFunction(func, {node: node for node in nodes}, {}, func)
    held = Counter(members.values())
    names = {members[n]: name for n, name in [*block.names.items()][::-1]}
    locs = {members[n]: lines for n, lines in [*block.locs.items()][::-1]}
    params = [p for p in block.params if members[p] is p]
    read = {a for new in held for a in new.args}
    ends = [new for new in held if new not in read and new.op != "param"]
    body = Block(
        params, [*dict.fromkeys((*(members[r] for r in block.results), *ends))], names, locs
    )
    return FoldedFunction(Func(func.name, body, func.level), members, held, func)


def _node(node: Node, args: list[Node]) -> Node:
    return Node(node.op, args, node.attrs, node.type, node.blocks)


def _kinds(block: Block) -> dict[Node, int]:
    """Returns a number for each node; nodes with one number have the same surroundings."""
    nodes = (*block.params, *block.nodes)
    results = set(block.results)
    readers: dict[Node, list[tuple[Node, int]]] = {node: [] for node in nodes}
    for node in nodes:
        for place, arg in enumerate(node.args):
            readers[arg].append((node, place))
    found = _numbered({n: (_own(n), n.type.sharding, n in results) for n in nodes})
    for _ in range(RADIUS):
        around = {
            node: (
                found[node],
                tuple([found[a] for a in node.args]),
                tuple(sorted([(found[r], place) for r, place in readers[node]])),
            )
            for node in nodes
        }
        finer = _numbered(around)
        if max(finer.values()) == max(found.values()):
            break
        found = finer
    return found


def _own(node: Node) -> object:
    """Returns a key that equal nodes share wherever they are in the program: the type of a
    parameter, the node on new parameters for others."""
    return node.type if node.op == "param" else alone(node)


def _numbered(keys: Mapping[Node, object]) -> dict[Node, int]:
    numbers: dict[object, int] = {}
    return {node: numbers.setdefault(key, len(numbers)) for node, key in keys.items()}
