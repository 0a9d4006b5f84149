"""Whole programs: transforms of JAX, control flow, values at the edges, and a training run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_control import clipped, scaled
from jax_harness import all_nodes, check, fallbacks

import stack
from stack.demos import transformer
from stack.errors import UnsupportedOp
from stack.frontends.jax import FRONTEND

X = jnp.linspace(-2, 2, 12, dtype=jnp.float32).reshape(3, 4)
HERE = Path(__file__).name


@pytest.mark.parametrize("factory", [transformer.llama_block, transformer.gpt2_block])
def test_demo_blocks(factory: Any) -> None:
    fn, args = factory(frontend="jax")
    check(fn, *args, tolerance=1e-3, replay_too=False)


def test_a_partial_has_the_name_of_its_function() -> None:
    def powered(n: int, x: Any) -> Any:
        return x**n

    func = stack.trace(functools.partial(functools.partial(powered), 3), X)
    assert func.name == "powered"
    np.testing.assert_allclose(func.interpret(np.asarray(X)), np.asarray(X) ** 3, rtol=1e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("counts", [(1, 2, 3), (0, 6, 0), (2, 0, 1)], ids=str)
def test_ragged_products(counts: tuple[int, ...]) -> None:
    """Rows in groups, and the gradients by the rows and by the matrices."""
    w = jnp.linspace(-1, 1, 60, dtype=jnp.float32).reshape(3, 4, 5)
    x, sizes = jnp.cos(jnp.arange(24.0)).reshape(6, 4), jnp.array(counts, jnp.int32)
    check(lambda x, w, sizes: lax.ragged_dot(x, w, sizes), x, w, sizes)

    def square(x: Any, w: Any, sizes: Any) -> Any:
        return (lax.ragged_dot(x, w, sizes) ** 2).sum()

    captured = check(jax.grad(square, (0, 1)), x, w, sizes)
    assert sum(n.op == "ragged_dot" for n in all_nodes(captured.func)) == 3


@pytest.mark.slow
def test_training_follows_jax() -> None:
    loss, (params, *data) = transformer.gpt2(frontend="jax")
    ours, theirs = stack.jit(jax.value_and_grad(loss)), jax.jit(jax.value_and_grad(loss))
    mine = wanted = params
    for _ in range(20):
        got, grads = ours(mine, *data)
        mine = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, mine, grads)
        want, grads = theirs(wanted, *data)
        wanted = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, wanted, grads)
        assert abs(float(got) - float(want)) < 1e-4
    assert not fallbacks(stack.trace(jax.value_and_grad(loss), params, *data))


PROGRAMS = {
    "scan": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(4), x),
    "while": lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x),
    "cond": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(7, [jnp.sin, jnp.cos, jnp.exp], x),
    "nested jit": lambda x: jax.jit(lambda y: jax.jit(jnp.tanh)(y) + y)(x),
    "vmap": jax.vmap(lambda r: r / jnp.linalg.norm(r)),
    "custom jvp": jax.grad(lambda x: clipped(x).sum()),
    "custom vjp": jax.grad(lambda x: scaled(x).sum()),
    "remat": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
    "pytree out": lambda x: {"a": (x, [x + 1]), "b": None},
    "closure": lambda x: x + X,
    "bool": lambda x: (x > 0) ^ (x < 1),
    "bf16": lambda x: x.astype(jnp.bfloat16) * 2,
    "not finite": lambda x: (jnp.log(x), 1 / (x * 0), jnp.isnan(x * jnp.inf)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    check(PROGRAMS[name], X)


def test_sizes_and_trees() -> None:
    check(lambda x: (x + 1, x.sum()), jnp.zeros((0, 3)))
    check(lambda x: x * 2, jnp.float32(3))
    check(lambda p, i: p["w"][0] * i, {"w": [X]}, jnp.int32(3))


def test_scans_of_no_steps() -> None:
    def scanned(x: Any, xs: Any) -> Any:
        return lax.scan(lambda c, r: (c * r, c + 1), x, xs, reverse=True)

    check(scanned, X, X[None][:0])
    check(lambda x: scanned(x, x[:0, None] + jnp.ones(4)), X[0])
    check(jax.grad(lambda x: scanned(x, x[None][:0])[0].sum()), X)


def test_lines_inside_nested_calls() -> None:
    def body(c: Any, r: Any) -> Any:
        return c + jnp.sin(r), jax.jit(jnp.exp)(r)

    func = stack.trace(lambda x: lax.scan(body, jnp.zeros(4), x), X)
    inner = [b for n in all_nodes(func) for b in n.blocks]
    lines = {line for b in inner for n in b.nodes for line in b.locs.get(n, ()) if n.op == "sin"}
    assert lines and all(line.startswith(HERE) for line in lines)


def test_unsupported_falls_back_or_raises() -> None:
    def fn(x: Any) -> Any:
        return x.at[1, 1].apply(jnp.abs)

    assert fallbacks(stack.trace(fn, X)) == ["jax:scatter"]
    np.testing.assert_allclose(stack.jit(fn)(X), fn(X))
    with pytest.raises(UnsupportedOp):
        stack.jit(fn, strict=True)(X)


@pytest.mark.parametrize("dtype", [jnp.float4_e2m1fn])
def test_element_types_that_the_ir_lacks_are_named(dtype: Any) -> None:
    def made(x: Any) -> Any:
        return (x + 1).astype(dtype).astype(jnp.float32)

    with pytest.raises(UnsupportedOp, match=r"convert_element_type  \(test_programs\.py:\d+ made"):
        stack.compile(made, X)
    narrow, call = X.astype(dtype), stack.jit(lambda x: x * 2)
    call(X)
    for compiles in (lambda: stack.compile(lambda x: x * 2, narrow), lambda: call(narrow)):
        with pytest.raises(UnsupportedOp, match=f"argument x .*\n.*{jnp.dtype(dtype).name}"):
            compiles()
    with pytest.raises(UnsupportedOp, match="a constant"):
        stack.compile(lambda x: x + narrow.astype(x.dtype), X)


def test_other_arguments_raise_as_in_jax() -> None:
    captured = FRONTEND.capture(jnp.sin, (X,))
    for other in (X[:2], X.astype(jnp.int32)):
        with pytest.raises(TypeError):
            captured.flatten(other)
