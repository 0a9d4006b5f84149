"""Small JAX programs: control flow, calls inside of calls, callbacks and random bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax
from jax.interpreters import mlir
from jax.sharding import Mesh, PartitionSpec
from jax_inputs import KEY, OLD, P, X, enter

# ---- control flow and calls


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda p, t: (clipped(*p), 3 * t[0]))


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return 2 * x


scaled.defvjp(lambda x: (2 * x, x), lambda x, g: (5 * g * x,))


@jax.custom_batching.custom_vmap
def _batched(x: Any) -> Any:
    return jnp.sin(x)


@_batched.def_vmap
def _(size: int, batched: Any, x: Any) -> Any:
    return jnp.cos(x), batched[0]


def _host(x: np.ndarray) -> np.ndarray:
    return np.asarray(x) * 2


def _callback(x: Any) -> Any:
    return jax.pure_callback(
        _host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential"
    )


def _io(x: Any) -> Any:
    return jax.experimental.io_callback(
        _host, jax.ShapeDtypeStruct(x.shape, x.dtype), x, ordered=True
    )


def _print(x: Any) -> Any:
    jax.debug.print("x {}", x[0, 0])
    return x + 1


@jax.custom_vjp
def _saved(x: Any) -> Any:
    return jnp.sin(x)


_saved.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),), optimize_remat=True)

_own = jax.extend.core.Primitive("own_primitive")
_own.def_impl(lambda x: x * 2)
_own.def_abstract_eval(lambda x: x)
mlir.register_lowering(_own, mlir.lower_fun(lambda x: x * 2, multiple_results=False))


def _shard(x: Any) -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), ("i",))
    spec = PartitionSpec("i")
    return jax.shard_map(
        lambda y: lax.psum(y, "i") + 1, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()
    )(x)


enter(
    {
        "pjit": lambda x: jax.jit(jnp.sin)(x),
        "pjit.static": lambda x: jax.jit(lambda y, n: y * n, static_argnums=1)(x, 3),
        "pjit.donate": lambda x: jax.jit(lambda y: y + 1, donate_argnums=0)(x + 1),
        "pjit.named": lambda x: jax.jit(lambda y: {"a": y, "b": y + 1})(x)["b"],
        "pjit.inline": lambda x: jax.jit(lambda y: y + 1, inline=True)(x),
        "pjit.empty": lambda x: jax.jit(lambda: 3.0)() + x,
        "pjit.shardings": lambda x: jax.lax.with_sharding_constraint(
            x, jax.sharding.SingleDeviceSharding(jax.devices()[0])
        ),
        "pjit.unused": lambda x: jax.jit(lambda y, z: y)(x, x + 1),
        "pjit.same_results": lambda x: jax.jit(lambda y: (y, y))(x),
        "jit.of_nothing": lambda x: (),
        "constant": lambda x: (3, x),
        "constant_array": lambda x: jnp.arange(5),
        "cond": lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
        "cond.no_operands": lambda x: lax.cond(x[0, 0] > 0.5, lambda: 1.0, lambda: 2.0),
        "cond.several": lambda x: lax.cond(
            x[0, 0] > 0.5, lambda a, b: (a, b), lambda a, b: (b, a), x, -x
        ),
        "cond.grad": jax.grad(
            lambda x: lax.cond(x.sum() > 0, lambda y: (y * y).sum(), lambda y: y.sum(), x)
        ),
        "cond.vmap": lambda x: jax.vmap(lambda r: lax.cond(r[0] > 0.5, jnp.sin, jnp.cos, r))(x),
        "cond.nested": lambda x: lax.cond(
            x[0, 0] > 0, lambda y: lax.cond(y[1, 1] > 0.5, jnp.sin, jnp.exp, y), jnp.cos, x
        ),
        "cond.scan": lambda x: lax.scan(
            lambda c, r: (lax.cond(c > 1, lambda: c - 1, lambda: c + r.sum()), c), 0.0, x
        ),
        "switch": lambda x: lax.switch((x[0, 0] * 9).astype(int), [jnp.sin, jnp.cos, jnp.exp], x),
        "switch.vmap": lambda x: jax.vmap(
            lambda i, r: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], r)
        )(jnp.array([0, 1, 2, 7]), x),
        "platform_dependent": lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
        "while": lambda x: lax.while_loop(lambda c: c.sum() < 99, lambda c: c * 2, x),
        "while.none": lambda x: lax.while_loop(
            lambda c: c[0] < 0, lambda c: (c[0] + 1, c[1]), (0, x)
        ),
        "while.vmap": lambda x: jax.vmap(
            lambda r: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, r)
        )(x),
        "while.jvp": lambda x: jax.jvp(
            lambda y: lax.while_loop(lambda c: c.sum() < 99, lambda c: c * 2, y), (x,), (x,)
        ),
        "while.closure": lambda x: lax.while_loop(
            lambda c: c < x.sum(), lambda c: c + x[0, 0], 0.0
        ),
        "fori": lambda x: lax.fori_loop(0, 5, lambda i, c: c + i * x, x),
        "fori.dynamic": lambda x: lax.fori_loop(
            0, (x[0, 0] * 9).astype(int), lambda i, c: c + i, x
        ),
        "fori.reverse": lambda x: lax.fori_loop(3, 1, lambda i, c: c * 2, x),
        "fori.unroll": lambda x: lax.fori_loop(0, 4, lambda i, c: c * 2, x, unroll=True),
        "scan": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(6), x),
        "scan.reverse": lambda x: lax.scan(
            lambda c, r: (c + r, c * r), jnp.zeros(6), x, reverse=True
        ),
        "scan.unroll": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(6), x, unroll=2),
        "scan.none": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(6), x[:0]),
        "scan.one": lambda x: lax.scan(lambda c, r: (c + r, c * r), jnp.zeros(6), x[:1]),
        "scan.no_xs": lambda x: lax.scan(lambda c, _: (c * 2, c.sum()), x, None, length=3),
        "scan.no_ys": lambda x: lax.scan(lambda c, r: (c + r, None), jnp.zeros(6), x)[0],
        "scan.tree": lambda x: lax.scan(
            lambda c, r: ({"a": c["a"] + r[0]}, (r[1], c["a"])), {"a": jnp.zeros(6)}, (x, x * 2)
        ),
        "scan.grad": jax.grad(
            lambda x: lax.scan(lambda c, r: (jnp.sin(c * r), c), jnp.ones(6), x)[1].sum()
        ),
        "scan.vmap": jax.vmap(lambda r: lax.scan(lambda c, v: (c + v, c), 0.0, r)),
        "scan.nested": lambda x: lax.scan(
            lambda c, r: (c, lax.scan(lambda d, v: (d + v, d), 0.0, r)[1]), 0.0, x
        ),
        "scan.key": lambda x: lax.scan(
            lambda k, r: ((jax.random.split(k)[0]), r + jax.random.normal(k)), KEY, x
        )[1],
        "scan.remat": jax.grad(
            lambda x: lax.scan(jax.checkpoint(lambda c, r: (jnp.sin(c * r), c)), jnp.ones(6), x)[
                1
            ].sum()
        ),
        "map": lambda x: lax.map(jnp.sum, x),
        "map.batch": lambda x: lax.map(jnp.sum, x, batch_size=3),
        "custom_jvp": lambda x: clipped(x),
        "custom_jvp.grad": jax.grad(lambda x: clipped(x).sum()),
        "custom_vjp": lambda x: scaled(x),
        "custom_vjp.grad": jax.grad(lambda x: scaled(x).sum()),
        "custom_vmap": lambda x: _batched(x),
        "custom_vmap.vmap": lambda x: jax.vmap(_batched)(x),
        "custom_linear_solve": lambda x: lax.custom_linear_solve(
            lambda v: v * 3, x, lambda m, b: b / 3
        ),
        "custom_root": lambda x: lax.custom_root(
            lambda v: v * v - x, x, lambda f, v: jnp.sqrt(x), lambda g, y: y / g(jnp.ones_like(y))
        ),
        "cg": lambda x: jsp.sparse.linalg.cg(lambda v: 3 * v, x[0])[0],
        "gmres": lambda x: jsp.sparse.linalg.gmres(lambda v: 3 * v, x[0])[0],
        "linear_transpose": lambda x: jax.linear_transpose(lambda v: 3 * v.sum(0), x)(x[0]),
        "checkpoint": jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()),
        "checkpoint.policy": jax.grad(
            lambda x: jax.checkpoint(
                lambda y: jnp.sin(y @ y.T), policy=jax.checkpoint_policies.dots_saveable
            )(x).sum()
        ),
        "checkpoint_name": lambda x: jax.ad_checkpoint.checkpoint_name(jnp.sin(x), "a"),
        "named_call": lambda x: jax.named_call(jnp.sin, name="s")(x),
        "hessian": lambda x: jax.hessian(lambda r: jnp.sin(r).prod())(x[0, :3]),
        "jacfwd": lambda x: jax.jacfwd(lambda r: jnp.sin(r).cumsum())(x[0]),
        "jacrev": lambda x: jax.jacrev(lambda r: jnp.sin(r).cumsum())(x[0]),
        "vmap.axis_name": lambda x: jax.vmap(lambda r: r / lax.psum(r, "i"), axis_name="i")(x),
        "vmap.axis_index": lambda x: jax.vmap(lambda r: r + lax.axis_index("i"), axis_name="i")(x),
        "vmap.all_gather": lambda x: jax.vmap(lambda r: lax.all_gather(r, "i"), axis_name="i")(x),
        "vmap.ppermute": lambda x: jax.vmap(
            lambda r: lax.ppermute(r, "i", [(0, 1), (1, 0), (2, 3), (3, 2)]), axis_name="i"
        )(x),
        "pure_callback": lambda x: _callback(x),
        "pure_callback.vmap": lambda x: jax.vmap(_callback)(x),
        "pure_callback.scan": lambda x: lax.scan(lambda c, r: (c, _callback(r)), 0, x)[1],
        "io_callback": lambda x: _io(x) + 1,
        "debug_print": lambda x: _print(x),
        "shard_map": lambda x: _shard(x),
        "eval_jaxpr": lambda x: (
            jax.core.eval_jaxpr(*(lambda c: (c.jaxpr, c.consts))(jax.make_jaxpr(jnp.sin)(x)), x)[0]
            if hasattr(jax.core, "eval_jaxpr")
            else x
        ),
        "rng_uniform": lambda x: lax.rng_uniform(0.0, 1.0, (3,)) * 0 + x[0, :3],
        "select_and_scatter": lambda x: (
            jax.lax.select_and_scatter(x, lax.ge, (2, 2), (2, 2), "VALID", x[:2, :3], 0.0, lax.add)
            if hasattr(lax, "select_and_scatter")
            else x
        ),
        "token": lambda x: (lambda t: x + 1)(lax.create_token()),
        "optimize_remat": lambda x: jax.grad(lambda y: _saved(y).sum())(x),
        "ormqr": lambda x: (
            lax.linalg.ormqr(x, x[0, :4], x[:, :2]) if hasattr(lax.linalg, "ormqr") else x
        ),
        "axis_size": lambda x: jax.vmap(lambda r: r * lax.axis_size("i"), axis_name="i")(x),
        "io_callback.twice": lambda x: _io(x) - _io(x),
        "own_primitive": lambda x: _own.bind(x),
        "pure_callback.key": lambda x: x,
        "where.broadcast": lambda x: lax.shift_left(
            (x * 9).astype(jnp.uint8), jnp.arange(6, dtype=jnp.uint8)[None]
        ),
        "composite": lambda x: lax.composite(lambda y: jnp.sin(y), name="my.sin")(x),
        "export": lambda x: jax.export.export(jax.jit(jnp.sin))(
            jax.ShapeDtypeStruct(x.shape, x.dtype)
        ).call(x),
        "device_put": lambda x: jax.device_put(x, jax.devices()[0]) + 1,
        "ensure_compile_time": lambda x: x + jnp.sin(3.0),
        "scipy.minimize": lambda x: (
            jsp.optimize.minimize(lambda v: ((v - x[0]) ** 2).sum(), x[1], method="BFGS").x
        ),
        "ode": lambda x: jax.experimental.ode.odeint(lambda y, t: -y, x[0], jnp.linspace(0, 1, 3)),
        "while.debug": lambda x: lax.while_loop(lambda c: c.sum() < 99, lambda c: _print(c) * 2, x),
        "ref": lambda x: _with_ref(x),
        "sparse": lambda x: jax.experimental.sparse.BCOO.fromdense(x, nse=24) @ x.T,
        "key.closure": lambda x: x + jax.random.uniform(KEY, x.shape),
        "checkify": lambda x: jax.experimental.checkify.checkify(lambda y: jnp.log(y))(x)[1],
        "float0": lambda x: jax.vjp(lambda y, i: y * i, x, jnp.int32(2))[1](x)[0],
        "jet": lambda x: jax.experimental.jet.jet(jnp.sin, (x,), ((x, x),)),
        "array_api": lambda x: jnp.asarray(x).at[0].get(),
        "fn.reduce_or": lambda x: (x > 0.5).any(axis=1) & (x < 0.2).all(axis=1),
    },
    X,
)


def _with_ref(x: Any) -> Any:
    ref = jax.new_ref(x)
    ref[0] = ref[1] * 2
    ref[...] += 1
    return ref[...]


# ---- random bits

enter(
    {
        "random.bits": lambda k: jax.random.bits(k, (5,)),
        "random.bits8": lambda k: jax.random.bits(k, (5,), jnp.uint8),
        "random.uniform": lambda k: jax.random.uniform(k, (5, 3)),
        "random.normal": lambda k: jax.random.normal(k, (7,)),
        "random.randint": lambda k: jax.random.randint(k, (9,), -3, 40),
        "random.choice": lambda k: jax.random.choice(k, 9, (4,), replace=False),
        "random.permutation": lambda k: jax.random.permutation(k, 11),
        "random.split": lambda k: jax.random.key_data(jax.random.split(k, 3)),
        "random.fold_in": lambda k: jax.random.key_data(jax.random.fold_in(k, 7)),
        "random.categorical": lambda k: jax.random.categorical(k, X, axis=1),
        "random.gumbel": lambda k: jax.random.gumbel(k, (5,)),
        "random.exponential": lambda k: jax.random.exponential(k, (5,)),
        "random.laplace": lambda k: jax.random.laplace(k, (5,)),
        "random.truncated_normal": lambda k: jax.random.truncated_normal(k, -1, 1, (5,)),
        "random.bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (9,)),
        "random.dirichlet": lambda k: jax.random.dirichlet(k, jnp.ones(4)),
        "random.gamma": lambda k: jax.random.gamma(k, jnp.array([0.5, 2.0])),
        "random.beta": lambda k: jax.random.beta(k, 2.0, 3.0, (4,)),
        "random.poisson": lambda k: jax.random.poisson(k, jnp.array([0.5, 20.0])),
        "random.binomial": lambda k: jax.random.binomial(k, 10, 0.4, (3,)),
        "random.multivariate_normal": lambda k: jax.random.multivariate_normal(
            k, jnp.zeros(4), P[0]
        ),
        "random.orthogonal": lambda k: jnp.abs(jnp.linalg.det(jax.random.orthogonal(k, 3))),
        "random.t": lambda k: jax.random.t(k, 3.0, (4,)),
        "random.vmap": lambda k: jax.vmap(lambda q: jax.random.uniform(q, (3,)))(
            jax.random.split(k, 4)
        ),
        "random.return_key": lambda k: jax.random.split(k)[0],
        "random.keys_where": lambda k: jax.random.key_data(
            jnp.where(True, jax.random.split(k), jax.random.split(k)[::-1])
        ),
        "random.ball": lambda k: jax.random.ball(k, 3, shape=(2,)),
        "random.cauchy": lambda k: jax.random.cauchy(k, (3,)),
        "random.rademacher": lambda k: jax.random.rademacher(k, (5,)),
        "random.bf16": lambda k: jax.random.normal(k, (5,), jnp.bfloat16),
        "random.complex": lambda k: jax.random.normal(k, (3,), jnp.complex64),
        "random.clone": lambda k: jax.random.key_data(jax.random.clone(k)),
        "random.while": lambda k: lax.while_loop(
            lambda c: c[1] < 0.9,
            lambda c: (jax.random.split(c[0])[0], jax.random.uniform(c[0])),
            (k, 0.0),
        )[1],
        "random.cond": lambda k: lax.cond(
            jax.random.uniform(k) > 0.5,
            lambda q: jax.random.normal(q, (3,)),
            lambda q: jax.random.uniform(q, (3,)),
            k,
        ),
    },
    KEY,
)
enter(
    {
        "random.old_key": lambda k: jax.random.normal(jax.random.split(k)[1], (5,)),
        "lax.rng_bit_generator": lambda k: lax.rng_bit_generator(jnp.concatenate([k, k]), (5,)),
        "lax.rng_bit_generator.threefry": lambda k: lax.rng_bit_generator(
            jnp.concatenate([k, k]), (5,), algorithm=lax.RandomAlgorithm.RNG_THREE_FRY
        ),
        "lax.rng_bit_generator.philox": lambda k: lax.rng_bit_generator(
            jnp.concatenate([k, k]),
            (6,),
            dtype=jnp.uint16,
            algorithm=lax.RandomAlgorithm.RNG_PHILOX,
        ),
        "random.wrap": lambda k: jax.random.uniform(jax.random.wrap_key_data(k), (3,)),
    },
    OLD,
)
enter(
    {
        "random.rbg": lambda k: jax.random.uniform(k, (5,)),
        "random.rbg_split": lambda k: jax.random.normal(jax.random.split(k, 3)[1], (4,)),
    },
    jax.random.key(3, impl="rbg"),
)
enter(
    {"random.unsafe_rbg": lambda k: jax.random.uniform(jax.random.fold_in(k, 3), (5,))},
    jax.random.key(3, impl="unsafe_rbg"),
)
enter(
    {
        "random.seed": lambda s: jax.random.uniform(jax.random.key(s), (3,)),
        "random.old_seed": lambda s: jax.random.PRNGKey(s),
    },
    jnp.int32(7),
)
