"""Random JAX programs, with inputs and what they give: in JAX, and in f64.

A program grows one call at a time, by types alone. A call that jumps (a comparison, a sort, an
index) reads only values without roundings, so that a correct compiler gives JAX's integers exactly
and floats about as far from the f64 ones as JAX's are. Values that are not finite, or that JAX
itself gets wrong in the third digit, are no results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from random_jax_base import EPS, FLOATS, INTS, MOST, SIZES, Types, Value, is_float
from random_jax_moves import Arithmetic, Movement

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Grower(Arithmetic, Movement):
    """Grows a function: calls of JAX, and functions inside of functions."""

    def inner(
        self, specs: Sequence[tuple[tuple[int, ...], Any, bool, float]], count: int
    ) -> Grower:
        params = [Value(i, *s) for i, s in enumerate(specs)]
        inner = Grower(self.rng, params, self.depth + 1)
        inner.grow(count)
        return inner

    def m_call_scan(self) -> None:
        xs = self.pick(lambda v: v.rank > 0)
        c = self.pick()
        inner = self.inner(
            [(c.shape, c.dtype, False, c.eps), (xs.shape[1:], xs.dtype, False, xs.eps)], 4
        )
        back = self.rng.random() < 0.3
        same = [v.place for v in inner.values[2:] if v.shape == c.shape and v.dtype == c.dtype]
        to = self.rng.choice(same) if same else 0
        out = inner.values[-1].place
        eps = [v.eps for v in inner.values]

        def run(t: Types, v: Sequence[Any]) -> Any:
            def body(carry: Any, x: Any) -> Any:
                env = inner.run(t, [carry, x])
                after = jnp.tanh(env[to]) if is_float(env[to].dtype) else env[to]
                return after, env[out]

            return lax.scan(body, v[0], v[1], reverse=back)

        exact = not any(is_float(v.dtype) for v in inner.values) and c.exact and xs.exact
        made = self.add(f"scan[{'; '.join(inner.log)}]", run, (c, xs), exact or None)
        self._coarse(made, eps, 2)

    def m_call_loop(self) -> None:
        c = self.pick()
        n = self.pick(lambda v: v.rank == 0 and v.exact and jnp.issubdtype(v.dtype, jnp.integer))
        inner = self.inner(
            [(c.shape, c.dtype, False, c.eps), ((), jnp.dtype("int32"), True, 0.0)], 3
        )
        same = [v.place for v in inner.values[2:] if v.shape == c.shape and v.dtype == c.dtype]
        to = self.rng.choice(same) if same else 0

        def run(t: Types, v: Sequence[Any]) -> Any:
            def body(state: Any) -> Any:
                env = inner.run(t, [state[1], state[0]])
                after = jnp.sin(env[to]) if is_float(env[to].dtype) else env[to]
                return state[0] + 1, after

            top = jnp.abs(v[1].astype(jnp.int32)) % 4
            return lax.while_loop(lambda s: s[0] < top, body, (jnp.int32(0), v[0]))[1]

        exact = not any(is_float(v.dtype) for v in inner.values) and c.exact
        self._coarse(
            self.add(f"while[{'; '.join(inner.log)}]", run, (c, n), exact or None),
            [v.eps for v in inner.values],
            1,
        )

    def m_call_cond(self) -> None:
        x = self.pick()
        p = self.pick(lambda v: v.rank == 0 and v.exact and v.dtype in (bool, jnp.int32))
        one = self.inner([(x.shape, x.dtype, x.exact, x.eps)], 3)
        same = [v for v in one.values if v.shape == x.shape and v.dtype == x.dtype]
        out = self.rng.choice(same)

        def run(t: Types, v: Sequence[Any]) -> Any:
            branches = [
                lambda w: one.run(t, [w])[out.place],
                lambda w: w[...],
                lambda w: jnp.flip(w),
            ]
            return (
                lax.switch(v[0], branches, v[1])
                if v[0].dtype != bool
                else lax.cond(v[0], *branches[:2], v[1])
            )

        self._coarse(
            self.add(f"cond[{'; '.join(one.log)}]", run, (p, x), (x.exact and out.exact) or None),
            [out.eps],
            1,
        )

    def m_call_vmap(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.shape[0] > 0)
        y = self.pick()
        inner = self.inner(
            [(x.shape[1:], x.dtype, x.exact, x.eps), (y.shape, y.dtype, y.exact, y.eps)], 4
        )
        out = inner.values[-1]
        self._coarse(
            self.add(
                f"vmap[{'; '.join(inner.log)}]",
                lambda t, v: jax.vmap(lambda a: inner.run(t, [a, v[1]])[out.place])(v[0]),
                (x, y),
                out.exact or None,
            ),
            [out.eps],
            1,
        )

    def m_call_grad(self) -> None:
        x = self.pick(lambda v: is_float(v.dtype) and v.dtype != jnp.float16)
        y = self.pick(lambda v: is_float(v.dtype))
        inner = self.inner([(x.shape, x.dtype, False, x.eps), (y.shape, y.dtype, False, y.eps)], 4)
        floats = [v for v in inner.values if is_float(v.dtype)]
        out = floats[-1]
        wrap = self.rng.choice([lambda f: f, jax.checkpoint, jax.jit])

        def run(t: Types, v: Sequence[Any]) -> Any:
            return jax.grad(
                wrap(
                    lambda a: jnp.sum(inner.run(t, [a, v[1]])[out.place] * 0.5).astype(t("float32"))
                )
            )(v[0])

        self._coarse(
            self.add(f"grad[{'; '.join(inner.log)}]", run, (x, y)), [v.eps for v in inner.values], 1
        )

    def _coarse(self, made: Value, eps: Sequence[float], count: int) -> None:
        """Coarsens the error of values that passed through the types of an inner function."""
        for v in self.values[-count:]:
            self.values[v.place] = Value(v.place, v.shape, v.dtype, v.exact, max([v.eps, *eps]))


# ---- programs


@dataclass(frozen=True)
class Program:
    """A function with arguments, its results in JAX and in f64, and what each was rounded to."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    results: list[np.ndarray]
    exact: list[np.ndarray]
    eps: list[float]
    text: str
    wide: Callable[..., Any]  # the same function, for arguments in f64

    def gradient(self) -> Program | None:
        """The gradients of all float results with respect to all float arguments.

        None where JAX has none (of `while`), or where they are no results that a program may have.
        """
        if not any(is_float(r.dtype) for r in self.results):
            return None
        places = tuple(i for i, a in enumerate(self.args) if is_float(a.dtype))
        fn = jax.grad(partial(_total, self.fn), argnums=places)
        wide = jax.grad(partial(_total, self.wide), argnums=places)
        try:
            normal = [np.asarray(g) for g in jax.jit(fn)(*self.args)]
        except ValueError as error:
            if "Reverse-mode differentiation does not work" in str(error):
                return None
            raise
        true = in_f64(wide, self.args)
        eps = [max(*self.eps, EPS[str(g.dtype)]) for g in normal]
        if not all(map(_is_near, eps, normal, true)):
            return None
        return Program(fn, self.args, normal, true, eps, f"gradients of\n{self.text}", wide)

    def compare(self, found: Sequence[Any]) -> str:
        """The differences from other results; empty if there are none."""
        if len(found) != len(self.results):
            return f"{len(found)} results, {len(self.results)} expected"
        for i, (have, want, true, eps) in enumerate(
            zip(map(np.asarray, found), self.results, self.exact, self.eps, strict=True)
        ):
            if have.shape != want.shape or have.dtype != want.dtype:
                return f"result {i} is {have.dtype}{have.shape}, not {want.dtype}{want.shape}"
            wrong = _differs(have, want, true, eps, 0.0)
            if np.any(wrong):  # XLA compiles some programs wrongly; op by op it does not
                want = np.asarray(self.fn(*self.args)[i])
                true, near = (
                    _op_by_op(self.wide, args)[i] for args in (self.args, _near(self.args))
                )
                shift = np.abs(near - true).max(initial=0) if is_float(want.dtype) else 0.0
                wrong = _differs(have, want, true, eps, shift)
            if np.any(wrong):
                at = tuple(int(k) for k in np.argwhere(wrong)[0])
                return (
                    f"result {i} ({want.dtype}{want.shape}) differs in {int(np.sum(wrong))}"
                    f" places, at {at}: {have[at]!r}, JAX {want[at]!r}, f64 {true[at]!r}"
                )
        return ""


