"""Streams with matrix products on a GPU: attention, and reductions like it.

A program has a tile of rows, and loops over blocks of the streamed axis. Each iteration computes
the scores of a block, rescales the states once and updates them, all in registers.

    softmax(q k^T) v, 16 heads of 4096 x 64, f16, causal:
    split k 128; split r 64; block r.1; vectorize d; vectorize r.1; vectorize l; vectorize k.1;
    tensorize; rewrite scale; bound r.0 where=cut; reverse k.0; rewrite exp2; bind j grid;
    bind k.0 grid; launch 4 stages=3
"""

from __future__ import annotations

from math import prod

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import contractions, is_load
from stack.ir.warp_ops import MATRIX
from stack.passes.gpu_products.tile_choice import may_round
from stack.passes.nest.online import STREAMED
from stack.passes.nest.scope import letter
from stack.passes.policies.rows import arithmetic, programs
from stack.passes.policies.step_lowering import StepLowering, reordered
from stack.passes.policies.stream_policy import StreamPolicy
from stack.passes.positions.contracted_axes import contracted_sizes
from stack.passes.positions.stream_index_maps import stream_index_maps
from stack.passes.positions.stream_shape import stream_shape
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
    Split,
    Step,
    Tensorize,
    Vectorize,
    WindowLoads,
)
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.schedule import Schedule
from stack.target import Gpu


