"""Places to and from the words of JAX and Shardy."""

from __future__ import annotations

import random

import pytest
from jax._src.interpreters.mlir import make_ir_context
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from sharded_cases import MESHES, random_sharding

from stack.errors import UsageError
from stack.frontends.jax_sharding import from_sdy, from_spec, mesh_to_sdy, to_sdy, to_spec
from stack.ir import tensor
from stack.ir.mesh import parse_mesh
from stack.ir.sharding import DimSharding, Sharding

M = parse_mesh("dp=2, tp=4")


@pytest.mark.parametrize(
    "spec", [P(), P("dp"), P(None, "tp"), P(("dp", "tp")), P(P.UNCONSTRAINED, "dp"), P("tp", None)]
)
def test_specs_there_and_back(spec: P) -> None:
    sharding = from_spec(M, spec, 2)
    assert from_spec(M, to_spec(sharding), 2) == sharding
    assert tuple(to_spec(sharding))[: len(spec)] == tuple(spec)


@pytest.mark.parametrize("text", ["{tp:(1)2}", "{dp, ?}"])
def test_what_a_spec_cannot_say(text: str) -> None:
    axes = tuple(M.axis(t) for t in text.strip("{}").replace(", ?", "").split(", "))
    with pytest.raises(UsageError, match="PartitionSpec"):
        to_spec(Sharding(M, (DimSharding(axes, "?" in text),)))


def test_attributes_of_shardy_there_and_back() -> None:
    """Shardy's parser takes all of them, and prints them as they were written."""
    rng = random.Random(7)
    context = make_ir_context()
    for _ in range(200):
        type_ = tensor("f32", *(rng.choice([2, 4, 8]) for _ in range(rng.randint(0, 4))))
        mesh = rng.choice(MESHES)
        sharding = random_sharding(mesh, type_, rng)
        free = [a for a in map(mesh.axis, dict(mesh.axes)) if not any(map(a.meets, sharding.used))]
        part = tuple(free) if rng.random() < 0.5 else ()
        extra = {"replicated": part} if rng.random() < 0.5 else {"partial": part}
        dims = tuple(
            DimSharding(d.axes, d.is_open, rng.choice([None, 0, 3]) if d.axes else None)
            for d in sharding.dims
        )
        sharding = Sharding(mesh, dims, **extra)
        text = to_sdy(sharding)
        assert from_sdy(mesh, text, context) == sharding, text
        with context:
            assert str(ir.Attribute.parse(text)) == text
            assert str(ir.Attribute.parse(mesh_to_sdy(mesh))).startswith("#sdy.mesh<[")


def test_text_that_shardy_refuses() -> None:
    with pytest.raises(UsageError, match="is no sharding"):
        from_sdy(M, '#sdy.sharding<@m, ["dp"]>', make_ir_context())
