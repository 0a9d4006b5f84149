"""Lowerings of sharding constraints: a `reshard` of the value to its sharding.

The passes of `stack.passes.sharding` use them. A program for one device does not need them.
"""

from __future__ import annotations

from typing import Any

from jax.sharding import NamedSharding

from stack.errors import RuleError
from stack.frontends.jax.lax.lowering import Shared, Site, lower
from stack.frontends.jax.sharding.specs import from_spec
from stack.ir.node import Node
from stack.mesh.meshes import Mesh
from stack.mesh.sharding import OPEN, Sharding


@lower("sharding_constraint")
def _constraint(s: Site, x: Node, *, sharding: Any, unconstrained_dims: Any = (), **_: Any) -> Node:
    return _placed(s, x, sharding, unconstrained_dims)


@lower("reshard")
def _reshard(s: Site, x: Node, *, dst_sharding: Any, **_: Any) -> Node:
    return _placed(s, x, dst_sharding, ())


_constraint.handles_words = _reshard.handles_words = True


def _placed(s: Site, x: Node, sharding: Any, open_dims: Any) -> Node:
    """Returns `x` in a `reshard` node with the sharding that the program asks for.

    If the sharding has no mesh of named axes, or is invalid for `x`, returns `x` and records why.
    """
    shared, line = s.importer.shared, ", ".join(s.b.loc) or "no source line"
    if not isinstance(sharding, NamedSharding):
        shared.constraints.append(f"{line}: {sharding}, which has no mesh of named axes")
        return x
    try:
        found = from_spec(_mesh(shared, sharding.mesh), sharding.spec, x.tensor.rank)
        dims = tuple(OPEN if i in open_dims else d for i, d in enumerate(found.dims))
        type_ = x.tensor.with_sharding(_checked(Sharding(found.mesh, dims), x))
    except RuleError as error:
        shared.constraints.append(f"{line}: {sharding.spec} of {x.tensor}: {error}")
        return x
    shared.constraints.append(f"{line}: {type_}")
    node = Node("reshard", (x,), {}, type_)
    s.b.note(node, "placed")
    return node


def _checked(sharding: Sharding, x: Node) -> Sharding:
    sharding.check(x.shape)
    return sharding


def _mesh(shared: Shared, mesh: Any) -> Mesh:
    """Returns the IR's mesh for JAX's, named `m`, `m1` and so on. Raises RuleError."""
    axes = tuple((str(name), int(size)) for name, size in mesh.shape.items())
    number = len(shared.meshes)
    return shared.meshes.setdefault(axes, Mesh(f"m{number or ''}", axes))
