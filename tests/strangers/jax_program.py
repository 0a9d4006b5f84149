"""A function of JAX as the suite runs it: in f64, under `jax.jit`, compiled; and in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stack

STEPS = 3
STRIDE = 0.01  # of the length of all parameters: the first training step


class JaxProgram:
    """A function of parameters and inputs, and its arguments.

    Eager is `jax.jit`: that is what the results of programs of JAX are.
    """

    def __init__(self, apply: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.apply, self.args = apply, args
        self.rate = 0.0

    def compile(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        return stack.compile(apply, *self.args)

    def compile_training(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return stack.jit(step)

    def start(self) -> dict[str, np.ndarray]:
        return arrays(self.args[0])

    def exact(self) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            return arrays(jax.jit(self.apply)(*wide(self.args)))

    def eager(self, start: int) -> dict[str, np.ndarray]:
        return arrays(jax.jit(self.apply)(*self._started(start)))

    def found(self) -> dict[str, np.ndarray]:
        return arrays(self.compile(self.apply)(*self.args))

    def trained_exact(self) -> dict[str, np.ndarray]:
        """Parameters after training in f64; chooses the learning rate."""
        with jax.enable_x64(True):
            args = wide(self.args)
            grads = jax.jit(jax.grad(self._loss))(*args)
            self.rate = STRIDE * _length(args[0]) / _length(grads)
            return self._train(jax.jit(self._step), args)

    def trained_eager(self, start: int) -> dict[str, np.ndarray]:
        return self._train(jax.jit(self._step), self._started(start))

    def trained_found(self, start: int) -> dict[str, np.ndarray]:
        return self._train(self.compile_training(self._step), self._started(start))

    def _started(self, start: int) -> tuple[Any, ...]:
        """The arguments; past the first start with parameters moved by up to half a unit in their
        last place."""
        if not start:
            return self.args
        rng = np.random.default_rng(start)

        def moved(a: Any) -> Any:
            if not jnp.issubdtype(a.dtype, jnp.floating):
                return a
            noise = 2.0**-23 * (rng.random(a.shape) - 0.5)
            return jnp.asarray(np.asarray(a, np.float64) * (1 + noise), a.dtype)

        return (jax.tree.map(moved, self.args[0]), *self.args[1:])

    def _loss(self, params: Any, *inputs: Any) -> Any:
        """The mean square distance of all results from numbers between -1 and 1."""
        found = jnp.zeros(())
        for result in jax.tree.leaves(self.apply(params, *inputs)):
            if jnp.issubdtype(result.dtype, jnp.floating):
                target = np.random.default_rng(2).uniform(-1, 1, result.shape)
                found = found + jnp.square(result - target.astype(result.dtype)).mean()
        return found

    def _step(self, params: Any, *inputs: Any) -> Any:
        grads = jax.grad(self._loss)(params, *inputs)
        return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)

    def _train(self, step: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, np.ndarray]:
        params, *inputs = args
        for _ in range(STEPS):
            params = step(params, *inputs)
        return arrays(params)


def arrays(results: Any) -> dict[str, np.ndarray]:
    """All arrays of results, by their paths."""
    found, _ = jax.tree_util.tree_flatten_with_path(results)
    return {jax.tree_util.keystr(path) or "result": np.asarray(a) for path, a in found}


def wide(args: Any) -> Any:
    return jax.tree.map(
        lambda a: a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, args
    )


def _length(tree: Any) -> float:
    parts = [np.square(np.asarray(a, np.float64)).sum() for a in jax.tree.leaves(tree)]
    return float(np.sqrt(sum(parts)))
