"""tile_gpu: matrix products to tile kernels whose tiles a block of threads of a GPU shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from weakref import WeakKeyDictionary

from stack.errors import RuleError
from stack.ir.node import Block, Node
from stack.ir.traits import contractions, is_contraction, is_fusion
from stack.passes.control import BlockPass
from stack.passes.distribute_gpu import CannotDistribute, distribute_gpu_kernel
from stack.passes.exact_tiling.gemm import tile_gemm
from stack.passes.gpu_loops.tile_policy import TilePolicy, is_staged, tile_policy
from stack.passes.tile import CannotTile, alone, check_code
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.schedule import Schedule, schedules_of, with_schedules
from stack.target import Gpu, Target, as_gpu

# groups, and what stands against staging them on a machine; "" where nothing does
_WHYS: WeakKeyDictionary[Node, dict[Gpu, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class TileGpu(BlockPass):
    """Turn groups with one matrix product into kernels that `distribute_gpu` stages.

    Other groups, and products that it cannot stage, are left to `blocks`, whose schedules they
    have: pass `schedule` asks the same.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    name: ClassVar[str] = "tile_gpu"
    refuse: tuple[str, ...] = ()

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            group = alone(node) if is_contraction(node) else node
            if not is_fusion(group) or group.attrs["kind"] == "library" or not _is_product(group):
                continue
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            try:
                if not is_staged(group, log.gpu):
                    continue
                check_code(group, self.refuse)
                check_staging(with_schedules(group, ()), log.gpu)
                kernel = tile_gpu_group(group, target=log.gpu)
            except CannotTile as why:
                log.note(f"{name} is not staged: {why}", lines)
                continue
            if log.spend("tile_gpu", lines):
                changed[node] = Replacement(kernel)
        return replace(block, changed) if changed else block


def _is_product(group: Node) -> bool:
    """Whether a group holds one product."""
    return len(contractions(group.blocks[0].nodes)) == 1


class StagedPolicy(TilePolicy):
    """Tiles of the product of a group, of which those that cannot be staged are illegal."""

    def __init__(self, group: Node, gpu: Gpu) -> None:
        (dot,) = contractions(group.blocks[0].nodes)
        super().__init__(dot, gpu)
        self.group = group

    def why_illegal(self, schedule: Schedule) -> str:
        found = super().why_illegal(schedule)
        why = found or why_not_staged(with_schedules(self.group, (str(schedule),)), self.gpu)
        if found or not why:
            return found
        blocks = ", ".join(f"{s.axis}={s.block}" for s in schedule.splits)
        return f"blocks of {blocks} cannot be staged: {why}"


def staged_policy(group: Node, gpu: Gpu) -> StagedPolicy | None:
    """The policy of a group that is staged; None for others, which `blocks` takes."""
    if tile_policy(group, gpu) is None or why_not_staged(with_schedules(group, ()), gpu):
        return None
    return StagedPolicy(group, gpu)


def why_not_staged(group: Node, gpu: Gpu) -> str:
    """What stands against staging a group with one product, as it is scheduled; "" for nothing."""
    known = _WHYS.setdefault(group, {})
    if gpu not in known:
        try:
            distribute_gpu_kernel(tile_gpu_group(group, target=gpu), target=gpu)
            known[gpu] = ""
        except (CannotTile, CannotDistribute, RuleError) as why:
            known[gpu] = str(why)
    return known[gpu]


def check_staging(group: Node, gpu: Gpu) -> None:
    """Raise CannotTile for a group that is not staged."""
    why = why_not_staged(group, gpu)
    if why:
        raise CannotTile(why)


def tile_gpu_group(
    group: Node, rows: int = 0, columns: int = 0, target: Target | None = None
) -> Node:
    """The kernel node of a group with one product. Raises CannotTile."""
    policy = tile_policy(group, as_gpu(target))
    if policy is None:
        raise CannotTile("it has no product")
    schedule, (down, across) = policy.of(group), (policy.rows, policy.columns)
    width = min(columns or schedule.block("n"), across)
    kernel = tile_gemm(group, width, min(rows or schedule.block("m", 1), down))
    return with_schedules(kernel, schedules_of(group)[:1])
