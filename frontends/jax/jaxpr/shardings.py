"""Conversion of shardings from and to JAX: `PartitionSpec`, and Shardy's attributes."""

from __future__ import annotations

from typing import Any

from jax.sharding import PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from stack.errors import UsageError
from stack.ir.mesh import Mesh, MeshAxis, joined
from stack.ir.sharding import OPEN, WHOLE, DimSharding, Sharding


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


# ---- Shardy


def to_sdy(sharding: Sharding) -> str:
    """Converts to a `#sdy.sharding` attribute. Raises UsageError for partial values except sums."""
    if sharding.partial and sharding.kind != "sum":
        raise UsageError(f"Shardy's unreduced axes are sums, not {sharding.kind}")
    dims = ", ".join(
        "{" + ", ".join([*map(_axis_text, dim.axes), *["?"] * dim.is_open]) + "}" + _priority(dim)
        for dim in sharding.dims
    )
    text = f"#sdy.sharding<@{sharding.mesh.name}, [{dims}]"
    for word, axes in (("replicated", sharding.replicated), ("unreduced", sharding.partial)):
        if axes:
            # Shardy requires mesh order
            order = [name for name, _ in sharding.mesh.axes]
            ordered = sorted(axes, key=lambda axis: (order.index(axis.name), axis.before))
            text += f", {word}={{{', '.join(map(_axis_text, ordered))}}}"
    return text + ">"


def mesh_to_sdy(mesh: Mesh) -> str:
    """Converts a mesh to a `#sdy.mesh` attribute."""
    return "#sdy.mesh<[" + ", ".join(f'"{name}"={size}' for name, size in mesh.axes) + "]>"


def _axis_text(axis: MeshAxis) -> str:
    part = "" if axis.size == axis.whole else f":({axis.before}){axis.size}"
    return f'"{axis.name}"{part}'


def _priority(dim: DimSharding) -> str:
    return "" if dim.priority is None else f"p{dim.priority}"


def from_sdy(mesh: Mesh, text: str, context: ir.Context) -> Sharding:
    """Converts a `#sdy.sharding` attribute, parsed by Shardy.

    Raises UsageError for text that Shardy does not accept, RuleError for an unknown axis.
    """
    try:
        with context:
            held = sdy.TensorShardingAttr(ir.Attribute.parse(text))
    except (ValueError, ir.MLIRError) as error:
        raise UsageError(f"{text!r} is no sharding of Shardy: {error}") from error
    dims: list[DimSharding] = []
    for dim in map(sdy.DimensionShardingAttr, held.dimension_shardings):
        axes = tuple(_axis(mesh, axis) for axis in dim.axes)
        priority = None if dim.priority is None else int(dim.priority)
        dims.append(DimSharding(axes, not dim.is_closed, priority))
    copies = tuple(_axis(mesh, axis) for axis in held.replicated_axes)
    partial = tuple(_axis(mesh, axis) for axis in held.unreduced_axes)
    return Sharding(mesh, tuple(dims), copies, partial)


def _axis(mesh: Mesh, held: Any) -> MeshAxis:
    axis = sdy.AxisRefAttr(held)
    if axis.sub_axis_info is None:
        return mesh.axis(axis.name)
    part = sdy.SubAxisInfoAttr(axis.sub_axis_info)
    return mesh.axis(f"{axis.name}:({part.pre_size}){part.size}")
