"""Packs panels for the `dot` of a CPU kernel; the step `microkernel` has made that dot.

A chunk of work is one panel of columns (of one batch entry) and some tiles of rows. The panel of
the right operand is first packed into local memory, lanes last. The dots of all tiles of rows then
read it in order from the L2 cache. A long contracted axis is split into blocks whose panel fits in
that cache; partial sums are stored in local memory between blocks. `dot` stays one op: it is the
micro-kernel, which a printer expands with the sums in registers.

If the right operand is the same in all calls, a separate kernel packs the panels of all chunks
once, and the matmul reads them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant, param
from stack.ir.node import Block, Node
from stack.ir.traits import is_load, is_loop
from stack.ir.types import I64, DType, TensorType
from stack.passes.cpu_loops.block_slices import part, slice_of
from stack.passes.cpu_loops.gemm_plan import Counts, GemmPlan
from stack.passes.cpu_loops.pack import PAIR
from stack.passes.cpu_loops.unsigned_operands import lowered, raised, widened, zeros
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import carry, extent_of, index, items, names_of
from stack.target import Cpu

ROW = "row"  # the axis of one row of zeros


def distribute_gemm(block: Block, cpu: Cpu) -> Block:
    """Lowers the block of a tile kernel with one dot to the loop level."""
    return _Gemm(block, cpu).block()


@dataclass(frozen=True)
class PrepackedMatmul:
    """A matmul whose panels are packed by another kernel.

    Attributes:
        block: the block of the matmul's kernel, at the loop level.
        packing: the block of the kernel that packs the panels of all chunks.
        operand: the number of the operand of the tile kernel that the panels replace.
    """

    block: Block
    packing: Block
    operand: int


def packed_operand(block: Block, cpu: Cpu) -> int | None:
    """Returns which operand (0, 1, ...) of a tile kernel with one dot is copied to packed panels
    that another kernel could prepare; None if there is no such operand.
    """
    return GemmPlan(block, cpu).packed_operand()


def prepacked(block: Block, cpu: Cpu) -> PrepackedMatmul:
    """Splits a tile kernel with one dot into two kernels: one packs the panels of the right
    operand, the other is the matmul that reads them.
    """
    return _Gemm(block, cpu, is_prepacked=True).prepacked()


def counts_of(block: Block, cpu: Cpu, is_prepacked: bool = False) -> Counts:
    """Counts the instructions and bytes that the dot of a tile kernel takes on a CPU, for the cost
    model. `is_prepacked`: the panels are packed by another kernel and not counted.
    """
    return GemmPlan(block, cpu).counts(is_prepacked)


@dataclass
class _Rows:
    """The loops over the tiles of rows that one packed panel is multiplied with, rebuilt with new
    index variables.

    Attributes:
        indices: their index variables, outermost first.
        renamed: maps old variables to new ones.
        swap: maps old variables to the index of the tile.
    """

    indices: list[Node]
    renamed: dict[Node, Node]
    swap: dict[Node, Node]


class _Gemm:
    """Builds the kernel at the loop level from the block `old` of the tile kernel."""

    def __init__(self, block: Block, cpu: Cpu, is_prepacked: bool = False) -> None:
        self.old, self.b, self.names = block, Builder(), names_of(block)
        self.plan = plan = GemmPlan(block, cpu)
        self.dot, self.panel = plan.dot, plan.panel
        self.start: Node | None = None  # the first tile of rows of a group
        self.held: dict[Node, Node] = {}  # output memory -> its variable in a group
        self.panels: Node | None = None  # all panels, if another kernel packs them
        if is_prepacked:
            extents = [static(v.attrs["extent"]) for v in plan.which]
            shape = (*extents, *plan.panel.shape())
            self.panels = param(
                self.names.own("panels"), TensorType(plan.panel.dtype, shape, "global")
            )

    # ---- the nest

    def block(self) -> Block:
        """Builds the body of the lowered kernel: parallel loops over panels and groups of row
        tiles, which contain the work on one panel.
        """
        results = self._outer(0, self.old.params)
        params = self.old.params
        if self.panels is not None:
            params = [self.panels if p is self.panel.load.args[0] else p for p in params]
        return self.b.block(params, results)

    def prepacked(self) -> PrepackedMatmul:
        """Builds both kernels: the matmul, and the one that packs its panels."""
        operand = self.plan.packed_operand()
        assert operand is not None
        return PrepackedMatmul(self.block(), self._packing(), operand)

    def _packing(self) -> Block:
        """Builds the body of the packing kernel: parallel loops over all panels, each of which
        stores one panel.
        """
        assert self.panels is not None
        b = Builder()
        out = param(self.names.own("packed"), self.panels.type)
        held = [out, *(self._held(f"o0_{i}", out) for i in range(len(self.plan.which)))]
        result = self.panel.pack(b, held[-1], place=self.plan.which)
        for depth, which in reversed(list(enumerate(self.plan.which))):
            block = Block([which, held[depth + 1]], [result])
            result = b.op("loop", [held[depth]], {"kind": "parallel"}, (block,))
        return b.block([self.panel.load.args[0], out], [result])

    def _outer(self, depth: int, params: Sequence[Node]) -> list[Node]:
        if depth < self.plan.cut:
            loop = self.plan.nest[depth]
            inner = loop.blocks[0]
            block = Block(inner.params, self._outer(depth + 1, inner.params))
            return items(self.b, self.b.op("loop", loop.args, {"kind": "parallel"}, (block,)))
        if self.plan.groups == 1:
            return self._program()
        carried = list(params[-len(self.old.results) :])
        held = [self._held(f"{c.attrs['name']}_g", c) for c in carried]
        group = index(self.names.own("group"), self.plan.groups)
        self.held = dict(zip(carried, held, strict=True))
        self.start = self.b.mul(group, self.plan.share)
        extent = extent_of(self.plan.below[0])
        if extent % self.plan.groups:  # the last group starts early
            self.start = self.b.min(self.start, extent - self.plan.share)
        block = Block([group, *held], self._program())
        return items(self.b, self.b.op("loop", carried, {"kind": "parallel"}, (block,)))

    def _tile_loops(self, tag: str) -> _Rows:
        rows = _Rows([], {}, dict(self.held))
        for depth, loop in enumerate(self.plan.below):
            old = loop.blocks[0].params[0]
            extent = self.plan.share if depth == 0 else extent_of(loop)
            name = str(old.attrs["name"])
            new = index(self.names.own(name + tag) if tag else name, extent)
            rows.indices.append(new)
            rows.renamed[old] = new
            is_offset = depth == 0 and self.start is not None
            rows.swap[old] = self.b.add(self.start, new) if is_offset and self.start else new
        return rows

    def _program(self) -> list[Node]:
        """Builds the work of one iteration of the parallel loops: packs its panel of the right
        operand, then loops over the tiles of rows.
        """
        rows = self._tile_loops("")
        if not self.plan.in_place:
            if self.plan.size:
                value = self._read(self._summed(), rows.indices)
            else:
                value = self._product(rows, self._right(self._packed(), None), None)
            rows.swap[self.dot] = value
        block = self.plan.nest[self.plan.cut - 1].blocks[0] if self.plan.cut else self.old
        return self._copies(block.results, rows.swap, rows.renamed)

    def _copies(
        self, roots: Sequence[Node], swap: Mapping[Node, Node], renamed: Mapping[Node, Node]
    ) -> list[Node]:
        """Copies some values of the tile kernel and all that they depend on, each node once.
        Parallel loops become serial.

        Args:
            roots: the values.
            swap: maps old values, such as loop indices, to new ones.
            renamed: maps index variables of loops to new ones whose extent or name differs.
        """
        done = dict(swap)

        def new(node: Node) -> Node:
            if node not in done:
                args, attrs = [new(a) for a in node.args], node.attrs
                if is_loop(node, "parallel"):
                    attrs = {**attrs, "kind": "serial"}
                blocks = [
                    Block([renamed.get(p, p) for p in b.params], [new(r) for r in b.results])
                    for b in node.blocks
                ]
                done[node] = Node(node.op, args, attrs, node.type, blocks)
                carry(self.b, self.old, node, done[node])
            return done[node]

        return [new(root) for root in roots]

    def _held(self, hint: str, memory: Node) -> Node:
        """Creates the loop-carried variable for an array in memory, which each iteration updates.

        `hint` is its name, with a suffix if that is in use.
        """
        return Node("var", (), {"name": self.names.own(hint)}, memory.type)

    def _local(self, block: int = 0) -> Node:
        """Allocates local memory for a panel of the right operand; if `block` is not 0, for so many
        elements along its split contracted axis.
        """
        type_ = TensorType(self.panel.dtype, self.panel.shape(block), "local")
        return self.b.alloc(name=self.names.own("panel"), type=type_)

    def _packed(self) -> Node:
        """Returns memory with the packed right operand: local memory to which the panel is packed
        here, or the parameter with all panels that another kernel has packed.
        """
        if self.panels is not None:
            return self.panels
        return self.panel.pack(self.b, self._local())

    def _right(self, packed: Node, block: Node | None) -> Node:
        """Loads the right operand of one dot from packed memory: the panel of this iteration, or
        block number `block` of it along the split contracted axis.
        """
        if self.panels is None:  # local memory has only the last packed block
            return self._panel(packed, [], None)
        return self._panel(packed, self.plan.which, block)

    def _panel(self, memory: Node, which: Sequence[Node], block: Node | None) -> Node:
        """Loads a panel from memory with packed panels, at the indices `which`. If `block` is not
        None, loads only block number `block` of its split contracted axis.
        """
        shape = self.panel.shape(self.plan.size)
        corner = [constant(0, I64)] * len(shape)
        if block is not None:
            at = self.panel.contracted.index(self.panel.cut)
            corner[at] = self.b.mul(block, shape[at])
        return self.b.load(memory, *which, *corner, type=TensorType(memory.dtype, shape, "tile"))

    def _product(self, rows: _Rows, right: Node, block: Node | None) -> Node:
        """Builds the dot of one tile of rows with the packed panel, and the prefetch of the next
        panel. If `block` is not None, only that block of the contracted axis is multiplied.
        """
        (left,) = self._copies([self.dot.args[1 - self.plan.right]], rows.swap, rows.renamed)
        if block is not None:
            axis = self.plan.left_names.index(self.panel.cut)
            left = part(self.b, left, axis, self.b.mul(block, self.plan.size), self.plan.size)
        offsets = self._offsets(left.dtype, right) if self.plan.raised else None
        later = self._next(block)
        if later is not None and rows.indices:
            right = self.b.fetch(right, slice_of(self.b, later, rows.indices))
        made = self._dot(left, right, self.plan.left_names, result_names(self.dot))
        if offsets is not None:
            made = lowered(self.b, made, offsets)
        carry(self.b, self.old, self.dot, made)
        return made

    def _next(self, block: Node | None) -> Node | None:
        """Returns a load of the data to prefetch during this dot: the next panel, or the next block
        of this panel.

        None if several groups of rows share a panel, if there is only one panel and it is in one
        block, or if the panel is not loaded from an array directly.
        """
        if (
            self.plan.groups > 1
            or not is_load(self.panel.load)
            or (block is None and not self.plan.which)
        ):
            return None
        later: Node | int = 1
        if block is not None:
            is_last = self.b.eq(block, self.panel.size(self.panel.cut) // self.plan.size - 1)
            later = self.b.select(is_last, constant(1, I64), constant(0, I64))
            block = self.b.select(is_last, constant(0, I64), self.b.add(block, 1))
        which = {v: v for v in self.plan.which}
        if self.plan.which:
            lane = self.plan.which[-1]
            which[lane] = self.b.min(self.b.add(lane, later), static(lane.attrs["extent"]) - 1)
        if self.panels is not None:
            return self._panel(self.panels, [*which.values()], block)
        memory, *index = self.panel.load.args
        index = self._copies(index, which, {})
        whole = self.b.load(memory, *index, type=self.panel.load.tensor)
        if block is None:
            return whole
        axis = self.panel.names.index(self.panel.cut)
        return part(self.b, whole, axis, self.b.mul(block, self.plan.size), self.plan.size)

    def _offsets(self, dtype: DType, right: Node) -> Node:
        """Returns the row of sums that the offset of the left operand adds to each column.

        It is the dot of a row of zeros, to which `_dot` adds the same offset.
        """
        names = self.panel.contracted
        *outer, last = right.shape[: len(names)]
        row = zeros(self.b, dtype, (1, *map(static, outer), static(last) * self.panel.group))
        return self._dot(row, right, (ROW, *names), (ROW, self.plan.lane))

    def _dot(self, left: Node, right: Node, names: Sequence[str], made: Sequence[str]) -> Node:
        """Builds the dot node of a block of rows and a packed panel. `names` are the axes of the
        left block, `made` those of the result.
        """
        behind = (PAIR,) if self.panel.group > 1 else ()
        if behind:
            *outer, last = map(static, left.shape)
            shape = (*outer, last // self.panel.group, self.panel.group)
            left = self.b.reshape(left, type=left.tensor.with_shape(shape))
        if self.plan.raised:
            left, right = raised(self.b, left, self.plan.raised), widened(self.b, right)
        operands = [
            " ".join((*names, *behind)),
            " ".join((*self.panel.contracted, self.plan.lane, *behind)),
        ]
        args = [left, right]
        if not self.plan.right:
            operands.reverse()
            args.reverse()
        attrs: dict[str, object] = {"rule": f"{', '.join(operands)} -> {' '.join(made)}"}
        if self.plan.ahead:
            attrs["ahead"] = self.plan.ahead
        return self.b.op("dot", args, attrs, hint=self.dot.type)

    # ---- blocks of a long contracted axis

    def _read(self, memory: Node, place: Sequence[Node]) -> Node:
        """Loads the partial sums of one tile of rows from local memory; `place` are the indices of
        the tile.
        """
        return self.b.load(memory, *place, *self._corner(), type=self.dot.tensor)

    def _corner(self) -> list[Node]:
        return [constant(0, I64)] * self.dot.tensor.rank

    def _summed(self) -> Node:
        """Adds up the products of all blocks of a long contracted axis in a serial loop.

        Returns the local memory with the sums of all tiles of rows.
        """
        inner = self._tile_loops("b")
        shape = (*(static(v.attrs["extent"]) for v in inner.indices), *self.dot.shape)
        type_ = TensorType(self.dot.dtype, shape, "local")
        memory = self.b.alloc(name=self.names.own("partial"), type=type_)
        count = self.panel.size(self.panel.cut) // self.plan.size
        iteration = index(self.names.own("block"), count)
        sums = self._held("partial_block", memory)
        held, init = [sums], [memory]
        packed = self.panels
        if packed is None:
            local = self._local(self.plan.size)
            panel = self._held("panel_block", local)
            start = self.b.mul(iteration, self.plan.size)
            packed = self.panel.pack(self.b, panel, start, self.plan.size)
            held, init = [panel, sums], [local, memory]

        right = self._right(packed, iteration)

        def more(held: Node) -> Node:
            product = self._product(inner, right, iteration)
            total = self.b.add(self._read(held, inner.indices), product)
            # the first block overwrites the sums; a store of zeros would be hoisted out of chunks
            total = self.b.select(self.b.eq(iteration, 0), product, total)
            return self.b.store(held, total, *inner.indices, *self._corner())

        total = self._over(inner, sums, more)
        results = [total] if self.panels is not None else [packed, total]
        block = Block([iteration, *held], results)
        return items(self.b, self.b.op("loop", init, {"kind": "serial"}, (block,)))[-1]

    def _over(self, rows: _Rows, memory: Node, body: Callable[[Node], Node]) -> Node:
        """Builds serial loops over the tiles of rows, which carry the array `memory` from tile to
        tile.

        `body` builds one iteration: it returns the memory after one tile.
        """
        held = [self._held(f"partial_{i.attrs['name']}", memory) for i in rows.indices]
        result = body(held[-1] if held else memory)
        for depth in reversed(range(len(held))):
            block = Block([rows.indices[depth], held[depth]], [result])
            outside = held[depth - 1] if depth else memory
            result = self.b.op("loop", [outside], {"kind": "serial"}, (block,))
        return result
