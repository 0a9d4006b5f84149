"""Sums of rows at given places, over the array that they are added to where that ends there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from device_backend import BACKEND, with_stages
from kernel_cases import Spec, random_array
from test_programs import func_of

import stack
from stack.backends.device.torch_device import TorchDevice
from stack.ir import Builder, Node
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.node import Block
from stack.rewrite.pipeline import Pipeline
from stack.run.compile import compile_func, lower
from stack.run.record import Run

TILED = "tile{refuse=[scatter]},library,memory{updated=[scatter]}"
LIBRARY = with_stages((*BACKEND.lowering.stages[:-1], ("tiled", TILED)))
# rule, operand, index, updates
ROWS = {
    "rows": ("v! d, n, n d -> v! d", (7, 3), (5,), (5, 3)),
    "rows of two index axes": ("v! d, b n, b n d -> v! d", (7, 3), (2, 5), (2, 5, 3)),
    "columns": ("d v!, n, d n -> d v!", (3, 7), (5,), (3, 5)),
    "between": ("a v! d, n, n d a -> a v! d", (2, 7, 3), (5,), (5, 3, 2)),
    "one row": ("v! d, , d -> v! d", (7, 3), (), (3,)),
}


def summed(
    rule: str, x: tuple[int, ...], *rest: tuple[int, ...], drop: bool = False
) -> tuple[Func, list[np.ndarray]]:
    """exp(scatter(-x, index, updates)); with `drop`, some indices are out of range."""
    rng = np.random.default_rng(0)
    index, updates = rest
    specs: list[Spec] = [("f32", *x), ("i64", *index), ("f32", *updates)]

    def build(b: Builder, x: Node, i: Node, u: Node) -> Node:
        dropping = {"drop": True} if drop else {}
        return b.exp(b.scatter(b.neg(x), i, u, rule=rule, kind="add", **dropping))

    arrays = [random_array(s, rng) for s in specs]
    arrays[1] = rng.integers(-6 * drop, 7 + 6 * drop, size=index)
    return func_of(build, specs), arrays


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_sums_of_rows(name: str, deterministic: bool, drop: bool) -> None:
    func, arrays = summed(*ROWS[name], drop=drop)
    executable = compile_func(func, LIBRARY)
    assert "torch.index_add.scatter" in [k.name for k in executable.kernels]
    torch.use_deterministic_algorithms(deterministic)
    try:
        for _ in range(2):
            (found,) = executable.run(arrays)
            np.testing.assert_allclose(found, func.interpret(*arrays), rtol=1e-6)
    finally:
        torch.use_deterministic_algorithms(False)


def steps(block: Block) -> dict[str, Node]:
    return {str(n.attrs["name"]): n for n in block.nodes if "at" in n.attrs}


def lowered(func: Func) -> Block:
    return lower(func, LIBRARY, Run("main", "", "test")).body


def test_the_sum_is_where_its_operand_was() -> None:
    found = steps(lowered(summed(*ROWS["rows"])[0]))
    assert found["scatter"].attrs["updates"] == 0
    assert found["neg"].attrs["at"] != (-1,)
    assert found["exp"].attrs["at"] == (-1,)


def test_a_loop_writes_its_rows_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ys[i] = y` of a scan: a copy of all rows before the first iteration, none in it."""

    def running(xs: jax.Array) -> jax.Array:
        step = lambda total, x: (total + x, jnp.cos(total) * x)
        return jax.lax.scan(step, jnp.zeros(3), xs)[1]

    xs = np.random.default_rng(0).standard_normal((7, 3), dtype=np.float32)
    func = Pipeline("canonicalize,trip_counts").run(stack.trace(running, xs)).func
    (loop,) = (n for n in lowered(func).nodes if n.op == "while")
    assert steps(loop.blocks[1])["scatter"].attrs["updates"] == 0
    executable = compile_func(func, LIBRARY)
    copied: list[torch.Tensor] = []
    clone = TorchDevice.copy
    monkeypatch.setattr(TorchDevice, "copy", lambda _, x: copied.append(x) or clone(x))
    (found,) = executable.run([xs])
    np.testing.assert_allclose(found, func.interpret(xs), rtol=1e-5)
    assert [x.shape for x in copied].count((7, 3)) == 1


def test_an_operand_that_is_read_later_stays() -> None:
    specs: list[Spec] = [("bf16", 7, 3), ("i64", 5), ("bf16", 5, 3)]
    rule = ROWS["rows"][0]

    def build(b: Builder, x: Node, i: Node, u: Node) -> Node:
        y = b.scan(b.neg(x), kind="sum", axis=0, reverse=False)
        once = b.scatter(y, i, u, rule=rule, kind="max")
        twice = b.scatter(once, i, u, rule=rule, kind="min")
        return b.scan(b.mul(twice, y), kind="sum", axis=0, reverse=False)

    func = func_of(build, specs)
    scatters = [n for n in lowered(func).nodes if n.attrs.get("name") == "scatter"]
    assert [n.attrs.get("updates") for n in scatters] == [None, 0]
    rng = np.random.default_rng(1)
    arrays = [random_array(s, rng) for s in specs]
    arrays[1] = rng.integers(0, 7, size=5)
    stored = [encode(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
    (found,) = compile_func(func, LIBRARY).run(stored)
    values = decode(found, func.results[0].dtype)
    np.testing.assert_allclose(values, func.interpret(*arrays), rtol=2e-2, atol=2e-2)
