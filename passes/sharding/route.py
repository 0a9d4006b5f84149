"""Find the cheapest route of collectives from one sharding to another.

Shardings are states, collectives are edges, and the bytes that a rank sends are their lengths (the
number of messages decides between equals). Dijkstra's algorithm finds the route. A partial value
has an edge to a part of the sum, so no plan all-reduces and then keeps a part. Moving a split from
one dim to another is an all-to-all; and so on. Overlapping parts are reached by a halo exchange
from plain parts, or by a slice of the whole. No edge leads away from them, since they are read
directly.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple, cast

from stack.ir.types import TensorType
from stack.mesh.meshes import Axes, MeshAxis, atoms, axes_text, joined, size_of
from stack.mesh.ops import sent_bytes
from stack.mesh.overlap import Overlap, sends
from stack.mesh.sharding import Sharding, is_padded, is_regular, part_size


class ShardState(NamedTuple):
    """A state: the axes of each dim, the axes of partial sums, and the overlapping parts of dims.

    `overlaps` is empty if all parts are plain.
    """

    dims: tuple[Axes, ...]
    partial: Axes
    overlaps: tuple[Overlap | None, ...] = ()


class RouteStep(NamedTuple):
    """A collective: the op, its mesh axes, its dims, and the state after it."""

    op: str
    over: Axes
    axis: int
    to: int  # the second dim of an all_to_all
    after: ShardState
    bytes: int

    def __str__(self) -> str:
        where = f" of dim {self.axis}" if self.axis >= 0 else ""
        where += f" to dim {self.to}" if self.to >= 0 else ""
        return f"{self.op}({axes_text(self.over)}){where}: {self.bytes} bytes"


class Route(NamedTuple):
    """Steps one after another, with their cost."""

    steps: tuple[RouteStep, ...]
    bytes: int
    latency: int


STAY = Route((), 0, 0)  # no steps, no bytes, no time
NOWHERE = Route((), 1 << 62, 0)  # longer than every route


@lru_cache(maxsize=1 << 14)
def places(sharding: Sharding) -> ShardState:
    """Returns the search state of a sharding: its mesh axes by dim, those of partial sums, and its
    overlapping parts."""
    dims = tuple(joined(axes) for axes in sharding.axes)
    return ShardState(dims, _ordered(sharding.partial), sharding.overlaps)


def _ordered(axes: Axes) -> Axes:
    """Returns partial axes in a canonical order: they have none of their own."""
    return joined(sorted(axes, key=lambda axis: (axis.name, axis.before)))


def route(type_: TensorType, source: Sharding, target: Sharding) -> Route:
    """Returns the cheapest route. Raises RuleError for sizes that are not numbers."""
    if source is target:  # most often
        return STAY
    shape = tuple(int(cast("int", n)) for n in type_.shape)
    return _route(shape, type_.dtype.bytes, places(source), places(target))


@lru_cache(maxsize=1 << 14)
def _route(shape: tuple[int, ...], width: int, source: ShardState, target: ShardState) -> Route:
    if source == target:
        return STAY
    if source.overlaps:
        return NOWHERE
    search = _Search(shape, width, target)
    start, goal = search.refined(source, target), search.refined(target, source)
    search.target = goal
    count = itertools.count()
    queue: list[tuple[int, int, int, ShardState, tuple[RouteStep, ...]]] = [
        (0, 0, next(count), start, ())
    ]
    done: set[ShardState] = set()
    while queue:
        cost, latency, _, at, steps = heapq.heappop(queue)
        if at == goal:
            return Route(tuple(_merged(shape, steps)), cost, latency)
        if at in done:
            continue
        done.add(at)
        for step, waits in search.steps(at):
            if step.after not in done:
                entry = (
                    cost + step.bytes,
                    latency + waits,
                    next(count),
                    step.after,
                    (*steps, step),
                )
                heapq.heappush(queue, entry)
    raise AssertionError(f"no way from {source} to {target}")


def _merged(shape: tuple[int, ...], steps: tuple[RouteStep, ...]) -> Iterator[RouteStep]:
    """Joins successive gathers of one dim, unless padding has to be cut off between them."""
    held: RouteStep | None = None
    for step in steps:
        if held is not None:
            is_one = (held.op, held.axis) == (step.op, step.axis) == ("all_gather", step.axis)
            gathered = (*step.over, *held.over)
            if is_one and not is_padded(shape[step.axis], (*step.after.dims[step.axis], *gathered)):
                over = joined(gathered)
                held = RouteStep(step.op, over, step.axis, -1, step.after, held.bytes + step.bytes)
                continue
            yield held
        held = step
    if held is not None:
        yield held


class _Search:
    """The edges between states."""

    def __init__(self, shape: tuple[int, ...], width: int, target: ShardState) -> None:
        self.shape, self.width, self.target = shape, width, target

    def refined(self, own: ShardState, other: ShardState) -> ShardState:
        """Returns state `own` with its mesh axes split into the parts that both states can be
        expressed in. An axis of a dim that does not divide evenly stays one."""
        others = [axis for axes in (*other.dims, other.partial) for axis in axes]

        def parts(axes: Axes, is_even: bool) -> Axes:
            found: list[MeshAxis] = []
            for axis in axes:
                differs = any(axis.meets(o) and o != axis for o in others)
                found.extend(atoms((axis,)) if differs and is_even else [axis])
            return tuple(found)

        both = zip(own.dims, other.dims, self.shape, strict=True)
        dims = tuple(
            parts(mine, not is_padded(size, mine) and not is_padded(size, theirs))
            for mine, theirs, size in both
        )
        return ShardState(dims, parts(own.partial, True), own.overlaps)

    def local(self, at: ShardState, dim: int = -1, parts: int = 1) -> int:
        """Returns the bytes of a rank's shard, with a dim padded to a multiple of `parts`."""
        both = zip(self.shape, at.dims, strict=True)
        sizes = [int(cast("int", part_size(n, axes))) for n, axes in both]
        sizes = [o.size if o else n for n, o in zip(sizes, at.overlaps or (None,) * len(sizes))]
        if dim >= 0:
            sizes[dim] = -(-sizes[dim] // parts) * parts
        return self.width * prod(sizes)

    def steps(self, at: ShardState) -> Iterator[tuple[RouteStep, int]]:
        """Yields every collective from a state, and its number of successive messages."""
        yield from self._halos(at)
        if at.overlaps:
            return
        if len(at.partial) > 1:
            yield self._step(at, "all_reduce", at.partial, -1, ShardState(at.dims, ()))
        for axis in at.partial:
            rest = tuple(a for a in at.partial if a != axis)
            yield self._step(at, "all_reduce", (axis,), -1, ShardState(at.dims, rest))
            for dim in self._takers(at, axis):
                grown = self._with(at.dims, dim, (*at.dims[dim], axis))
                yield self._step(at, "reduce_scatter", (axis,), dim, ShardState(grown, rest))
        for dim, axes in enumerate(at.dims):
            if axes:
                shorter = self._with(at.dims, dim, axes[:-1])
                yield self._step(at, "all_gather", axes[-1:], dim, ShardState(shorter, at.partial))
            for count in range(1, len(axes) + 1):
                yield from self._exchanges(at, dim, axes[-count:])
            yield from self._shards(at, dim)
        yield from self._permutes(at)
        used = [a for axes in at.dims for a in axes]
        for axis in self.target.partial:
            if not any(axis.meets(a) for a in (*used, *at.partial)):
                grown = tuple(a for a in self.target.partial if a == axis or a in at.partial)
                rest = tuple(a for a in at.partial if a not in grown)
                yield (
                    RouteStep("keep_first", (axis,), -1, -1, ShardState(at.dims, rest + grown), 0),
                    0,
                )

    def _exchanges(self, at: ShardState, dim: int, moved: Axes) -> Iterator[tuple[RouteStep, int]]:
        """Yields all-to-alls that move the mesh axes `moved`, the last ones that split `dim`, to
        another dim whose target sharding has them next."""
        left = at.dims[dim][: -len(moved)]
        for other, (axes, wanted) in enumerate(zip(at.dims, self.target.dims, strict=True)):
            grown = (*axes, *moved)
            if other == dim or wanted[: len(grown)] != grown:
                continue
            pair = ((self.shape[dim], at.dims[dim]), (self.shape[other], grown))
            if len(moved) > 1 and any(is_padded(n, found) for n, found in pair):
                continue
            after = ShardState(self._with(self._with(at.dims, dim, left), other, grown), at.partial)
            yield self._step(at, "all_to_all", moved, dim, after, other)

    def _shards(self, at: ShardState, dim: int) -> Iterator[tuple[RouteStep, int]]:
        wanted, axes = self.target.dims[dim], at.dims[dim]
        if wanted[: len(axes)] != axes or len(wanted) == len(axes):
            return
        axis = wanted[len(axes)]
        used = [a for found in (*at.dims, at.partial) for a in found]
        if not any(axis.meets(a) for a in used):
            grown = self._with(at.dims, dim, (*axes, axis))
            yield RouteStep("shard", (axis,), dim, -1, ShardState(grown, at.partial), 0), 0

    def _halos(self, at: ShardState) -> Iterator[tuple[RouteStep, int]]:
        """Yields collectives after which a dim has the overlapping parts of the target: a halo
        exchange from parts of equal size, or a slice if every rank has the whole dim."""
        for dim, overlap in enumerate(self.target.overlaps):
            have = at.overlaps or (None,) * len(at.dims)
            if overlap is None or have[dim] is not None:
                continue
            axes, wanted = at.dims[dim], self.target.dims[dim]
            grown = ShardState(
                self._with(at.dims, dim, wanted),
                at.partial,
                (*have[:dim], overlap, *have[dim + 1 :]),
            )
            if axes == wanted and is_regular(self.shape[dim], axes):
                size = self.shape[dim]
                row = self.local(at) // int(cast("int", part_size(size, axes)))
                sent = [row * count for count in sends(size, size_of(axes), overlap)]
                yield RouteStep("halo", joined(axes), dim, -1, grown, sum(sent)), len(sent)
            used = [a for d, found in enumerate(at.dims) if d != dim for a in found]
            if not axes and not any(a.meets(b) for a in wanted for b in (*used, *at.partial)):
                yield RouteStep("shard", joined(wanted), dim, -1, grown, 0), 0

    def _takers(self, at: ShardState, axis: MeshAxis) -> list[int]:
        """Returns the dims that `axis` splits next in the target, after the axes that split them
        now."""
        return [
            dim
            for dim, (axes, wanted) in enumerate(zip(at.dims, self.target.dims, strict=True))
            if (*axes, axis) == wanted[: len(axes) + 1]
        ]

    def _permutes(self, at: ShardState) -> Iterator[tuple[RouteStep, int]]:
        """Yields permutes: axes of a dim in another order, or replaced by others of equal sizes."""
        for dim, (axes, wanted) in enumerate(zip(at.dims, self.target.dims, strict=True)):
            is_other = axes != wanted and set(axes) == set(wanted)
            if is_other and not is_padded(self.shape[dim], axes):
                after = ShardState(self._with(at.dims, dim, wanted), at.partial)
                yield RouteStep("permute", (), -1, -1, after, self.local(at)), 1
        slots = [(d, i) for d, axes in enumerate(at.dims) for i in range(len(axes))]
        held = [at.dims[d][i] for d, i in slots]
        for number, (dim, i) in enumerate(slots):
            wanted = self.target.dims[dim]
            if i >= len(wanted) or wanted[i] == held[number] or wanted[i].size != held[number].size:
                continue
            new = list(held)
            if wanted[i] in held:
                new[held.index(wanted[i])] = held[number]
            elif any(wanted[i].meets(a) for a in (*held, *at.partial)):
                continue
            new[number] = wanted[i]
            dims = [list(axes) for axes in at.dims]
            for (d, k), axis in zip(slots, new, strict=True):
                dims[d][k] = axis
            after = ShardState(tuple(tuple(axes) for axes in dims), at.partial)
            yield RouteStep("permute", (), -1, -1, after, self.local(at)), 1

    def _with(self, dims: tuple[Axes, ...], dim: int, axes: Axes) -> tuple[Axes, ...]:
        return (*dims[:dim], axes, *dims[dim + 1 :])

    def _step(
        self, at: ShardState, op: str, over: Axes, dim: int, after: ShardState, to: int = -1
    ) -> tuple[RouteStep, int]:
        ranks = size_of(over)
        cut = {"reduce_scatter": dim, "all_to_all": to}.get(op, -1)
        sent = sent_bytes(op, ranks, self.local(at, cut, ranks))
        waits = (ranks - 1) * (2 if op == "all_reduce" else 1)
        return RouteStep(op, joined(over), dim, to, after, sent), waits
