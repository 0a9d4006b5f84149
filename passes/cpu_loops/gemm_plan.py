"""Plans the matmul of a tile kernel on a CPU: panels, their blocks, and the work of threads.

A chunk of work is one panel of columns (of one batch entry) and some tiles of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stack.ir.contraction import is_along_depth
from stack.ir.node import Block, topological
from stack.ir.traits import in_windows, is_load, nest_of, unconverted
from stack.passes.cpu_loops.dot import find_dot, tile_mma
from stack.passes.cpu_loops.pack import Panel, run_of, walk_of
from stack.passes.tiling.contraction import operand_names, result_names
from stack.passes.tiling.frame import static
from stack.passes.tiling.loops import extent_of
from stack.target import Cpu


@dataclass(frozen=True)
class Counts:
    """Instructions and bytes of a matmul on a CPU.

    Attributes:
        multiplies: multiply-add instructions.
        loads: loads of their operands into registers.
        packed: bytes of packed panels that are written; 0 if operands are read in place.
        panels: bytes of the right operand that tiles read.
    """

    multiplies: int
    loads: int
    packed: int
    panels: int

    def __str__(self) -> str:
        packed = f"{self.packed} bytes packed" if self.packed else "nothing packed"
        return (
            f"{self.multiplies} multiplications and {self.loads} loads of vectors or tiles,"
            f" {packed}, {self.panels} bytes of panels read"
        )


class GemmPlan:
    """The decisions for the block of a tile kernel with one dot.

    Attributes:
        dot: the matmul of a tile of rows with a panel.
        lane: its axis of columns.
        right: the number of the operand that has that axis, and is packed.
        left_names: the axes of the other operand.
        nest: the parallel loops.
        cut: the number of outer loops that select the panel; the inner ones select tiles of rows.
        which: the index variables that select the panel.
        below: the loops over tiles of rows.
        panel: the panel to pack.
        in_place: whether the dot reads the right operand without packing.
        size: elements of the cut axis that are packed at once; 0 for all.
        raised: the offset that is added to rows, so that they are unsigned; 0 for none.
        groups: the number of groups of tiles of rows; each has `share` iterations of the
            outermost loop over them.
        ahead: prefetch distance of the left operand, in rows; 0 for no prefetch.
    """

    def __init__(self, block: Block, cpu: Cpu) -> None:
        self.block = block
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
        self.nest, _ = nest_of(block, "parallel")
        moving = [n for n in self.nest if n.blocks[0].params[0] in load.vars]
        # loops above the cut select the panel, those below it the tile of rows
        self.cut = self.nest.index(moving[-1]) + 1 if moving else 0
        self.which = [n.blocks[0].params[0] for n in moving]
        self.below = self.nest[self.cut :]
        width = sizes[self.lane], right.dtype.bytes
        self.left_bytes = self._all_rows() * math.prod(map(sizes.__getitem__, shared))
        self.left_bytes *= unconverted(dot.args[1 - self.right]).dtype.bytes
        walk = walk_of(shared, self.left_names, sizes, width, cpu, mma)
        group, self.depth = (mma.group, mma.depth) if mma else (1, 1)
        self.speed = cpu.bf16_rate / cpu.f32_rate if mma else 1.0  # relative to packing
        self.offset = mma.offset if mma else 0  # that the instruction needs
        names = tuple(right_names), walk.order, walk.cut
        self.panel = Panel(load, *names, self.lane, right.dtype, group)
        self.in_place = self._reads_in_place()
        self.size = 0 if self.in_place else walk.block or 0
        self.raised = 0 if self.in_place else self.offset  # that is added to rows
        self.groups = self._groups()
        self.share = -(-extent_of(self.below[0]) // self.groups) if self.below else 0
        self.ahead = self._ahead()

    def packed_operand(self) -> int | None:
        """Returns which operand (0, 1, ...) of the tile kernel the packed panels come from; None if
        the panels cannot be packed by another kernel.
        """
        memory, *index = self.panel.load.args
        is_named = not any(map(is_load, topological(index)))
        readers = [n for n in self.block.all_nodes if memory in n.args]
        is_own = readers == [self.panel.load] and memory in self.block.params
        return (
            self.block.params.index(memory) if is_own and is_named and not self.in_place else None
        )

    def _all_rows(self) -> int:
        return math.prod(extent_of(n) for n in self.below) * self.rows

    def _reads_in_place(self) -> bool:
        """True if the dot reads the right operand without packing."""
        panel = self.panel
        if in_windows(panel.load):
            return True  # neighbouring positions are neighbouring lanes
        memory = panel.load.args[0]
        is_few = self._all_rows() <= self.cpu.matmuls.few_rows
        if is_along_depth(self.dot):
            is_whole = panel.size(panel.contracted[-1]) % run_of(self.mma, self.cpu) == 0
            return is_few and is_whole and panel.lanes <= self.cpu.lanes
        if self.dot.args[self.right] is not panel.load or not panel.lanes_last:
            return False
        if panel.group > 1:  # each tile of rows groups the neighbours again
            sums = (self.rows + bool(self.offset)) * panel.lanes // self.cpu.lanes
            return self._all_rows() <= self.rows and sums <= self.cpu.sums
        is_packed = static(memory.shape[-1]) == panel.lanes and panel.load.tensor.rank == 2
        return is_few or is_packed

    def _groups(self) -> int:
        """Picks into how many groups to split the tiles of rows of each panel, so that all threads
        have work.
        """
        if not self.below:
            return 1
        chunks = math.prod(extent_of(n) for n in self.nest[: self.cut])
        rows, most = self._all_rows(), extent_of(self.below[0])
        groups = 1
        if self.size:
            held = int(self.cpu.matmuls.sums_share * self.cpu.cache_bytes)
            groups = -(-rows * self.panel.lanes * self.dot.dtype.bytes // held)
        least = self.cpu.matmuls.split_rows * self.speed
        while _uneven(chunks * groups, self.cpu) and rows // (groups + 1) >= least:
            groups += 1
        return min(groups, most)

    def _ahead(self) -> int:
        """Picks how many rows before their use the rows of the left operand are prefetched; 0 for
        no prefetch.
        """
        left, row = unconverted(self.dot.args[1 - self.right]), result_names(self.dot)[0]
        if self.rows == 1 or self.in_place or not self.below or not is_load(left):
            return 0
        if self.left_bytes <= self.cpu.matmuls.rows_share * self.cpu.cache_bytes:
            return 0  # rows are still in the cache since the last panel
        where = left.args[self.left_names.index(row) - len(self.left_names)]
        return self.rows if self.below[-1].blocks[0].params[0] in where.vars else 0

    def counts(self, is_prepacked: bool) -> Counts:
        """Counts the instructions and bytes of the whole matmul. `is_prepacked`: another kernel
        packs the panels, so packing is not counted.
        """
        panel, mma = self.panel, self.mma
        tiles = math.prod(extent_of(n) for n in self.nest)
        chunks = math.prod(extent_of(n) for n in self.nest[: self.cut]) * self.groups
        rows = self.rows + bool(self.offset and self.in_place)  # plus the row of offsets
        depth = panel.depth
        steps, once = tiles * depth // self.depth, 0
        vectors = -(-panel.lanes * self.dot.dtype.bytes // self.cpu.vector_bytes)
        if mma is not None and mma.rows > 1:  # two by two: four loads for four multiplications
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
        packed = 0 if self.in_place or is_prepacked else chunks * size
        return Counts(multiplies * steps + once, loads * steps + once, packed, tiles * size)


def _uneven(chunks: int, cpu: Cpu) -> bool:
    """True if `chunks` equal pieces of work do not divide evenly among 2, 4, 8, ... threads, up to
    the number of cores, so that some thread would idle.
    """
    threads = (1 << i for i in range(1, cpu.cores.bit_length()))
    most = chunks * (1 + cpu.matmuls.imbalance)
    return any(-(-chunks // t) * t > most for t in threads)
