"""Linear recurrences that JAX traces as trees of slices, and the operator that computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stack
from stack.hosted.registry import find
from stack.ir import Func
from stack.ir.builder import rebuild
from stack.ir.node import Node
from stack.passes import hosted as passes_hosted
from stack.passes.recurrences import recurrences_in
from stack.rewrite.pipeline import Pipeline

jax = pytest.importorskip("jax")
Join = Callable[[Any, Any], Any]
HAND = "device=cuda, prefer=hand"

JOINS: dict[str, Join] = {
    "earlier first": lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]),
    "later first": lambda a, b: (b[0] * a[0], b[1] + b[0] * a[1]),
    "mixed": lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]),
}
OTHERS: dict[str, Join] = {
    "no gates": lambda a, b: (b[0], a[1] * b[0] + b[1]),
    "largest": lambda a, b: (a[0] * b[0], jax.numpy.maximum(a[1] * b[0], b[1])),
    "sums of gates": lambda a, b: (a[0] + b[0], a[1] * b[0] + b[1]),
    "twice": lambda a, b: (a[0] * b[0], a[1] * b[0] + 2 * b[1]),
}


def traced(join: Join, shape: tuple[int, ...], axis: int = 1) -> Func:
    def states(gate: Any, value: Any) -> Any:
        return jax.lax.associative_scan(join, (gate, value), axis=axis)[1]

    like = np.zeros(shape, "f4")
    return stack.trace(states, like, like, frontend="jax")


def one_by_one(gate: np.ndarray, value: np.ndarray) -> np.ndarray:
    states = value.astype(np.float64)
    for t in range(1, value.shape[1]):
        states[:, t] += gate[:, t].astype(np.float64) * states[:, t - 1]
    return states


def hosted(func: Func, options: str = HAND) -> Func:
    return Pipeline(f"hosted{{{options}}}").run(func).func


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("steps", [4, 5, 6, 7, 8, 13, 64])
def test_a_tree_is_one_recurrence(join: str, steps: int) -> None:
    func = traced(JOINS[join], (2, steps, 3))
    (node,) = recurrences_in(func.body)
    found = recurrences_in(func.body)[node]
    assert node is func.results[0]
    assert (found.gate, found.value, found.axis) == (*func.params, 1)

    rng = np.random.default_rng(steps)
    gate = rng.uniform(-1, 1, (2, steps, 3)).astype("f4")
    value = rng.standard_normal((2, steps, 3)).astype("f4")
    gate[:, 0] = np.nan, np.inf, 1.0  # without a meaning
    made = hosted(func)
    assert 'name="scan.gated"' in str(made) and 'kernel="carried"' in str(made)
    np.testing.assert_allclose(
        np.asarray(made.interpret(gate, value)), one_by_one(gate, value), atol=1e-6
    )


@pytest.mark.parametrize("join", OTHERS)
def test_other_trees_are_none(join: str) -> None:
    func = traced(OTHERS[join], (2, 13, 3))
    assert not recurrences_in(func.body)
    assert hosted(func) == func


@pytest.mark.parametrize("op", ["slice", "pad", "mul"])
def test_a_tree_with_one_other_node_is_none(op: str) -> None:
    """Any node of the largest level: its tree is no longer that of a recurrence."""
    func = traced(JOINS["mixed"], (2, 13, 3))
    last = [n for n in func.nodes if n.op == op][-1]

    def visit(node: Node, args: tuple[Node, ...], blocks: Any) -> Node:
        made = node.rebuilt(args, blocks=blocks)
        if node is not last:
            return made
        return stack.ir.builder.make("neg", (made,))

    changed = rebuild(func, visit)
    assert func.results[0] not in recurrences_in(changed.body)
    assert changed.results[0] not in recurrences_in(changed.body)


@pytest.mark.parametrize(
    "shape, axis, options",
    [
        ((3, 16), 1, HAND),  # it has no channels
        ((2, 16, 3), 1, "device=cuda"),  # so few that a launch takes longer
        ((2, 16, 3), 1, "device=cpu, prefer=hand"),
        ((2, 16, 3), 1, "device=cuda, prefer=generated"),
    ],
)
def test_trees_without_a_kernel_stay(shape: tuple[int, ...], axis: int, options: str) -> None:
    func = traced(JOINS["mixed"], shape, axis)
    assert hosted(func, options) == func


@pytest.mark.parametrize("shape, axis", [((9, 2, 3), 0), ((9, 3), 0), ((2, 9, 2, 3), 1)])
def test_any_axis_before_channels(shape: tuple[int, ...], axis: int) -> None:
    func = traced(JOINS["mixed"], shape, axis)
    gate, value = np.random.default_rng(0).uniform(-1, 1, (2, *shape)).astype("f4")
    made = hosted(func)
    assert 'name="scan.gated"' in str(made)
    found = np.asarray(made.interpret(gate, value))
    flat = (x.reshape(-1, 9, int(np.prod(shape[axis + 1 :]))) for x in (gate, value))
    np.testing.assert_allclose(found, one_by_one(*flat).reshape(shape), atol=1e-6)


@pytest.mark.parametrize(
    "channels, is_captured, is_kept",
    [(4, True, True), (8, True, False), (512, False, True), (1024, False, False)],
)
def test_a_long_tree_costs_more_than_a_launch(
    channels: int, is_captured: bool, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python launches a kernel that cannot be captured, which takes a hundred times longer."""
    gated = find("scan.gated")
    kernels = tuple(replace(k, capturable=is_captured) for k in gated.kernels)
    changed = replace(gated, kernels=kernels)
    monkeypatch.setattr(passes_hosted, "find", lambda _: changed)
    func = traced(JOINS["mixed"], (8, 4096, channels))
    assert ("custom" not in str(hosted(func, "device=cuda"))) == is_kept


def test_states_in_reverse() -> None:
    def states(gate: Any, value: Any) -> Any:
        join = JOINS["earlier first"]
        return jax.lax.associative_scan(join, (gate, value), axis=1, reverse=True)[1]

    rng = np.random.default_rng(0)
    gate, value = rng.uniform(0, 1, (2, 2, 9, 3)).astype("f4")
    func = stack.trace(states, gate, value, frontend="jax")
    made = hosted(func)
    assert 'name="scan.gated"' in str(made)
    expected = one_by_one(gate[:, ::-1], value[:, ::-1])[:, ::-1]
    np.testing.assert_allclose(np.asarray(made.interpret(gate, value)), expected, atol=1e-6)


def test_products_of_gates_that_are_used_stay_a_tree() -> None:
    def both(gate: Any, value: Any) -> Any:
        return jax.lax.associative_scan(JOINS["mixed"], (gate, value), axis=1)

    rng = np.random.default_rng(0)
    gate, value = rng.uniform(0.5, 1, (2, 2, 9, 3)).astype("f4")
    func = stack.trace(both, gate, value, frontend="jax")
    products, states = hosted(func).interpret(gate, value)
    np.testing.assert_allclose(products, np.cumprod(gate.astype(np.float64), 1), rtol=1e-5)
    np.testing.assert_allclose(states, one_by_one(gate, value), atol=1e-6)
