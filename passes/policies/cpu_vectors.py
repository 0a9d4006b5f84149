"""Steps that all CPU policies share: loop splitting at guards, vectorization, partial sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from stack.ir.memory import starts_of
from stack.ir.node import Node
from stack.ir.traits import is_load, is_loop, is_memory
from stack.ir.types import TensorType
from stack.passes.policies.step_lowering import split
from stack.passes.steps.affine import index_of, split_points
from stack.passes.steps.loops import axes, axis_of, loops_along
from stack.passes.steps.primitives import (
    LoweredKernel,
    Partition,
    Reorder,
    Rfactor,
    Specialize,
    Split,
    Stage,
    Vectorize,
)
from stack.passes.steps.stage import computed_again
from stack.passes.steps.tiles import is_gathered
from stack.passes.tiling.frame import is_expensive
from stack.target import Cpu


@dataclass
class Plan:
    """The role of each axis of a loop nest. Policies update it as they take steps."""

    lane: str  # the axis to vectorize; "" if its extent is 1
    is_reduced: bool  # whether `lane` is a reduction axis
    kept: list[str]  # the other axes that are not reduced, outermost first
    parallel: list[str]  # the axes to distribute over threads, outermost first

    def sink(self, made: LoweredKernel, axis: str, why: str) -> bool:
        """Makes the loop over `axis` the innermost of the axes that are not reduced, as far as
        interchanges are legal. Returns whether all are.
        """
        for inner in self.kept[self.kept.index(axis) + 1 :]:
            if not made.may(Reorder(axis, inner).because(why)):
                return False
            for order in (self.kept, self.parallel):
                order.remove(axis)
                order.insert(order.index(inner) + 1, axis)
        return True


def is_innermost(kernel: Node, plan: Plan) -> bool:
    """True if the loops over the vector axis are directly inside the loop over the last axis in
    `plan.kept`, without a loop between them.
    """
    if not (plan.kept and plan.lane):
        return False
    along = loops_along(kernel, plan.lane)
    return all(around and axis_of(around[-1]) == plan.kept[-1] for _, around in along)


# ---- conditions


def specialize(made: LoweredKernel, own: list[str], at: str) -> None:
    """Specialize the loops over axis `at` for the ranges of other axes in which guards of loads are
    constant."""
    points = split_points(made.kernel, of_loads=True)
    for axis in own:
        if axis in points:
            inside = "" if axis == at else at
            made.may(Specialize(axis, inside).because("guards are constant in each range"))


def partition(made: LoweredKernel, axis: str) -> None:
    """Split the loops over an axis at the points where guards of loads change."""
    points = split_points(made.kernel, of_loads=True).get(axis, [])
    if points:
        cut = Partition(axis, ",".join(map(str, points)))
        made.may(cut.because("guards are constant in each part"))


# ---- vectors


def stage_values(made: LoweredKernel, lane: str, cpu: Cpu) -> None:
    """Stores expensive values in local memory that a later loop over the vector axis would compute
    again.

    The staged rows may fill a share of the cache. A row that fits in one vector stays in registers.
    """
    if axes(made.kernel)[lane] < 2 * cpu.chunk:
        return
    room = cpu.kept_bytes
    for value in computed_again(made.kernel, lane, _is_slow):
        size = axes(made.kernel)[lane] * max(1, value.dtype.bytes)
        name = made.kernel.blocks[0].names.get(value, "")
        if size <= room and made.may(Stage(name, "local").because("it is computed once")):
            room -= size


def _is_slow(node: Node, lane: Node) -> bool:
    return is_expensive(node) or (is_load(node) and is_gathered(node, lane))


def vectorize(made: LoweredKernel, plan: Plan, cpu: Cpu) -> None:
    """Splits the vector axis into vectors and vectorizes the loops inside; before that, cuts it at
    the points where guards of loads change.
    """
    lane, extent = plan.lane, axes(made.kernel)[plan.lane]
    lanes = _live_lanes(made.kernel, plan, cpu)
    points = [] if plan.is_reduced else split_points(made.kernel, of_loads=True).get(lane, [])
    longest = max(b - a for a, b in pairwise([0, *points, extent]))
    if longest < cpu.lanes:
        points = []  # one masked vector costs less than many short ones
    if lanes and (plan.is_reduced or extent <= cpu.rows.line):
        points = _whole_registers([0, *points, extent], lanes, cpu.chunk)
    if points:
        cut = Partition(lane, ",".join(map(str, points)))
        made.may(cut.because("guards are constant, and vectors fill registers, in each part"))
    axis, longest = lane, axes(made.kernel)[lane]
    block = cpu.rows.block
    if not plan.is_reduced and extent > cpu.rows.line and longest > block:
        even = (n for n in range(block, cpu.rows.least_block - 1, -1) if longest % n == 0)
        longest = next(even, block)
        outer, axis = split(made, axis, longest, "peel", "threads share a long row")
        plan.parallel.append(outer)
    if longest < 2 * cpu.chunk and not (lanes and longest > cpu.chunk):
        made.take(Vectorize(axis).because("one vector holds all of it"))
        return
    cut = Split(axis, cpu.chunk, "peel").because(f"a vector has {cpu.chunk} lanes")
    made.take(cut, Vectorize(cut.inner))


def _whole_registers(ends: Sequence[int], lanes: int, width: int) -> list[int]:
    """Returns the points at which to cut an axis, whose parts end at `ends`, so that each piece is
    either whole vectors of `width` lanes or one vector of fewer whole registers of `lanes` each.

    LLVM scalarizes a vector that is live across a loop if it needs several registers and is no
    power of two.
    """
    points: list[int] = []
    for begin, end in pairwise(ends):
        at = begin + (end - begin) // width * width
        points += [begin, at] if end - at > lanes else [begin]
        while end - at > lanes:
            at += lanes << ((end - at) // lanes).bit_length() - 1
            points.append(at)
    return sorted({point for point in points if ends[0] < point < ends[-1]})


def _live_lanes(kernel: Node, plan: Plan, cpu: Cpu) -> int:
    """Returns the lanes of a register for the widest vector that is live across a loop: an
    accumulator, or a loop-invariant value; 0 if no vector is.
    """
    size = 0
    for loop, around in loops_along(kernel, plan.lane):
        lane, block = loop.blocks[0].params[0], loop.blocks[0]
        inner = [n for n in block.all_nodes if is_loop(n)]
        live = [start for n in inner for start in starts_of(n) if not is_memory(start)]
        if plan.is_reduced and around and axis_of(around[-1]) not in plan.kept:
            live += [start for start in starts_of(loop) if not is_memory(start)]
        for other in (*around[-1:], *inner):
            var = other.blocks[0].params[0]
            live += [n for n in block.nodes if _is_invariant(n, lane, var)]
        size = max([size, *(max(node.dtype.bytes, 1) for node in live)])
    return cpu.vector_bytes // size if size else 0


def _is_invariant(node: Node, lane: Node, var: Node) -> bool:
    """True if a value, which is a vector once `lane` is vectorized, does not depend on the loop
    variable `var`. False for affine indices and guards: they become scalars and constants.
    """
    if lane not in node.vars or var in node.vars or not isinstance(node.type, TensorType):
        return False
    is_index = node.dtype.kind == "i" and index_of(node).along(lane) is not None
    return not (is_memory(node) or is_index or node.dtype.kind == "b")


def sum_lanes_apart(made: LoweredKernel, plan: Plan) -> None:
    """Rewrites each reduction loop, the innermost first, so that each lane of a vector has a
    partial sum; they are added after the loop.
    """
    for axis in reversed(list(axes(made.kernel))):
        if axis not in plan.parallel:
            made.may(Rfactor(axis).because("lanes keep partial sums"))
