"""Conversion of shardings from and to DTensor's placements, one for each axis of the mesh."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from stack.errors import UsageError
from stack.mesh.meshes import Mesh, MeshAxis
from stack.mesh.sharding import Sharding, sharded

# DTensor's names of pending reductions
KINDS = {"sum": "sum", "product": "prod", "max": "max", "min": "min", "band": "and", "bor": "or"}


def from_placements(mesh: Mesh, placements: Sequence[Placement], rank: int) -> Sharding:
    """Converts `[Shard(0), Partial()]`; axes that split the same dim do so in the mesh's order.

    Raises UsageError for other placements, for two kinds of partial values, and for another number
    of axes.
    """
    if len(placements) != len(mesh.axes):
        raise UsageError(f"{len(placements)} placements for the {len(mesh.axes)} axes of {mesh}")
    dims: list[list[MeshAxis]] = [[] for _ in range(rank)]
    partial: list[MeshAxis] = []
    kinds: set[str] = set()
    for (name, _), placement in zip(mesh.axes, placements, strict=True):
        if type(placement) is Shard and -rank <= placement.dim < rank:
            dims[placement.dim].append(mesh.axis(name))
        elif isinstance(placement, Partial) and placement.reduce_op in KINDS:
            partial.append(mesh.axis(name))
            kinds.add(KINDS[placement.reduce_op])
        elif not isinstance(placement, Replicate):
            raise UsageError(f"{placement} on axis {name!r} is not known for {rank} dims")
    if len(kinds) > 1:
        raise UsageError(f"partial values of two kinds: {', '.join(sorted(kinds))}")
    axes = [tuple(found) for found in dims]
    return sharded(mesh, axes, tuple(partial), next(iter(kinds), "sum"))


def to_placements(sharding: Sharding) -> list[Placement]:
    """Converts to one placement per mesh axis. Raises UsageError if DTensor cannot express it."""
    order = [name for name, _ in sharding.mesh.axes]
    found: dict[str, Placement] = {name: Replicate() for name in order}
    for axis in (*sharding.used, *sharding.partial):
        if axis.size != axis.whole:
            raise UsageError(f"DTensor splits whole axes, not {axis}")
    for number, axes in enumerate(sharding.axes):
        at = [order.index(axis.name) for axis in axes]
        if at != sorted(at):
            raise UsageError(f"DTensor splits dim {number} in the order of the mesh, not {axes}")
        found.update((axis.name, Shard(number)) for axis in axes)
    theirs = {ours: name for name, ours in KINDS.items()}
    found.update((axis.name, Partial(theirs[sharding.kind])) for axis in sharding.partial)
    return list(found.values())
