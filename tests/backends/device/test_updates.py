"""Sums of rows at given places, over the array that they are added to where that ends there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_backend import BACKEND
from kernel_cases import Spec, random_array
from test_programs import func_of

from stack.ir import Builder, Node
from stack.ir.node import Func
from stack.ir.storage import decode, encode
from stack.run.compile import compile_func, lower
from stack.run.record import Run

TILED = "tile{refuse=[scatter]},library,memory{updated=[scatter]}"
LIBRARY = BACKEND.with_stages((*BACKEND.lowering.stages[:-1], ("tiled", TILED)))
# rule, operand, index, updates
ROWS = {
    "rows": ("v! d, n, n d -> v! d", (7, 3), (5,), (5, 3)),
    "rows of two index axes": ("v! d, b n, b n d -> v! d", (7, 3), (2, 5), (2, 5, 3)),
    "columns": ("d v!, n, d n -> d v!", (3, 7), (5,), (3, 5)),
    "between": ("a v! d, n, n d a -> a v! d", (2, 7, 3), (5,), (5, 3, 2)),
    "one row": ("v! d, , d -> v! d", (7, 3), (), (3,)),
}


def summed(rule: str, x: tuple[int, ...], *rest: tuple[int, ...]) -> tuple[Func, list[np.ndarray]]:
    """exp(scatter(-x, index, updates))."""
    rng = np.random.default_rng(0)
    index, updates = rest
    specs: list[Spec] = [("f32", *x), ("i64", *index), ("f32", *updates)]

    def build(b: Builder, x: Node, i: Node, u: Node) -> Node:
        return b.exp(b.scatter(b.neg(x), i, u, rule=rule, kind="add"))

    arrays = [random_array(s, rng) for s in specs]
    arrays[1] = rng.integers(0, 7, size=index)
    return func_of(build, specs), arrays


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_sums_of_rows(name: str, deterministic: bool) -> None:
    func, arrays = summed(*ROWS[name])
    executable = compile_func(func, LIBRARY)
    assert "torch.index_add.scatter" in [k.name for k in executable.kernels]
    torch.use_deterministic_algorithms(deterministic)
    try:
        for _ in range(2):
            (found,) = executable.run(arrays)
            np.testing.assert_allclose(found, func.interpret(*arrays), rtol=1e-6)
    finally:
        torch.use_deterministic_algorithms(False)


def places(func: Func) -> dict[str, tuple[int, ...]]:
    lowered = lower(func, LIBRARY, Run("main", "", "test"))
    return {str(n.attrs["name"]): n.attrs["at"] for n in lowered.nodes if "at" in n.attrs}


def test_the_sum_is_where_its_operand_was() -> None:
    at = places(summed(*ROWS["rows"])[0])
    assert at["scatter"] == at["neg"] != (-1,)
    assert at["exp"] == (-1,)


def test_an_operand_that_is_read_later_stays() -> None:
    specs: list[Spec] = [("bf16", 7, 3), ("i64", 5), ("bf16", 5, 3)]
    rule = ROWS["rows"][0]

    def build(b: Builder, x: Node, i: Node, u: Node) -> Node:
        y = b.scan(b.neg(x), kind="sum", axis=0, reverse=False)
        once = b.scatter(y, i, u, rule=rule, kind="max")
        twice = b.scatter(once, i, u, rule=rule, kind="min")
        return b.scan(b.mul(twice, y), kind="sum", axis=0, reverse=False)

    func = func_of(build, specs)
    at = places(func)
    assert at["scatter"] != at["scan"]
    rng = np.random.default_rng(1)
    arrays = [random_array(s, rng) for s in specs]
    arrays[1] = rng.integers(0, 7, size=5)
    stored = [encode(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
    (found,) = compile_func(func, LIBRARY).run(stored)
    values = decode(found, func.results[0].dtype)
    np.testing.assert_allclose(values, func.interpret(*arrays), rtol=2e-2, atol=2e-2)
