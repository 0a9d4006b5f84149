"""What a node makes of the places of its values: which factors they split, and what follows.

Nothing here depends on where the node stands, so nodes that are alike ask once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stack.ir.mesh import Axes, size_of, starts_with
from stack.passes.sharding.factors import Factors, Split

Told = tuple[tuple[Axes, ...], ...]  # for each value of a node, for each dim its axes


class Heard(NamedTuple):
    """What one value of a node says about a factor."""

    factor: str
    axes: Axes
    value: int
    bytes: int


class Growth(NamedTuple):
    """A dim of a value that may take axes, by which factor, and the value that said so."""

    value: int
    dim: int
    axes: Axes
    factor: str
    source: int


class Agreement(NamedTuple):
    """What follows from the places of a node's values.

    Attributes:
        is_left: whether more would follow if sums were left open, or conflicts were decided.
        rivals: whether two of the values cannot have what they want.
    """

    growths: tuple[Growth, ...]
    is_left: bool
    rivals: bool


def heard(factors: Factors, told: Told, sizes: tuple[int, ...]) -> list[Heard]:
    """What values say about factors; the largest value first."""
    found = [
        Heard(factor, axes, number, sizes[number])
        for number, (dims, own) in enumerate(zip(factors.values, told, strict=True))
        if any(own)
        for factor, axes in factors.split_of(dims, own).items()
    ]
    return sorted(found, key=lambda h: (-h.bytes, -size_of(h.axes), h.value))


def agreement(factors: Factors, told: Told, sizes: tuple[int, ...], reduces: bool) -> Agreement:
    """What follows where nothing is decided; reduced factors are split where they may be."""
    order = heard(factors, told, sizes)
    kept = order if reduces else [h for h in order if h.factor not in factors.reduced]
    sure = [_agreed(h, kept) for h in kept]
    disputed = sum(a.axes != b.axes for a, b in zip(sure, kept, strict=True))
    return Agreement(
        growths(factors, told, together(sure)), disputed + len(order) > len(kept), disputed > 0
    )


def together(order: Iterable[Heard]) -> list[Heard]:
    """What of it holds at once, the first ones first; of axes whose last are taken, the others."""
    chosen: dict[str, Heard] = {}
    for h in order:
        found = _agreed(h, [c for f, c in chosen.items() if f != h.factor])
        held = chosen.get(h.factor)
        if found.axes and (held is None or starts_with(found.axes, held.axes)):
            chosen[h.factor] = found
    return list(chosen.values())


def _agreed(h: Heard, others: Sequence[Heard]) -> Heard:
    """What nobody else stands against: the longest prefix of the axes."""
    found = h
    while found.axes and any(rivals(found, other) for other in others if other is not h):
        found = found._replace(axes=found.axes[:-1])
    return found


def growths(factors: Factors, told: Told, chosen: Iterable[Heard]) -> tuple[Growth, ...]:
    """Dims that would be split by more than they are."""
    split: Split = {h.factor: h.axes for h in chosen}
    source = {h.factor: h.value for h in chosen}
    found: list[Growth] = []
    for number, (dims, own) in enumerate(zip(factors.values, told, strict=True)):
        names = {name for dim in dims for name in dim}
        axes_of = factors.axes_of(dims, {f: axes for f, axes in split.items() if f in names})
        for dim, axes in enumerate(axes_of or ()):
            if size_of(axes) > size_of(own[dim]):
                factor = next(f for f in reversed(dims[dim]) if split.get(f))
                found.append(Growth(number, dim, axes, factor, source[factor]))
    return tuple(found)


def rivals(first: Heard, second: Heard) -> bool:
    """Whether both cannot hold."""
    if first is second:
        return False
    if first.factor == second.factor:
        one, other = first.axes, second.axes
        return not starts_with(one, other) and not starts_with(other, one)
    return any(a.meets(b) for a in first.axes for b in second.axes)
