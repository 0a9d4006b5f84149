"""A placed program with everything that moves written down as `reshard` nodes.

Each node runs where it is cheapest (`choose`), and what it makes stays there until somebody needs
it elsewhere. Every version of a value that was made is kept: q, k and v share one gather, a sum
stays open along a residual stream until it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stack.ir.names import is_inline
from stack.ir.node import Block, Node, walk
from stack.ir.sharding import Sharding, replicated
from stack.ir.traits import is_item
from stack.ir.types import TensorType, TupleType, Type
from stack.passes.sharding.cells import Path, Program, Value
from stack.passes.sharding.choose import best_choice
from stack.passes.sharding.route import places, route

Tell = Callable[[str, tuple[str, ...]], None]


def planned(program: Program, tell: Tell) -> Block:
    """The body of a program, with reshards."""
    return _Block(program, (), tell).run()


def planned_bytes(program: Program) -> int:
    """Bytes that a rank sends, loops counted once."""
    body = _Block(program, (), lambda text, lines: None).run()
    moves = {(block, node) for block, node in walk(body) if node.op == "reshard"}
    mesh = program.mesh
    return sum(
        route(
            node.tensor,
            node.args[0].tensor.sharding or replicated(mesh, node.tensor.rank),
            node.tensor.sharding or replicated(mesh, node.tensor.rank),
        ).bytes
        for _, node in moves
    )


@dataclass
class _Block:
    """One block where it stands."""

    program: Program
    path: Path
    tell: Tell
    made: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])
    names: dict[Node, str] = field(default_factory=dict[Node, str])
    locs: dict[Node, tuple[str, ...]] = field(default_factory=dict[Node, tuple[str, ...]])

    @property
    def block(self) -> Block:
        return self.program.block(self.path)

    def run(self) -> Block:
        params: list[Node] = []
        for param in self.block.params:
            type_ = param.tensor.with_sharding(self._cell(Value(self.path, param)))
            params.append(Node("param", (), param.attrs, type_))
            self.made[param] = [params[-1]]
        for node in self.block.nodes:
            self._node(node)
        results = [self._result(node, i) for i, node in enumerate(self.block.results)]
        return Block(params, results, self.names, self.locs)

    def _cell(self, value: Value) -> Sharding:
        return self.program.cell(value).sharding(self.program.mesh)

    def _result(self, node: Node, index: int) -> Node:
        """A result where the node that runs the block has it."""
        wanted = self._cell(Value(self.path, node))
        if self.path:
            outer, number = self.path[-1]
            if outer.op == "while" and number == 0:
                wanted = replicated(self.program.mesh, 0)
            else:
                wanted = self._cell(Value(self.path[:-1], outer, index))
        return self._at(node, wanted, node)

    # ---- nodes

    def _node(self, node: Node) -> None:
        if is_inline(node):
            new = node
        elif is_item(node):
            (source,) = self.made[node.args[0]]
            index = int(node.attrs["index"])
            new = Node("item", (source,), node.attrs, source.types[index])
        elif node.op == "reshard":
            new = self._at(node.args[0], self._cell(Value(self.path, node)), node)
        elif node.blocks:
            new = self._control(node)
        else:
            new = self._computed(node)
        self.made.setdefault(node, []).append(new)
        if node in self.block.names:
            self.names.setdefault(new, self.block.names[node])
        if node in self.block.locs:
            self.locs[new] = self.block.locs[node]

    def _computed(self, node: Node) -> Node:
        mesh = self.program.mesh
        versions = [[self._where(v) for v in self.made[a]] for a in node.args]
        wanted = [self._cell(Value(self.path, node, i)) for i in range(len(node.types))]
        choice = best_choice(mesh, node, versions, wanted)
        needed = zip(node.args, choice.needs, strict=True)
        args = [self._at(arg, need, node) for arg, need in needed]
        return Node(node.op, args, node.attrs, _typed(node.type, choice.makes))

    def _where(self, node: Node) -> Sharding:
        return node.tensor.sharding or replicated(self.program.mesh, node.tensor.rank)

    def _control(self, node: Node) -> Node:
        first = node.op == "cond"
        whole = replicated(self.program.mesh, 0)
        args = [self._at(node.args[0], whole, node)] if first else []
        inner: Path = (*self.path, (node, 0))
        for arg, param in zip(node.args[first:], node.blocks[0].params, strict=True):
            args.append(self._at(arg, self._cell(Value(inner, param)), node))
        blocks = [
            _Block(self.program, (*self.path, (node, i)), self.tell).run()
            for i in range(len(node.blocks))
        ]
        makes = [self._cell(Value(self.path, node, i)) for i in range(len(node.types))]
        return Node(node.op, args, node.attrs, _typed(node.type, makes), blocks)

    # ---- versions

    def _at(self, node: Node, wanted: Sharding, reader: Node) -> Node:
        """A value where it is wanted: a version of it that lies there, or a new one."""
        versions = self.made[node]
        type_ = node.tensor
        for version in versions:
            if is_inline(version) and not wanted.partial:
                return version
            if places(self._where(version)) == places(wanted):
                return version
        best = min(versions, key=lambda v: route(type_, self._where(v), wanted)[1:])
        way = route(type_, self._where(best), wanted)
        new = Node("reshard", (best,), {}, type_.with_sharding(wanted))
        versions.append(new)
        name = self.program.name(Value(self.path, node))
        lines = self.block.locs.get(reader, ())
        self.names.setdefault(new, f"{name[1:]}.at")
        if lines:
            self.locs.setdefault(new, lines)
        self.tell(
            f"{name} to {new.tensor} for {self.program.name(Value(self.path, reader))}:"
            f" {'; '.join(map(str, way.steps))}",
            lines,
        )
        return new


def _typed(type_: Type, shardings: Sequence[Sharding]) -> Type:
    items = type_.items if isinstance(type_, TupleType) else (type_,)
    placed: list[TensorType] = [
        item.with_sharding(sharding) for item, sharding in zip(items, shardings, strict=True)
    ]
    return TupleType(tuple(placed)) if isinstance(type_, TupleType) else placed[0]
