"""Scans, and scatters on a CPU.

On a GPU, a program has a tile of some lines along the scanned axis. A tile is scanned as a whole. A
line that is longer than a tile is a serial loop over tiles, which carries the total of the tiles
before. The blocks of a reverse scan are aligned, so the partial one, if any, comes first.

    cumsum of 512 rows of 10000:     split j 4096; vectorize j.1; bind i grid; launch 8
    the same from the last element:  split j 4096 tail=front; vectorize j.1; bind i grid; launch 8

A few very long lines would leave most of a GPU idle: a library scans those in parts.

On a CPU, a scan along the innermost axis becomes a scan of vectors with a carried total. Along
another axis, each lane carries its own total. A scatter copies its operand, then applies updates in
order, as vectors if no index selects the innermost axis.

    cumsum of 8 rows of 300:     split j 64 tail=peel; vectorize j.1; bind i cores
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.traits import is_running
from stack.passes.nest.scope import letter
from stack.passes.policies.cpu_vectors import Plan, vectorize
from stack.passes.policies.gpu_steps import programs, tiles
from stack.passes.policies.reduction_loops import warps_of
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Bind, Launch, LoweredKernel
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.target import Cpu, Gpu

KINDS = ("sum", "prod")


def leaves_idle(node: Node, gpu: Gpu) -> bool:
    """True if a scan has so few and so long lines (elements along the scanned axis) that one
    program for each line would leave most of the GPU idle.
    """
    scanned = int(node.attrs["axis"])
    sizes = [s for s in node.shape if isinstance(s, int)]
    if len(sizes) < len(node.shape):
        return False
    lines = prod(s for a, s in enumerate(sizes) if a != scanned)
    most = gpu.scans.lone_tiles * gpu.scans.tile
    return sizes[scanned] > most and lines < gpu.processors


class GpuScans(StepLowering[Gpu]):
    """Lowers a group whose result is one scan."""

    def take(self, made: LoweredKernel) -> None:
        (scan,), gpu = self.group.blocks[0].results, self.target
        if why := _why_not(scan, gpu):
            raise CannotTile(why)
        sizes = {letter(axis): static(size) for axis, size in enumerate(scan.shape)}
        scanned = letter(int(scan.attrs["axis"]))
        blocks = _blocks(sizes, scanned, gpu)
        tiled = {n: block for n, block in blocks.items() if sizes[n] > 1 and block > 1}
        made.take(*tiles(tiled, sizes, front=scanned if scan.attrs["reverse"] else ""))
        made.take(*programs(sizes, {n: block for n, block in blocks.items() if n != scanned}))
        held = prod(blocks.values())
        made.take(Launch(warps_of(held, gpu)).because(f"a tile has {held} elements"))


def _why_not(scan: Node, gpu: Gpu) -> str:
    """Returns the reason why a scan has no GPU kernel; "" if it has one."""
    kind, dtype, scanned = str(scan.attrs["kind"]), scan.dtype, int(scan.attrs["axis"])
    if kind not in KINDS or dtype.bits < 16 or dtype.kind not in "fiu":
        return f"no tile is scanned for the {kind} of {dtype}"
    if leaves_idle(scan, gpu):
        lines = prod(static(s) for a, s in enumerate(scan.shape) if a != scanned)
        return f"{lines} lines of {scan.shape[scanned]} leave most programs idle"
    return ""


def _blocks(sizes: Mapping[str, int], scanned: str, gpu: Gpu) -> dict[str, int]:
    """Returns the block size of each axis of a scan, for one program.

    The scanned axis gets as much as a tile takes. A tile gets several lines if every multiprocessor
    still has a program.
    """
    own = min(gpu.scans.tile, max(2, power_of_two(sizes[scanned])))
    lines = prod(sizes.values()) // sizes[scanned]
    room = gpu.scans.tile // own
    while room > 1 and lines // room < gpu.processors:
        room //= 2
    blocks = dict.fromkeys(sizes, own)
    for axis in reversed(list(sizes)):
        if axis != scanned:
            blocks[axis] = min(power_of_two(sizes[axis]), room)
            room //= blocks[axis]
    return blocks


class CpuScans(StepLowering[Cpu]):
    """Lowers a group whose result is one scan or one scatter."""

    def take(self, made: LoweredKernel) -> None:
        (result,) = self.group.blocks[0].results
        plan = _scan_plan(result) if is_running(result) else _scatter_plan(result)
        if plan.lane in axes(made.kernel):
            vectorize(made, plan, self.target)
        for axis in plan.parallel:
            if axis in axes(made.kernel):
                made.may(Bind(axis, "cores"))


def _scan_plan(node: Node) -> Plan:
    """Returns the roles of a scan's axes: the innermost one is vectorized, the others are
    distributed over threads, except for the scanned one.
    """
    scanned, last = int(node.attrs["axis"]), node.tensor.rank - 1
    kept = [letter(axis) for axis in range(last) if axis != scanned]
    return Plan(letter(last), scanned == last, kept, list(kept))


def _scatter_plan(node: Node) -> Plan:
    """Returns the roles of a scatter's axes: the innermost one is vectorized, the others are
    distributed over threads, except for those that an index selects.
    """
    *outer, last = parse_rule(node.attrs["rule"]).inputs[0]
    kept = [axis.names[0] for axis in outer if not axis.mark]
    return Plan(last.names[0], False, kept, list(kept))
