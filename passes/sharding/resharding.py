"""Plan resharding: the way each node of a sharded program runs, and the copies that it needs.

Each node runs in the cheapest way (`choose`). Its result keeps that sharding until a reader needs
another one. Every copy of a value is kept for reuse: q, k and v share one gather, and a sum stays
partial along a residual stream until it is read. `plan` writes this as a program. Its bytes are
known before that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stack.ir.node import Block, Node, is_inline
from stack.ir.traits import is_item, is_operator
from stack.mesh.sharding import Sharding, replicated
from stack.passes.sharding.cells import CellGraph, CellValue, Path
from stack.passes.sharding.node_choices import best_choice
from stack.passes.sharding.route import STAY, Route, places, route


@dataclass(frozen=True)
class Version:
    """A value in one of its shardings.

    Attributes:
        sharding: the sharding.
        source: the number of the version that it is moved from; None if the node computes it so.
        reader: the node that it was moved for first.
        way: the collectives of the move.
    """

    sharding: Sharding
    source: int | None = None
    reader: Node | None = None
    way: Route = STAY


@dataclass
class ReshardingPlan:
    """The moves in one occurrence of a block.

    Attributes:
        program: the program.
        path: the path of the block.
        versions: of every value; the first is the node's result.
        reads: for each node, the versions of its operands, by number.
        makes: for each node, the shardings of its results.
        results: versions of the results of the block.
        inner: the same for the blocks of a node.
    """

    program: CellGraph
    path: Path = ()
    versions: dict[Node, list[Version]] = field(default_factory=dict[Node, list[Version]])
    reads: dict[Node, tuple[int, ...]] = field(default_factory=dict[Node, tuple[int, ...]])
    makes: dict[Node, tuple[Sharding, ...]] = field(
        default_factory=dict[Node, tuple[Sharding, ...]]
    )
    results: tuple[int, ...] = ()
    inner: dict[Node, list[ReshardingPlan]] = field(
        default_factory=dict[Node, "list[ReshardingPlan]"]
    )

    def __post_init__(self) -> None:
        for param in self.block.params:
            self._made(param, (self._cell(CellValue(self.path, param)),))
        for node in self.block.nodes:
            self._node(node)
        ends = enumerate(self.block.results)
        self.results = tuple(self.at(node, self._wanted(node, i), node) for i, node in ends)

    @property
    def block(self) -> Block:
        """Returns the block of the program that this plan is for."""
        return self.program.block(self.path)

    def bytes(self, counts: Mapping[Node, int]) -> int:
        """Returns the bytes that a rank sends; loops count once, nodes as often as in `counts`."""
        own = sum(
            counts.get(node, 1) * version.way.bytes
            for node, versions in self.versions.items()
            for version in versions
        )
        inner = ((node, moves) for node, found in self.inner.items() for moves in found)
        return own + sum(counts.get(node, 1) * moves.bytes({}) for node, moves in inner)

    def at(self, node: Node, wanted: Sharding, reader: Node) -> int:
        """Returns the number of the version of a value that has the wanted sharding.

        If there is none, adds one, moved from the version with the cheapest route.
        """
        versions = self.versions[node]
        for number, version in enumerate(versions):
            if is_inline(node) and not wanted.partial:
                return number
            if version.sharding is wanted or places(version.sharding) == places(wanted):
                return number
        ways = [route(node.tensor, version.sharding, wanted) for version in versions]
        best = min(range(len(ways)), key=lambda number: ways[number][1:])
        versions.append(Version(wanted, best, reader, ways[best]))
        return len(versions) - 1

    def _cell(self, value: CellValue) -> Sharding:
        return self.program.cell(value).sharding(self.program.mesh)

    def _wanted(self, node: Node, index: int) -> Sharding:
        """Returns the sharding that result `index` of the block has to end in: that of the loop,
        branch or call that runs the block, or of the program's result. A loop's condition is
        whole."""
        if not self.path:
            return self._cell(CellValue((), node))
        outer, number = self.path[-1]
        if outer.op == "while" and number == 0:
            return replicated(self.program.mesh, 0)
        return self._cell(CellValue(self.path[:-1], outer, index))

    # ---- nodes

    def _made(self, node: Node, makes: tuple[Sharding, ...]) -> None:
        self.makes[node] = makes
        self.versions[node] = [Version(makes[0])]

    def _node(self, node: Node) -> None:
        if is_inline(node):
            self._made(node, (replicated(self.program.mesh, node.tensor.rank),))
        elif is_item(node):
            self._made(node, (self.makes[node.args[0]][int(node.attrs["index"])],))
        elif node.op == "reshard":
            target = self._cell(CellValue(self.path, node))
            self.reads[node] = (self.at(node.args[0], target, node),)
            self._made(node, (self.versions[node.args[0]][self.reads[node][0]].sharding,))
        elif node.blocks and not is_operator(node):
            self._control(node)
        else:
            self._computed(node)

    def _computed(self, node: Node) -> None:
        lie = [[version.sharding for version in self.versions[a]] for a in node.args]
        wanted = [self._cell(CellValue(self.path, node, i)) for i in range(len(node.types))]
        program = self.program
        choice = best_choice(program.mesh, program.balance, node, lie, wanted)
        needs = zip(node.args, choice.needs, strict=True)
        self.reads[node] = tuple(self.at(arg, need, node) for arg, need in needs)
        self._made(node, choice.makes)

    def _control(self, node: Node) -> None:
        first = node.op == "cond"
        inner: Path = (*self.path, (node, 0))
        needs = [replicated(self.program.mesh, 0)] if first else []
        needs += [self._cell(CellValue(inner, param)) for param in node.blocks[0].params]
        both = zip(node.args, needs, strict=True)
        self.reads[node] = tuple(self.at(arg, need, node) for arg, need in both)
        self.inner[node] = [
            ReshardingPlan(self.program, (*self.path, (node, i))) for i in range(len(node.blocks))
        ]
        values = (CellValue(self.path, node, i) for i in range(len(node.types)))
        self._made(node, tuple(map(self._cell, values)))
