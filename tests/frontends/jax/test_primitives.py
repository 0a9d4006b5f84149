"""Each primitive of JAX is compiled, falls back and is counted, or is refused by name and line."""

from __future__ import annotations

import jax
import jax.ad_checkpoint
import jax.custom_batching
import jax.experimental.checkify
import jax.experimental.jet
import jax.experimental.ode
import jax.experimental.sparse
import jax.export
import jax.extend
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import jax_control
import jax_functions
import jax_primitives
import numpy as np
import pytest
from jax_harness import held
from jax_inputs import PROGRAMS

import stack
from stack.errors import UnsupportedOp

_ = jax_control, jax_functions, jax_primitives  # imported for their entries in the table
FEW = {
    "lax.betainc", "special.gammainc", "lax.mulhi", "jnp.packbits", "where.broadcast", "lax.clz",
    "own_primitive", "io_callback.twice", "pure_callback.scan", "fft.rfft", "linalg.qr",
    "lax.reduce.two", "lax.reduce_precision", "scan.key", "lax.rng_bit_generator", "random.rbg",
}  # fmt: skip
# Values that are no arrays.
REFUSED = {"ref": "new_ref", "token": "create_token"}
CASES = [
    pytest.param(n, marks=() if n in FEW else pytest.mark.slow)
    for n in PROGRAMS
    if n not in REFUSED
]


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    fn, args = PROGRAMS[name]
    want = jax.jit(fn)(*args)
    compiled = stack.compile(fn, *args)
    found = compiled(*args)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(want)
    for got, wanted in zip(*map(jax.tree_util.tree_leaves, (found, want)), strict=True):
        _compare(held(got), held(wanted), "16" in str(getattr(wanted, "dtype", "")))
    counted = compiled.run.coverage
    assert counted["fallback"] == sum(counted["fallback_ops"].values())


def _compare(got: np.ndarray, want: np.ndarray, is_short: bool) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    limit = 0.0 if want.dtype.kind in "iub" else 3e-2 if is_short else 1e-4
    scale = np.abs(want[np.isfinite(want)]).max(initial=0) if limit else 0
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit * max(1e-2, float(scale)))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_array_is_refused_by_name_and_line(name: str) -> None:
    fn, args = PROGRAMS[name]
    with pytest.raises(UnsupportedOp) as error:
        stack.compile(fn, *args)
    assert [op for op, _ in error.value.ops] == [REFUSED[name]]
    assert error.value.ops[0][1][0].startswith("jax_control.py:")


def test_calls_with_effects_happen_in_order_and_each() -> None:
    seen: list[float] = []

    def note(x: np.ndarray) -> np.ndarray:
        seen.append(float(x))
        return np.float32(len(seen))

    def f(x: jax.Array) -> jax.Array:
        kind = jax.ShapeDtypeStruct((), np.float32)
        calls = [jax.experimental.io_callback(note, kind, x + i, ordered=True) for i in (0, 1, 0)]
        return calls[2] - calls[1] - calls[0]

    compiled = stack.compile(f, jax.numpy.float32(3))
    seen.clear()
    assert float(compiled(jax.numpy.float32(3))) == 0
    assert seen == [3, 4, 3]


def test_a_rule_that_parameters_do_not_fit_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.frontends.jax.lax import lowering

    def rule(s: lowering.Site, x: object, *, gone: int) -> object:
        raise AssertionError("cannot be called")

    monkeypatch.setitem(dict(lowering.load_lowerings()), "sin", rule)
    monkeypatch.setitem(lowering.LOWERINGS, "sin", rule)
    func = stack.trace(jax.lax.sin, jax.numpy.ones(3))
    assert [n.attrs["target"] for n in func.nodes if n.op == "opaque"] == ["jax:sin"]
