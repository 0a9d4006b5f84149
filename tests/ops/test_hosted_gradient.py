"""Operators that name their gradient, or are written for a framework."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import stack
from stack.hosted import Op, op, registry


@pytest.fixture
def scaled() -> Iterator[Op]:
    """x * y * scale of a float and an integer, whose declared gradient is ten times too large."""

    @op("toys.scaled_gradient", rule="... a, a: int, ... a, ... a -> ... a")
    def gradient(np, x, y, out, told, *, scale: float = 2.0):
        """10 times the derivative with respect to x."""
        return told * y.astype(x.dtype) * (10 * scale)

    @op("toys.scaled", rule="... a, a: int -> ... a", gradient=gradient)
    def scaled(np, x, y, *, scale: float = 2.0):
        """x y scale."""
        return x * y.astype(x.dtype) * scale

    yield scaled
    for name in ("toys.scaled", "toys.scaled_gradient"):
        registry._DECLARED.pop(name)


def test_torch_takes_the_gradient_that_is_given(scaled: Op) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 4, requires_grad=True)
    y = torch.arange(4)
    for call in (scaled, torch.compile(lambda *a, **k: scaled(*a, **k), backend="aot_eager")):
        (found,) = torch.autograd.grad(call(x, y, scale=3.0).sum(), [x])
        torch.testing.assert_close(found, (30.0 * y).expand(3, 4).float())


def test_jax_takes_the_gradient_that_is_given(scaled: Op) -> None:
    jax = pytest.importorskip("jax")
    x, y = jax.numpy.ones((3, 4)), jax.numpy.arange(4)
    found = jax.jit(jax.grad(lambda x: scaled(x, y, scale=3.0).sum()))(x)
    np.testing.assert_allclose(found, np.broadcast_to(30.0 * np.arange(4), (3, 4)))


@pytest.mark.parametrize("language", ["torch", "jax"])
def test_a_decomposition_in_a_framework_is_traced(language: str) -> None:
    framework = pytest.importorskip("torch" if language == "torch" else "jax.numpy")

    @op(f"toys.mean_{language}", rule="... a! -> ...", language=language)
    def mean(x, *, factor: float = 1.0):
        """The mean of rows, times a factor."""
        return framework.mean(framework.exp(x), -1) * factor

    try:
        x = framework.ones((3, 4))
        compiled = stack.compile(lambda x: mean(x * 2, factor=3.0), x, strict=True)
        np.testing.assert_allclose(compiled(x), np.full(3, 3 * np.exp(2)), rtol=1e-5)
        assert compiled.run.coverage["hosted"] == 1
        np.testing.assert_allclose(mean(x), np.full(3, np.e), rtol=1e-5)
    finally:
        registry._DECLARED.pop(f"toys.mean_{language}")
