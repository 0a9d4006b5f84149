"""Convert a reshard to the collectives of its route, on the shards of one rank."""

from __future__ import annotations

from math import prod
from typing import cast

from stack.ir import Builder, Node
from stack.ir.dim import Dim
from stack.ir.types import TensorType
from stack.mesh.meshes import Axes, Mesh, axes_text, size_of
from stack.mesh.sharding import Sharding, part_size
from stack.passes.sharding.route import RouteStep, ShardState, places, route


def moved(b: Builder, x: Node, type_: TensorType, source: Sharding, target: Sharding) -> Node:
    """Builds the collectives that reshard a value from `source` to `target`. Takes a rank's shard
    `x` in the sharding `source`, and returns its shard in `target`."""
    at = places(source)
    mover = CollectiveBuilder(b, type_, source.mesh, source.kind if source.partial else target.kind)
    for step in route(type_, source, target).steps:
        x = mover.step(x, step, at)
        at = step.after
    return x


class CollectiveBuilder:
    """Builds collectives on shards of one value; uneven shards are padded, then cut."""

    def __init__(self, b: Builder, type_: TensorType, mesh: Mesh, kind: str) -> None:
        self.b, self.type, self.mesh, self.kind = b, type_, mesh, kind

    def step(self, x: Node, step: RouteStep, before: ShardState) -> Node:
        """Returns the result of one collective."""
        at, dim, ranks = self._over(step.over), step.axis, size_of(step.over)
        if step.op == "all_reduce":
            return self.b.all_reduce(x, kind=self.kind, **at)
        if step.op == "all_gather":
            return self._cut(self.b.all_gather(x, axis=dim, **at), dim, step.after)
        if step.op == "reduce_scatter":
            x = padded(self.b, x, dim, ranks)
            return self.b.reduce_scatter(x, kind=self.kind, axis=dim, **at)
        if step.op == "all_to_all":
            x = padded(self.b, x, step.to, ranks)
            return self._cut(self.b.all_to_all(x, split=step.to, concat=dim, **at), dim, step.after)
        overlap = step.after.overlaps[dim] if step.after.overlaps and dim >= 0 else None
        if step.op == "halo":
            size = int(cast("int", self.type.shape[dim]))
            return self.b.halo(x, axis=dim, size=size, overlap=overlap, **at)
        if step.op == "shard" and overlap is not None:
            return self.b.shard(x, axis=dim, overlap=overlap, **at)
        if step.op == "shard":
            return self.b.shard(padded(self.b, x, dim, ranks), axis=dim, **at)
        if step.op == "permute":
            order = self._order(before, step.after)
            return self.b.permute(x, mesh=self.mesh.sizes_text, order=order)
        position = self.b.part_start(size=ranks, **at)
        return self.b.select(self.b.eq(position, 0), x, self.b.const(0, x.dtype))

    def _over(self, axes: Axes) -> dict[str, str]:
        return {"mesh": self.mesh.sizes_text, "over": axes_text(axes)}

    def _cut(self, x: Node, dim: int, at: ShardState) -> Node:
        size = part_size(self.type.shape[dim], at.dims[dim])
        return x if x.shape[dim] == size else first_of(self.b, x, dim, size)

    def _order(self, before: ShardState, after: ShardState) -> tuple[int, ...]:
        """Returns the order of a permute: for each rank, the rank that receives its shard. A rank
        whose shard does not change sends to itself."""

        def held(rank: int, at: ShardState) -> tuple[tuple[int, ...], ...]:
            return tuple((_number(self.mesh, rank, axes),) for axes in (*at.dims, at.partial))

        ranks = range(self.mesh.ranks)
        order = {r: r for r in ranks if held(r, before) == held(r, after)}
        for target in ranks:
            if target not in order.values():
                wanted = held(target, after)
                source = next(r for r in ranks if r not in order and held(r, before) == wanted)
                order[source] = target
        return tuple(order[r] for r in ranks)


def _number(mesh: Mesh, rank: int, axes: Axes) -> int:
    place = mesh.positions(rank, axes)
    return sum(p * prod(a.size for a in axes[i + 1 :]) for i, p in enumerate(place))


def padded(b: Builder, x: Node, dim: int, parts: int) -> Node:
    """Pads a dim to a multiple of `parts`; the padding is never read."""
    size = int(cast("int", x.shape[dim]))
    missing = -size % parts
    if not missing:
        return x
    none = (0,) * x.tensor.rank
    high = (*none[:dim], missing, *none[dim + 1 :])
    return b.pad(x, b.const(0, x.dtype), low=none, high=high, interior=none)


def first_of(b: Builder, x: Node, dim: int, size: Dim) -> Node:
    """Slices a value to its first `size` elements along a dim."""
    limit = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    rank = x.tensor.rank
    return b.slice(x, start=(0,) * rank, limit=limit, step=(1,) * rank)
