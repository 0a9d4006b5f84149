"""Values that leave a counted loop: invariant values, and products that no iteration waits for."""

from __future__ import annotations

import numpy as np
import pytest

import stack
from stack.frontends.jax.capture import capture
from stack.ir import Func, Node
from stack.rewrite import Pipeline

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
START = "inline,canonicalize,trip_counts"
STEPS, BATCH, WIDTH = 16, 8, 32


def recurrent(w, u, xs):  # type: ignore[no-untyped-def]
    def step(h, x):  # type: ignore[no-untyped-def]
        h = jnp.tanh(x @ w + h @ u)
        return h, h

    return jax.lax.scan(step, jnp.zeros((xs.shape[1], xs.shape[2])), xs)[1]


def backwards(w, u, xs):  # type: ignore[no-untyped-def]
    return recurrent(w, u, xs[::-1])[::-1] + jax.lax.scan(
        lambda h, x: (h + x @ w, h), jnp.zeros(xs.shape[1:]), xs, reverse=True
    )[1]  # fmt: skip


@pytest.fixture
def arrays(rng: np.random.Generator) -> list[np.ndarray]:
    shapes = (WIDTH, WIDTH), (WIDTH, WIDTH), (STEPS, BATCH, WIDTH)
    return [rng.standard_normal(s, dtype=np.float32) / 8 for s in shapes]


def loops(func: Func) -> list[Node]:
    return [n for n in func.nodes if n.op == "while"]


def inside(loop: Node, op: str) -> list[Node]:
    return [n for n in loop.blocks[1].nodes if n.op == op]


@pytest.mark.parametrize("fn", [recurrent, backwards])
def test_products_of_rows_are_one_product(fn, arrays: list[np.ndarray]) -> None:  # type: ignore[no-untyped-def]
    before = Pipeline(START).run(stack.trace(fn, *arrays)).func
    after = Pipeline("fission,canonicalize").run(before).func
    assert len(inside(loops(before)[0], "dot")) == 2
    assert len(inside(loops(after)[0], "dot")) == 1
    assert (STEPS, BATCH, WIDTH) in [n.shape for n in after.nodes if n.op == "dot"]
    want = before.interpret(*arrays)
    np.testing.assert_allclose(after.interpret(*arrays), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "left"), [(4 * WIDTH, 0), (1 << 17, 1)])
def test_not_where_the_result_exceeds_operands_and_cache(
    arrays: list[np.ndarray], width: int, left: int
) -> None:
    _, _, xs = arrays
    wide = np.ones((WIDTH, width), np.float32)

    def fn(w, xs):  # type: ignore[no-untyped-def]
        return jax.lax.scan(lambda h, x: (h + (x @ w).sum(), None), 0.0, xs)[0]

    before = Pipeline(START).run(stack.trace(fn, wide, xs)).func
    assert len(inside(loops(Pipeline("fission").run(before).func)[0], "dot")) == left


def test_what_does_not_change_is_computed_once(arrays: list[np.ndarray]) -> None:
    w, _, xs = arrays

    def fn(w, x):  # type: ignore[no-untyped-def]
        return jax.lax.fori_loop(0, STEPS, lambda i, x: jnp.tanh(x @ (jnp.exp(w) / 8 - i)), x)

    before = Pipeline(START).run(stack.trace(fn, w, xs[0])).func
    after = Pipeline("hoist").run(before).func
    assert [len(inside(loops(f)[0], "exp")) for f in (before, after)] == [1, 0]
    np.testing.assert_allclose(
        after.interpret(w, xs[0]), before.interpret(w, xs[0]), rtol=1e-5, atol=1e-6
    )


def test_a_loop_that_might_not_run_keeps_all(arrays: list[np.ndarray]) -> None:
    w, _, xs = arrays

    def fn(w, x, n):  # type: ignore[no-untyped-def]
        return jax.lax.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] @ jnp.exp(w)), (0, x)
        )[1]

    before = Pipeline(START).run(stack.trace(fn, w, xs[0], np.int32(3))).func
    assert len(inside(loops(Pipeline("hoist").run(before).func)[0], "exp")) == 1


def test_lines_are_turned_for_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Along what is summed, by a copy: before the loop where the loop does not change it."""
    monkeypatch.setattr(capture, "device_of", lambda _: "cuda:0")
    w, x = jnp.ones((512, 512)), jnp.ones((4096, 512))

    def fn(w, x):  # type: ignore[no-untyped-def]
        return jax.lax.fori_loop(0, 64, lambda _, x: x @ w, x)

    func = Pipeline(START).run(stack.trace(fn, w, x)).func
    after = Pipeline("k_major,hoist").run(func).func
    (dot,) = inside(loops(after)[0], "dot")
    left, right = str(dot.attrs["rule"]).split(" -> ")[0].split(", ")
    assert left.split()[-1] == right.split()[-1]
    assert not inside(loops(after)[0], "transpose")
    assert "transpose" in [n.op for n in after.nodes]


def test_exact_products_stay_as_they_are() -> None:
    func = stack.trace(lambda w, x: x @ w, jnp.ones((512, 512)), jnp.ones((4096, 512)))
    assert Pipeline("k_major").run(func).func is func
