"""Dims that are read through a window: which elements the ranks need that split what reads them.

A window says `spread * dim = stride * factor + offset`, the offset between two bounds: those of
what else is added, such as the taps of a convolution. A part of the factor then reads a part of
the dim with what is beyond its borders; parts of ranks are alike where a step of the factor's
parts is one of elements. Source: footprints of the polyhedral model; as halos, Xu et al., "GSPMD:
general and scalable parallelization for ML computation graphs", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from stack.ir.mesh import Axes, size_of
from stack.ir.overlap import Overlap
from stack.ir.relation import Equation
from stack.ir.sharding import is_regular


@dataclass(frozen=True)
class Window:
    """How a dim is read along a factor.

    Attributes:
        factor: an axis of the domain, of `size` elements.
        extent: elements of the dim.
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
        """What ranks hold of the dim that split the factor so.

        Raises LookupError where their parts are not alike.
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
        """Places that a rank reads before the first of its elements, and after the last one."""
        least, most = self._ends(axes)
        return -least % self.spread, most % self.spread

    def _part(self, axes: Axes) -> int:
        return -(-self.size // size_of(axes))

    def _ends(self, axes: Axes) -> tuple[int, int]:
        """The least and the most that the first part of the factor reads, `spread` for each."""
        far = self.stride * (self._part(axes) - 1)
        return self.low + min(far, 0), self.high + max(far, 0)


def window_of(equation: Equation, sizes: dict[str, int], extent: int) -> Window | None:
    """The window of a dim along the longest axis that it is read by; None where none is."""
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
    return Window(factor, sizes[factor], extent, terms[factor], spread, low, high)
