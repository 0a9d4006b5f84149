from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax_harness import all_nodes, check

RNG = np.random.default_rng(1)


def draw(*shape: int, dtype: str = "float32") -> Any:
    if "int" in dtype:
        return jnp.asarray(RNG.integers(-9, 9, shape), dtype)
    return jnp.asarray(RNG.standard_normal(shape), dtype)


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_reshape_transpose_squeeze(dtype: str) -> None:
    x = draw(2, 3, 4).astype(dtype)
    check(lambda x: x.reshape(6, 4), x)
    check(lambda x: lax.reshape(x, (4, 6), (2, 0, 1)), x)
    check(lambda x: x.transpose(2, 0, 1), x)
    check(lambda x: x[:, None, :, None].squeeze(1), x)
    check(lambda x: x.reshape(-1)[:0].reshape(0, 5), x)


def test_reshapes_in_a_row_are_one() -> None:
    captured = check(lambda x: x[:, None].reshape(6, 1, 4).squeeze(1) + 1, draw(2, 3, 4))
    assert [n.op for n in all_nodes(captured.func)].count("reshape") == 1


@pytest.mark.parametrize(
    "case",
    [
        ((), (2, 3), ()),
        ((3,), (2, 3), (1,)),
        ((2,), (2, 3), (0,)),
        ((2, 1), (2, 3), (0, 1)),
        ((1, 3), (4, 2, 3), (0, 2)),
        ((2, 3), (2, 1, 3), (0, 2)),
        ((0,), (0, 3), (0,)),
        ((1,), (0,), (0,)),
    ],
)
def test_broadcast_in_dim(case: Any) -> None:
    source, target, axes = case
    check(lambda x: lax.broadcast_in_dim(x, target, axes), draw(*source))


@pytest.mark.parametrize(
    "case",
    [
        ((0, 0), (4, 5), None),
        ((1, 2), (3, 5), None),
        ((0, 1), (4, 5), (2, 3)),
        ((2, 2), (2, 4), (1, 1)),
    ],
)
def test_slice(case: Any) -> None:
    check(lambda x: lax.slice(x, *case), draw(4, 5))


def test_python_indexing() -> None:
    x = draw(5, 6, 7)
    for fn in (
        lambda x: x[1],
        lambda x: x[-1, ::2],
        lambda x: x[..., ::-1],
        lambda x: x[:, None, 2:4, -3:],
        lambda x: x[jnp.array([0, 2]), :, jnp.array([1, 1])],
        lambda x: x[:, jnp.array([[0], [5]])],
        lambda x: x[x[0, 0, :5] > 0, 0, 0] if False else x[0],
    ):
        check(fn, x)


@pytest.mark.each
@pytest.mark.parametrize(
    "config",
    [
        ((0, 0, 0), (0, 0, 0)),
        ((1, 2, 0), (0, 1, 2)),
        ((-1, 2, 0), (1, -2, 0)),
        ((-1, -1, 1), (0, -3, 0)),
        ((0, 0, 3), (2, 0, 0)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_pad(config: Any, dtype: str) -> None:
    check(lambda x: lax.pad(x, jnp.asarray(7, dtype), config), draw(3, 4, dtype=dtype))


def test_pad_of_nothing() -> None:
    check(lambda x: lax.pad(x, 1.0, ((1, 1, 2), (0, 1, 0))), draw(0, 2))


def test_concatenate_split_stack() -> None:
    x = draw(4, 6)
    check(lambda x: jnp.concatenate([x, x[:, :2], x * 2], axis=1), x)
    check(lambda x: jnp.split(x, [1, 4], axis=1), x)
    check(lambda x: jnp.stack([x, x + 1], axis=-1), x)
    check(lambda x: jnp.unstack(x, axis=1), x)
    check(lambda x: jnp.tile(x, (2, 3)), x)
    check(lambda x: jnp.repeat(x, 3, axis=0), x)
    check(lambda x: jnp.roll(x, 2, axis=1), x)
    check(lambda x: jnp.flip(x), x)


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16", "uint8"])
def test_iota(dtype: str) -> None:
    for axis in range(2):
        check(lambda x, a=axis: lax.broadcasted_iota(dtype, (2, 2), a), draw(1))


def test_creation() -> None:
    x = draw(3, 3)
    check(lambda x: (jnp.zeros_like(x), jnp.ones((2,)), jnp.full_like(x, jnp.inf), jnp.eye(3)), x)
    check(lambda x: (jnp.arange(5), jnp.linspace(0, 1, 4), jnp.tril(x), jnp.triu(x, 1)), x)
    check(lambda x: jnp.diag(jnp.diagonal(x)), x)


def test_einops_like() -> None:
    x = draw(2, 6, 8)
    check(lambda x: x.reshape(2, 6, 2, 4).swapaxes(1, 2).reshape(4, 6, 4), x)
    check(lambda x: jnp.moveaxis(x, 0, -1), x)
    check(lambda x: jnp.meshgrid(x[0, 0], x[0, :, 0]), x)


def test_copies_and_hints_vanish() -> None:
    x = draw(3)
    captured = check(
        lambda x: jax.lax.stop_gradient(jnp.copy(jax.lax.optimization_barrier(x))) + 1, x
    )
    assert [n.op for n in all_nodes(captured.func) if n.op != "const"] == ["add"]
