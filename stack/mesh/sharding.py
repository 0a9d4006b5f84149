"""Shardings: the distribution of a value over a mesh, as `f32[8{dp}, 64, 1024{tp, ?}p1] @m`.

Each dim names the mesh axes that split it, the major one first. `?` means that propagation may add
axes, `p1` is the propagation priority. A dim without braces is not split. Along axes that no dim
uses the value is replicated, unless it is partial: then its elements are the sum (or max, ...) over
the ranks.

    f32[8{dp}, 64] @m                                   replicated along tp
    f32[8{dp}, 64] @m + partial(sum: tp)                the sum over the ranks along tp
    f32[8{?}, 64{?}] @m + replicated(tp)                anything but tp may be added
    f32[8{tp, -1:3:2}] @m                               overlapping parts, in a partitioned program

A split cuts a dim of n into k parts of ceil(n / k), and the next axis cuts each of these parts. The
last parts may be shorter or empty, as with `torch.chunk` and so DTensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from stack.errors import RuleError
from stack.ir.dim import Dim, add, floordiv
from stack.mesh.meshes import Axes, Mesh, MeshAxis, axes_text, joined, size_of
from stack.mesh.overlap import Overlap

PARTIAL_KINDS = ("sum", "prod", "max", "min", "and", "or")


@dataclass(frozen=True)
class DimSharding:
    """The axes that split one dim.

    Attributes:
        is_open: True if propagation may add axes.
        priority: propagation priority, 0 first; None if unspecified.
        overlap: the overlapping part of each rank; None for disjoint parts.
    """

    axes: Axes = ()
    is_open: bool = False
    priority: int | None = None
    overlap: Overlap | None = None

    def __str__(self) -> str:
        shown = [str(axis) for axis in self.axes] + ["?"] * self.is_open
        shown += [str(self.overlap)] if self.overlap else []
        mark = "" if self.priority is None else f"p{self.priority}"
        return f"{{{', '.join(shown)}}}{mark}" if shown or mark else ""


WHOLE, OPEN = DimSharding(), DimSharding(is_open=True)


@dataclass(frozen=True)
class Sharding:
    """The distribution of a value over the ranks of a mesh.

    Attributes:
        dims: one for each dim of the value.
        replicated: axes that propagation must not use.
        partial: axes along which the values of the ranks must still be reduced, by `kind`.
    """

    mesh: Mesh
    dims: tuple[DimSharding, ...]
    replicated: Axes = ()
    partial: Axes = ()
    kind: str = field(default="sum")

    @cached_property
    def _hash(self) -> int:
        return hash((self.mesh, self.dims, self.replicated, self.partial, self.kind))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def axes(self) -> tuple[Axes, ...]:
        """The mesh axes that split each dim of the value: one tuple for each dim, empty if the dim
        is not split.
        """
        return tuple(dim.axes for dim in self.dims)

    @cached_property
    def overlaps(self) -> tuple[Overlap | None, ...]:
        """The overlap of each dim; empty if no parts overlap."""
        found = tuple(dim.overlap for dim in self.dims)
        return found if any(found) else ()

    @property
    def used(self) -> Axes:
        """All mesh axes that split some dim of the value, in the order of the dims."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @property
    def tail(self) -> str:
        """The part of a type's text that follows its shape: the mesh, replicated axes and axes with
        partial results.
        """
        text = f" @{self.mesh.name}"
        if self.replicated:
            text += f" + replicated({axes_text(self.replicated)})"
        if self.partial:
            text += f" + partial({self.kind}: {axes_text(self.partial)})"
        return text

    def local_shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of one rank's part: the longest part of each dim."""
        return tuple(
            dim.overlap.size if dim.overlap else part_size(n, dim.axes)
            for n, dim in zip(shape, self.dims, strict=True)
        )

    def closed(self) -> Sharding:
        """Returns the same distribution of a value, but sharding propagation may add no axes."""
        dims = tuple(DimSharding(joined(dim.axes)) for dim in self.dims)
        return Sharding(self.mesh, dims, (), joined(self.partial), self.kind)

    def check(self, shape: Sequence[Dim]) -> None:
        """Raises RuleError, with the alternatives, if a value of this shape cannot have this
        sharding.
        """
        if len(self.dims) != len(shape):
            raise RuleError(f"a sharding of {len(self.dims)} dims for a value of {len(shape)}")
        if self.partial and self.kind not in PARTIAL_KINDS:
            kinds = ", ".join(PARTIAL_KINDS)
            raise RuleError(f"a partial {self.kind!r}; partial values are one of {kinds}")
        known = dict(self.mesh.axes)
        seen: list[MeshAxis] = []
        for axis in (*self.used, *self.replicated, *self.partial):
            if known.get(axis.name) != axis.whole:
                raise RuleError(f"mesh {self.mesh} has no axis {str(axis)!r}")
            if any(axis.meets(other) for other in seen):
                free = [n for n in known if all(n != a.name for a in (*self.used, *self.partial))]
                raise RuleError(
                    f"axis {str(axis)!r} of mesh {self.mesh} is used twice;"
                    f" axes that are free: {', '.join(free) or 'none'}"
                )
            seen.append(axis)
        for number, (size, dim) in enumerate(zip(shape, self.dims, strict=True)):
            parts = size_of(dim.axes)
            if isinstance(size, int) and size < parts > 1 and dim.overlap is None:
                raise RuleError(
                    f"dim {number} has {size} element(s) for {parts} parts"
                    f" ({axes_text(dim.axes)}); axes that fit: {_fitting(self.mesh, size)}"
                )


