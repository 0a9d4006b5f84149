"""Picks the loop order of contracted axes, and the size of the blocks that are packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.passes.cpu_loops.pack import block_size
from stack.target import Cpu, Mma


@dataclass(frozen=True)
class ContractionOrder:
    """The loop order of contracted axes, and the size of packed blocks.

    Attributes:
        order: the axes, without those of one element.
        cut: the axis that is split into packed blocks.
        block: elements of a block; 0 for all, None if none fits.
    """

    order: tuple[str, ...]
    cut: str
    block: int | None


def walk_of(
    contracted: Sequence[str],
    left: Sequence[str],
    sizes: Mapping[str, int],
    panel: tuple[int, int],
    cpu: Cpu,
    mma: Mma | None,
) -> ContractionOrder:
    """Picks the loop order of a matmul's contracted axes: that of the left operand, which is read
    in place.

    The longest axis is cut, so that packed memory has long contiguous runs. With a matrix
    instruction the first axis is cut, since the depth of the instruction divides only the last one.

    Args:
        contracted: the contracted axes.
        left: the axes of the left operand.
        sizes: extents by axis.
        panel: lanes of a panel, and bytes of an element.
        cpu: the target, whose caches hold a panel.
        mma: the instruction, if there is one.
    """
    real = [n for n in contracted if sizes[n] > 1] or contracted[-1:]
    order = tuple(sorted(real, key=left.index))
    cut = order[0] if mma else max(order, key=lambda n: sizes[n])
    extents = [sizes[cut], *(sizes[n] for n in order if n != cut)]
    return ContractionOrder(order, cut, block_size(extents, *panel, cpu, mma.depth if mma else 1))