class ProductStreams(StepLowering[Gpu]):
    """Lowers a stream with matrix products."""

    def policy(self) -> StreamPolicy:
        for dot in contractions(self.group.blocks[0].nodes):
            *outer, last = contracted_sizes(dot) or [MATRIX]
            if last < MATRIX and prod(outer) > 1:
                raise CannotTile(f"a dot over several axes, the last of {last} elements")
        shape = stream_shape(stream_index_maps(*self.group.blocks), True)
        return StreamPolicy(self.group, shape, self.target)

    def take(self, made: LoweredKernel) -> None:
        policy = self.policy()
        steps = StreamSteps(policy, policy.of(self.group), made.kernel)
        made.take(*steps.tiles(), *steps.sums())
        for memory in steps.tables:
            made.may(WindowLoads(memory).because("a tile reads few elements of it, many times"))
        made.take(Rewrite("positions").because("what does not change is computed once"))
        self._masks(made, steps)
        if any(p.dtype.is_float and p.dtype.bits <= 16 for p in self.group.blocks[0].params):
            why = "the scale and log2(e) become one factor; 16 bits hide the difference"
            made.take(Rewrite("exp2").because(why))
        made.may(DotParts().because("instructions for bf16 are faster than those for f32"))
        made.take(*steps.programs())
        made.take(*arithmetic([r for block in self.group.blocks for r in block.results]))
        made.take(steps.launch())

    def _masks(self, made: LoweredKernel, steps: StreamSteps) -> None:
        """Adds steps that skip blocks of the streamed axis which position masks, such as causal
        ones, hide.

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
            made.take(*steps.backwards())
            return
        if parts > 1 and made.may(limited):
            made.take(*steps.backwards())
        made.may(Branch(walk).because("most blocks are fully visible"))


class StreamSteps:
    """Translates a schedule of a stream with matmuls into loop transformations.

    Args:
        policy: the policy of the stream.
        schedule: a complete schedule.
        nest: the plain loop nest.
    """

    def __init__(self, policy: StreamPolicy, schedule: Schedule, nest: Node) -> None:
        self.policy, self.schedule, self.gpu = policy, schedule, policy.gpu
        self.extents = axes(nest)
        shape = policy.shape
        name_of = {mark: letter(i) for i, mark in enumerate(shape.extents)}
        real = {mark: name for mark, name in name_of.items() if name in self.extents}
        self.row = real.get(shape.row, "")
        self.lanes = [name for mark, name in real.items() if mark in shape.lanes]
        loops = [loop for loop, _ in all_loops(nest)]
        around = dict.fromkeys(axis_of(n) for n in loops if stores_only(n))
        inside = dict.fromkeys(axis_of(n) for n in loops if not stores_only(n))
        self.contracted = [name for name in inside if name != STREAMED]
        self.tables = [
            str(p.attrs["name"])
            for p in nest.blocks[0].params
            if any(_is_table(n) for n in nest.blocks[0].all_nodes if is_load(n) and n.args[0] is p)
        ]
        self.walks = [n for n in loops if axis_of(n) == STREAMED and not stores_only(n)]
        self.grid = [name for name in around if name not in (STREAMED, *self.lanes)]
        names, *more = nests(nest) or [[]]  # results of one element each have no loops
        self.order: list[Step] = []
        if not more and [*names[: len(self.grid)]] == self.grid:
            self.grid = self._shared(nest)
            why = "programs that run together load the same elements"
            self.order += reordered(names, self.grid, why)

    def _shared(self, nest: Node) -> list[str]:
        """Orders the loops over programs, so that concurrent programs share elements in the cache.

        Programs along an axis on which a large array does not depend load the same elements of it.
        Such axes are innermost, the shortest of them last.
        """
        params = nest.blocks[0].params
        large = [p for p in params if static(p.tensor.bytes) > self.gpu.cache_bytes]
        told: dict[Node, set[str]] = {p: set() for p in large}
        for load in filter(is_load, nest.blocks[0].all_nodes):
            if load.args[0] in told:
                told[load.args[0]].update(str(v.attrs["name"]) for v in load.vars)

        def order(name: str) -> int:
            is_again = any(names and name not in names for names in told.values())
            programs = -(-self.extents[name] // self._block_of(name))
            return -programs if is_again else -(1 << 62)

        return sorted(self.grid, key=order)

    def _block_of(self, name: str) -> int:
        """Returns the elements of a program along an axis of the grid."""
        return self.height if name == self.row else 1

    @property
    def height(self) -> int:
        """The rows of a tile."""
        if not self.row:
            return 1
        return min(self.schedule.block("m"), max(MATRIX, power_of_two(self.extents[self.row])))

    @property
    def step(self) -> int:
        """The elements of a block of the streamed axis."""
        part = int(self.policy.stream.attrs.get("part") or 1 << 30)
        usual = min(power_of_two(self.policy.extent), self.schedule.block("k"))
        return max(min(usual, part & -part), MATRIX)

    def tiles(self) -> list[Step]:
        """Returns the loop transformations that split and vectorize the loops into tiles."""
        made: list[Step] = list(self.order)
        if self.row:
            why = f"a program has {self.height} of {self.extents[self.row]} rows"
            made.append(Split(self.row, self.height).because(why))
        why = f"a block has {self.step} of {self.policy.extent} elements of the streamed axis"
        made.append(Split(STREAMED, self.step).because(why))
        if any(map(is_online, self.walks)):
            why = f"states are rescaled once for {self.step} elements"
            made.append(BlockStates(f"{STREAMED}.1").because(why))
        for name in (*self.contracted, *self.lanes):
            made.append(Split(name, self._block(name)))
        return made

    def _block(self, name: str) -> int:
        """Returns the block size of an axis: its whole extent, rounded up to a power of two, if a
        tile must have all of it or if it is short. A longer contracted axis is split."""
        extent = self.extents[name]
        block = max(MATRIX, power_of_two(extent))
        is_whole = name in self.lanes or extent <= self.gpu.matmuls.whole_depth
        return block if is_whole else self.gpu.streams.depth_block

    def sums(self) -> list[Step]:
        """Returns the loop transformations with which a tile's sums are computed: matrix
        instructions and cheaper arithmetic.
        """
        held = [name for name in self.extents if name in (self.row, *self.lanes)]
        inner = [*self.contracted, STREAMED, *reversed(held)]
        made: list[Step] = [Vectorize(f"{name}.1") for name in inner]
        made += [
            ComputeWith(f"{name}.0").because("states share the scores")
            for name in self.contracted
            if self._block(name) < self.extents[name] and len(self.policy.states.results) > 1
        ]
        if self.extents[STREAMED] > self.step and len(self.walks) > 1:
            made.append(ComputeWith(f"{STREAMED}.0").because("results share the scores"))
        if self.row:
            dots = contractions(self.policy.states.nodes)
            precision = "tf32" if all(map(may_round, dots)) else ""
            made.append(Tensorize(precision).because("matrix instructions"))
        return made

    def backwards(self) -> list[Step]:
        """Returns the step that makes programs of the last rows start first, since causal masks
        leave them the most work.
        """
        if not self.row or self.height >= self.extents[self.row]:
            return []
        return [Reverse(f"{self.row}.0").because("the last rows take the most time")]

    def programs(self) -> list[Step]:
        """The steps that distribute the tiles over programs."""
        return programs(self.extents, {n: self._block_of(n) for n in self.grid})

    def launch(self) -> Step:
        """The step that sets the launch configuration."""
        why = f"{self.height} rows of sums and scores in registers"
        return Launch(self.schedule.warps, self.schedule.stages).because(why)


def _is_table(load: Node) -> bool:
    """True if one index of a load depends on several loop variables, as in a table of relative
    positions.
    """
    return any(len(index.vars) > 1 for index in access_parts(load)[0])
