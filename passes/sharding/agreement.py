"""Consequences of shardings at one node: the factors that they split, and the dims that follow.

Nothing here depends on the position of the node in the program, so equal nodes share one result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stack.mesh.meshes import Axes, size_of, starts_with
from stack.passes.sharding.factors import Factors, Split

Told = tuple[tuple[Axes, ...], ...]  # for each value of a node, for each dim, its axes


class FactorSplit(NamedTuple):
    """The mesh axes by which the sharding of one value of a node splits a factor.

    `value` is the number of the value, operands first; `bytes` is its size.
    """

    factor: str
    axes: Axes
    value: int
    bytes: int


class DimSplit(NamedTuple):
    """A dim of one value of a node that mesh axes may split further, because a sharding of value
    `source` splits `factor` by them. `value` and `source` are numbers of values."""

    value: int
    dim: int
    axes: Axes
    factor: str
    source: int


class Agreement(NamedTuple):
    """The consequences of the shardings of a node's values.

    Attributes:
        growths: the dims that may be split further.
        is_left: True if more would follow if sums could stay partial, or if conflicts were decided.
        rivals: True if two of the values contradict each other.
    """

    growths: tuple[DimSplit, ...]
    is_left: bool
    rivals: bool


def heard(factors: Factors, told: Told, sizes: tuple[int, ...]) -> list[FactorSplit]:
    """Returns how the shardings of a node's values split its factors (axes of the node's domain),
    those of the largest value first. `told`: the mesh axes of each dim of each value. `sizes`: the
    bytes of each value."""
    found = [
        FactorSplit(factor, axes, number, sizes[number])
        for number, (dims, own) in enumerate(zip(factors.values, told, strict=True))
        if any(own)
        for factor, axes in factors.split_of(dims, own).items()
    ]
    return sorted(found, key=lambda h: (-h.bytes, -size_of(h.axes), h.value))


def agreement(factors: Factors, told: Told, sizes: tuple[int, ...], reduces: bool) -> Agreement:
    """Returns which dims the shardings of a node's values let split further.

    Conflicts stay undecided: splits are cut down to what no other value contradicts. Without
    `reduces`, splits of reduced factors, which leave partial sums, are ignored.
    """
    order = heard(factors, told, sizes)
    kept = order if reduces else [h for h in order if h.factor not in factors.reduced]
    sure = [_agreed(h, kept) for h in kept]
    disputed = sum(a.axes != b.axes for a, b in zip(sure, kept, strict=True))
    return Agreement(
        growths(factors, told, together(sure)), disputed + len(order) > len(kept), disputed > 0
    )


def together(order: Iterable[FactorSplit]) -> list[FactorSplit]:
    """Returns splits that do not contradict each other.

    Earlier ones in `order` win; later ones lose their last mesh axes, as many as conflict.
    """
    chosen: dict[str, FactorSplit] = {}
    for h in order:
        found = _agreed(h, [c for f, c in chosen.items() if f != h.factor])
        held = chosen.get(h.factor)
        if found.axes and (held is None or starts_with(found.axes, held.axes)):
            chosen[h.factor] = found
    return list(chosen.values())


def _agreed(h: FactorSplit, others: Sequence[FactorSplit]) -> FactorSplit:
    """Returns the factor split `h` with as few of its last mesh axes removed as needed, so that it
    contradicts no split in `others`."""
    found = h
    while found.axes and any(rivals(found, other) for other in others if other is not h):
        found = found._replace(axes=found.axes[:-1])
    return found


def growths(factors: Factors, told: Told, chosen: Iterable[FactorSplit]) -> tuple[DimSplit, ...]:
    """Returns the dims of values that the splits `chosen` would split by more mesh axes than the
    shardings `told` do."""
    split: Split = {h.factor: h.axes for h in chosen}
    source = {h.factor: h.value for h in chosen}
    found: list[DimSplit] = []
    for number, (dims, own) in enumerate(zip(factors.values, told, strict=True)):
        names = {name for dim in dims for name in dim}
        axes_of = factors.axes_of(dims, {f: axes for f, axes in split.items() if f in names})
        for dim, axes in enumerate(axes_of or ()):
            if size_of(axes) > size_of(own[dim]):
                factor = next(f for f in reversed(dims[dim]) if split.get(f))
                found.append(DimSplit(number, dim, axes, factor, source[factor]))
    return tuple(found)


def rivals(first: FactorSplit, second: FactorSplit) -> bool:
    """True if two splits contradict each other: they use one mesh axis for two factors, or split
    one factor by axes of which neither list begins with the other."""
    if first is second:
        return False
    if first.factor == second.factor:
        one, other = first.axes, second.axes
        return not starts_with(one, other) and not starts_with(other, one)
    return any(a.meets(b) for a in first.axes for b in second.axes)
