"""Halo exchange: the elements that each rank needs if a windowed dim is sharded.

A window is `spread * dim = stride * factor + offset`, with the offset between two bounds: those of
all other added terms, such as the taps of a convolution. A part of the factor then reads a part of
the dim and elements beyond its borders. The parts of all ranks have one form if a step between
parts of the factor is a whole step in the dim. Source: footprints of the polyhedral model; as
halos, Xu et al., "GSPMD: general and scalable parallelization for ML computation graphs", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from stack.ir.relation import Equation
from stack.mesh.meshes import Axes, size_of
from stack.mesh.overlap import Overlap
from stack.mesh.sharding import is_regular


@dataclass(frozen=True)
class ShardWindow:
    """The window by which a dim is read along a factor.

    Attributes:
        factor: an axis of the domain, of `size` elements.
        size: elements of the factor.
        extent: elements of the dim.
        stride: coefficient of the factor.
        spread: coefficient of the dim.
        low, high: bounds of the offset.
    """

    factor: str
    size: int
    extent: int
    stride: int
    spread: int
    low: int
    high: int

    def overlap(self, axes: Axes) -> Overlap | None:
        """Returns the parts of the dim that ranks need if these axes split the factor.

        Raises LookupError if the parts of the ranks do not have one form.
        """
        part, (least, most) = self._part(axes), self._ends(axes)
        start, stop = -(-least // self.spread), most // self.spread + 1
        if not is_regular(self.size, axes) or self.stride * part % self.spread or stop <= start:
            raise LookupError
        found = Overlap(start, stop, self.stride * part // self.spread)
        ranks = size_of(axes)
        is_plain = found == (0, self.extent // ranks, self.extent // ranks)
        return None if is_plain and self.extent % ranks == 0 else found

    def margins(self, axes: Axes) -> tuple[int, int]:
        """Returns the positions read before a rank's first element, and after its last one."""
        least, most = self._ends(axes)
        return -least % self.spread, most % self.spread

    def _part(self, axes: Axes) -> int:
        return -(-self.size // size_of(axes))

    def _ends(self, axes: Axes) -> tuple[int, int]:
        """Returns the least and the greatest position in the dim, times `spread`, that rank 0's
        part of the factor reads."""
        far = self.stride * (self._part(axes) - 1)
        return self.low + min(far, 0), self.high + max(far, 0)


def window_of(equation: Equation, sizes: dict[str, int], extent: int) -> ShardWindow | None:
    """Returns the window of a dim along the longest axis that reads it; None if none does."""
    if len(equation.dims) != 1 or not equation.axes:
        return None
    terms = {str(name): int(cast("int", c)) for name, c in equation.axes}
    factor = max(terms, key=lambda name: sizes[name])
    low = high = int(cast("int", equation.offset))
    for name, coefficient in terms.items():
        if name != factor:
            far = coefficient * (sizes[name] - 1)
            low, high = low + min(far, 0), high + max(far, 0)
    spread = int(cast("int", equation.dims[0][1]))
    return ShardWindow(factor, sizes[factor], extent, terms[factor], spread, low, high)