def random_jax(seed: int, steps: int = 10) -> Program | None:
    """The program of a seed; None where no result of it is fit, or JAX cannot run it."""
    rng = random.Random(seed)
    data = np.random.default_rng(seed)
    args: list[Any] = []
    params: list[Value] = []
    main = tuple(rng.choice(SIZES) for _ in range(rng.choice([1, 2, 2, 3])))
    for i in range(rng.randint(2, 4)):
        dtype = rng.choice(FLOATS if i == 0 else FLOATS + INTS)
        shape = (
            main
            if rng.random() < 0.6
            else tuple(rng.choice(SIZES) for _ in range(rng.choice([0, 1, 2, 3])))
        )
        if rng.random() < 0.04:
            shape = (*shape[:-1], 0)
        while np.prod(shape, dtype=int) > MOST:
            shape = shape[1:]
        drawn = (
            data.standard_normal(shape)
            if is_float(dtype)
            else data.integers(
                0 if dtype.startswith(("u", "b")) else -9, 2 if dtype == "bool" else 17, shape
            )
        )
        args.append(jnp.asarray(np.asarray(drawn).astype(jnp.dtype(dtype))))
        params.append(Value(i, shape, jnp.dtype(dtype), True, EPS.get(dtype, 0.0)))
    args.append(jnp.asarray(np.int32(rng.randint(-2, 5))))
    params.append(Value(len(params), (), jnp.dtype("int32"), True, 0.0))
    grower = Grower(rng, params)
    grower.grow(steps)

    def everything(*given: Any) -> Any:
        return grower.run(Types(False), given)[grower.count :]

    try:
        normal = [np.asarray(r) for r in jax.jit(everything)(*args)]
    except jax.errors.JaxRuntimeError:
        return None  # XLA's own verifier refuses what XLA made
    true = in_f64(lambda *g: grower.run(Types(True), g)[grower.count :], args)
    fit = [
        i
        for i, (v, n, t) in enumerate(zip(grower.values[grower.count :], normal, true, strict=True))
        if _is_fit(v, n, t)
    ]
    if not fit:
        return None
    kept = sorted({*rng.sample(fit, min(3, len(fit))), fit[-1]})

    def fn(*given: Any) -> Any:
        made = everything(*given)
        return [made[i] for i in kept]

    def wide(*given: Any) -> Any:
        made = grower.run(Types(True), given)[grower.count :]
        return [made[i] for i in kept]

    return Program(
        fn,
        tuple(args),
        [normal[i] for i in kept],
        [true[i] for i in kept],
        [grower.values[grower.count + i].eps for i in kept],
        "\n".join(f"{i}: {line}" for i, line in enumerate(grower.log))
        + f"\n-> {kept} of {[str(v.dtype) + str(v.shape) for v in grower.values]}",
        wide,
    )


