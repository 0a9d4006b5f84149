"""Write a sharded program with all moves as `reshard` nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stack.ir.node import Block, Node, is_inline
from stack.ir.traits import is_item, is_operator
from stack.ir.types import TensorType, TupleType, Type
from stack.mesh.sharding import Sharding
from stack.passes.sharding.cells import CellGraph, CellValue
from stack.passes.sharding.resharding import ReshardingPlan, Version

Tell = Callable[[str, tuple[str, ...]], None]


def planned(program: CellGraph, tell: Tell) -> Block:
    """Plans how each node of a program runs and which copies it needs; returns the program's body
    with a `reshard` node for each such copy."""
    return _Writer(ReshardingPlan(program), tell).written()


@dataclass
class _Writer:
    """The nodes of one occurrence of a block."""

    moves: ReshardingPlan
    tell: Tell
    made: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])
    names: dict[Node, str] = field(default_factory=dict[Node, str])
    locs: dict[Node, tuple[str, ...]] = field(default_factory=dict[Node, tuple[str, ...]])

    def written(self) -> Block:
        """Returns the planned block, with `reshard` nodes in it."""
        block = self.moves.block
        for param in block.params:
            type_ = _typed(param.type, self.moves.makes[param])
            self.made[param] = [Node("param", (), param.attrs, type_)]
        for node in block.nodes:
            self._node(node)
        ends = zip(block.results, self.moves.results, strict=True)
        results = [self._version(node, number) for node, number in ends]
        params = [self.made[p][0] for p in block.params]
        return Block(params, results, self.names, self.locs)

    def _node(self, node: Node) -> None:
        reads = zip(node.args, self.moves.reads.get(node, ()))
        args = [self._version(arg, number) for arg, number in reads]
        if is_inline(node):
            new = node
        elif is_item(node):
            source = self.made[node.args[0]][0]
            new = Node("item", (source,), node.attrs, source.types[int(node.attrs["index"])])
        elif node.op == "reshard":
            new = args[0]
        else:
            inner = self.moves.inner.get(node, ())
            blocks = [_Writer(own, self.tell).written() for own in inner]
            if is_operator(node):
                blocks = node.blocks
            new = Node(node.op, args, node.attrs, _typed(node.type, self.moves.makes[node]), blocks)
        self.made[node] = [new]
        block = self.moves.block
        if node in block.names:
            self.names.setdefault(new, block.names[node])
        if node in block.locs:
            self.locs[new] = block.locs[node]

    def _version(self, node: Node, number: int) -> Node:
        """Returns the node of copy `number` of a value, where each copy has another sharding.
        Builds the `reshard` nodes of this and of earlier copies if needed."""
        made, versions = self.made[node], self.moves.versions[node]
        while len(made) <= number:
            version = versions[len(made)]
            assert version.source is not None
            source = made[version.source]
            new = Node("reshard", (source,), {}, node.tensor.with_sharding(version.sharding))
            made.append(new)
            self._note(node, version, new)
        return made[number]

    def _note(self, node: Node, version: Version, new: Node) -> None:
        assert version.reader is not None
        name = self._name(node)
        lines = self.moves.block.locs.get(version.reader, ())
        self.names.setdefault(new, f"{name[1:]}.at")
        if lines:
            self.locs.setdefault(new, lines)
        steps = "; ".join(map(str, version.way.steps))
        self.tell(f"{name} to {new.tensor} for {self._name(version.reader)}: {steps}", lines)

    def _name(self, node: Node) -> str:
        return self.moves.program.name(CellValue(self.moves.path, node))


def _typed(type_: Type, shardings: Sequence[Sharding]) -> Type:
    items = type_.items if isinstance(type_, TupleType) else (type_,)
    placed: list[TensorType] = [
        item.with_sharding(sharding) for item, sharding in zip(items, shardings, strict=True)
    ]
    return TupleType(tuple(placed)) if isinstance(type_, TupleType) else placed[0]
