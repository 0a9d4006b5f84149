"""NumPy's basic indexing of values of the IR: integers, slices, new axes and an ellipsis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stack.errors import RuleError
from stack.ir.dim import Dim, add

if TYPE_CHECKING:
    from stack.hosted.arrays import Array


def indexed(x: Array, index: Any) -> Array:
    """`x[index]`. Raises RuleError for an index that is an array, or has too many parts."""
    parts = list(index) if isinstance(index, tuple) else [index]
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    if taken > x.ndim:
        raise RuleError(f"{taken} indices of {x.node.type}")
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    parts[at : at + 1] = [slice(None)] * (x.ndim - taken)
    start: list[Dim] = []
    limit: list[Dim] = []
    step: list[int] = []
    shape: list[Dim | None] = []  # None: as long as the slice is
    sizes = iter(x.shape)
    for part in parts:
        if part is None:
            shape.append(1)
            continue
        size = next(sizes)
        if isinstance(part, slice):
            start.append(_place(part.start, size, 0))
            limit.append(_place(part.stop, size, size))
            step.append(part.step or 1)
            shape.append(None)
        elif isinstance(part, int):
            start.append(_place(part, size, 0))
            limit.append(add(start[-1], 1))
            step.append(1)
        else:
            raise RuleError(f"an index is an integer, a slice, None or ..., not {part!r}: see take")
    whole = start == [0] * x.ndim and tuple(limit) == x.shape and set(step) <= {1}
    cut = x if whole else x.space.made(
        "slice", x, start=tuple(start), limit=tuple(limit), step=tuple(step)
    )  # fmt: skip
    lengths = iter(s for s, p in zip(cut.shape, [p for p in parts if p is not None], strict=True)
                   if isinstance(p, slice))  # fmt: skip
    return cut.reshape([next(lengths) if s is None else s for s in shape]) if shape else cut.reshape(())


def _place(value: Any, size: Dim, default: Dim) -> Dim:
    """A place of an axis, counted from its end where negative, no further than its ends."""
    if value is None:
        return default
    if isinstance(value, int) and isinstance(size, int):
        return max(size + value, 0) if value < 0 else min(value, size)
    return add(size, value) if isinstance(value, int) and value < 0 else value
