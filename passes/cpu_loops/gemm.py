"""Kernels around a dot from the tile level to the loop level of a CPU.

A chunk of work is one panel of columns (of one batch entry) and some tiles of rows. The panel of
the right operand is packed into local memory first, lanes last, so that the dots of all tiles of
rows read it in order from the second-level cache. A long contracted axis is cut into blocks whose
panel fits there; sums then wait in local memory between blocks. `dot` stays one op: it is the
micro-kernel, which a printer expands with the sums in registers.

Where the right operand stays from call to call, a kernel of its own packs the panels of all chunks,
and the product reads them where they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant, param
from stack.ir.contraction import is_along_depth
from stack.ir.node import Block, Node, topological
from stack.ir.traits import in_windows, is_load, nest_of, unconverted
from stack.ir.types import I64, DType, TensorType
from stack.passes.cpu_loops.counts import Counts
from stack.passes.cpu_loops.dot import find_dot, reads, tile_mma
from stack.passes.cpu_loops.fetch import slice_of
from stack.passes.cpu_loops.pack import FEW_ROWS, PAIR, Panel, run_of
from stack.passes.cpu_loops.part import part
from stack.passes.cpu_loops.raised import lowered, raised, widened, zeros
from stack.passes.cpu_loops.reloop import Copy
from stack.passes.cpu_loops.walk import walk_of
from stack.passes.tiling.contraction import operand_names, result_names
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import Rebuilt, extent_of, index, items
from stack.target import Cpu

ROW = "row"  # the axis of one row of zeros
SUMS_SHARE = 1 / 4  # of the second-level cache, for sums that wait between blocks
ROWS_SHARE = 1 / 2  # of the second-level cache, for the rows that all panels are multiplied with
SPLIT_ROWS = 64  # a chunk with fewer rows packs more than it multiplies
IMBALANCE = 0.1  # of the work, which threads may wait for one of them


def distribute_gemm(block: Block, cpu: Cpu) -> Block:
    """The block of a tile kernel with one dot, at the loop level."""
    return _Gemm(block, cpu).block()


@dataclass(frozen=True)
class Prepacked:
    """A product of panels that another kernel packs.

    Attributes:
        block: of its kernel, at the loop level.
        packing: of the kernel that packs the panels of all chunks, from one array into another.
        operand: which operand of the tile kernel that array is, and the panels take the place of.
    """

    block: Block
    packing: Block
    operand: int


def packed_operand(block: Block, cpu: Cpu) -> int | None:
    """Which operand of a tile kernel with one dot is packed panel by panel; None where none is."""
    return _Gemm(block, cpu).packed_operand()


def prepacked(block: Block, cpu: Cpu) -> Prepacked:
    """The same kernel, of panels that are packed by another one."""
    return _Gemm(block, cpu, is_prepacked=True).prepacked()


def counts_of(block: Block, cpu: Cpu, is_prepacked: bool = False) -> Counts:
    """What the product of a tile kernel makes the CPU do."""
    return _Gemm(block, cpu, is_prepacked).counts()


@dataclass
class _Rows:
    """The loops over tiles of rows below a panel, under new names.

    Attributes:
        indices: their variables, outermost first.
        renamed: old variables to new ones.
        swap: old variables to where the tile is.
    """

    indices: list[Node]
    renamed: dict[Node, Node]
    swap: dict[Node, Node]


class _Gemm(Rebuilt):
    def __init__(self, block: Block, cpu: Cpu, is_prepacked: bool = False) -> None:
        super().__init__(block)
        self.cpu = cpu
        dot = find_dot(block)
        assert dot is not None
        self.dot = dot
        self.lane = result_names(dot)[-1]
        self.right = 1 if self.lane in operand_names(dot, 1) else 0
        self.left_names = operand_names(dot, 1 - self.right)
        right_names = operand_names(dot, self.right)
        right = dot.args[self.right]
        sizes = dict(zip(right_names, map(static, right.shape), strict=True))
        shared = [n for n in right_names if n in self.left_names and n != self.lane]
        self.rows = static(dot.shape[0]) if dot.tensor.rank == 2 else 1
        self.mma = mma = tile_mma(dot, cpu)
        load = unconverted(right)
        self.nest, _ = nest_of(block, "grid")
        moving = [n for n in self.nest if n.blocks[0].params[0] in load.vars]
        # loops above the cut say which panel, those below it which tile of rows
        self.cut = self.nest.index(moving[-1]) + 1 if moving else 0
        self.which = [n.blocks[0].params[0] for n in moving]
        self.below = self.nest[self.cut :]
        width = sizes[self.lane], right.dtype.bytes
        self.left_bytes = self._all_rows() * math.prod(map(sizes.__getitem__, shared))
        self.left_bytes *= unconverted(dot.args[1 - self.right]).dtype.bytes
        near = 0 if mma else self.left_bytes
        walk = walk_of(shared, self.left_names, sizes, width, cpu, mma, near)
        group, self.depth = (mma.group, mma.depth) if mma else (1, 1)
        self.speed = cpu.bf16_rate / cpu.f32_rate if mma else 1.0  # of multiplying: packing has one
        self.offset = mma.offset if mma else 0  # what an instruction wants rows to be raised by
        names = tuple(right_names), walk.order, walk.cut
        self.panel = Panel(load, *names, self.lane, right.dtype, group)
        self.in_place = self._reads_in_place()
        self.size = 0 if self.in_place else walk.block or 0
        self.raised = 0 if self.in_place else self.offset  # what rows are raised by here
        self.groups = self._groups()
        self.share = -(-extent_of(self.below[0]) // self.groups) if self.below else 0
        self.ahead = self._ahead()
        self.start: Node | None = None  # first tile of rows of a group
        self.held: dict[Node, Node] = {}  # output memory at the cut, inside of a group
        self.panels: Node | None = None  # all of them, where another kernel packs them
        if is_prepacked:
            extents = [static(v.attrs["extent"]) for v in self.which]
            shape = (*extents, *self.panel.shape())
            self.panels = param("panels", TensorType(self.panel.dtype, shape, "global"))

    # ---- decisions

    def _all_rows(self) -> int:
        return math.prod(extent_of(n) for n in self.below) * self.rows

    def _reads_in_place(self) -> bool:
        """Whether the dot reads the right operand where it is."""
        panel = self.panel
        if in_windows(panel.load):
            return True  # neighbouring places are neighbouring lanes
        memory = panel.load.args[0]
        is_few = self._all_rows() <= FEW_ROWS
        if is_along_depth(self.dot):
            is_whole = panel.size(panel.contracted[-1]) % run_of(self.mma, self.cpu) == 0
            return is_few and is_whole and panel.lanes <= self.cpu.lanes
        if self.dot.args[self.right] is not panel.load or not panel.lanes_last:
            return False
        if panel.group > 1:  # neighbours are put together again for each tile of rows
            sums = (self.rows + bool(self.offset)) * panel.lanes // self.cpu.lanes
            return self._all_rows() <= self.rows and sums <= self.cpu.sums
        is_packed = static(memory.shape[-1]) == panel.lanes and panel.load.tensor.rank == 2
        return is_few or is_packed

    def _groups(self) -> int:
        """Groups that the tiles of rows fall into, so that all threads have work."""
        if not self.below:
            return 1
        chunks = math.prod(extent_of(n) for n in self.nest[: self.cut])
        rows, most = self._all_rows(), extent_of(self.below[0])
        groups = 1
        if self.size:
            held = int(SUMS_SHARE * self.cpu.cache_bytes)
            groups = -(-rows * self.panel.lanes * self.dot.dtype.bytes // held)
        least = SPLIT_ROWS * self.speed
        while _uneven(chunks * groups, self.cpu) and rows // (groups + 1) >= least:
            groups += 1
        return min(groups, most)

    def _ahead(self) -> int:
        """Rows from one tile to the next, of which memory is asked for in time."""
        left, row = unconverted(self.dot.args[1 - self.right]), result_names(self.dot)[0]
        if self.rows == 1 or self.in_place or not self.below or not is_load(left):
            return 0
        if self.left_bytes <= ROWS_SHARE * self.cpu.cache_bytes:
            return 0  # they are there since the last panel
        where = left.args[self.left_names.index(row) - len(self.left_names)]
        return self.rows if self.below[-1].blocks[0].params[0] in where.vars else 0

    def counts(self) -> Counts:
        """Of all chunks together."""
        panel, mma = self.panel, self.mma
        tiles = math.prod(extent_of(n) for n in self.nest)
        chunks = math.prod(extent_of(n) for n in self.nest[: self.cut]) * self.groups
        rows = self.rows + bool(self.offset and self.in_place)  # one more, of raised zeros
        depth = panel.depth
        steps, once = tiles * depth // self.depth, 0
        vectors = -(-panel.lanes * self.dot.dtype.bytes // self.cpu.vector_bytes)
        if mma is not None and mma.rows > 1:  # two by two: four loads serve four of them
            multiplies = loads = -(-self.rows // mma.rows) * (panel.lanes // mma.lanes)
        elif is_along_depth(self.dot) and self.in_place:
            multiplies, few = rows * panel.lanes, min(panel.lanes, self.cpu.sums_beside(rows))
            loads = (self.rows + few) * panel.lanes // few
            steps = tiles * depth // run_of(mma, self.cpu)
        else:
            multiplies, loads = rows * vectors, self.rows + vectors
            if self.raised:  # a row of zeros for each chunk
                once = vectors * chunks * depth // self.depth
        size = depth * panel.lanes * panel.dtype.bytes
        packed = 0 if self.in_place or self.panels is not None else chunks * size
        return Counts(multiplies * steps + once, loads * steps + once, packed, tiles * size)

    # ---- the nest

    def block(self) -> Block:
        """The kernel's block: parallel loops over panels and groups, then the program."""
        results = self._outer(0, self.old.params)
        params = self.old.params
        if self.panels is not None:
            params = [self.panels if p is self.panel.load.args[0] else p for p in params]
        return self.b.block(params, results)

    def packed_operand(self) -> int | None:
        """Which operand is packed: an array whose panels the indices of the grid name alone."""
        memory, *index = self.panel.load.args
        is_named = not any(map(is_load, topological(index)))
        is_read_once = all(n is self.panel.load for n in reads(self.old, memory))
        if self.in_place or not (is_named and is_read_once and memory in self.old.params):
            return None
        return self.old.params.index(memory)

    def prepacked(self) -> Prepacked:
        """The product, and what packs its panels."""
        operand = self.packed_operand()
        assert operand is not None
        return Prepacked(self.block(), self._packing(), operand)

    def _packing(self) -> Block:
        """The block of a kernel that packs all panels: parallel loops over them."""
        assert self.panels is not None
        b = Builder()
        out = param("o0", self.panels.type)
        names = [f"o0_{i}" for i in range(len(self.which))]
        held = [out, *(Node("var", (), {"name": n}, out.type) for n in names)]
        result = self.panel.pack(b, held[-1], place=self.which)
        for depth, which in reversed(list(enumerate(self.which))):
            block = Block([which, held[depth + 1]], [result])
            result = b.op("loop", [held[depth]], {"kind": "parallel"}, (block,))
        return b.block([self.panel.load.args[0], out], [result])

    def _outer(self, depth: int, params: Sequence[Node]) -> list[Node]:
        if depth < self.cut:
            loop = self.nest[depth]
            inner = loop.blocks[0]
            block = Block(inner.params, self._outer(depth + 1, inner.params))
            return items(self.b, self.b.op("loop", loop.args, {"kind": "parallel"}, (block,)))
        if self.groups == 1:
            return self._program()
        carried = list(params[-len(self.old.results) :])
        held = [Node("var", (), {"name": f"{c.attrs['name']}_g"}, c.type) for c in carried]
        group = index("group", self.groups)
        self.held = dict(zip(carried, held, strict=True))
        self.start = self.b.mul(group, self.share)
        extent = extent_of(self.below[0])
        if extent % self.groups:  # the last group starts early
            self.start = self.b.min(self.start, extent - self.share)
        block = Block([group, *held], self._program())
        return items(self.b, self.b.op("loop", carried, {"kind": "parallel"}, (block,)))

    def _tile_loops(self, tag: str) -> _Rows:
        rows = _Rows([], {}, dict(self.held))
        for depth, loop in enumerate(self.below):
            old = loop.blocks[0].params[0]
            extent = self.share if depth == 0 else extent_of(loop)
            new = index(f"{old.attrs['name']}{tag}", extent)
            rows.indices.append(new)
            rows.renamed[old] = new
            is_offset = depth == 0 and self.start is not None
            rows.swap[old] = self.b.add(self.start, new) if is_offset and self.start else new
        return rows

    def _program(self) -> list[Node]:
        """One chunk: pack, then all tiles of rows."""
        rows = self._tile_loops("")
        if not self.in_place:
            if self.size:
                value = self._read(self._summed(), rows.indices)
            else:
                value = self._product(rows, self._right(self._packed(), None), None)
            rows.swap[self.dot] = value
        block = self.nest[self.cut - 1].blocks[0] if self.cut else self.old
        copy = Copy(self.b, self.old, rows.swap, rows.renamed)
        return [copy.new(r) for r in block.results]

    def _packed(self) -> Node:
        """Memory with the panel, or with all panels."""
        if self.panels is not None:
            return self.panels
        return self.panel.pack(self.b, self.panel.memory(self.b))

    def _right(self, packed: Node, block: Node | None) -> Node:
        """The packed panel, or a block of it, by number."""
        if self.panels is None:  # local memory holds what was packed last
            return self._panel(packed, [], None)
        return self._panel(packed, self.which, block)

    def _panel(self, memory: Node, which: Sequence[Node], block: Node | None) -> Node:
        """A panel in memory of so many, or a block of it, by number."""
        shape = self.panel.shape(self.size)
        corner = [constant(0, I64)] * len(shape)
        if block is not None:
            at = self.panel.contracted.index(self.panel.cut)
            corner[at] = self.b.mul(block, shape[at])
        return self.b.load(memory, *which, *corner, type=TensorType(memory.dtype, shape, "tile"))

    def _product(self, rows: _Rows, right: Node, block: Node | None) -> Node:
        """The dot of a tile of rows with the packed panel, or with a block of it, by number."""
        left = Copy(self.b, self.old, rows.swap, rows.renamed).new(self.dot.args[1 - self.right])
        if block is not None:
            axis = self.left_names.index(self.panel.cut)
            left = part(self.b, left, axis, self.b.mul(block, self.size), self.size)
        offsets = self._offsets(left.dtype, right) if self.raised else None
        later = self._next(block)
        if later is not None and rows.indices:
            right = self.b.fetch(right, slice_of(self.b, later, rows.indices))
        made = self._dot(left, right, self.left_names, result_names(self.dot))
        if offsets is not None:
            made = lowered(self.b, made, offsets)
        self.note(self.dot, made)
        return made

    def _next(self, block: Node | None) -> Node | None:
        """What is multiplied after this panel, or after a block of it, where it lies in memory.

        None where there is one panel, or where the next chunk has other rows of the same one.
        """
        if self.groups > 1 or not is_load(self.panel.load) or (block is None and not self.which):
            return None
        later: Node | int = 1
        if block is not None:
            is_last = self.b.eq(block, self.panel.size(self.panel.cut) // self.size - 1)
            later = self.b.select(is_last, constant(1, I64), constant(0, I64))
            block = self.b.select(is_last, constant(0, I64), self.b.add(block, 1))
        which = {v: v for v in self.which}
        if self.which:
            lane = self.which[-1]
            which[lane] = self.b.min(self.b.add(lane, later), static(lane.attrs["extent"]) - 1)
        if self.panels is not None:
            return self._panel(self.panels, [*which.values()], block)
        memory, *index = self.panel.load.args
        copy = Copy(self.b, self.old, which, {})
        whole = self.b.load(memory, *map(copy.new, index), type=self.panel.load.tensor)
        if block is None:
            return whole
        axis = self.panel.names.index(self.panel.cut)
        return part(self.b, whole, axis, self.b.mul(block, self.size), self.size)

    def _offsets(self, dtype: DType, right: Node) -> Node:
        """What raising rows adds to each column: the product of a row of zeros."""
        names = self.panel.contracted
        *outer, last = right.shape[: len(names)]
        row = zeros(self.b, dtype, (1, *map(static, outer), static(last) * self.panel.group))
        return self._dot(row, right, (ROW, *names), (ROW, self.lane))

    def _dot(self, left: Node, right: Node, names: Sequence[str], made: Sequence[str]) -> Node:
        """The dot of a block with the names of its axes and of a packed panel."""
        behind = (PAIR,) if self.panel.group > 1 else ()
        if behind:
            *outer, last = map(static, left.shape)
            shape = (*outer, last // self.panel.group, self.panel.group)
            left = self.b.reshape(left, type=left.tensor.with_shape(shape))
        if self.raised:
            left, right = raised(self.b, left, self.raised), widened(self.b, right)
        operands = [
            " ".join((*names, *behind)),
            " ".join((*self.panel.contracted, self.lane, *behind)),
        ]
        args = [left, right]
        if not self.right:
            operands.reverse()
            args.reverse()
        attrs: dict[str, object] = {"rule": f"{', '.join(operands)} -> {' '.join(made)}"}
        if self.ahead:
            attrs["ahead"] = self.ahead
        return self.b.op("dot", args, attrs, hint=self.dot.type)

    # ---- blocks of a long contracted axis

    def _read(self, memory: Node, place: Sequence[Node]) -> Node:
        """The sums of one tile of rows."""
        return self.b.load(memory, *place, *self._corner(), type=self.dot.tensor)

    def _corner(self) -> list[Node]:
        return [constant(0, I64)] * self.dot.tensor.rank

    def _summed(self) -> Node:
        """Local memory with the sums of all tiles of the chunk."""
        inner = self._tile_loops("b")
        shape = (*(static(v.attrs["extent"]) for v in inner.indices), *self.dot.shape)
        memory = self.b.alloc(name="partial", type=TensorType(self.dot.dtype, shape, "local"))
        iteration = index("block", self.panel.size(self.panel.cut) // self.size)
        sums = Node("var", (), {"name": "partial_block"}, memory.type)
        held, init = [sums], [memory]
        packed = self.panels
        if packed is None:
            local = self.panel.memory(self.b, self.size)
            panel = Node("var", (), {"name": "panel_block"}, local.type)
            start = self.b.mul(iteration, self.size)
            packed = self.panel.pack(self.b, panel, start, self.size)
            held, init = [panel, sums], [local, memory]

        right = self._right(packed, iteration)

        def more(held: Node) -> Node:
            product = self._product(inner, right, iteration)
            total = self.b.add(self._read(held, inner.indices), product)
            # nothing clears the sums: that would not depend on the chunk and happen once for all
            total = self.b.select(self.b.eq(iteration, 0), product, total)
            return self.b.store(held, total, *inner.indices, *self._corner())

        total = self._over(inner, sums, more)
        results = [total] if self.panels is not None else [packed, total]
        block = Block([iteration, *held], results)
        return items(self.b, self.b.op("loop", init, {"kind": "serial"}, (block,)))[-1]

    def _over(self, rows: _Rows, memory: Node, body: Callable[[Node], Node]) -> Node:
        """Serial loops over the tiles of rows that carry one memory."""
        held = [
            Node("var", (), {"name": f"partial_{i.attrs['name']}"}, memory.type)
            for i in rows.indices
        ]
        result = body(held[-1] if held else memory)
        for depth in reversed(range(len(held))):
            block = Block([rows.indices[depth], held[depth]], [result])
            outside = held[depth - 1] if depth else memory
            result = self.b.op("loop", [outside], {"kind": "serial"}, (block,))
        return result


def _uneven(chunks: int, cpu: Cpu) -> bool:
    """Whether 2, 4, 8 and so on threads, as many as there are cores, would wait for one of them."""
    threads = (1 << i for i in range(1, cpu.cores.bit_length()))
    return any(-(-chunks // t) * t > chunks * (1 + IMBALANCE) for t in threads)
