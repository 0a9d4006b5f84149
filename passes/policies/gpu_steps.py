"""Steps that all GPU policies share: tiles, loops over reduction axes, programs, arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from stack.ir.node import Node, topological
from stack.ir.traits import divides, is_number
from stack.ir.warp_ops import WARP
from stack.passes.steps.primitives import (
    Bind,
    ComputeWith,
    Evict,
    Hold,
    Pipeline,
    Rewrite,
    Rfactor,
    Split,
    Step,
    Vectorize,
)
from stack.passes.tiling.frame import static
from stack.schedule import Need, Schedule
from stack.target import Gpu


def tile_needs(schedule: Schedule, gpu: Gpu) -> list[Need]:
    """Returns what the programs of a schedule need of a GPU: threads, and registers for a tile."""
    held = prod(schedule.block(axis) for axis in {s.axis for s in schedule.splits})
    return [
        Need("threads", schedule.warps * WARP, gpu.threads),
        Need("registers for a tile", held, gpu.registers),
    ]


def splits(blocks: Mapping[str, int], extents: Mapping[str, int], front: str = "") -> list[Step]:
    """Returns the steps that split axes into blocks, each of which a tile has whole.

    `front`: the axis whose partial block, if it has one, comes first.
    """
    made: list[Step] = []
    for name, block in blocks.items():
        is_front = name == front and extents[name] % block
        cut = Split(name, block, "front" if is_front else "mask")
        share = f"{block} of {extents[name]}" if block < extents[name] else f"all {extents[name]}"
        made.append(cut.because(f"a tile has {share} elements along {name}"))
    return made


def tiles(blocks: Mapping[str, int], extents: Mapping[str, int], front: str = "") -> list[Step]:
    """Returns `splits` of axes, outermost first, and the steps that vectorize the blocks."""
    why = "one operation is for all elements of a tile"
    inner = [Vectorize(f"{name}.1").because(why) for name in reversed(list(blocks))]
    return [*splits(blocks, extents, front), *inner]


def serial_loop(
    axis: str,
    count: int,
    *,
    is_shared: bool = False,
    has_sums: bool = True,
    kept: int = 0,
    ahead: int = 0,
    through: str = "",
) -> list[Step]:
    """Returns the steps for a serial loop over the blocks of a reduction axis.

    Args:
        axis: the axis over the blocks.
        count: the number of blocks.
        is_shared: whether one loop serves several of the plain nest.
        has_sums: whether an iteration has a tile of partial sums.
        kept: the number of tiles that stay in registers for the next loop over the axis.
        ahead: the prefetch depth; 0 leaves it to the backend.
        through: as of step `pipeline`.
    """
    made: list[Step] = []
    if is_shared:
        made.append(ComputeWith(axis).because("shared operands are loaded once"))
    if has_sums:
        made.append(Rfactor(axis).because(f"partial sums are reduced once, not {count} times"))
    if kept:
        why = f"{kept} of {count} tiles stay in registers for the next loop"
        made.append(Hold(axis, kept).because(why))
    if ahead:
        why = "overlap with computation" if ahead > 1 else "go straight to registers"
        made.append(Pipeline(axis, ahead, through).because(f"loads {why}"))
    return made


def programs(extents: Mapping[str, int], blocks: Mapping[str, int]) -> list[Step]:
    """Returns the steps that distribute blocks of a size along each axis over programs, if an axis
    has several.
    """
    counts = {name: -(-extents[name] // block) for name, block in blocks.items()}
    return [
        Bind(name if blocks[name] == 1 else f"{name}.0", "grid").because(f"{count} programs")
        for name, count in counts.items()
        if count > 1
    ]


def arithmetic(results: Sequence[Node]) -> list[Step]:
    """Returns the step that replaces divisions by constants with multiplications; empty if the
    results need no such division.
    """
    if any(divides(n) and is_number(n.args[1]) for n in topological(results)):
        return [Rewrite("reciprocals").because("multiplication is cheaper than division")]
    return []


def evictions(results: Sequence[Node], gpu: Gpu) -> list[Step]:
    """Returns the steps that add cache eviction hints to the stores of results which do not fit in
    the cache.
    """
    made: list[Step] = []
    for i, result in enumerate(results):
        size = static(result.tensor.bytes)
        if size > gpu.cache_bytes:
            why = f"{size >> 20} MiB exceed the cache of {gpu.cache_bytes >> 20} MiB"
            made.append(Evict(f"o{i}", "first").because(why))
    return made
