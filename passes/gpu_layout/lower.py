"""One block kernel, node by node, on the threads of a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_alias, is_contraction, is_item, is_loop, is_reduction, reads_by_data
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.ahead import Ahead
from stack.passes.gpu_layout.choice import Choice, blocked
from stack.passes.gpu_layout.classes import Classes, is_memory, is_tile, kept_dims
from stack.passes.gpu_layout.runs import Runs, sizes_of
from stack.passes.gpu_layout.share import Layout, NamedTile, Share
from stack.passes.gpu_layout.threads import Threads
from stack.target import Gpu

AS_IT_IS = ("grid", "serial", "branch")  # loops that blocks of threads run as programs do


class CannotDistribute(Exception):
    """A kernel that has no code in threads; says why."""


@dataclass(frozen=True)
class Copies:
    """An operand that a loop copies ahead: its memory before the loop, in a turn, and after it."""

    load: Node
    before: Node
    held: Node
    after: Node


class Lowering(Ahead):
    """The threads of one kernel; `block` is its block at the loop level."""

    def __init__(self, block: Block, warps: int, stages: int, gpu: Gpu, threads: Threads) -> None:
        runs = Runs()
        super().__init__(block, warps, runs, stages, gpu, threads)
        self.loops: dict[Node, list[NamedTile]] = {}
        self.classes = Classes(block)
        self.choice = Choice(self.classes, runs, warps, self._anchors())
        self.sums = _sums(self.classes.nodes)
        self.later = set(self.sums.values())  # what comes where it is used

    def block(self) -> Block:
        """The kernel's block. Raises CannotDistribute."""
        self._nodes(self.old)
        results = [self.memory_of(r) for r in self.old.results]
        return self.b.block(self.old.params, results)

    def is_cheap(self, node: Node) -> bool:
        return self.classes.is_cheap(node)

    def layout_of(self, node: Node, vectors: Sequence[int] = ()) -> Layout:
        """Where a tile is made; one of places and numbers, as who uses it likes."""
        if not self.is_cheap(node):
            return self.choice.home(node)
        sizes = sizes_of(node.tensor)
        return blocked(sizes, vectors or [0] * len(sizes), WARP * self.warps)

    def _anchors(self) -> dict[Node, Layout]:
        """Layouts that products prescribe."""
        found: dict[Node, Layout] = {}
        for node in self.classes.nodes:
            if is_contraction(node) and (layout := self.prescribed(node)):
                found[node] = layout
        return found

    # ---- nodes

    def _nodes(self, block: Block) -> None:
        for node in block.nodes:
            self._node(node)
            if node in self.known:
                self.note(node, self.known[node].node)

    def _node(self, node: Node) -> None:
        if node.op in ("const", "param", "var") or node in self.later:
            return
        if is_loop(node):
            self._loop(node)
        elif is_item(node):
            self._item(node)
        elif node.op == "store":
            self.known[node] = NamedTile(self.store(node))
        elif not is_tile(node):
            self.known[node] = self._number_of(node)
        elif not self.is_cheap(node):
            layout = self.choice.home(node)
            self.known[node] = self._tile(node, layout)

    def _number_of(self, node: Node) -> NamedTile:
        if node.op == "load":
            return self.load(node, ())
        if is_reduction(node):
            return self._reduced(node)
        if self.is_elementwise(node):
            return self.applied(node, [self.scalar(a) for a in node.args], ())
        if node.op in ("reshape", "again"):
            (source,) = node.args
            held = self.operand(source, self.layout_of(source) if is_tile(source) else ())
            return self._squeezed(held)
        raise CannotDistribute(f"no code for {node.op} of numbers")

    def _squeezed(self, value: NamedTile) -> NamedTile:
        """A tile of one element as a number in each thread."""
        if value.is_uniform or not value.layout:
            return value
        return NamedTile(self.b.reshape(value.node, type=self.type_of(value.dtype, ())))

    def _tile(self, node: Node, layout: Layout) -> NamedTile:
        if node.op == "load":
            return self.load(node, layout)
        if is_reduction(node):
            return self.converted(self._reduced(node), layout)
        if node.op == "scan":
            return self.scan(node, self.at(node.args[0], layout))
        if is_contraction(node):
            return self.dot(node, layout)
        if node in self.sums:
            dot = self.sums[node]
            start = next(a for a in node.args if a is not dot)
            return self.dot(dot, layout, self.operand(start, layout), self.pending.get(node, 0))
        if reads_by_data(node):
            return self._gathered(node, layout)
        if node.op == "transpose":
            perm = [int(p) for p in node.attrs["perm"]]
            source = tuple(layout[perm.index(i)] for i in range(len(perm)))
            return self.turned(self.at(node.args[0], source), perm)
        if is_alias(node):
            return self._reshape(node, layout)
        if node.op == "again":
            held = self.at(node.args[0], layout)
            return NamedTile(self.b.again(held.node), layout)
        if node.op == "broadcast" or self.is_elementwise(node):
            return self.computed(node, layout)
        raise CannotDistribute(f"no code for {node.op}")

    def _reduced(self, node: Node) -> NamedTile:
        (source,) = node.args
        return self.reduce(node, self.at(source, self.layout_of(source)))

    def _reshape(self, node: Node, layout: Layout) -> NamedTile:
        """Axes of one element come and go; else all elements go through shared memory in order."""
        (source,) = node.args
        if not source.tensor.rank:
            return self.broadcast(self.scalar(source), (), layout)
        pairs = kept_dims(source.tensor, node.tensor)
        if pairs is not None:
            own = [Share()] * source.tensor.rank
            for before, after in pairs:
                own[before] = layout[after]
            held = self.at(source, tuple(own))
            type_ = self.type_of(node.dtype, layout)
            return NamedTile(self.b.reshape(held.node, type=type_), layout)
        held = self.at(source, self.layout_of(source))
        memory = self.shared(held.dtype, prod(sizes_of(node.tensor)), inside=[held.node])
        place = self._in_order(held.layout, sizes_of(source.tensor))
        memory = self.b.op("store", [memory, held.node, place.node], {})
        place = self._in_order(layout, sizes_of(node.tensor))
        type_ = self.type_of(held.dtype, layout)
        return NamedTile(self.b.op("load", [memory, place.node], {}, hint=type_), layout)

    def _in_order(self, layout: Layout, sizes: Sequence[int]) -> NamedTile:
        """The number of each element of a tile, row by row."""
        total: NamedTile | None = None
        for axis, share in enumerate(layout):
            place = self.along(self.places(share), axis, layout)
            stride = prod(sizes[axis + 1 :])
            place = self.apply("mul", place, stride) if stride > 1 else place
            total = place if total is None else self.apply("add", total, place)
        assert total is not None
        return total

    def _gathered(self, node: Node, layout: Layout) -> NamedTile:
        """Elements of a run, from shared memory."""
        run, picked = node.args
        if run.tensor.rank != 1:
            raise CannotDistribute("a gather from more than a run")
        memory = self.kept(self.at(run, self.layout_of(run)))
        index = self.at(picked, layout)
        type_ = self.type_of(node.dtype, layout)
        return NamedTile(self.b.op("load", [memory, index.node], {}, hint=type_), layout)

    # ---- loops

    def _loop(self, node: Node) -> None:
        """A loop that programs run, with what it carries in the threads."""
        if node.attrs["kind"] not in AS_IT_IS:
            raise CannotDistribute(f"a {node.attrs['kind']} loop of blocks")
        limits, init = loop_parts(node.args, node.attrs)
        old = node.blocks[0]
        index, *carried = old.params
        start = [self._carried(i, c) for i, c in zip(init, carried, strict=True)]
        held = [Node("var", (), c.attrs, s.node.type) for c, s in zip(carried, start, strict=True)]
        for c, h, s in zip(carried, held, start, strict=True):
            self.known[c] = NamedTile(h, s.layout)
        uniform = [self.uniform(self.scalar(v)) for v in limits]
        pending: dict[Node, int] = {}
        copies: list[Copies] = []
        if node.attrs["kind"] == "serial":
            pending = self.overlapped(old, self.sums)
            copies = self._begin(old, self.limits_of(uniform, index), bool(pending))
            pending = pending if copies else {}
            self.pending.update(pending)
        self.around.append(index)
        self._nodes(old)
        self.around.pop()
        ends = [self._carried(r, c) for r, c in zip(old.results, carried, strict=True)]
        results = [*(e.node for e in ends), *(c.after for c in copies)]
        block = Block((index, *held, *(c.held for c in copies)), results)
        args = [*uniform, *(s.node for s in start), *(c.before for c in copies)]
        made = self.b.op("loop", args, node.attrs, (block,))
        is_one = len(results) == 1
        held = [
            NamedTile(made if is_one else self.b.item(made, index=i), s.layout)
            for i, s in enumerate(start)
        ]
        self.loops[node] = [
            self.waited(h) if r in pending else h for h, r in zip(held, old.results, strict=True)
        ]
        if len(start) == 1:
            self.known[node] = self.loops[node][0]

    def _begin(self, block: Block, limits: Sequence[Node], overlaps: bool) -> list[Copies]:
        """Begin the copies of a loop's first turns, and in each turn those of one to come."""
        index = block.params[0]
        loads = self.operands(block)
        if not loads:
            return []
        ahead, places = self.distance(block, loads, overlaps)
        if not ahead:
            return []
        memories = [self.place_of(load, places) for load in loads]
        for turn in range(ahead):
            step = self.b.add(limits[0], turn) if turn else limits[0]
            memories = [
                self.copied(load, memory, index, step, limits, places)
                for load, memory in zip(loads, memories, strict=True)
            ]
            if turn < ahead - 1:  # groups of copies are counted: all of a turn before the next
                memories = self._waited(memories, (turn + 1) * len(loads))
        found = [
            Copies(load, m, h := Node("var", (), {"name": self.fresh("ahead")}, m.type), h)
            for load, m in zip(loads, memories, strict=True)
        ]
        arrived = self._waited([c.held for c in found], (ahead - 1) * len(loads))
        step = self.b.add(index, ahead)
        found = [
            replace(c, after=self.copied(c.load, memory, index, step, limits, places))
            for c, memory in zip(found, arrived, strict=True)
        ]
        for copies in found:
            row = self.first_row(copies.load, index, limits[0], places)
            self.staged[copies.load] = copies.after, row
            self.later.add(copies.load)
        return found

    def _waited(self, memories: Sequence[Node], pending: int) -> list[Node]:
        """Memories when all but so many groups of copies have arrived."""
        made = self.b.op("async_wait", memories, {"pending": pending})
        if len(memories) == 1:
            return [made]
        return [self.b.item(made, index=i) for i in range(len(memories))]

    def _carried(self, value: Node, held: Node) -> NamedTile:
        """A value as a loop carries it: memory, a number in each thread, a tile at home."""
        if is_memory(value):
            return NamedTile(self.memory_of(value))
        if is_tile(value):
            return self.at(value, self.choice.home(held))
        return self.in_each(self.scalar(value))

    def _item(self, node: Node) -> None:
        self.known[node] = self.loops[node.args[0]][int(node.attrs["index"])]


def _sums(nodes: Sequence[Node]) -> dict[Node, Node]:
    """Additions of a product that nothing else uses, and the product."""
    uses = Counter(a for n in nodes for a in n.args)
    uses.update(r for n in nodes for b in n.blocks for r in b.results)
    return {
        n: a
        for n in nodes
        for a in (n.args if n.op == "add" and is_tile(n) else ())
        if is_contraction(a) and uses[a] == 1 and all(is_tile(b) for b in n.args)
    }


def lower_blocks(block: Block, warps: int, stages: int, gpu: Gpu, threads: Threads) -> Block:
    """The block of a kernel of tiles at the loop level. Raises CannotDistribute.

    Args:
        stages: steps of its loops whose operands are in shared memory at a time.
        threads: what the kernel says about the sums of a thread.
    """
    if WARP * warps > gpu.threads:
        raise CannotDistribute(f"{warps} warps are more than {gpu.threads} threads")
    if sum(is_loop(n, "grid") for n in block.nodes) > 1:
        raise CannotDistribute("its programs have blocks of two sizes")
    return Lowering(block, warps, stages, gpu, threads).block()
