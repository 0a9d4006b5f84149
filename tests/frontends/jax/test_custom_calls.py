"""Compiled programs as custom calls of XLA: transformations, control flow, memory, errors."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import stack
from stack.errors import StackError

RNG = np.random.default_rng()


def drawn(*shape: int) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), jnp.float32)


def same(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(np.float64(g), np.float64(w), tolerance, tolerance)


def lowered(fn: Callable[..., Any], *args: Any) -> str:
    return jax.jit(lambda *xs: fn(*xs)).lower(*args).as_text()


def rows(x: Any) -> Any:
    return jnp.tanh(x) * 2 + x.sum(-1, keepdims=True)


def test_kernels_are_one_call_and_no_step_is_python() -> None:
    def program(x: Any, w: Any) -> Any:
        y = jnp.linalg.cholesky(x @ x.T + 64 * jnp.eye(8))
        return jax.nn.softmax(y @ w), jnp.cumsum(w, 0)

    x, w = drawn(8, 8), drawn(8, 8)
    ours = stack.jit(program)
    same(ours(x, w), jax.jit(program)(x, w), 1e-4)
    text = lowered(ours, x, w)
    assert text.count("custom_call @stack_cpu") == 2  # before and after the factorization
    assert "python" not in text


# ---- transformations


def test_within_a_program_of_jax() -> None:
    ours, x = stack.jit(rows), drawn(5, 7)
    same(jax.jit(lambda x: ours(ours(x) / 9) + 1)(x), rows(rows(x) / 9) + 1)
    looped = lambda f: lambda x: lax.fori_loop(0, 5, lambda _, y: jnp.sin(f(y) / 9), x)
    same(jax.jit(looped(ours))(x), looped(rows)(x))
    assert "custom_call @stack_cpu" in lowered(looped(ours), x)


@pytest.mark.parametrize("axes", [0, 1, (0,), -1], ids=str)
def test_vmap_is_compiled(axes: Any) -> None:
    ours, x = stack.jit(rows), drawn(4, 6, 5)
    for around in (lambda f: f, jax.jit):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = around(jax.vmap(ours, axes))(x)
        same(got, jax.vmap(rows, axes)(x))
    assert "custom_call @stack_cpu" in lowered(jax.vmap(ours, axes), x)


def test_vmap_of_some_arguments_and_of_vmap() -> None:
    def program(x: Any, w: Any, n: Any) -> Any:
        return {"a": x @ w + n, "b": n}

    x, w, n = drawn(3, 4), drawn(4, 2), jnp.arange(5)
    inner = lambda f: jax.vmap(f, (None, None, 0))
    outer = lambda f: jax.vmap(inner(f), (0, None, None), 1)
    same(outer(stack.jit(program))(x, w, n), outer(program)(x, w, n))


def test_vmap_compiles_once() -> None:
    ours, x = stack.jit(rows), drawn(4, 6)
    for _ in range(3):
        jax.vmap(ours)(x)
    assert len(ours.graphs) == 1
    jax.vmap(ours)(x[:2])
    assert len(ours.graphs) == 2


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "grad of jit": lambda f: jax.grad(lambda x: jax.jit(f)(x).sum()),
    "jit of grad": lambda f: jax.jit(jax.grad(lambda x: f(x).sum())),
    "jacfwd": jax.jacfwd,
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
    "second": lambda f: jax.hessian(lambda x: f(x).sum()),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_around_it_are_those_of_the_function(name: str) -> None:
    x = drawn(2, 3)
    with pytest.warns(UserWarning, match="rows: not compiled by stack"):
        got = DERIVATIVES[name](stack.jit(rows))(x)
    same(got, DERIVATIVES[name](rows)(x))


def test_derivatives_of_some_results() -> None:
    def program(x: Any, n: Any) -> Any:
        return jnp.sin(x) * n, n + 1

    grad = lambda f: jax.grad(lambda x, n: f(x, n)[0].sum())
    x, n = drawn(4), jnp.arange(4)
    with pytest.warns(UserWarning, match="not compiled"):
        got = grad(stack.jit(program))(x, n)
    same(got, grad(program)(x, n))


def test_a_program_that_jax_traced_is_imported_whole() -> None:
    inner = stack.jit(rows)
    held, x = jax.jit(lambda x: inner(x) * 2), drawn(4, 3)
    want = held(x)
    ours = stack.compile(lambda x: held(x) + 1, x)
    same(ours(x), want + 1)
    assert [k.kind for k in ours.run.kernels] == ["generated"]


def test_values_of_a_surrounding_trace() -> None:
    x = drawn(4)
    program = lambda x: stack.jit(lambda y: y * x)(x + 1)
    same(jax.jit(program)(x), x * (x + 1))


def test_a_part_of_each_device() -> None:
    from jax.sharding import Mesh
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()), ("d",))
    part = jax.shard_map(stack.jit(rows), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    x = drawn(8, 3)
    same(part(x), rows(x))
    same(jax.jit(part)(x), rows(x))


# ---- control flow inside of loops


def branches(x: Any) -> Any:
    step = lambda c, a: (lax.cond(a > 0, lambda c: c + a, lambda c: c * 0.5, c), c)
    return lax.scan(step, jnp.float32(0), x)


def searches(x: Any) -> Any:
    step = lambda c, a: (lax.while_loop(lambda t: t > 0.5, lambda t: t * 0.5, c + a), None)
    return lax.scan(step, jnp.float32(0), x)[0]


def nested(x: Any) -> Any:
    inner = lambda i: lambda j, b: b * 1.01 + i * j
    return lax.fori_loop(0, 7, lambda i, a: lax.fori_loop(0, 5, inner(i), a), x)


def solves(x: Any) -> Any:
    step = lambda c, a: (jnp.linalg.solve(jnp.eye(3) * 3 + a, c), c[0])
    return lax.scan(step, jnp.ones(3), x)


def kinks(x: Any) -> Any:
    """Gradients go through the branches that were taken."""
    step = lambda c, a: (lax.cond(a > c, lambda c: c * a, lambda c: jnp.sin(c) + a, c), None)
    return lax.scan(step, jnp.float32(0.5), x)[0]


def until(x: Any) -> Any:
    return lax.while_loop(lambda c: c[1].sum() < 99, lambda c: (c[0] + 1, c[1] * 1.5 + 1), (0, x))


def switches(x: Any) -> Any:
    cases = [jnp.sin, lambda c: jnp.cumsum(c), lambda c: c[::-1] * 0.5]
    step = lambda c, a: (lax.switch((a * 9).astype(int), cases, c), (c.sum(), c))
    return lax.scan(step, jnp.ones(4), x)


def sieve(x: Any) -> Any:
    """Branches change an element of a table, or return the table."""
    strike = lambda i: lambda t: t.at[(i * 7) % 9].set(-1)
    return lax.fori_loop(0, 9, lambda i, t: lax.cond(t[i] > 0, strike(i), lambda t: t, t), x)


def table(x: Any) -> Any:
    """An inner loop fills a row of the table that an outer one carries."""
    cell = lambda i: lambda j, t: t.at[i, j].set(t[i - 1, j] * 0.5 + t[i, j - 1])
    row = lambda i, t: lax.fori_loop(1, 9, cell(i), t)
    return lax.fori_loop(1, 9, row, jnp.outer(x, x)), x


def sieve_and_solve(x: Any) -> Any:
    """XLA runs the loop: a factorization is in it."""
    strike = lambda i: lambda t: t.at[(i * 7) % 9].set(-1)

    def step(i: Any, c: Any) -> Any:
        t = lax.cond(c[0][i] > 0, strike(i), lambda t: t, c[0])
        return t, jnp.linalg.solve(jnp.eye(9) * 9 + t, c[1])

    return lax.fori_loop(0, 9, step, (x, x))


FLOWS = [branches, searches, nested, until, switches, sieve, table, jax.grad(kinks)]


@pytest.mark.every(2)
@pytest.mark.parametrize("flow", FLOWS)
def test_nested_control_flow_is_one_call(flow: Any) -> None:
    x = drawn(9) / 9
    ours = stack.jit(flow)
    same(ours(x), jax.jit(flow)(x), 1e-4)
    text = lowered(ours, x)
    assert text.count("custom_call @stack_cpu") == 1
    assert "stablehlo.while" not in text
    assert "stablehlo.case" not in text


@pytest.mark.parametrize("flow", [solves, sieve_and_solve])
def test_control_flow_with_a_factorization_runs_without_python(flow: Any) -> None:
    x = drawn(9) / 9
    kept, ours = np.array(x), stack.jit(flow)
    same(ours(x), jax.jit(flow)(x), 1e-4)
    np.testing.assert_array_equal(x, kept)
    assert "python" not in lowered(ours, x)
    assert stack.compile(flow, x).run.coverage["loop_steps"] == 0


def test_a_table_that_branches_change_is_not_copied() -> None:
    ours = stack.compile(sieve, drawn(9))
    assert "reuses=[0]" not in ours.run["loop"].text
    assert "reuses=[2]" in ours.run["loop"].text  # operands 0 and 1: the case and the index
    assert "updates=0" in ours.run["loop"].text


def test_a_loop_that_reads_its_start() -> None:
    newton = lambda x: lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + x / y), x)
    swaps = lambda x, y: lax.fori_loop(0, 5, lambda _, c: (c[1], c[0] + 1), (x, y))
    both = lambda x: lax.fori_loop(0, 4, lambda i, c: (c[0] + c[1], c[1].at[i].set(0)), (x, x))
    x, y = jnp.abs(drawn(8, 9)) + 1, drawn(8, 9)
    for fn, args in ((newton, (x,)), (swaps, (x, y)), (both, (x,))):
        kept = [np.array(a) for a in args]
        same(stack.jit(fn)(*args), jax.jit(fn)(*args))
        for a, b in zip(args, kept, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_loop_that_starts_with_a_reshaped_value() -> None:
    program = lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.cumsum(y), x.reshape(-1))
    x = drawn(3, 4)
    same(stack.jit(program)(x), program(x))
    ours = stack.jit(program, donate_argnums=0)
    want = program(x)
    same(ours(x), want)


# ---- memory


def test_arguments_that_are_results() -> None:
    x, n = drawn(3), jnp.arange(2)
    ours = stack.jit(lambda x, n: (x, n, x + 1, x, jnp.zeros(2), x.reshape(3, 1)))
    same(ours(x, n), (x, n, x + 1, x, jnp.zeros(2), x.reshape(3, 1)))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    program = lambda x: (x * 2, x.sum(), jnp.cumsum(x), x)
    x = drawn(*shape)
    same(stack.jit(program)(x), program(x))


def test_many_results() -> None:
    x = drawn(5)
    same(stack.jit(lambda x: [x * i for i in range(99)])(x), [x * i for i in range(99)])
    assert stack.jit(lambda x: [])(x) == []


@pytest.mark.parametrize("is_donated", [False, True])
def test_updates_in_place(is_donated: bool) -> None:
    program = lambda x, i: x.at[i].set(1.0).at[i + 1].add(x[0])
    ours = stack.jit(program, donate_argnums=0 if is_donated else ())
    x = drawn(64, 8)
    kept = np.array(x)
    want = program(jnp.asarray(kept), 5)
    got = ours(x, 5)
    same(got, want)
    assert x.is_deleted() == is_donated
    if not is_donated:
        np.testing.assert_array_equal(x, kept)


def test_programs_that_nobody_holds() -> None:
    """XLA may still run a program whose function is gone."""
    x = drawn(64, 64)
    found = []
    for i in range(12):
        found.append(jax.jit(lambda x, i=i: stack.jit(lambda y: rows(y) + i)(x) / 9)(x))
        gc.collect()
    for i, got in enumerate(found):
        same(got, (rows(x) + i) / 9)


def test_several_threads() -> None:
    program = lambda x: lax.scan(lambda c, a: (jnp.sin(c + a), c.sum()), x[0], x)
    ours, parts = stack.jit(program), [drawn(20, 16) for _ in range(6)]
    want = [jax.jit(program)(p) for p in parts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            for got, expected in zip(pool.map(ours, parts), want, strict=True):
                same(got, expected)


def test_denormal_numbers_are_kept() -> None:
    x = jnp.asarray([1e-40, -3e-42, 1.0], jnp.float32)
    np.testing.assert_array_equal(stack.jit(lambda x: x * 0.5)(x), np.asarray(x) * np.float32(0.5))


def test_weights_that_are_computed_once() -> None:
    w, x = drawn(64, 64), drawn(4, 64)
    program = lambda x: jnp.tanh(x @ (w * w - 1))
    ours = stack.compile(program, x, freeze=True)
    for _ in range(2):
        same(ours(x), program(x), 1e-4)
    assert "custom_call @stack_cpu" in lowered(ours, x)


# ---- settings and errors


def test_nans_are_found() -> None:
    ours = stack.jit(lambda x: jnp.log(x) + 1)
    with jax.debug_nans(True):
        same(ours(jnp.ones(3)), jnp.ones(3))
        with pytest.raises(FloatingPointError, match="log"):
            ours(-jnp.ones(3))


def test_without_jit_the_function_runs() -> None:
    seen: list[Any] = []
    ours = stack.jit(lambda x: (seen.append(x), x + 1)[1])
    with jax.disable_jit():
        ours(jnp.ones(3))
    assert isinstance(seen[0], jax.Array)
    assert not ours.graphs


def test_a_code_generator_without_custom_calls_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import stack.backends.mlir.compiler as compiler

    monkeypatch.setattr(compiler, "call_if_here", lambda *_: None)
    with pytest.raises(StackError, match="peer=Peer"):
        stack.jit(lambda x: x + 1, options={"cache": False})(drawn(3))


@pytest.mark.every(2)
@pytest.mark.parametrize("count", [1, 5, 299])
def test_the_largest_elements_in_the_order_of_jax(count: int) -> None:
    bits = RNG.integers(0, 2**32, (7, 300), dtype=np.uint32)
    bits[:, ::7], bits[:, ::11], bits[:, ::13] = 0, 1 << 31, 0x7F800000
    x = jnp.asarray(bits.view(np.float32))
    got, want = (f(lambda x: lax.top_k(x, count))(x) for f in (stack.jit, jax.jit))
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(
        np.asarray(got[0]).view(np.int32), np.asarray(want[0]).view(np.int32)
    )
