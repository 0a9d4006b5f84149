"""Building blocks of random JAX programs: values by type, steps, and which values fit a step."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FLOATS = ("float32", "float32", "float32", "bfloat16", "float16")
INTS = ("int32", "int32", "int8", "uint8", "int16", "uint32", "bool")
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 33)
MOST = 2048  # elements of a value
EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10, "float64": 2.0**-52}
Run = Callable[["Types", Sequence[Any]], Any]


class Types:
    """The element types of a run: those of the program, or f64 in place of every float."""

    def __init__(self, wide: bool) -> None:
        self.wide = wide

    def __call__(self, dtype: Any) -> Any:
        return jnp.dtype("float64") if self.wide and is_float(dtype) else jnp.dtype(dtype)


@dataclass(frozen=True)
class Value:
    """A value of the program as it grows.

    Attributes:
        exact: whether it has no roundings.
        eps: rounding of the coarsest type that it went through.
    """

    place: int
    shape: tuple[int, ...]
    dtype: Any
    exact: bool
    eps: float

    @property
    def rank(self) -> int:
        return len(self.shape)


def is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


class Unfit(Exception):
    pass


def repeats(shape: Sequence[int], into: Sequence[int]) -> bool:
    """True if a shape broadcasts to another."""
    return len(shape) <= len(into) and all(d in (1, e) for d, e in zip(shape[::-1], into[::-1]))


class Base:
    """A function of `params` as it grows. `depth` is how many functions it is inside of."""

    def __init__(self, rng: random.Random, params: Sequence[Value], depth: int = 0) -> None:
        self.rng = rng
        self.depth = depth
        self.count = len(params)
        self.values = list(params)
        self.steps: list[tuple[Run, tuple[int, ...], bool]] = []
        self.log: list[str] = []

    def grow(self, count: int) -> None:
        moves = [m for m in dir(self) if m.startswith("m_") and not (self.depth and "call" in m)]
        weights = [
            3 if m in ("m_unary", "m_binary", "m_where") else 2 if "call" in m else 1 for m in moves
        ]
        tries = 0
        while len(self.steps) < count and tries < 12 * count:
            tries += 1
            name = self.rng.choices(moves, weights)[0]
            try:
                getattr(self, name)()
            except Unfit:
                continue

    def run(self, types: Types, args: Sequence[Any]) -> list[Any]:
        """All values: parameters, then what each step gives."""
        env = list(args)
        for call, places, several in self.steps:
            out = call(types, [env[i] for i in places])
            for made in out if several else [out]:
                dtype = self.values[len(env)].dtype
                # with x64 on, JAX's indices are wider
                env.append(made if is_float(dtype) else made.astype(dtype))
        return env

    # ---- picking and adding

    def pick(self, test: Callable[[Value], bool] = lambda v: True) -> Value:
        fitting = [v for v in self.values if test(v)]
        if not fitting:
            raise Unfit
        return self.rng.choice(fitting[-5:] if self.rng.random() < 0.6 else fitting)

    def float(self, exact: bool = False) -> Value:
        return self.pick(lambda v: is_float(v.dtype) and (v.exact or not exact))

    def int(self) -> Value:
        return self.pick(lambda v: not is_float(v.dtype) and v.dtype != bool and v.exact)

    def exact(self, rank: int = 0) -> Value:
        return self.pick(lambda v: v.exact and v.rank >= rank)

    def like(self, x: Value) -> Value:
        """A value of this type, or one that repeats to it."""
        try:
            return self.pick(
                lambda v: v.dtype == x.dtype and v is not x and repeats(v.shape, x.shape)
            )
        except Unfit:
            return x

    def add(self, name: str, run: Run, args: Sequence[Value], exact: bool | None = None) -> Value:
        """A step; `exact` says whether it rounds nothing, None where it rounds floats."""

        def shapes(*given: Any) -> Any:
            return run(Types(False), list(given))

        specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in args]
        try:
            out = jax.eval_shape(shapes, *specs)
        except OverflowError as error:  # JAX itself: an index type too narrow for the axis
            raise Unfit from error
        several = isinstance(out, tuple | list)
        outs = list(out) if several else [out]
        if any(np.prod(o.shape, dtype=int) > MOST for o in outs) or not outs:
            raise Unfit
        self.steps.append((run, tuple(a.place for a in args), several))
        self.log.append(f"{name}({', '.join(str(a.place) for a in args)})")
        made: list[Value] = []
        for o in outs:
            is_exact = all(a.exact for a in args) if exact is None else exact
            is_exact = is_exact and (exact is not None or not is_float(o.dtype))
            eps = max([a.eps for a in args] + [EPS.get(str(o.dtype), 0.0)])
            made.append(Value(len(self.values), o.shape, o.dtype, is_exact, eps))
            self.values.append(made[-1])
        return made[-1]

    def plain(self, name: str, fn: Callable[..., Any], *args: Value) -> Value:
        """A step that moves values and rounds none."""
        return self.add(name, lambda t, xs: fn(*xs), args, all(a.exact for a in args))

    def rounded(self, name: str, fn: Callable[..., Any], *args: Value) -> Value:
        return self.add(name, lambda t, xs: fn(*xs), args)

    def axis(self, x: Value) -> int:
        if not x.rank:
            raise Unfit
        return self.rng.randrange(x.rank)
