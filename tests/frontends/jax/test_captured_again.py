"""Why a JAX function is captured again, and `stack.jit(f).lower(x)`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stack

SEED = int(np.random.SeedSequence().generate_state(1)[0])


def note(compiled: Any) -> str:
    return str(compiled.run.notes.get("captured again", ""))


def test_the_argument_whose_shape_or_type_changed() -> None:
    compiled = stack.jit(lambda x, w: x @ w["up"])
    compiled(jnp.ones((2, 4)), {"up": jnp.ones((4, 8))})
    assert note(compiled) == ""
    compiled(jnp.ones((3, 4)), {"up": jnp.ones((4, 8))})
    assert note(compiled) == "argument x is f32[2, 4], got f32[3, 4]"
    compiled(jnp.ones((3, 4)), {"up": jnp.ones((4, 8), jnp.bfloat16)})
    assert note(compiled) == "argument w.up is f32[4, 8], got bf16[4, 8]"
    compiled(jnp.ones((3, 4)), {"up": jnp.ones((4, 8)), "down": jnp.ones(3)})
    assert "structure" in note(compiled)
    assert len(compiled.graphs) == 4
    compiled(jnp.ones((2, 4)), {"up": jnp.ones((4, 8))})  # the first one fits
    assert len(compiled.graphs) == 4


def test_a_static_argument_and_a_setting() -> None:
    def powers(x: Any, n: int, scale: Any = 1.0) -> Any:
        return x**n * scale

    x = jnp.ones(4)
    compiled = stack.jit(powers, static_argnums=1)
    compiled(x, 2)
    compiled(x, 3)
    assert note(compiled) == "static argument 1 was 2, is 3"
    compiled(x, 3, scale=x)
    assert note(compiled) == "3 positional arguments, before 2"
    named = stack.jit(powers, static_argnames=("n", "scale"))
    named(x, 2, scale=3)
    named(x, 2)
    change = "2 positional arguments, before 3; static argument 2 was 3, is absent"
    assert note(named) == change
    plain = stack.jit(lambda x: jnp.tanh(x))
    plain(x)
    with jax.default_matmul_precision("float32"):
        plain(x)
    assert "jax_default_matmul_precision=None, now 'float32'" in note(plain)


def test_lower_shows_every_stage_and_compiles() -> None:
    def net(x: Any, n: int) -> Any:
        return jnp.tanh(x @ x) * n

    x = jnp.asarray(np.random.default_rng(SEED).standard_normal((8, 8)), "float32")
    lowered = stack.jit(net, static_argnums=1).lower(x, 3)
    assert "kernel(" in lowered.as_text()
    assert "tanh(" in lowered.as_text("imported")
    with pytest.raises(KeyError, match="fused"):
        lowered.as_text("fussed")
    cost = lowered.cost_analysis()
    assert cost["flops"] >= 2 * 8**3
    assert cost["bytes accessed"] >= 2 * 4 * 8 * 8
    assert "peak memory" in str(lowered.memory_analysis())
    np.testing.assert_allclose(lowered.compile()(x), net(x, 3), rtol=1e-5, atol=1e-5)
