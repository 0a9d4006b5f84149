"""NumPy's basic indexing on values of the IR: integers, slices, new axes and an ellipsis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from stack.errors import RuleError
from stack.ir.dim import Dim, add

if TYPE_CHECKING:
    from stack.hosted.arrays import Array


def indexed(x: Array, index: Any) -> Array:
    """Returns `x[index]`. Raises RuleError for an index that is an array or has too many parts."""
    parts = _complete(index, x.ndim)
    kept: list[Any] = [p for p in parts if p is not None]
    ranges = [_range(p, size) for p, size in zip(kept, x.shape, strict=True)]
    start, limit, step = (tuple(column) for column in zip(*ranges)) if ranges else ((), (), ())
    cut = x
    if any(r != (0, size, 1) for r, size in zip(ranges, x.shape)):
        cut = x.space.made("slice", x, start=start, limit=limit, step=step)
    lengths = iter([size for size, p in zip(cut.shape, kept) if isinstance(p, slice)])
    return cut.reshape([1 if p is None else next(lengths) for p in parts if not _is_place(p)])


def _complete(index: Any, rank: int) -> list[Any]:
    """Expands an index to a list with one part for each axis, and None for each new axis. Raises
    RuleError if the index has more parts than the array has axes.
    """
    parts: list[Any] = list(cast("tuple[Any]", index)) if isinstance(index, tuple) else [index]
    taken = sum(p is not None and p is not Ellipsis for p in parts)
    if taken > rank:
        raise RuleError(f"{taken} indices of an array with {rank} axes")
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    parts[at : at + 1] = [slice(None)] * (rank - taken)
    return parts


def _is_place(part: Any) -> bool:
    return isinstance(part, int)


def _range(part: Any, size: Dim) -> tuple[Dim, Dim, int]:
    """Returns start, limit and step of one part along its axis."""
    if _is_place(part):
        first = _place(part, size, 0)
        return first, add(first, 1), 1
    if not isinstance(part, slice):
        raise RuleError(f"an index is an integer, a slice, None or ..., not {part!r}: see take")
    held = cast("Any", part)
    return _place(held.start, size, 0), _place(held.stop, size, size), held.step or 1


def _place(value: Any, size: Dim, default: Dim) -> Dim:
    """Returns the position on an axis that a bound of a slice means: `default` for None, from the
    end if negative, and clamped to the axis if its size is a number.
    """
    if value is None:
        return default
    if isinstance(value, int) and isinstance(size, int):
        return max(size + value, 0) if value < 0 else min(value, size)
    return add(size, value) if isinstance(value, int) and value < 0 else value
