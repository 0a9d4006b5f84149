"""Rounding of products of f32: JAX's `precision`, its setting, and the device."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import stack
from stack.frontends.jax import FRONTEND
from stack.frontends.jax.capture import capture

X = jnp.ones((8, 8))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "device_of", lambda _: "cuda:0")


def asked(fn: Any, *args: Any) -> list[Any]:
    """The precision of each product."""
    nodes = stack.trace(fn, *args).nodes
    return [n.attrs.get("precision") for n in nodes if n.op in ("dot", "conv")]


def product(precision: Any = None) -> Any:
    return lambda x: jnp.dot(x, x, precision=precision)


@pytest.mark.parametrize("precision", [None, "default", "high", lax.DotAlgorithmPreset.DEFAULT])
@pytest.mark.usefixtures("gpu")
def test_a_gpu_rounds_by_default(precision: Any) -> None:
    assert asked(product(precision), X) == ["tf32"]


@pytest.mark.parametrize("precision", ["highest", lax.DotAlgorithmPreset.F32_F32_F32])
@pytest.mark.usefixtures("gpu")
def test_not_where_more_is_asked_for(precision: Any) -> None:
    assert asked(product(precision), X) == [None]


@pytest.mark.usefixtures("gpu")
def test_by_the_setting() -> None:
    with jax.default_matmul_precision("float32"):
        assert asked(product(), X) == [None]
        assert asked(product("default"), X) == ["tf32"]


@pytest.mark.usefixtures("gpu")
def test_convolutions_and_other_types() -> None:
    image, window = jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 3, 3))
    assert asked(lambda x, w: lax.conv(x, w, (1, 1), "VALID"), image, window) == ["tf32"]
    assert asked(product(), X.astype(jnp.bfloat16)) == [None]


def test_a_cpu_does_not_round() -> None:
    assert asked(product(), X) == [None]


def test_another_setting_needs_another_capture() -> None:
    captured = FRONTEND.capture(product(), (X,))
    captured.flatten(X)
    with jax.default_matmul_precision("float32"):
        with pytest.raises(TypeError, match="jax_default_matmul_precision=None, now 'float32'"):
            captured.flatten(X)
        assert stack.jit(product())(X).shape == X.shape
