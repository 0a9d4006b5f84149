"""In which order a product goes over its contracted axes, and how much of them it packs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.passes.cpu_loops.pack import block_size
from stack.target import Cpu, Mma


@dataclass(frozen=True)
class Walk:
    """How sums go over contracted axes.

    Attributes:
        order: the axes, but for those of one element.
        cut: the axis of which a part is packed at once.
        block: elements of that part; 0 for all, None where nothing fits.
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
) -> Walk:
    """Over contracted axes in the order of the left operand, which is read in place.

    The longest axis is cut, so that what is packed lies in long runs; with an instruction that
    multiplies neighbours it is the first one, as its depth divides the last one alone.

    Args:
        contracted: axes.
        left: those of the left operand.
        sizes: extents.
        panel: lanes of a panel, and bytes of an element.
        cpu: whose caches hold a panel.
        mma: the instruction.
    """
    real = [n for n in contracted if sizes[n] > 1] or contracted[-1:]
    order = tuple(sorted(real, key=left.index))
    cut = order[0] if mma else max(order, key=lambda n: sizes[n])
    extents = [sizes[cut], *(sizes[n] for n in order if n != cut)]
    return Walk(order, cut, block_size(extents, *panel, cpu, mma.depth if mma else 1))
