"""freeze=True for JAX and for constants of a program; who refuses it."""

from __future__ import annotations

import numpy as np
import pytest

import stack
from stack.errors import UsageError
from stack.explore.lowering import Settings, lower_to

jax = pytest.importorskip("jax")
pytest.importorskip("torch_mlir")

TABLE = np.random.default_rng(0).normal(size=(24, 70)).astype(np.float32)


def test_what_a_function_of_jax_closes_over_is_frozen() -> None:
    table = jax.numpy.asarray(TABLE)

    def fn(x):
        return x @ (table * 2)

    x = jax.numpy.ones((40, 24))
    compiled = stack.compile(fn, x, backend="mlir", freeze=True)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x), np.ones((40, 24)) @ (2.0 * TABLE), rtol=1e-4)
    assert compiled.run.notes["frozen"].endswith("from 1 weights are cached; computed 1 times")
    text = str(compiled.run["called"].text)
    assert "mul" not in text.partition("{")[0]
    assert "panels" in text.splitlines()[0]


def test_constants_of_a_program_are_frozen() -> None:
    b = stack.ir.Builder()
    x = stack.ir.param("x", stack.ir.tensor("f32", 40, 24))
    func = b.func("f", [x], [b.dot(x, b.const(TABLE), rule="m k, k n -> m n")])
    compiled = stack.compile(func, backend="mlir", freeze=True)
    rows = np.random.default_rng(1).normal(size=(40, 24)).astype(np.float32)
    for _ in range(2):
        want = rows.astype(np.float64) @ TABLE
        np.testing.assert_allclose(compiled(rows), want, rtol=1e-4, atol=1e-4)
    assert "computed 1 times" in compiled.run.notes["frozen"]


def test_arguments_are_no_weights() -> None:
    compiled = stack.compile(
        lambda x, w: x @ w, TABLE @ TABLE.T, TABLE, backend="mlir", freeze=True
    )
    assert "prepared" not in compiled.run.stages
    x, w = TABLE @ TABLE.T, TABLE.copy()
    compiled(x, w)
    w *= 2
    np.testing.assert_allclose(compiled(x, w), x @ w, rtol=1e-3, atol=1e-3)


def test_a_pipeline_of_ones_own_has_no_place_for_it() -> None:
    func = stack.parse(
        "func @f(%x: f32[4]) -> (f32[4]) at tensor {\n  %y = exp(%x) : f32[4]\n  return %y\n}\n"
    )
    with pytest.raises(UsageError, match="freeze comes after stage 'laid-out'"):
        stack.compile(func, backend="mlir", passes="canonicalize,fuse", freeze=True)


def test_stages_alone_refuse_it() -> None:
    with pytest.raises(UsageError, match="compiled completely and runs here"):
        lower_to(None, Settings(backend="mlir", chosen={"freeze": True}), "fused")  # pyright: ignore


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_other_backends_have_no_such_option(backend: str) -> None:
    from stack import plugins
    from stack.run.options import check_options

    with pytest.raises(UsageError, match="freeze"):
        check_options(plugins.load("stack.backends", backend), {"freeze": True})
