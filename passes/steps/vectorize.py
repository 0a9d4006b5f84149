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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir import ops
from stack.ir.algebra import KIND_OF
from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts, loop_parts
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_item, is_load, is_loop, is_reduction, is_store
from stack.ir.types import TensorType, TupleType
from stack.passes.steps.access import (
    Lanes,
    all_of,
    block_axis,
    conjuncts,
    parts_of,
    reshaped,
    spread_along,
    unclipped,
    without_units,
)
from stack.passes.steps.affine import linear
from stack.passes.steps.dependences import why_shared
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import running_totals, summand, why_no_running
from stack.passes.steps.intervals import stays_inside
from stack.passes.steps.loops import (
    is_constant,
    is_memory,
    loops_along,
    why_not_free,
)
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import factors_of, why_too_large
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import extent_of
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Vectorize(Step):
    """Vectorize the loops over an axis."""

    name: ClassVar[str] = "vectorize"
    axis: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        for loop, _ in loops_along(kernel, self.axis):
            why = why_no_running(loop) or why_shared(loop) or self._why_no_tiles(loop, target)
            if why:
                return why
            lanes = extent_of(loop)
            if isinstance(target, Gpu) and lanes & (lanes - 1):
                return f"axis {self.axis}: {lanes} lanes; tiles of a GPU have a power of two"
        return ""

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

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> list[Node]:
            lanes = Lanes(block.params[0], extent_of(old), _goes_back(block))
            return _LaneBuilder(edit, lanes).loop(args, block)

        return edit.change_loops(self.axis, change)


def _goes_back(block: Block) -> bool:
    """True if a loop with a running total accesses memory in reverse order."""
    if not running_totals(block):
        return False
    var = block.params[0]
    places = [
        access_parts(n)[0] for n in block.all_nodes if (is_load(n) or is_store(n)) and var in n.vars
    ]
    moved = [[linear(place, var) for place in index if var in place.vars] for index in places]
    return all(steps and steps[-1] is not None and steps[-1][0] == -1 for steps in moved if steps)


