"""Conversion of shardings from and to `PartitionSpec` of JAX."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec

from stack.errors import UsageError
from stack.mesh.meshes import Mesh, joined
from stack.mesh.sharding import OPEN, WHOLE, DimSharding, Sharding


def from_spec(mesh: Mesh, spec: PartitionSpec, rank: int) -> Sharding:
    """Converts a `P("dp", None, ("a", "b"))`. An unconstrained dim is open; missing ones are whole.

    Raises UsageError for a spec of more dims, RuleError for an unknown axis.
    """
    if len(spec) > rank:
        raise UsageError(f"{spec} has {len(spec)} entries for a value of {rank} dims")
    dims = [_dim(mesh, entry) for entry in spec]
    return Sharding(mesh, (*dims, *[WHOLE] * (rank - len(dims))))


def _dim(mesh: Mesh, entry: Any) -> DimSharding:
    if entry is PartitionSpec.UNCONSTRAINED:
        return OPEN
    names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    return DimSharding(tuple(mesh.axis(name) for name in names))


def to_spec(sharding: Sharding) -> PartitionSpec:
    """Converts to a `PartitionSpec`. Raises UsageError if that cannot express it."""
    if sharding.partial or sharding.replicated:
        raise UsageError(f"a PartitionSpec cannot express{sharding.tail}")
    entries: list[Any] = []
    for dim in sharding.dims:
        axes = joined(dim.axes)
        if any(axis.size != axis.whole for axis in axes) or (dim.is_open and axes):
            raise UsageError(f"a PartitionSpec splits by whole axes, not by {dim}")
        names = tuple(axis.name for axis in axes)
        entries.append(
            PartitionSpec.UNCONSTRAINED
            if dim.is_open
            else names[0]
            if len(names) == 1
            else names or None
        )
    return PartitionSpec(*entries)