def _fitting(mesh: Mesh, size: int) -> str:
    return ", ".join(f"{n} ({s})" for n, s in mesh.axes if s <= size) or "none"


def replicated(mesh: Mesh, rank: int) -> Sharding:
    """Returns the sharding of a value with `rank` dims of which every device has a full copy."""
    return Sharding(mesh, (WHOLE,) * rank)


def sharded(
    mesh: Mesh,
    axes: Sequence[Sequence[MeshAxis]],
    partial: Axes = (),
    kind: str = "sum",
    overlaps: tuple[Overlap | None, ...] = (),
) -> Sharding:
    """Returns a sharding of a value that propagation does not change: `axes` gives the mesh axes
    that split each dim, `partial` those along which a reduction of kind `kind` is still due, and
    `overlaps` the overlap of the parts of each dim.
    """
    return _sharded(mesh, tuple(map(tuple, axes)), partial, kind if partial else "sum", overlaps)


@lru_cache(maxsize=1 << 14)
def _sharded(
    mesh: Mesh,
    axes: tuple[Axes, ...],
    partial: Axes,
    kind: str,
    overlaps: tuple[Overlap | None, ...],
) -> Sharding:
    both = zip(axes, overlaps or (None,) * len(axes), strict=True)
    dims = tuple(DimSharding(joined(own), overlap=overlap) for own, overlap in both)
    return Sharding(mesh, dims, (), joined(partial), kind)


def part_size(size: Dim, axes: Sequence[MeshAxis]) -> Dim:
    """Returns the longest size of a part of a dim with `size` elements, split by mesh axes."""
    for axis in axes:
        size = floordiv(add(size, axis.size - 1), axis.size)
    return size


def part_start(size: int, axes: Sequence[MeshAxis], place: Sequence[int]) -> int:
    """The index at which the part at coordinates `place` on these axes starts, if every part has
    the length of the longest.
    """
    start = 0
    for axis, position in zip(axes, place, strict=True):
        size = -(-size // axis.size)
        start += position * size
    return start


def part_held(size: int, axes: Sequence[MeshAxis], place: Sequence[int]) -> int:
    """The number of elements of the part at coordinates `place`, without its padding."""
    held = size
    for axis, position in zip(axes, place, strict=True):
        size = -(-size // axis.size)
        held = min(max(held - position * size, 0), size)
    return held


def is_regular(size: Dim, axes: Sequence[MeshAxis]) -> bool:
    """True if the part of a dim on each rank starts at a multiple of the longest part's size.
    Padding inside of nested splits can break this.
    """
    return len(joined(axes)) == 1 or not is_padded(size, axes)


def is_padded(size: Dim, axes: Sequence[MeshAxis]) -> bool:
    """True if the part of a dim on some rank may be shorter than the longest part, and so has
    padding. True for symbolic sizes.
    """
    return not isinstance(size, int) or size % size_of(axes) != 0
