"""Places to and from the words of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import stack
from stack.errors import UsageError
from stack.frontends.jax.sharding.specs import from_spec, to_spec
from stack.ir.node import walk
from stack.ir.parser import parse
from stack.mesh.meshes import parse_mesh
from stack.mesh.sharding import DimSharding, Sharding
from stack.rewrite import Pipeline
from stack.run.mesh import simulate

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


# ---- constraints in a program

A = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
B = np.cos(A)
MESH = AbstractMesh((2, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)


def placed(x: Any, *spec: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P(*spec)))


def of_scan(a: Any, b: Any) -> Any:
    return jax.lax.scan(lambda c, x: (placed(c @ b, "dp") + x, None), a, a)[0]


CONSTRAINED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "result": (lambda a, b: placed(a @ b, "dp", "tp"), ["f32[8{dp}, 8{tp}] @m"]),
    "operand": (lambda a, b: placed(a, ("dp", "tp")) @ b, ["f32[8{dp, tp}, 8] @m"]),
    "open": (lambda a, b: placed(a @ b, P.UNCONSTRAINED, "tp") * 2, ["f32[8{?}, 8{tp}] @m"]),
    "whole": (lambda a, b: placed(a @ b), ["f32[8, 8] @m"]),
    "two": (
        lambda a, b: placed(placed(a, "dp") @ b, None, "tp") * 2,
        ["f32[8{dp}, 8] @m", "f32[8, 8{tp}] @m"],
    ),
    "scan": (of_scan, ["f32[8{dp}, 8] @m"]),
    "nested jit": (lambda a, b: jax.jit(lambda a: placed(a, "dp"))(a) @ b, ["f32[8{dp}, 8] @m"]),
    "cond": (
        lambda a, b: jax.lax.cond(a.sum() > 0, lambda a: placed(a, "dp"), lambda a: -a, a) + b,
        ["f32[8{dp}, 8] @m"],
    ),
    "vmap": (lambda a, b: jax.vmap(lambda r: placed(r, "tp"))(a) @ b, ["f32[8{?}, 8{tp}] @m"]),
    "gradient": (
        jax.grad(lambda a, b: (placed(a @ b, "dp") ** 2).sum()),
        ["f32[8{dp}, 8] @m", "f32[8{dp}, 8] @m"],
    ),
    "complex": (lambda a, b: abs(placed(a + 1j * b, "dp")), ["f32[8{dp}, 8, 2] @m"]),
}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_constraints_are_places(name: str) -> None:
    """Traced, followed by the passes of sharding, and left out, with a note, on one device."""
    fn, types = CONSTRAINED[name]
    func = stack.trace(fn, A, B)
    nodes = [node for _, node in walk(func.body) if node.op == "reshard" and node.shape]
    assert [str(node.type) for node in nodes] == types
    assert [str(mesh) for mesh in func.meshes] == ["m(dp=2, tp=4)"]
    assert parse(str(func)) is func
    want = func.interpret(A, B)
    both = Pipeline("canonicalize,propagate,reshard").run(func).func
    local = Pipeline("spmd").run(both).func
    assert "reshard" not in [node.op for _, node in walk(local.body)]
    (found,) = simulate(both, local, [A, B]).results
    np.testing.assert_allclose(found, want, rtol=1e-5)
    run = (compiled := stack.compile(fn, A, B)).run
    np.testing.assert_allclose(compiled(A, B), want, rtol=1e-5)
    notes = run.notes["sharding constraints"]
    assert "left out on one device" in notes
    assert all("test_jax_sharding.py:" in notes and type_ in notes for type_ in types)
    assert all("reshard" not in kernel.ops for kernel in run.kernels)


def test_constraints_by_a_spec_under_a_mesh() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("dp", "tp"))
    with jax.set_mesh(mesh):
        func = stack.trace(lambda a: jax.lax.with_sharding_constraint(a, P("dp", None)), A)
    assert "f32[8{dp}, 8] @m" in str(func)
    assert [str(mesh) for mesh in func.meshes] == ["m(dp=1, tp=1)"]


def test_constraints_that_no_mesh_has_are_noted() -> None:
    one = SingleDeviceSharding(jax.devices()[0])
    run = stack.compile(lambda a: jax.lax.with_sharding_constraint(a, one) + 1, A).run
    assert "SingleDeviceSharding" in run.notes["sharding constraints"]
    assert "sharding constraints" not in stack.compile(lambda a: jnp.exp(a), A).run.notes


def test_another_mesh_has_another_name() -> None:
    other = NamedSharding(AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,)), P("x"))

    def fn(a: Any) -> Any:
        return placed(a, "dp") + jax.lax.with_sharding_constraint(a, other)

    func = stack.trace(fn, A)
    assert [str(mesh) for mesh in func.meshes] == ["m(dp=2, tp=4)", "m1(x=8)"]
    assert parse(str(func)) is func
