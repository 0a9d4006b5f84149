"""A training step of two layers, its gradients written by hand, for tests of strategies."""

from __future__ import annotations

import numpy as np

from stack.ir import Builder, Func, param, tensor
from stack.passes.sharding.training_step import Optimizer
from stack.rewrite import random_inputs

B, T, D, F = 8, 4, 16, 32


def gradients(layers: int = 1) -> Func:
    """Sum of squares of x + tanh(x up) down, layer after layer; its gradients by the weights."""
    b = Builder()
    x = param("x", tensor("f32", B, T, D))
    weights, kept, h = [], [], x
    for i in range(layers):
        up = param(f"layers.{i}.up.weight", tensor("f32", D, F))
        down = param(f"layers.{i}.down.weight", tensor("f32", F, D))
        a = b.tanh(b.op("dot", [h, up], {"rule": "b t k, k n -> b t n"}))
        kept.append((h, a))
        weights += [up, down]
        h = b.add(h, b.op("dot", [a, down], {"rule": "b t k, k n -> b t n"}))
    loss = b.reduce(b.mul(h, h), kind="sum", axes=(0, 1, 2))
    g, found = b.mul(h, 2.0), []
    for i in reversed(range(layers)):
        (h, a), (up, down) = kept[i], weights[2 * i : 2 * i + 2]
        d_down = b.op("dot", [a, g], {"rule": "b t k, b t n -> k n"})
        d_a = b.op("dot", [g, down], {"rule": "b t n, k n -> b t k"})
        d_a = b.mul(d_a, b.neg(b.sub(b.mul(a, a), 1.0)))
        found[:0] = [b.op("dot", [h, d_a], {"rule": "b t k, b t n -> k n"}), d_down]
        g = b.add(g, b.op("dot", [d_a, up], {"rule": "b t n, k n -> b t k"}))
    return b.func("step", [x, *weights], [loss, *found])


def step(layers: int = 1, rule: str = "adam") -> Func:
    """The whole step."""
    return Optimizer(rule, ("*.weight",), epsilon=1e-3).step(gradients(layers))


def inputs(func: Func) -> list[np.ndarray]:
    """Small random numbers; moments that could be squares."""
    return [np.abs(a) * 0.1 for a in random_inputs(func)]
