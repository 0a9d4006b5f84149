"""Named meshes of ranks, their axes, and parts of axes.

A mesh numbers its ranks in row-major order of its axes. An axis may be split into parts, as in
Shardy: `tp:(1)2` is the major half of an axis of 4, `tp:(2)2` the minor half. The first number is
the product of the sizes of all more major parts, the second is the size of this part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from stack.errors import RuleError

_AXIS = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*")
_PART = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::\s*\(\s*(\d+)\s*\)\s*(\d+))?\s*")


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh, or a part of one.

    Attributes:
        whole: number of ranks of the whole axis.
        before: product of the sizes of the more major parts of the axis.
        size: number of ranks of this part.
    """

    name: str
    whole: int
    before: int
    size: int

    def __str__(self) -> str:
        return self.name if self.size == self.whole else f"{self.name}:({self.before}){self.size}"

    __repr__ = __str__

    def split(self, size: int) -> tuple[MeshAxis, MeshAxis]:
        """Splits this part of a mesh axis in two: the major part, with `size` ranks, and the rest.
        Raises RuleError if `size` is no proper divisor.
        """
        if size < 2 or self.size % size or size == self.size:
            raise RuleError(f"axis {self} of {self.size} ranks has no major part of {size}")
        major = MeshAxis(self.name, self.whole, self.before, size)
        return major, MeshAxis(self.name, self.whole, self.before * size, self.size // size)

    def meets(self, other: MeshAxis) -> bool:
        """True if both parts overlap: they share part of the same axis."""
        if self.name != other.name:
            return False
        first, second = sorted((self, other), key=lambda axis: axis.before)
        return first.before * first.size > second.before

    def coordinate(self, along: int) -> int:
        """The coordinate in this part of a rank with coordinate `along` on the whole axis."""
        return along // (self.whole // (self.before * self.size)) % self.size


Axes = tuple[MeshAxis, ...]


@dataclass(frozen=True)
class Mesh:
    """`m(dp=2, tp=4)`: ranks by coordinates. Raises RuleError for duplicate names or empty axes."""

    name: str
    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [n for n, _ in self.axes]
        if len(set(names)) != len(names):
            raise RuleError(f"mesh {self} names an axis twice")
        if any(size < 1 for _, size in self.axes):
            raise RuleError(f"mesh {self} has an axis without ranks")

    def __str__(self) -> str:
        return f"{self.name}({self.sizes_text})"

    @property
    def sizes_text(self) -> str:
        """`dp=2, tp=4`."""
        return ", ".join(f"{n}={s}" for n, s in self.axes)

    @cached_property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(s for _, s in self.axes)

    def axis(self, text: str) -> MeshAxis:
        """An axis by name, or a part of it, as `tp:(1)2`. Raises RuleError if there is none."""
        match = _PART.fullmatch(text)
        sizes = dict(self.axes)
        if match is None or match[1] not in sizes:
            raise RuleError(f"mesh {self} has no axis {text.strip()!r}")
        whole = sizes[match[1]]
        before, size = (int(match[2]), int(match[3])) if match[2] else (1, whole)
        if size < 1 or before < 1 or whole % (before * size):
            raise RuleError(f"axis {match[1]!r} of mesh {self} has no part ({before}){size}")
        return MeshAxis(match[1], whole, before, size)

    def axes_of(self, text: str) -> Axes:
        """Axes by name, `dp, tp`, the major one first."""
        return tuple(self.axis(part) for part in text.split(",") if part.strip())

    def coordinates(self, rank: int) -> dict[str, int]:
        """The coordinate of a rank on every axis."""
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found

    def positions(self, rank: int, axes: Sequence[MeshAxis]) -> tuple[int, ...]:
        """The coordinate of a rank on each of the given axes."""
        at = self.coordinates(rank)
        return tuple(axis.coordinate(at[axis.name]) for axis in axes)

    def number(self, rank: int, axes: Sequence[MeshAxis]) -> int:
        """The index of a rank in its group along these axes."""
        found = 0
        for axis, position in zip(axes, self.positions(rank, axes), strict=True):
            found = found * axis.size + position
        return found

    def groups(self, axes: Sequence[MeshAxis]) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks that differ only along these axes, in row-major order of them."""
        found: dict[tuple[tuple[str, int], ...], list[tuple[tuple[int, ...], int]]] = {}
        for rank in range(self.ranks):
            place = self.positions(rank, axes)
            rest = self.coordinates(rank)
            for axis, position in zip(axes, place, strict=True):
                rest[axis.name] -= position * (axis.whole // (axis.before * axis.size))
            found.setdefault(tuple(rest.items()), []).append((place, rank))
        return tuple(tuple(rank for _, rank in sorted(group)) for group in found.values())


def parse_mesh(text: str) -> Mesh:
    """Parses `dp=2, tp=4`. Raises RuleError with the expected form."""
    axes: list[tuple[str, int]] = []
    for part in text.split(","):
        match = _AXIS.fullmatch(part)
        if match is None:
            raise RuleError(f"a mesh is written as 'dp=2, tp=4', not {text!r}")
        axes.append((match[1], int(match[2])))
    return Mesh("m", tuple(axes))


def size_of(axes: Sequence[MeshAxis]) -> int:
    """The number of ranks of a group along these axes."""
    ranks = 1
    for axis in axes:  # called very often: `prod` of a generator takes three times as long
        ranks *= axis.size
    return ranks


def axes_text(axes: Sequence[MeshAxis]) -> str:
    """`dp, tp`."""
    return ", ".join(map(str, axes))


def joined(axes: Sequence[MeshAxis]) -> Axes:
    """Merges neighbours in a list of mesh axes that are adjacent parts of the same axis, as
    `tp:(1)2, tp:(2)2`.
    """
    found: list[MeshAxis] = []
    for axis in axes:
        last = found[-1] if found else None
        if last and last.name == axis.name and last.before * last.size == axis.before:
            axis = MeshAxis(axis.name, axis.whole, last.before, last.size * axis.size)
            found.pop()
        found.append(axis)
    return tuple(found)


@lru_cache(maxsize=1 << 10)
def atoms(axes: Axes) -> Axes:
    """Splits mesh axes into parts with a prime number of ranks each, the major part first."""
    found: list[MeshAxis] = []
    for axis in axes:
        while axis.size > 1:
            prime = next(p for p in range(2, axis.size + 1) if axis.size % p == 0)
            if prime == axis.size:
                break
            major, axis = axis.split(prime)
            found.append(major)
        found.append(axis)
    return tuple(found)


def starts_with(axes: Axes, start: Axes) -> bool:
    """True if the list `start` of mesh axes is a prefix of `axes`. Compares both split into parts
    of a prime number of ranks, so that `tp` and its major part match.
    """
    if axes[: len(start)] == start:
        return True
    first = atoms(start)
    return atoms(axes)[: len(first)] == first
