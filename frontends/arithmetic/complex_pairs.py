"""Complex numbers as pairs of real values, and their absolute values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stack.ir.builder import Builder, constant
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, F64

C64, C128 = DTYPES["c64"], DTYPES["c128"]
PART = {C64: F32, C128: F64}
WHOLE = {F32: C64, F64: C128}


@dataclass(frozen=True)
class Pair:
    """A complex value: real and imaginary part, of equal shape."""

    re: Node
    im: Node


def has_infinite_part(b: Builder, x: Pair) -> Node:
    """True if a part is infinite."""
    return b.or_(b.eq(b.abs(x.re), math.inf), b.eq(b.abs(x.im), math.inf))


def by_size(b: Builder, x: Pair) -> tuple[Node, Node]:
    """Returns the larger of |re| and |im|, and the ratio of the smaller to it.

    The ratio is 0 if the smaller one is 0; for infinite `x` the results are inf and 0.
    """
    re, im, is_infinite = b.abs(x.re), b.abs(x.im), has_infinite_part(b, x)
    large, small = b.max(re, im), b.min(re, im)
    limit, zero = constant(math.inf, large.dtype), constant(0.0, large.dtype)
    is_none = b.or_(is_infinite, b.eq(small, 0.0))
    return b.select(is_infinite, limit, large), b.select(is_none, zero, b.div(small, large))


def magnitude(b: Builder, x: Pair) -> Node:
    """Returns the absolute value; no square overflows."""
    large, ratio = by_size(b, x)
    return b.mul(large, b.sqrt(b.add(b.mul(ratio, ratio), 1.0)))
