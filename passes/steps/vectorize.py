"""vectorize: replace a loop by operations on tiles, whose first axis is the axis of the loop.

    %sum = loop(0.0) {(%r < 64, %acc)            vectorize r     %x = load(%p0, %i, 0) : f32<64>
      add(%acc, load(%p0, %i, %r))                               %sum = reduce(%x) {axes=[0]}
    }

A total becomes the reduction of a tile, a running total becomes a scan. A load or store with unit
stride becomes one of a block. Legal for a serial loop with independent iterations, whose other
loop-carried values are totals or running totals. A tile must fit in the registers, unless it is a
product of tiles that is summed at once: step `launch` asks about those. On a CPU, a tile has one
axis. On a GPU, the number of lanes is a power of two.

Source: `vectorize` of Halide; outer-loop vectorization of Nuzman and Zaks (PACT 2008).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stack.ir import ops
from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make, results_of
from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_load, is_loop, is_memory, is_reduction, is_store
from stack.ir.types import TensorType, TupleType
from stack.passes.steps.affine import start_along
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import running_totals, summand, why_no_totals
from stack.passes.steps.loops import extent_of, loops_along, why_not_free, why_shared
from stack.passes.steps.online import is_none
from stack.passes.steps.step import LoopStep
from stack.passes.steps.tiles import (
    factors_of,
    positions,
    reshaped,
    spread_along,
    tile_type,
    why_too_large,
)
from stack.passes.steps.vector_access import Access, Lanes, spread_last
from stack.passes.tiling.frame import static
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Vectorize(LoopStep, name="vectorize"):
    """Vectorize the loops over an axis."""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            yield why_no_totals(loop, running=True)
            yield why_shared(loop)
            yield self._why_no_tiles(loop, target)
            lanes = extent_of(loop)
            if isinstance(target, Gpu) and lanes & (lanes - 1):
                yield f"axis {self.axis}: {lanes} lanes; tiles of a GPU have a power of two"

    def _why_no_tiles(self, loop: Node, target: Target | None) -> str:
        var = loop.blocks[0].params[0]
        own = loop.blocks[0].all_nodes
        summed = {n for node in own for n in factors_of(node)}
        for node in own:
            if var not in node.vars:
                continue
            if is_loop(node) and any(var in a.vars for a in loop_parts(node.args, node.attrs)[0]):
                return f"axis {self.axis}: the trip count of a loop inside depends on it"
            kind = ops.lookup(node.op).kind
            if kind == "memory" and not (is_load(node) or is_store(node)):
                return f"axis {self.axis}: {node.op} cannot be vectorized"
            tile = node.args[1] if is_store(node) else node
            if tile in summed or not isinstance(tile.type, TensorType) or is_memory(tile):
                continue
            why = why_too_large([extent_of(loop), *map(static, tile.tensor.shape)], tile, target)
            if why:
                return f"axis {self.axis}: {why}"
        return ""

    def change(self, edit: Edit, loop: Node) -> list[Node]:
        block = loop.blocks[0]
        padded: Sequence[int] = edit.kernel.attrs.get("padded", ())
        memory = {edit.block.params[i] for i in padded}
        is_loop = edit.kernel.attrs["level"] == "loop"
        made = _LaneBuilder(
            block.params[0],
            extent_of(loop),
            bool(running_totals(block)) and _goes_back(block),
            is_loop,
            memory,
            edit=edit,
        )
        return made.loop(loop.args, block)


def _goes_back(block: Block) -> bool:
    """True if a loop accesses memory from higher to lower indices."""
    var = block.params[0]
    places = [
        access_parts(n)[0] for n in block.all_nodes if (is_load(n) or is_store(n)) and var in n.vars
    ]
    moved = [[place for place in index if var in place.vars] for index in places]
    return all(start_along(index[-1], var, -1) is not None for index in moved if index)


@dataclass
class _LaneBuilder(Lanes):
    """Builds the nodes of all lanes from the nodes of one lane.

    Attributes:
        edit: the rewrite that this is part of.
        running: running totals, and the variables that carry them.
    """

    edit: Edit = field(kw_only=True)
    running: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def __post_init__(self) -> None:
        lanes = positions(self.var.dtype, self.count)
        if self.is_reversed:
            lanes = make("sub", (constant(self.count - 1, lanes.dtype), lanes))
        self.done.setdefault(self.var, lanes)
        self.wide.add(self.var)

    def loop(self, start: Sequence[Node], block: Block) -> list[Node]:
        """Vectorizes a loop. Returns the replacements of its results."""
        _, *held = block.params
        self.done.update(zip(held, start, strict=True))
        self.running = running_totals(block)
        self._walk(block)
        made: list[Node] = []
        for variable, first, new in zip(held, start, block.results, strict=True):
            if is_memory(variable):
                made.append(self.new(new))
            else:
                part = summand(variable, new)
                assert part is not None
                whole = self.spread(part, self.shape(part))
                total = make("reduce", (whole,), {"kind": KIND_OF[new.op], "axes": (0,)})
                total = total if is_none(first, new.op) else make(new.op, (first, total))
                made.append(self.edit.note(new, total))
        return made

    def _walk(self, block: Block) -> None:
        for node in block.nodes:
            if node not in self.done:
                self._add(node)
                self.edit.note(node, self.done[node])

    def _add(self, node: Node) -> None:
        if is_loop(node):
            self._inner(node)
            return
        args = [self.new(a) for a in node.args]
        if self.wide.isdisjoint(node.args):
            self.done[node] = node.rebuilt(args)
            return
        if is_store(node):
            self.done[node] = Access(node, self).store()
            return
        self.wide.add(node)
        if is_item(node):
            self.done[node] = node.rebuilt(args)
        elif node in self.running:
            self.done[node] = self._running(node)
        elif is_load(node):
            self.done[node] = Access(node, self).load()
        else:
            upward = self.ascending(node) if self.is_reversed else None
            self.done[node] = upward or self._op(node, args)

    def _running(self, node: Node) -> Node:
        """Builds running totals: a scan of the contributions, plus the total before."""
        before = self.running[node]
        part = summand(before, node)
        assert part is not None
        shape, kind = self.shape(part), KIND_OF[node.op]
        own = self.spread(part, shape)
        attrs = {"axis": 0, "kind": kind, "reverse": self.is_reversed}
        made = make("scan", (own,), attrs)
        first = self.new(before)
        if is_none(first, node.op):
            return made
        if first.tensor.rank:
            first = spread_last(first, shape, False)
        return make(node.op, (first, made))

    def _op(self, node: Node, args: list[Node]) -> Node:
        """Builds an op of one lane on tiles of all lanes, with the lane axis first."""
        attrs, shape = dict(node.attrs), self.shape(node)
        if ops.lookup(node.op).kind == "elementwise":
            spread: list[Node] = []
            for old, new in zip(node.args, args, strict=True):
                if old is self.var:
                    self.edit.locate(node, new)
                if new.tensor.rank:
                    new = self.edit.locate(node, spread_last(new, shape, old in self.wide))
                spread.append(new)
            return make(node.op, spread, attrs, hint=tile_type(node.dtype, shape))
        if node.op == "broadcast":
            return spread_along(args[0], (0, *(a + 1 for a in attrs["axes"])), shape)
        if node.op == "reshape":
            return reshaped(args[0], shape)
        if is_reduction(node):
            attrs["axes"] = tuple(a + 1 for a in attrs["axes"])
        elif node.op == "scan":
            attrs["axis"] += 1
        elif node.op == "transpose":
            attrs["perm"] = (0, *(a + 1 for a in attrs["perm"]))
        else:
            raise NotImplementedError(node.op)
        return make(node.op, args, attrs, hint=tile_type(node.dtype, shape))

    # ---- loops inside

    def _inner(self, node: Node) -> None:
        """Vectorizes an inner loop: carried values that depend on the lane become tiles."""
        block = node.blocks[0]
        var, *held = block.params
        _, start = loop_parts(node.args, node.attrs)
        wide = _widened(node, self.wide)
        body = replace(self, done=dict(self.done), wide={*self.wide, *wide}, running={})
        new_held = [
            Node("var", (), h.attrs, tile_type(h.dtype, self.shape(h))) if h in wide else h
            for h in held
        ]
        body.done.update(zip(held, new_held, strict=True))
        body._walk(block)
        results = [
            body.spread(r, self.shape(h)) if h in wide else body.new(r)
            for h, r in zip(held, block.results, strict=True)
        ]
        starts = [
            self.spread(s, self.shape(h)) if h in wide else self.new(s)
            for h, s in zip(held, start, strict=True)
        ]
        limits = [self.new(a) for a in loop_parts(node.args, node.attrs)[0]]
        made = make("loop", [*limits, *starts], node.attrs, (Block((var, *new_held), results),))
        self.done[node] = made
        if not isinstance(node.type, TupleType):
            if held[0] in wide:
                self.wide.add(node)
            return
        # mark the items that are tiles now: they are visited after their loop
        for i, h in enumerate(held):
            item = make("item", (node,), {"index": i})
            self.done[item] = make("item", (made,), {"index": i})
            if h in wide:
                self.wide.add(item)


def _widened(loop: Node, wide: Collection[Node]) -> set[Node]:
    """Returns the variables of an inner loop whose carried values become tiles, if the values
    `wide` around it do.
    """
    block = loop.blocks[0]
    _, *held = block.params
    values = {h for h in held if not is_memory(h)}
    found = {h for h, s in zip(held, starts_of(loop), strict=True) if s in wide}
    while not values <= found:
        inside = _tiles_in(block, {*wide, *found})
        grown = {h for h, r in zip(held, block.results, strict=True) if r in inside} & values
        if grown <= found:
            break
        found |= grown
    return found


def _tiles_in(block: Block, wide: set[Node]) -> set[Node]:
    """Adds the nodes of a block that use tiles to `wide`, the tiles. Returns `wide`."""
    for node in block.nodes:
        if is_loop(node):
            held = _widened(node, wide)
            carried = zip(node.blocks[0].params[1:], results_of(node), strict=True)
            wide.update(result for variable, result in carried if variable in held)
        elif not (is_store(node) or wide.isdisjoint(node.args)):
            wide.add(node)
    return wide
