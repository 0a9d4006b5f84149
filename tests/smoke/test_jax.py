"""Smoke tests of the JAX frontend, run on every JAX release that is promised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stack
from stack.cli import main

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

MODEL = """
import jax
import jax.numpy as jnp

def mlp(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w), -1)

def factory():
    return mlp, (jnp.ones((4, 16)), jnp.ones((16, 8)))
"""


def mlp(x: Any, w: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(x @ w), -1)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "forward": mlp,
    "gradient": lambda x, w: jax.grad(lambda x, w: (mlp(x, w) ** 2).sum(), (0, 1))(x, w),
    "scan": lambda x, w: jax.lax.scan(lambda c, row: (c * 0.9 + row, c), x[0], x),
    "while": lambda x, w: jax.lax.while_loop(lambda c: c.sum() < 99.0, lambda c: c + 1.0, x * 0),
    "cond": lambda x, w: jax.lax.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, x),
    "vmap": lambda x, w: jax.vmap(lambda row: row @ w)(x),
    "sort and gather": lambda x, w: jnp.sort(x, 0)[jnp.array([2, 0])],
    "random bits": lambda x, w: x + jax.random.uniform(jax.random.key(3), x.shape),
    "convolution": lambda x, w: jax.lax.conv(x[None, None], w[None, None, :3, :3], (1, 1), "SAME"),
    "loss": lambda x, w: jax.value_and_grad(lambda w: jax.scipy.special.logsumexp(x @ w, 1).mean())(
        w
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_first_and_later_calls(name: str, rng: np.random.Generator) -> None:
    fn = PROGRAMS[name]
    first, later = (
        [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4, 16), (16, 8))]
        for _ in range(2)
    )
    compiled, decorated = stack.compile(fn, *first), stack.jit(fn)
    for args in (first, later, first):
        expected = jax.tree.leaves(jax.jit(fn)(*args))
        for found in (compiled(*args), decorated(*args)):
            for mine, other in zip(jax.tree.leaves(found), expected, strict=True):
                np.testing.assert_allclose(
                    np.asarray(mine), np.asarray(other), rtol=1e-4, atol=1e-5
                )


def test_training_steps(rng: np.random.Generator) -> None:
    x, w = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 16), (16, 8)))

    def step(w: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: (mlp(x, w) ** 2).sum())(w)

    ours, theirs, compiled = w, w, stack.jit(step)
    for _ in range(3):
        ours, theirs = compiled(ours), step(theirs)
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


def test_dump_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "smoke_jax_model.py").write_text(MODEL)
    target = f"{tmp_path / 'smoke_jax_model.py'}:factory"
    assert main(["dump", target, "-o", str(tmp_path / "run")]) == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert [stage["name"] for stage in manifest["stages"]][:2] == ["captured", "imported"]
    capsys.readouterr()
    assert main(["compare", target, "--with", "xla", "--rounds", "2", "--json"]) == 0
    assert all(row["ok"] for row in json.loads(capsys.readouterr().out)["rows"])


def test_a_hosted_operator_and_its_gradient(rng: np.random.Generator) -> None:
    from stack.ops import attention

    q, k, v = (jnp.asarray(rng.normal(size=(1, 2, 8, 4)), jnp.float32) for _ in range(3))

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2
        scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), scores, -jnp.inf)
        return jax.nn.softmax(scores, -1) @ v

    def hosted(q: Any, k: Any, v: Any) -> Any:
        return attention.attention(q, k, v, causal=True)

    for fn in (hosted, jax.grad(lambda *a: hosted(*a).sum(), (0, 1, 2))):
        reference = plain if fn is hosted else jax.grad(lambda *a: plain(*a).sum(), (0, 1, 2))
        for mine, other in zip(
            jax.tree.leaves(stack.compile(fn, q, k, v)(q, k, v)),
            jax.tree.leaves(reference(q, k, v)),
            strict=True,
        ):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-4, atol=1e-5)
