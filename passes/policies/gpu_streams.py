"""Streams with matrix products on a GPU: attention, and reductions like it.

A program has a tile of rows, and loops over blocks of the streamed axis. Each iteration computes
the scores of a block, rescales the states once and updates them, all in registers.

    softmax(q k^T) v, 16 heads of 4096 x 64, f16, causal:
    split k 128; split r 64; block r.1; vectorize d; vectorize r.1; vectorize l; vectorize k.1;
    tensorize; rewrite scale; bound r.0 where=cut; reverse k.0; rewrite exp2; bind j grid;
    bind k.0 grid; launch 4 stages=3
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions, is_load
from stack.ir.warp_ops import MATRIX, WARP
from stack.passes.gpu_products.tile_choice import may_round
from stack.passes.nest.online import STREAMED
from stack.passes.nest.scope import letter
from stack.passes.policies.gpu_steps import arithmetic, programs, splits
from stack.passes.policies.step_lowering import StepLowering, reordered
from stack.passes.policies.stream_tiles import MEASURED, TALLEST, extents, in_parts, tables, tile
from stack.passes.positions.streams import (
    StreamShape,
    is_in_memory,
    stream_index_maps,
    stream_shape,
)
from stack.passes.steps.loops import all_loops, axes, axis_of, nests, stores_only
from stack.passes.steps.online import is_online
from stack.passes.steps.primitives import (
    Assume,
    BlockStates,
    BoundLoops,
    Branch,
    ComputeWith,
    DotParts,
    Launch,
    LoweredKernel,
    Reverse,
    Rewrite,
    Tensorize,
    Vectorize,
    WindowLoads,
)
from stack.passes.tiling.contraction import contracted_sizes
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Axis, Domain, Need, Prediction, Schedule
from stack.target import Gpu


class ProductStreams(StepLowering[Gpu]):
    """Lowers a stream with matrix products.

    A schedule has blocks of m (rows) and k (the streamed axis); e (columns of states) is never
    split.

    Attributes:
        states: the block that updates the states in an iteration.
        dots: the matmuls of an iteration.
        sums: the states that are matmuls.
    """

    def __init__(self, group: Node, target: Gpu) -> None:
        super().__init__(group, target)
        self.states = group.blocks[0]
        self.dots = contractions(self.states.nodes)
        self.sums = contractions(self.states.results)

    @cached_property
    def shape(self) -> StreamShape:
        """The roles of the stream's axes. Raises CannotTile if they cannot be derived."""
        return stream_shape(stream_index_maps(*self.group.blocks), True)

    @property
    def extent(self) -> int:
        """The extent of the streamed axis."""
        return static(streamed_extent(self.group))

    @property
    def widest(self) -> int:
        """The most columns of a state, padded."""
        sizes = (self.shape.extents[m] for m in self.shape.lanes)
        return max((max(MATRIX, power_of_two(n)) for n in sizes if n > 1), default=0)

    @cached_property
    def domain(self) -> Domain:
        """The axes. Raises CannotTile if the stream has no kernel."""
        for dot in self.dots:
            *outer, last = contracted_sizes(dot) or [MATRIX]
            if last < MATRIX and prod(outer) > 1:
                raise CannotTile(f"a dot over several axes, the last of {last} elements")
        # sums may take half of the registers, as in matmuls, in blocks with the rows of fast tiles;
        # with fewer rows, separate matmuls are faster
        if TALLEST * self.widest > self.target.tile_registers:
            what = f"{TALLEST} rows of {self.widest} columns of sums"
            raise CannotTile(f"{what} take more than half of {self.target.registers} registers")
        whole = "" if self.shape.is_split else "a result has it"
        axes = (
            Axis("b", self.shape.batch, "parallel", ("grid",), most=1),
            Axis("m", self.shape.rows, "parallel", ("grid",), unit=MATRIX),
            Axis("e", self.widest, "parallel"),
            Axis("k", self.extent, "stream", ("serial",), whole, MATRIX),
        )
        return Domain(axes, ordered=True)

    # ---- what a schedule leaves open

    def candidates(self) -> list[tuple[Schedule, Prediction | None]]:
        own = self.complete(Schedule())
        others = (s for s in MEASURED if s != own and not self.why_illegal(s))
        return [(s, None) for s in (own, *others)]

    def misfits(self) -> Sequence[Schedule]:
        return [s for s in MEASURED if self.why_illegal(s)]

    def complete(self, given: Schedule) -> Schedule:
        made = given.filled(tile(*extents(self.group, self.target)))
        rows, step = made.block("m"), made.block("k")
        height = self._height(made)
        parts = 2 if any(map(in_parts, self.dots)) else 1
        big = (rows >= 128 and step >= 128) or (
            parts * len(self.sums) * self.widest * rows > 128 * 128
        )
        # fewer stages fit if sums are wide
        stages = 2 if self.widest > 64 and parts * step > 32 and height > 64 else 3
        if len(self.dots) > 2 and (self.widest > 64 or len(self.sums) > 1):
            stages = 2
        if any(p.dtype.bits == 8 for p in tables(self.group)):
            stages = 2  # a mask of bytes waits in shared memory, too
        elif rows >= 128 and len(self.dots) == 2 and parts == 1 and self._is_alone(rows):
            big, stages = True, 3
        # if one dot reads the result of another, Triton 3.6 miscompiles fewer rows of a warp
        warps = min(made.warps or (8 if big else 4), max(4, height // MATRIX))
        return replace(made, warps=warps, stages=made.stages or stages)

    def needs(self, schedule: Schedule) -> Sequence[Need]:
        found = [Need("threads", schedule.warps * WARP, self.target.threads)]
        if schedule == self.complete(Schedule()):
            return found  # the default is not checked here: the compiler reports if it does not fit
        rows, step = schedule.block("m"), schedule.block("k")
        sums = rows * (len(self.sums) * self.widest + step)
        streamed = (a for d in self.dots for a in d.args if self.extent in a.shape[-2:])
        read = {*filter(is_in_memory, streamed)}
        bytes_ = sum(step * self._width(a) * a.dtype.bytes for a in read)
        return [
            *found,
            Need("bytes of shared memory", schedule.stages * bytes_, self.target.operand_bytes),
            Need("registers for sums and scores", sums, self.target.registers),
        ]

    def _is_alone(self, rows: int) -> bool:
        """True if no program with a tile of so many rows shares a multiprocessor: each has all of
        its registers and shared memory."""
        parts = -(-self.extent // int(self.group.attrs.get("part", self.extent)))
        return self.shape.batch * -(-self.shape.rows // rows) * parts <= self.target.processors

    def _width(self, operand: Node) -> int:
        """Returns how many elements an operand has for each position of the streamed axis."""
        sizes = [power_of_two(static(s)) for s in operand.shape[-2:]]
        return prod(sizes) // power_of_two(self.extent)

    # ---- steps

    def take(self, made: LoweredKernel) -> None:
        sizes, schedule, dots = axes(made.kernel), self.schedule, self.dots
        marks = enumerate(self.shape.extents)
        names = {mark: letter(i) for i, mark in marks if letter(i) in sizes}
        row = names.get(self.shape.row, "")
        lanes = [n for mark, n in names.items() if mark in self.shape.lanes]
        inside = [loop for loop, _ in all_loops(made.kernel) if not stores_only(loop)]
        walks = [loop for loop in inside if axis_of(loop) == STREAMED]
        contracted = [n for n in dict.fromkeys(map(axis_of, inside)) if n != STREAMED]
        gathered = _tables(made.kernel)
        height, step = self._height(schedule), self._step(schedule)
        grid = self._grid(made, lanes, {row: height})
        made.take(*splits({row: height} if row else {}, sizes), *splits({STREAMED: step}, sizes))
        if any(map(is_online, walks)):
            why = f"states are rescaled once for {step} elements"
            made.take(BlockStates(f"{STREAMED}.1").because(why))
        blocks = {name: self._block(sizes[name], name in lanes) for name in (*contracted, *lanes)}
        made.take(*splits(blocks, sizes))
        held = [name for name in sizes if name in (row, *lanes)]
        inner = [*contracted, STREAMED, *reversed(held)]
        made.take(*(Vectorize(f"{name}.1") for name in inner))
        shared = [n for n in contracted if blocks[n] < sizes[n] and self.states.results[1:]]
        shared += [STREAMED] if sizes[STREAMED] > step and walks[1:] else []
        for name in shared:
            made.may(ComputeWith(f"{name}.0").because("one loop computes the scores for all"))
        if row:
            precision = "tf32" if all(map(may_round, dots)) else ""
            made.take(Tensorize(precision).because("matrix instructions"))
        for memory in gathered:
            made.may(WindowLoads(memory).because("a tile reads few elements of it, many times"))
        made.take(Rewrite("positions").because("what does not change is computed once"))
        if self._masks(made) and height < sizes.get(row, 0):
            why = "the last rows take the most time"
            made.take(Reverse(f"{row}.0").because(why))
        if any(p.dtype.is_float and p.dtype.bits <= 16 for p in self.states.params):
            why = "the scale and log2(e) become one factor; 16 bits hide the difference"
            made.take(Rewrite("exp2").because(why))
        made.may(DotParts().because("instructions for bf16 are faster than those for f32"))
        made.take(*programs(sizes, {n: height if n == row else 1 for n in grid}))
        made.take(*arithmetic([r for block in self.group.blocks for r in block.results]))
        why = f"{height} rows of sums and scores in registers"
        made.take(Launch(schedule.warps, schedule.stages).because(why))

    def _masks(self, made: LoweredKernel) -> bool:
        """Adds steps that skip blocks of the streamed axis which position masks, such as causal
        ones, hide. Returns whether loops are shorter for the first rows.

        Each loop with matmuls first waits for its prefetched copies. So three loops cost more than
        one loop with a branch, but two cost less. Measured on an H100.
        """
        walk = f"{STREAMED}.0"
        made.may(Assume(walk).because("exp of such numbers is 0 in nearly all rows"))
        made.take(Rewrite("scale").because("a maximum has fewer elements than its scores"))
        cut = BoundLoops(walk, "cut").because("fully visible blocks need no mask")
        limited = BoundLoops(walk).because("a mask hides all other blocks")
        parts = limited.parts(made.kernel)
        if parts == 2 and made.may(cut):
            return True
        is_limited = parts > 1 and made.may(limited)
        made.may(Branch(walk).because("most blocks are fully visible"))
        return is_limited

    def _grid(
        self, made: LoweredKernel, lanes: Collection[str], blocks: Mapping[str, int]
    ) -> list[str]:
        """Orders the loops over programs, so that concurrent programs share elements in the cache.
        Returns their axes.

        Programs along an axis on which a large array does not depend load the same elements of it.
        Such axes are innermost, the shortest of them last.
        """
        sizes, body = axes(made.kernel), made.kernel.blocks[0]
        outer = dict.fromkeys(axis_of(n) for n, _ in all_loops(made.kernel) if stores_only(n))
        grid = [name for name in outer if name not in (STREAMED, *lanes)]
        names, *more = nests(made.kernel) or [[]]  # results of one element each have no loops
        if more or [*names[: len(grid)]] != grid:
            return grid
        large = [p for p in body.params if static(p.tensor.bytes) > self.target.cache_bytes]
        told: dict[Node, set[str]] = {p: set() for p in large}
        for load in filter(is_load, body.all_nodes):
            if load.args[0] in told:
                told[load.args[0]].update(str(v.attrs["name"]) for v in load.vars)

        def order(name: str) -> int:
            is_again = any(names and name not in names for names in told.values())
            return -sizes[name] // blocks.get(name, 1) if is_again else -(1 << 62)

        grid.sort(key=order)
        made.take(*reordered(names, grid, "programs that run together load the same elements"))
        return grid

    def _height(self, schedule: Schedule) -> int:
        """The rows of a tile."""
        rows = self.shape.rows
        return min(schedule.block("m"), max(MATRIX, power_of_two(rows))) if rows > 1 else 1

    def _step(self, schedule: Schedule) -> int:
        """The elements of a block of the streamed axis."""
        part = int(self.group.attrs.get("part") or 1 << 30)
        usual = min(power_of_two(self.extent), schedule.block("k"))
        return max(min(usual, part & -part), MATRIX)

    def _block(self, extent: int, is_whole: bool) -> int:
        """Returns the block size of an axis: its whole extent, rounded up to a power of two, if a
        tile must have all of it or if it is short. A longer contracted axis is split."""
        is_whole |= extent <= self.target.matmuls.whole_depth
        return max(MATRIX, power_of_two(extent)) if is_whole else self.target.streams.depth_block


def _tables(nest: Node) -> list[str]:
    """Returns the names of arrays of which one index depends on several loop variables, as in a
    table of relative positions.
    """
    body = nest.blocks[0]
    found = {
        load.args[0]
        for load in filter(is_load, body.all_nodes)
        if any(len(index.vars) > 1 for index in access_parts(load)[0])
    }
    return [str(p.attrs["name"]) for p in body.params if p in found]
