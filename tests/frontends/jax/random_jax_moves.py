"""The steps of random JAX programs that are one call of JAX each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from random_jax_base import EPS, FLOATS, INTS, SIZES, Base, Unfit, is_float, repeats

UNARY: dict[str, Callable[[Any], Any]] = {
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "erf": lax.erf, "logistic": lax.logistic,
    "exp": lambda x: jnp.exp(-jnp.abs(x)), "log1p": lambda x: jnp.log1p(jnp.abs(x)),
    "sqrt": lambda x: jnp.sqrt(jnp.abs(x) + 0.5), "rsqrt": lambda x: lax.rsqrt(jnp.abs(x) + 0.5),
    "square": jnp.square, "neg": lax.neg, "softplus": jax.nn.softplus, "gelu": jax.nn.gelu,
    "relu": jax.nn.relu, "expm1": lambda x: jnp.expm1(jnp.minimum(x, 1)), "atan": jnp.arctan,
    "silu": jax.nn.silu, "softmax": lambda x: jax.nn.softmax(x, -1) if x.ndim else x,
    "norm": lambda x: x / (1 + jnp.abs(x)), "cbrt": lambda x: jnp.cbrt(jnp.abs(x) + 0.5),
    "asinh": jnp.arcsinh, "scale": lambda x: x * 0.75 - 0.125,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum,
    "min": jnp.minimum, "div": lambda x, y: x / (jnp.abs(y) + 0.5),
    "atan2": lambda x, y: jnp.arctan2(x, jnp.abs(y) + 0.5),
    "logaddexp": jnp.logaddexp, "hypot": lambda x, y: jnp.hypot(x, jnp.abs(y) + 0.5),
    "pow": lambda x, y: jnp.power(jnp.abs(x) + 0.5, jnp.tanh(y)),
}  # fmt: skip
INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "add": jnp.add, "sub": jnp.subtract, "mul": jnp.multiply, "max": jnp.maximum,
    "min": jnp.minimum, "and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor,
    "div": lambda x, y: x // ((y & 7) | 1), "rem": lambda x, y: x % ((y & 7) | 1),
    "lax_div": lambda x, y: lax.div(x, jnp.broadcast_to((y & 7) | 1, x.shape)),
    "lax_rem": lambda x, y: lax.rem(x, jnp.broadcast_to((y & 7) | 1, x.shape)),
    "shl": lambda x, y: jnp.left_shift(x, y & 7), "shr": lambda x, y: jnp.right_shift(x, y & 7),
    "shr_logical": lambda x, y: lax.shift_right_logical(x, jnp.broadcast_to(y & 7, x.shape)),
}  # fmt: skip


class Arithmetic(Base):
    """Elementwise ops, reductions and products."""

    def m_unary(self) -> None:
        x = self.pick()
        if x.dtype == bool:
            self.plain("not", jnp.logical_not, x)
        elif not is_float(x.dtype):
            name = self.rng.choice(
                ["bitwise_not", "population_count", "clz", "sign", "abs", "square"]
            )
            if name in ("sign", "abs") and jnp.issubdtype(x.dtype, jnp.unsignedinteger):
                raise Unfit
            self.plain(name, getattr(lax, name), x)
        else:
            name = self.rng.choice(list(UNARY))
            self.rounded(name, UNARY[name], x)

    def m_exact_unary(self) -> None:
        name = self.rng.choice(["floor", "ceil", "round", "sign", "neg", "abs", "is_finite"])
        self.plain(name, getattr(lax, name), self.float(exact=True))

    def m_binary(self) -> None:
        x = self.pick(lambda v: v.dtype != bool)
        y = self.like(x)
        if is_float(x.dtype):
            name = self.rng.choice(list(BINARY))
            self.rounded(name, BINARY[name], x, y)
        else:
            name = self.rng.choice(list(INTEGER))
            self.plain(name, INTEGER[name], x, y)

    def m_compare(self) -> None:
        x = self.exact()
        name = self.rng.choice(
            ["less", "greater_equal", "equal", "not_equal", "maximum", "minimum"]
        )
        self.plain(
            name,
            getattr(jnp, name),
            x,
            self.pick(lambda v: v.dtype == x.dtype and v.exact and repeats(v.shape, x.shape)),
        )

    def m_where(self) -> None:
        x = self.pick()
        c = self.pick(lambda v: v.dtype == bool and v.exact and repeats(v.shape, x.shape))
        y = self.like(x)
        self.add("where", lambda t, v: jnp.where(*v), (c, x, y), c.exact and x.exact and y.exact)

    def m_clip(self) -> None:
        x = self.float()
        self.plain("clip", lambda v: jnp.clip(v, -0.5, 1.5), x)

    def m_cast(self) -> None:
        x = self.pick()
        to = self.rng.choice(FLOATS + INTS)
        if is_float(x.dtype):
            if is_float(to):
                grows = EPS[to] <= EPS[str(x.dtype)] and to != "float16"
                self.add(f"to_{to}", lambda t, v: v[0].astype(t(to)), (x,), x.exact and grows)
            elif x.exact and to == "bool":
                self.plain("to_bool", lambda v: v > 0.5, x)
            else:
                raise Unfit
        else:
            small = to in ("float32",) and x.dtype.itemsize < 4
            exact = small or not is_float(to)
            scale = 1.0 if x.dtype.itemsize < 4 else 2.0**-24
            self.add(
                f"to_{to}",
                lambda t, v: (
                    v[0].astype(t(to)) * t(to).type(scale) if is_float(to) else v[0].astype(to)
                ),
                (x,),
                exact,
            )

    def m_bitcast(self) -> None:
        x = self.int()
        to = self.rng.choice(
            {
                1: ["int8", "uint8"],
                2: ["int16", "uint16", "uint8"],
                4: ["int32", "uint32", "int16", "uint8"],
            }.get(x.dtype.itemsize, ["int8"])
        )
        self.plain(f"bitcast_{to}", lambda v: lax.bitcast_convert_type(v, to), x)

    # ---- reductions

    def m_reduce(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        axes = tuple(sorted(self.rng.sample(range(x.rank), self.rng.randint(1, x.rank))))
        if not np.prod([x.shape[a] for a in axes]):
            raise Unfit
        keep = self.rng.random() < 0.3
        if is_float(x.dtype):
            name = self.rng.choice(["sum", "mean", "max", "min", "var", "logsumexp"])
            fn = jax.nn.logsumexp if name == "logsumexp" else getattr(jnp, name)
            call = self.plain if name in ("max", "min") else self.rounded
            call(name, lambda v: fn(v, axis=axes, keepdims=keep), x)
        else:
            name = self.rng.choice(["sum", "prod", "max", "min", "any", "all"])
            dtype = (
                {}
                if name not in ("sum", "prod")
                else {"dtype": "int32" if x.dtype == bool else x.dtype}
            )
            self.plain(name, lambda v: getattr(jnp, name)(v, axis=axes, keepdims=keep, **dtype), x)

    def m_arg(self) -> None:
        x = self.exact(1)
        a = self.axis(x)
        if not x.shape[a]:
            raise Unfit
        name = self.rng.choice(["argmax", "argmin"])
        self.plain(name, lambda v: getattr(jnp, name)(v, axis=a), x)

    def m_running(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != bool)
        a, back = self.axis(x), self.rng.random() < 0.4
        name = self.rng.choice(["cumsum", "cummax", "cummin", "cumsum"])
        fn = lambda v: getattr(lax, name)(v, axis=a, reverse=back)
        (self.rounded if name == "cumsum" and is_float(x.dtype) else self.plain)(name, fn, x)

    def m_window(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != bool)
        dims = [self.rng.randint(1, min(3, max(1, d))) for d in x.shape]
        strides = [self.rng.randint(1, 2) for _ in x.shape]
        padding = self.rng.choice(["SAME", "VALID"])
        if is_float(x.dtype) and self.rng.random() < 0.5:
            self.rounded(
                "window_sum",
                lambda v: lax.reduce_window(v, v.dtype.type(0), lax.add, dims, strides, padding),
                x,
            )
        else:
            low = -np.inf if is_float(x.dtype) else np.iinfo(x.dtype).min
            self.plain(
                "window_max",
                lambda v: lax.reduce_window(v, v.dtype.type(low), lax.max, dims, strides, padding),
                x,
            )

    def m_dot(self) -> None:
        x = self.pick(lambda v: v.rank in (1, 2, 3) and v.dtype != bool)
        y = self.pick(
            lambda v: v.dtype == x.dtype and 0 < v.rank <= 2 and v.shape[-2:][0] == x.shape[-1]
        )
        kind = {} if is_float(x.dtype) else {"preferred_element_type": jnp.int32}
        (self.rounded if is_float(x.dtype) else self.plain)(
            "dot", lambda v, w: jnp.matmul(v, w, **({} if is_float(v.dtype) else kind)), x, y
        )

    def m_outer(self) -> None:
        x = self.pick(lambda v: v.rank == 2 and v.dtype != bool)
        y = self.pick(lambda v: v.rank == 2 and v.dtype == x.dtype)
        if x.shape[0] == y.shape[0]:
            (self.rounded if is_float(x.dtype) else self.plain)(
                "einsum", lambda v, w: jnp.einsum("ab,ac->bca", v, w), x, y
            )
        else:
            raise Unfit

    def m_conv(self) -> None:
        x = self.pick(
            lambda v: v.rank == 3 and is_float(v.dtype) and 0 < v.shape[1] < 9 and v.shape[2] > 2
        )
        c, groups = x.shape[1], self.rng.choice([1, x.shape[1]])
        options = {
            "window_strides": (self.rng.randint(1, 2),),
            "padding": ((self.rng.randint(0, 2), 1),),
            "rhs_dilation": (self.rng.randint(1, 2),),
            "feature_group_count": groups,
        }
        k = np.linspace(-1, 1, 2 * c * (c // groups) * 2).reshape(2 * c, c // groups, 2)
        self.add(
            "conv",
            lambda t, v: lax.conv_general_dilated(v[0], jnp.asarray(k, v[0].dtype), **options),
            (x,),
        )


class Movement(Base):
    """Movement, indices and sorting."""

    def m_reshape(self) -> None:
        x = self.pick()
        size = int(np.prod(x.shape, dtype=int))
        shape: list[int] = []
        rest = size
        while rest > 1 and len(shape) < 3:
            d = self.rng.choice([d for d in range(1, rest + 1) if rest % d == 0])
            shape.append(d)
            rest //= d
        shape = [*shape, rest] if size else list(x.shape[::-1])
        self.plain(f"reshape{shape}", lambda v: v.reshape(shape), x)

    def m_transpose(self) -> None:
        x = self.pick(lambda v: v.rank > 1)
        perm = self.rng.sample(range(x.rank), x.rank)
        self.plain(f"transpose{perm}", lambda v: v.transpose(perm), x)

    def m_repeat(self) -> None:
        x = self.pick(lambda v: v.rank < 4)
        at, size = self.rng.randint(0, x.rank), self.rng.choice(SIZES[:8])
        shape = [*x.shape[:at], size, *x.shape[at:]]
        self.plain(f"repeat{shape}", lambda v: jnp.broadcast_to(jnp.expand_dims(v, at), shape), x)

    def m_slice(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        cuts = tuple(
            slice(
                *sorted((self.rng.randint(0, d), self.rng.randint(0, d))),
                self.rng.choice([1, 1, 2, 3]),
            )
            if self.rng.random() < 0.6
            else slice(None, None, self.rng.choice([1, -1]))
            for d in x.shape
        )
        self.plain(f"slice{cuts}", lambda v: v[cuts], x)

    def m_pad(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != bool)
        config = [
            (self.rng.randint(-1, 2), self.rng.randint(-1, 2), self.rng.choice([0, 0, 1]))
            for _ in x.shape
        ]
        if any(
            d + lo + hi + max(d - 1, 0) * mid < 0 or d < 2
            for d, (lo, hi, mid) in zip(x.shape, config)
        ):
            raise Unfit
        self.plain(f"pad{config}", lambda v: lax.pad(v, jnp.asarray(3, v.dtype), config), x)

    def m_concat(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        a = self.axis(x)
        y = self.pick(
            lambda v: (
                v.dtype == x.dtype
                and v.rank == x.rank
                and all(d == e for i, (d, e) in enumerate(zip(v.shape, x.shape)) if i != a)
            )
        )
        self.plain("concat", lambda v, w: jnp.concatenate([v, w, v], a), x, y)

    def m_roll(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        a, by = self.axis(x), self.rng.randint(-3, 3)
        self.plain("roll", lambda v: jnp.roll(v, by, a), x)

    # ---- indices

    def m_dynamic_slice(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        i = self.pick(lambda v: v.rank == 0 and jnp.issubdtype(v.dtype, jnp.integer) and v.exact)
        sizes = [self.rng.randint(0, d) for d in x.shape]
        self.plain(
            f"dynamic_slice{sizes}", lambda v, j: lax.dynamic_slice(v, [j] * x.rank, sizes), x, i
        )

    def m_dynamic_update(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        i = self.pick(lambda v: v.rank == 0 and jnp.issubdtype(v.dtype, jnp.integer) and v.exact)
        u = self.pick(
            lambda v: (
                v.dtype == x.dtype
                and v.rank == x.rank
                and all(d <= e for d, e in zip(v.shape, x.shape))
            )
        )
        self.plain(
            "dynamic_update", lambda v, w, j: lax.dynamic_update_slice(v, w, [j] * x.rank), x, u, i
        )

    def m_take(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        i, a = self.int(), self.axis(x)
        if not x.shape[a] or i.rank > 2:
            raise Unfit
        mode = self.rng.choice(["clip", "wrap"] if is_float(x.dtype) else ["clip", "wrap", "fill"])
        self.plain(f"take_{mode}", lambda v, j: jnp.take(v, j, axis=a, mode=mode), x, i)

    def m_take_along(self) -> None:
        x = self.pick(lambda v: v.rank > 0)
        i = self.pick(
            lambda v: v.rank == x.rank and jnp.issubdtype(v.dtype, jnp.integer) and v.exact
        )
        a = self.axis(x)
        if (
            any(d != e for k, (d, e) in enumerate(zip(x.shape, i.shape)) if k != a)
            or not x.shape[a]
        ):
            raise Unfit
        self.plain("take_along", lambda v, j: jnp.take_along_axis(v, j, a, mode="clip"), x, i)

    def m_scatter(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.dtype != bool)
        i = self.pick(lambda v: v.rank == 1 and jnp.issubdtype(v.dtype, jnp.integer) and v.exact)
        u = self.pick(lambda v: v.dtype == x.dtype and repeats(v.shape, (*i.shape, *x.shape[1:])))
        kind = self.rng.choice(
            ["add", "max", "min", "add"]
            if is_float(x.dtype)
            else ["add", "max", "min", "mul", "subtract"]
        )
        fn = lambda v, j, w: getattr(v.at[j], kind)(w, mode=mode)
        mode = self.rng.choice(["drop", "clip", "wrap"])
        if mode == "wrap":
            fn = lambda v, j, w: getattr(v.at[j % max(v.shape[0], 1)], kind)(w)
        (self.rounded if kind == "add" and is_float(x.dtype) else self.plain)(
            f"scatter_{kind}_{mode}", fn, x, i, u
        )

    def m_put(self) -> None:
        x = self.pick(lambda v: v.rank > 0 and v.shape[0] > 1)
        picked = self.rng.sample(range(x.shape[0]), self.rng.randint(1, x.shape[0]))
        at = np.array(picked, self.rng.choice(["int32", "uint8"]) if max(picked) < 256 else "int32")
        u = self.pick(
            lambda v: v.dtype == x.dtype and repeats(v.shape, (len(picked), *x.shape[1:]))
        )
        self.plain(f"put{picked}", lambda v, w: v.at[at].set(w), x, u)

    # ---- sorting

    def m_sort(self) -> None:
        x = self.exact(1)
        a, down = self.axis(x), self.rng.random() < 0.3
        name = self.rng.choice(["sort", "argsort"])
        self.plain(name, lambda v: getattr(jnp, name)(v, axis=a, descending=down), x)

    def m_sort_pairs(self) -> None:
        x = self.exact(1)
        y = self.pick(lambda v: v.shape == x.shape)
        a = self.axis(x)
        keys = self.rng.choice([1, 2]) if y.exact else 1
        self.add(
            "sort_pairs",
            lambda t, v: lax.sort(tuple(v), dimension=a, num_keys=keys),
            (x, y),
            x.exact and y.exact,
        )

    def m_top_k(self) -> None:
        x = self.exact(1)
        k = self.rng.randint(0, x.shape[-1])
        if x.dtype == bool:
            raise Unfit
        self.add("top_k", lambda t, v: lax.top_k(v[0], k), (x,), x.exact)

    def m_search(self) -> None:
        x = self.pick(lambda v: v.rank == 1 and v.exact and v.shape[0] > 0 and v.dtype != bool)
        y = self.pick(lambda v: v.exact and v.dtype == x.dtype)
        side = self.rng.choice(["left", "right"])
        self.plain("search", lambda v, w: jnp.searchsorted(jnp.sort(v), w, side=side), x, y)
