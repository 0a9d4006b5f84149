"""Access relations of ops with blocks, composed from the relations of the nodes inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stack.ir.node import Block, Node
from stack.ir.ops import relation_of
from stack.ir.region import Region, hull, whole
from stack.ir.relation import Relation

Regions = list[Region | None]  # one for each value; None for the empty region
ROUNDS = 4  # iterations of a loop before a region that still grows is widened to the whole value


def _hulls(first: Regions, second: Regions) -> Regions:
    return [hull(a, b) for a, b in zip(first, second, strict=True)]


def _all_of(nodes: Sequence[Node]) -> Regions:
    return [whole(node.shape) for node in nodes]


def block_push(block: Block, given: Regions) -> Regions:
    """Returns the region of each result of a block that can depend on the given regions of its
    parameters. None is the empty region.
    """
    reached = {p: [region] for p, region in zip(block.params, given, strict=True)}
    for node in block.nodes:
        found: Regions = [None] * len(node.types)
        for operand, arg in enumerate(node.args):
            region = reached[arg][_item(node)] if arg in reached else None
            if region is not None:
                found = _hulls(found, relation_of(node).push(operand, region))
        reached[node] = found
    return [reached[r][0] if r in reached else None for r in block.results]


def block_footprint(block: Block, wanted: Regions) -> Regions:
    """Returns the region of each parameter of a block that the wanted regions of its results may
    depend on. None is the empty region.
    """
    needed: dict[Node, Regions] = {}

    def need(node: Node, region: Region | None, item: int = 0) -> None:
        held = needed.setdefault(node, [None] * len(node.types))
        held[item] = hull(held[item], region)

    for result, region in zip(block.results, wanted, strict=True):
        need(result, region)
    for node in reversed(block.nodes):
        for result, region in enumerate(needed.get(node, ())):
            if region is None:
                continue
            for arg, part in zip(node.args, relation_of(node).footprint(region, result)):
                need(arg, part, _item(node))
    return [needed[p][0] if p in needed else None for p in block.params]


def _item(node: Node) -> int:
    """The index of the result that an `item` node selects from its operand; 0 for other nodes,
    whose operands have one result.
    """
    return int(node.attrs["index"]) if node.op == "item" else 0


@dataclass(frozen=True)
class Body(Relation):
    """The dependence between elements of a node's operands and results, if the node runs a block:
    it follows from the ops of the block.
    """

    node: Node

    def push(self, operand: int, region: Region) -> Regions:
        given: Regions = [None] * len(self.node.args)
        given[operand] = region
        return self._push(given)

    def footprint(self, region: Region, result: int = 0) -> Regions:
        wanted: Regions = [None] * len(self.node.types)
        wanted[result] = region
        return self._footprint(wanted)

    def _push(self, given: Regions) -> Regions:
        return block_push(self.node.blocks[0], given)

    def _footprint(self, wanted: Regions) -> Regions:
        return block_footprint(self.node.blocks[0], wanted)


class Branches(Body):
    """`cond`: operand 0 selects the block that runs."""

    def _push(self, given: Regions) -> Regions:
        pick, *rest = given
        if pick is not None:
            return _all_of(self.node.blocks[0].results)
        found: Regions = [None] * len(self.node.blocks[0].results)
        for block in self.node.blocks:
            found = _hulls(found, block_push(block, rest))
        return found

    def _footprint(self, wanted: Regions) -> Regions:
        found: Regions = [None] * (len(self.node.args) - 1)
        for block in self.node.blocks:
            found = _hulls(found, block_footprint(block, wanted))
        return [(), *found]


class Repeat(Body):
    """The dependences of a `while`, for any number of iterations. If the loop condition depends on
    an element, so do all results.
    """

    def _push(self, given: Regions) -> Regions:
        test, body = self.node.blocks
        reached = self._until_stable(given, lambda now: block_push(body, now))
        is_read = block_push(test, reached)[0] is not None
        return _all_of(self.node.args) if is_read else reached

    def _footprint(self, wanted: Regions) -> Regions:
        test, body = self.node.blocks
        first = _hulls(wanted, block_footprint(test, [()]))
        return self._until_stable(first, lambda now: block_footprint(body, now))

    def _until_stable(self, first: Regions, iteration: Callable[[Regions], Regions]) -> Regions:
        now = first
        for count in range(ROUNDS + len(now)):
            grown = _hulls(now, iteration(now))
            if grown == now:
                return now
            if count >= ROUNDS:
                grown = [
                    old if new == old else whole(arg.shape)
                    for arg, old, new in zip(self.node.args, now, grown, strict=True)
                ]
            now = grown
        return _all_of(self.node.args)


class Streamed(Body):
    """The dependences of a `stream` node (several reductions over one axis in one loop): through
    the reductions, then through its block `finish`. Each result depends on the whole streamed axis.
    """

    def _push(self, given: Regions) -> Regions:
        states, _, finish = self.node.blocks
        found = block_push(finish, [*block_push(states, given), *given])
        return [
            region if region is None else whole(type_.shape[: type_.rank - len(region)]) + region
            for type_, region in zip(self.node.types, found, strict=True)
        ]

    def _footprint(self, wanted: Regions) -> Regions:
        states, _, finish = self.node.blocks
        inner = [
            region if region is None else region[len(region) - made.tensor.rank :]
            for region, made in zip(wanted, finish.results, strict=True)
        ]
        found = block_footprint(finish, inner)
        count = len(states.results)
        return _hulls(block_footprint(states, found[:count]), found[count:])