def _total(fn: Callable[..., Any], *args: Any) -> Any:
    """A number that depends on all float results, on each element in another way."""
    made = [r for r in fn(*args) if is_float(r.dtype)]
    return sum(jnp.sum(jnp.sin(r.astype(jnp.promote_types(r.dtype, jnp.float32)))) for r in made)


def in_f64(fn: Callable[..., Any], args: Sequence[Any]) -> list[np.ndarray]:
    """The results of a function in f64, for many results."""
    with jax.enable_x64(True):
        return [np.asarray(r) for r in jax.jit(fn, compiler_options=QUICK)(*map(_wide, args))]


def _op_by_op(fn: Callable[..., Any], args: Sequence[Any]) -> list[np.ndarray]:
    with jax.enable_x64(True):
        return [np.asarray(r) for r in fn(*map(_wide, args))]


def _wide(arg: Any) -> np.ndarray:
    return np.asarray(arg, np.float64) if is_float(arg.dtype) else np.asarray(arg)


def _near(args: Sequence[Any]) -> list[np.ndarray]:
    """Arguments in f64, moved by a rounding of f32: how far does a result move?"""
    rng = np.random.default_rng(0)
    wide = map(_wide, args)
    return [
        a * (1 + EPS["float32"] * rng.uniform(-1, 1, a.shape)) if is_float(a.dtype) else a
        for a in wide
    ]


def _differs(
    have: np.ndarray, want: np.ndarray, true: np.ndarray, eps: float, shift: float
) -> np.ndarray:
    """Marks what is not right: other integers, or more than twice as far from f64 as JAX's."""
    if not is_float(want.dtype):
        return have != want
    theirs = np.abs(want.astype(np.float64) - true).max(initial=0)
    scale = np.abs(true).max(initial=0)
    off = np.abs(have.astype(np.float64) - true)
    return ~(off <= 2 * theirs + 8 * eps * scale + 2 * shift)


def _is_fit(value: Value, normal: np.ndarray, true: np.ndarray) -> bool:
    if not is_float(value.dtype):
        return value.exact
    return _is_near(value.eps, normal, true)


def _is_near(eps: float, normal: np.ndarray, true: np.ndarray) -> bool:
    """True if results are finite and right to about the third digit."""
    true = np.asarray(true, np.float64)
    if not (np.isfinite(true).all() and np.isfinite(normal.astype(np.float64)).all()):
        return False
    scale = np.abs(true).max(initial=0)
    return bool(
        scale < 1e4
        and np.abs(normal.astype(np.float64) - true).max(initial=0) <= max(1e-3, 30 * eps) * scale
    )
