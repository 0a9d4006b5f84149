"""A chunk of the tile axis: what a tile kernel computes on a few of its lanes.

Distributing a kernel walks the tile axis in chunks. A chunk gives the values of the kernel's nodes
there, as vectors; serial loops that carry a tile move inside of the chunk and carry a vector.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from stack.errors import VerifyError
from stack.ir.builder import Builder, constant
from stack.ir.kernel_ops import MEMORY, access_parts
from stack.ir.node import Block, Node, deps
from stack.ir.printer import print_node
from stack.ir.traits import (
    choice,
    connective,
    converts,
    is_input,
    is_item,
    is_load,
    is_loop,
    is_number,
    is_positions,
    is_reduction,
    is_running,
    is_store,
    maker,
    moved,
    negates,
    place_of,
    repeats,
)
from stack.ir.types import I64, DType, TensorType, TupleType, holds_all
from stack.passes.tiling.frame import COMBINE


def is_memory(node: Node) -> bool:
    """Whether a value is memory, which a loop carries and a store changes."""
    return isinstance(node.type, TensorType) and node.type.space in MEMORY


def is_tile(node: Node) -> bool:
    """Whether a value moves along the tile axis."""
    types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    return any(t.space == "tile" for t in types)


class Program(Protocol):
    """What chunks of one program share."""

    b: Builder
    scalars: dict[Node, Node]  # reductions that are done
    kept: dict[Node, Node]  # value -> memory that holds it
    before: dict[Node, Node]  # running value -> what the lanes before come to

    def fresh(self, hint: str) -> str:
        """A name for a variable that no other has."""
        ...

    def note(self, old: Node, new: Node) -> None:
        """Keep name and source lines."""
        ...

    def kept_at(self, offset: Node) -> Sequence[Node]:
        """Where the chunk from `offset` lies in memory that holds a value."""
        ...


class Chunk:
    """Values of one program on `width` lanes of the tile axis from `offset`."""

    def __init__(
        self, program: Program, offset: Node, width: int, known: Mapping[Node, bool]
    ) -> None:
        self.program = program
        self.b = program.b
        self.offset = offset
        self.width = width
        self.known = known  # conditions that are the same on all lanes
        self.memo: dict[Node, Node] = {}
        self.swap: dict[Node, Node] = {}  # loop variables that stand for others

    def child(self, swap: dict[Node, Node]) -> Chunk:
        """The same chunk inside of a loop whose variables have new names."""
        inner = Chunk(self.program, self.offset, self.width, self.known)
        inner.swap = {**self.swap, **swap}
        gone = frozenset(swap)
        inner.memo = {k: v for k, v in self.memo.items() if gone.isdisjoint(k.vars)}
        return inner

    def value(self, node: Node) -> Node:
        """A node on this chunk: a vector of it when it moves along the tile axis."""
        pending = [node]
        while pending:  # operands first: how deep a kernel is, is up to the program
            last = pending[-1]
            missing = (
                [] if self._found(last) else [a for a in self._uses(last) if not self._found(a)]
            )
            pending += reversed(missing)
            if missing:
                continue
            pending.pop()
            if not self._found(last):
                self.memo[last] = made = self._make(last)
                self.program.note(last, made)
        found = self._found(node)
        assert found is not None
        return found

    def _found(self, node: Node) -> Node | None:
        """What is known to stand for a node."""
        return self.swap.get(node) or self.program.scalars.get(node) or self.memo.get(node)

    def _uses(self, node: Node) -> Sequence[Node]:
        """The values of this chunk that a node is made of."""
        if is_input(node) or is_number(node) or node in self.program.kept:
            return ()
        if is_loop(node):
            return node.args
        taken = self._taken(node)
        return node.args if taken is None else (taken,)

    def _cut(self, type_: TensorType) -> TensorType:
        return type_.with_shape((self.width,)) if type_.space == "tile" else type_

    def _make(self, node: Node) -> Node:
        if is_input(node) or is_number(node):
            return node
        if node in self.program.kept:
            memory = self.program.kept[node]
            place = self.program.kept_at(self.offset)
            return self.b.load(memory, *place, type=self._cut(node.tensor))
        if is_loop(node):
            return self._loop(node, [self.value(a) for a in node.args])
        if (taken := self._taken(node)) is not None:
            return self._as(node, self.value(taken))
        args = [self.value(a) for a in node.args]
        if is_running(node):
            return self._running(node, args[0])
        if converts(node) and _is_as_it_was(args[0], node.dtype):
            return args[0].args[0]
        if is_positions(node) and is_tile(node):
            return plus(self.b, self.b.iota(axis=0, type=self._cut(node.tensor)), self.offset)
        if moved(node) is not None:
            return self._access(node, args)
        if isinstance(node.type, TensorType):
            return self.b.op(node.op, args, node.attrs, hint=self._cut(node.type))
        return self.b.op(node.op, args, node.attrs)

    def _running(self, node: Node, value: Node) -> Node:
        """What lanes come to, with those before; the next chunk then comes after these."""
        kind, before = node.attrs["kind"], self.program.before[node]
        whole = self.b.reduce(value, kind=kind, axes=(0,))
        self.program.before[node] = self.b.op(COMBINE[kind], [before, whole])
        own = self.b.op("scan", [value], node.attrs)
        return self.b.op(COMBINE[kind], [own, before])

    def _holds(self, condition: Node) -> bool | None:
        """What a condition is on all lanes; None where that is not known."""
        if not self.known or condition in self.known:
            return self.known.get(condition)
        if repeats(condition):
            return self._holds(condition.args[0])
        if negates(condition):
            held = self._holds(condition.args[0])
            return None if held is None else not held
        if not (kind := connective(condition)):
            return None
        sides = [self._holds(a) for a in condition.args]
        decides = kind < 0  # either is enough for "or", and both are needed for "and"
        if decides in sides:
            return decides
        return None if None in sides else not decides

    def _taken(self, node: Node) -> Node | None:
        """What a node is by what is known of conditions: one of its operands, or a constant."""
        if (held := self._holds(node)) is not None:
            return constant(held, node.dtype)
        if (chosen := choice(node)) is not None:
            held = self._holds(chosen.test)
            return None if held is None else chosen.yes if held else chosen.no
        if is_load(node):
            _, mask, other = access_parts(node)
            return other if mask is not None and self._holds(mask) is False else None
        if connective(node):
            known = [self._holds(a) for a in node.args]
            if known.count(None) == 1:
                return node.args[known.index(None)]
        return None

    def _as(self, node: Node, value: Node) -> Node:
        """A value in place of a node: on all lanes, where that is a tile."""
        type_ = self._cut(node.tensor)
        is_short = type_.rank and not value.tensor.rank
        return self.b.broadcast(value, axes=(), type=type_) if is_short else value

    def _access(self, node: Node, args: list[Node]) -> Node:
        tile = moved(node)
        index, _, _ = access_parts(node)
        if tile is not None and is_tile(tile) and not any(is_tile(i) for i in index):
            last = (1 if tile is node else 2) + len(index) - 1
            args[last] = plus(self.b, args[last], self.offset)
        if is_store(node):
            return self.b.op("store", args)
        _, mask, _ = access_parts(node)
        if mask is not None and self._holds(mask):
            args = args[: 1 + len(index)]
        made = self.b.op("load", args, hint=self._cut(node.tensor))
        if self.known and not self.offset.vars <= made.vars:
            return self._everywhere().value(node)
        return made

    def _everywhere(self) -> Chunk:
        """The same chunk with no condition known: what does not move with it is computed before
        its loop, for all of them."""
        other = Chunk(self.program, self.offset, self.width, {})
        other.swap = self.swap
        return other

    def sink(self, node: Node, memory: Node) -> Node:
        """A store, or a loop of stores, on this chunk; `memory` is what it stores to."""
        if is_item(node):
            return self.b.item(self.sink(maker(node), memory), index=place_of(node))
        if is_loop(node):
            init = [memory if is_memory(a) else self.value(a) for a in node.args]
            return self._loop(node, init)
        return self._access(node, [memory, *(self.value(a) for a in node.args[1:])])

    def _loop(self, node: Node, init: list[Node]) -> Node:
        """A serial loop moved inside of the chunk: it carries vectors instead of tiles."""
        old = node.blocks[0]
        fresh = self.program.fresh
        swap: dict[Node, Node] = {}
        for p in old.params:
            attrs = {**p.attrs, "name": fresh(str(p.attrs["name"]))}
            swap[p] = Node("var", (), attrs, self._cut(p.tensor))
        inner = self.child(swap)
        results = [
            inner.sink(r, swap[origin_of(r)]) if is_memory(r) else inner.value(r)
            for r in old.results
        ]
        results = [
            self.b.broadcast(r, axes=(), type=p.type)
            if p.tensor.space == "tile" and not r.tensor.rank
            else r
            for r, p in zip(results, [swap[q] for q in old.params[1:]], strict=True)
        ]
        block = Block([swap[p] for p in old.params], results)
        return self.b.op("loop", init, node.attrs, (block,))


def _is_as_it_was(value: Node, dtype: DType) -> bool:
    """Whether a value is one of a type that was widened, and nothing else was done to it."""
    return converts(value) and value.args[0].dtype == dtype and holds_all(value.dtype, dtype)


def plus(b: Builder, x: Node, y: Node) -> Node:
    """x + y without adding zeros."""
    zero = constant(0, I64)
    if zero in (x, y):
        return y if x is zero else x
    return b.add(x, y)


def is_fold(node: Node) -> bool:
    """Whether a node reduces along the tile axis."""
    return is_reduction(node) and is_tile(node.args[0])


def is_value(node: Node) -> bool:
    """Whether a node is one tile."""
    return isinstance(node.type, TensorType) and node.type.space == "tile"


def is_gathered(node: Node) -> bool:
    """Whether a tile is loaded lane by lane: not only its last index moves along the tile axis."""
    return is_load(node) and any(map(is_tile, access_parts(node)[0]))


def origin_of(sink: Node) -> Node:
    """The memory that a store, or a loop of stores, starts from."""
    return maker(sink).args[place_of(sink)]


def reachable(roots: Sequence[Node]) -> list[Node]:
    """Nodes that roots need, those inside of open blocks included, operands first."""
    done: dict[Node, None] = {}
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in done:
                continue
            if ready:
                done[node] = None
                continue
            stack.append((node, True))
            inner = [r for block in node.blocks for r in block.results]
            stack.extend((d, False) for d in (*deps(node), *inner) if d not in done)
    return list(done)


def tiles_of(roots: Sequence[Node], stop: Container[Node] = ()) -> list[Node]:
    """Nodes that move along the tile axis and are needed by roots without a reduction between.

    What lies below a node of `stop` is not looked at.
    """
    found: dict[Node, None] = {}
    pending = list(roots)
    origins = {origin_of(r) for r in roots if is_memory(r)}
    while pending:
        node = pending.pop()
        if node in found or node in origins or is_fold(node):
            continue
        found[node] = None
        if node in stop:
            continue
        pending.extend(deps(node))
        pending.extend(r for block in node.blocks for r in block.results)
    return [n for n in found if is_tile(n)]


def goes_around(sink: Node) -> bool:
    """Whether a sink is a loop that stores and carries no more, and reads nothing twice: each turn
    goes along the lanes then, in the order of memory."""
    if not is_loop(sink) or len(sink.args) != 1:
        return False
    inner = sink.blocks[0]
    own, tiles = frozenset(inner.params), tiles_of(inner.results)
    if not tiles or any(map(is_fold, reachable(inner.results))):
        return False
    return all(not own.isdisjoint(n.vars) for n in tiles if is_load(n))


def tile_extent(node: Node) -> int:
    """Extent of the tile axis as a node has it, 0 for scalars."""
    types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    sizes = [t.shape[0] for t in types if t.space == "tile"]
    return max((s for s in sizes if isinstance(s, int)), default=0)


def check_lines(block: Block) -> None:
    """Raise VerifyError where tiles are not of `block_policy.EXACT`, which vectors are cut from."""
    for node in reachable(block.results):
        types = node.type.items if isinstance(node.type, TupleType) else (node.type,)
        rule = ""
        if any(t.space == "tile" and t.rank > 1 for t in types):
            rule = "a vector is part of a tile of one axis"
        elif node.attrs.get("clip"):
            rule = (
                "a vector is part of a tile that ends where its axis does, not of one with `clip`"
            )
        if rule:
            raise VerifyError(rule, print_node(node, block), block.locs.get(node, ()))


class Sweeps:
    """The work of a program in order: what lies between two reductions along the tile axis.

    Attributes:
        work: for each sweep the reductions that it feeds and the stores that it does.
        extent: of the tile axis, 0 when everything is scalar.
    """

    def __init__(self, sinks: Sequence[Node]) -> None:
        self.levels: dict[Node, int] = {}
        nodes = reachable(sinks)
        folds = [n for n in nodes if is_fold(n)]
        self.extent = max(map(tile_extent, nodes), default=0)
        # a value of one iteration of a serial loop is gone when the loop is
        self.iterations = {p for n in nodes for b in n.blocks for p in b.params}
        last = max(map(self.level, [*sinks, *folds]))
        self.work = [
            (
                [r for r in folds if self.level(r) == sweep],
                [s for s in sinks if self.level(s) == sweep],
            )
            for sweep in range(last + 1)
        ]

    def level(self, node: Node) -> int:
        """The sweep that a node belongs to: how many reductions in a row it depends on."""
        for n in reachable([node]):
            if n not in self.levels:
                inner = (r for block in n.blocks for r in block.results)
                below = [self.levels[d] + is_fold(d) for d in (*deps(n), *inner)]
                self.levels[n] = max(below, default=0)
        return self.levels[node]

    def needed(self, stop: Container[Node] = ()) -> dict[Node, list[int]]:
        """The sweeps that need a tile, for every tile that outlives a iteration of a serial
        loop.
        """
        found: dict[Node, list[int]] = {}
        for sweep, (folds, stores) in enumerate(self.work):
            for node in tiles_of([*(f.args[0] for f in folds), *stores], stop):
                if self.iterations.isdisjoint(node.vars):
                    found.setdefault(node, []).append(sweep)
        return found