class _LaneBuilder:
    """Builds the nodes of all lanes from the nodes of one lane.

    Attributes:
        edit: the rewrite that this is part of.
        lanes: the axis that is vectorized.
        is_loop: whether the kernel is for a CPU. Its blocks are masked at the end of memory; those
            of a GPU kernel are clipped.
        padded: memory whose rows end in zeros, past what is read.
        running: running totals, and the variables that carry them.
        done: the replacement of each node of one lane.
        wide: nodes of one lane whose replacement is a tile of all lanes.
    """

    def __init__(self, edit: Edit, lanes: Lanes) -> None:
        self.edit, self.lanes = edit, lanes
        self.is_loop = edit.kernel.attrs["level"] == "loop"
        padded: Sequence[int] = edit.kernel.attrs.get("padded", ())
        self.padded = {edit.block.params[i] for i in padded}
        self.running: dict[Node, Node] = {}
        self.done: dict[Node, Node] = {lanes.var: lanes.places}
        self.wide: set[Node] = {lanes.var}

    def loop(self, start: Sequence[Node], block: Block) -> list[Node]:
        """The replacements of the results of a loop over the axis."""
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
                made.append(self.edit.note(new, self._total(new.op, first, part)))
        return made

    def _total(self, op: str, first: Node, part: Node) -> Node:
        """Reduces a tile over the lanes, and adds the initial value of the total."""
        shape = self.lanes.shape(part)
        whole = self.lanes.spread(self.new(part), shape, part in self.wide)
        total = make("reduce", (whole,), {"kind": KIND_OF[op], "axes": (0,)})
        if is_constant(first, identity(KIND_OF[op], first.dtype)):
            return total
        return make(op, (first, total))

    def new(self, node: Node) -> Node:
        """The replacement of a node; nodes outside of the loop stay."""
        return self.done.get(node, node)

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
        if is_item(node):
            self.done[node] = node.rebuilt(args)
            self.wide.add(node)
            return
        if is_store(node):
            self.done[node] = self._store(node)
            return
        self.wide.add(node)
        if node in self.running:
            self.done[node] = self._running(node)
        elif is_load(node):
            self.done[node] = self._load(node)
        else:
            self.done[node] = self.lanes.ascending(node) or self._op(node, args)

    def _running(self, node: Node) -> Node:
        """The running totals of all lanes: a scan of the tile, plus the total before it."""
        before = self.running[node]
        part = summand(before, node)
        assert part is not None
        shape, kind = self.lanes.shape(part), KIND_OF[node.op]
        own = self.lanes.spread(self.new(part), shape, part in self.wide)
        attrs = {"axis": 0, "kind": kind, "reverse": self.lanes.is_reversed}
        made = make("scan", (own,), attrs)
        first = self.new(before)
        if is_constant(first, identity(kind, first.dtype)):
            return made
        if first.tensor.rank:
            first = self.lanes.spread(first, shape, False)
        return make(node.op, (first, made))

    def _op(self, node: Node, args: list[Node]) -> Node:
        """Applies an op to tiles, with the lane axis first."""
        lanes, attrs = self.lanes, dict(node.attrs)
        shape = lanes.shape(node)
        if ops.lookup(node.op).kind == "elementwise":
            spread: list[Node] = []
            for old, new in zip(node.args, args, strict=True):
                if old is lanes.var:
                    self.edit.locate(node, new)
                if new.tensor.rank:
                    new = self.edit.locate(node, lanes.spread(new, shape, old in self.wide))
                spread.append(new)
            hint = TensorType(node.dtype, shape, "tile")
            return make(node.op, spread, attrs, hint=hint)
        hint = TensorType(node.dtype, shape, "tile")
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
        return make(node.op, args, attrs, hint=hint)

    # ---- loops inside

    def _inner(self, node: Node) -> None:
        """Vectorizes an inner loop: carried values that depend on the lane become tiles."""
        block = node.blocks[0]
        var, *held = block.params
        _, start = loop_parts(node.args, node.attrs)
        wide = {h for h, s in zip(held, start, strict=True) if s in self.wide}
        while True:
            body = _LaneBuilder(self.edit, self.lanes)
            body.done, body.wide = dict(self.done), {*self.wide, *wide}
            new_held = [self._wider(h) if h in wide else h for h in held]
            body.done.update(zip(held, new_held, strict=True))
            body._walk(block)
            grown = {
                h for h, r in zip(held, block.results, strict=True)
                if r in body.wide and not is_memory(h)
            }  # fmt: skip
            if grown <= wide:
                break
            wide |= grown
        results = [
            self.lanes.spread(body.new(r), self.lanes.shape(h), r in body.wide) if h in wide
            else body.new(r)
            for h, r in zip(held, block.results, strict=True)
        ]  # fmt: skip
        starts = [
            self.lanes.spread(self.new(s), self.lanes.shape(h), s in self.wide) if h in wide
            else self.new(s)
            for h, s in zip(held, start, strict=True)
        ]  # fmt: skip
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

    def _wider(self, held: Node) -> Node:
        type_ = TensorType(held.dtype, self.lanes.shape(held), "tile")
        return Node("var", (), dict(held.attrs), type_)

    # ---- memory

    def _places(self, index: Sequence[Node], tile: tuple[int, ...], rank: int) -> list[Node]:
        """The indices of each element of each lane, for a gather or a scatter."""
        shape = (self.lanes.count, *tile)
        is_block = not any(i.tensor.rank for i in index)
        found: list[Node] = []
        for axis, place in enumerate(index):
            made = self.new(place)
            at = axis - (rank - len(tile))
            if is_block and at >= 0 and tile[at] > 1:
                type_ = TensorType(self.lanes.var.dtype, (tile[at],), "tile")
                steps = make("iota", (), {"axis": 0}, hint=type_)
                if made.tensor.rank:
                    steps = spread_along(steps, (at + 1,), shape)
                    made = make("add", (self.lanes.spread(made, shape, True), steps))
                else:
                    made = steps if is_constant(made, 0) else make("add", (made, steps))
                    made = spread_along(made, (at + 1,), shape)
            found.append(self.lanes.spread(made, shape, place in self.wide))
        return found

    def _load(self, node: Node) -> Node:
        index, mask, other, tile = parts_of(node)
        memory = self.new(node.args[0])
        shape = (self.lanes.count, *tile)
        hint = TensorType(node.dtype, shape, "tile")
        if not index:
            assert mask is not None and other is not None
            test = self.lanes.spread(self.new(mask), shape, True)
            one = make("load", (memory,), hint=TensorType(node.dtype, ()))
            return make("select", (test, one, self.new(other)), hint=hint)
        block = self._block(node, index, mask, tile, memory)
        if block is None:
            places = self._places(index, tile, memory.tensor.rank)
            extra = self._extra(node, mask, other, shape)
            attrs = {k: v for k, v in node.attrs.items() if k != "clip"}
            operands = [without_units(value) for value in (*places, *extra)]
            own = (shape[0], *(n for n in shape[1:] if n > 1))
            hint = TensorType(node.dtype, own, "tile")
            return reshaped(make("load", [memory, *operands], attrs, hint=hint), shape)
        starts, block_shape, at, attrs, test = block
        extra: list[Node] = []
        if test is not None:
            extra = [self._mask(test, block_shape, at), constant(0, node.dtype)]
        type_ = TensorType(node.dtype, block_shape, "tile")
        made = make("load", [memory, *starts, *extra], {**node.attrs, **attrs}, hint=type_)
        return self._lanes_first(made, at, shape)

    def _store(self, node: Node) -> Node:
        index, mask, _, tile = parts_of(node)
        memory = self.new(node.args[0])
        shape = (self.lanes.count, *tile)
        value = self.lanes.spread(self.new(node.args[1]), shape, node.args[1] in self.wide)
        block = self._block(node, index, mask, tile, memory)
        if block is None:
            places = self._places(index, tile, memory.tensor.rank)
            extra = self._extra(node, mask, None, shape)
            attrs = {k: v for k, v in node.attrs.items() if k != "clip"}
            return make("store", [memory, value, *places, *extra], attrs)
        starts, block_shape, at, attrs, test = block
        value = self._in_memory_order(value, block_shape, at)
        extra = [] if test is None else [self._mask(test, block_shape, at)]
        return make("store", [memory, value, *starts, *extra], {**node.attrs, **attrs})

    def _extra(
        self, node: Node, mask: Node | None, other: Node | None, shape: tuple[int, ...]
    ) -> list[Node]:
        """Mask and value of masked lanes, for a gather or a scatter."""
        index, _, _, tile = parts_of(node)
        test = None if mask is None else self.lanes.spread(self.new(mask), shape, mask in self.wide)
        if "clip" in node.attrs:
            inside = self._clip_mask(index, tile, node.args[0])
            both = [one for one in (test, inside) if one is not None]
            test = make("and", both) if len(both) == 2 else next(iter(both), None)
        if test is None:
            return []
        if is_store(node):
            return [test]
        return [test, constant(0, node.dtype) if other is None else self.new(other)]

    def _clip_mask(self, index: Sequence[Node], tile: tuple[int, ...], memory: Node) -> Node | None:
        """The bounds check of a clipped block, as a mask over its elements; None if not needed."""
        test: Node | None = None
        rank = memory.tensor.rank
        for axis, place in enumerate(self._places(index, tile, rank)):
            at, extent = axis - (rank - len(tile)), static(memory.shape[axis])
            if at < 0 or stays_inside(index[axis], tile[at], extent):
                continue
            one = make("lt", (place, constant(extent, place.dtype)))
            test = one if test is None else make("and", (test, one))
        return test

    def _block(
        self,
        node: Node,
        index: Sequence[Node],
        mask: Node | None,
        tile: tuple[int, ...],
        memory: Node,
    ) -> tuple[list[Node], tuple[int, ...], int, dict[str, object], Node | None] | None:
        """Matches a contiguous access: lanes with unit stride along one axis of memory.

        Returns:
            The first index along each axis of memory, the shape in memory order, the axis of the
            lanes in it, attributes of the access, and its mask: a scalar, or a tile with the lane
            axis first. None if the access is a gather or a scatter.
        """
        found = None if any(i.tensor.rank for i in index) else block_axis(index, self.lanes)
        rank, lead = memory.tensor.rank, memory.tensor.rank - len(tile)
        if found is None or (found[0] >= lead and tile[found[0] - lead] > 1):
            return None
        axis, first = found
        if self.is_loop and axis < rank - 1:
            return None  # a vector of a CPU is contiguous: along the last axis of memory
        starts = [first if k == axis else self.new(place) for k, place in enumerate(index)]
        begin = min(axis, lead)
        shape = tuple(
            self.lanes.count if k == axis else (tile[k - lead] if k >= lead else 1)
            for k in range(begin, rank)
        )
        asked = conjuncts(mask)
        size = static(memory.shape[axis])
        is_padded = node.args[0] in self.padded
        others = unclipped(asked, index[axis], first, self.lanes, size, is_padded)
        is_one = all(not p.tensor.rank and p not in self.wide for p in others)
        if is_one and not self.is_loop and (len(others) < len(asked) or "clip" in node.attrs):
            test = all_of([self.new(p) for p in others])
            return starts, shape, axis - begin, {"clip": True}, test
        if "clip" in node.attrs:
            return None  # a clipped block cannot also have a mask over its elements
        test = all_of([self._part(p, tile) for p in asked])
        if mask is None and size < self.lanes.count:
            return None
        return starts, shape, axis - begin, {}, test

    def _part(self, test: Node, tile: tuple[int, ...]) -> Node:
        """A condition of a mask: a scalar if it is the same for all lanes, else a tile."""
        made = self.new(test)
        if not made.tensor.rank:
            return made
        return self.lanes.spread(made, (self.lanes.count, *tile), test in self.wide)

    def _mask(self, test: Node, shape: tuple[int, ...], at: int) -> Node:
        return self._in_memory_order(test, shape, at) if test.tensor.rank else test

    def _lanes_first(self, block: Node, at: int, shape: tuple[int, ...]) -> Node:
        """Transposes a block in memory order to a tile with the lane axis first."""
        if at:
            order = (at, *(k for k in range(block.tensor.rank) if k != at))
            block = make("transpose", (block,), {"perm": order})
        return reshaped(block, shape)

    def _in_memory_order(self, value: Node, shape: tuple[int, ...], at: int) -> Node:
        """Transposes a tile with the lane axis first to a block in memory order."""
        moved = (shape[at], *(s for k, s in enumerate(shape) if k != at))
        value = reshaped(value, moved)
        if not at:
            return value
        order = (*range(1, at + 1), 0, *range(at + 1, len(shape)))
        return make("transpose", (value,), {"perm": order})
