"""Lowerings of random bits and special functions, by tracing JAX's own decompositions.

Typed random keys are represented by their words: `key<fry>[n]` is `u32[n, 2]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from jax._src.lax import special
from jax._src.random import core as random_core
from jax._src.random import prng, threefry2x32

from stack.frontends.jax.lax.elementwise_ops import aligned
from stack.frontends.jax.lax.lowering import Lowering, NoLowering, Site, jax_dtype, lower
from stack.ir.node import Node


def _keyed(*names: str) -> Callable[[Lowering], Lowering]:
    def enter(rule: Lowering) -> Lowering:
        rule.handles_words = True  # pyright: ignore[reportFunctionMemberAccess]
        return lower(*names)(rule)

    return enter


@_keyed("random_wrap", "random_unwrap")
def _same_words(s: Site, words: Node, **_: Any) -> Node:
    return words


@_keyed("random_seed")
def _seed(s: Site, seeds: Node, *, impl: Any, **_: Any) -> Node:
    return s.trace(lambda x: prng.random_seed_impl_base(x, impl=impl), seeds)[0]


def _key(s: Site) -> Any:
    """Returns the abstract value of the keys, and their generator implementation."""
    aval = s.eqn.invars[0].aval
    return aval, aval.dtype._impl


@_keyed("random_split")
def _split(s: Site, keys: Node, *, shape: Any, **_: Any) -> Node:
    aval, impl = _key(s)
    return s.trace(lambda x: prng.random_split_impl_base(impl, x, aval.ndim, shape=shape), keys)[0]


@_keyed("random_fold_in")
def _fold_in(s: Site, keys: Node, data: Node, **_: Any) -> Node:
    aval, impl = _key(s)

    def fold_in(x: Any, d: Any) -> Any:
        return prng.random_fold_in_impl_base(impl, x, d, aval.shape)

    return s.trace(fold_in, keys, data)[0]


@_keyed("random_bits")
def _bits(s: Site, keys: Node, *, bit_width: int, shape: Any, **_: Any) -> Node:
    aval, impl = _key(s)

    def bits(x: Any) -> Any:
        return prng.random_bits_impl_base(impl, x, aval.ndim, bit_width=bit_width, shape=shape)

    return s.trace(bits, keys)[0]


@_keyed("random_gamma")
def _gamma(s: Site, keys: Node, alpha: Node, *, log_space: bool, **_: Any) -> Node:
    _, impl = _key(s)

    def gamma(x: Any, a: Any) -> Any:
        wrapped = prng.random_wrap(x, impl=impl)
        return random_core._gamma_impl(wrapped, a, log_space=log_space, use_vmap=True)

    return s.trace(gamma, keys, alpha)[0]


@lower("threefry2x32")
def _threefry(s: Site, *args: Node, **_: Any) -> list[Node]:
    def rounds(*words: Any) -> Any:
        return threefry2x32._threefry2x32_lowering(*words, use_rolled_loops=False)

    return s.trace(rounds, *args)


def _special(function: Callable[..., Any]) -> Lowering:
    typed = "dtype" in inspect.signature(function).parameters

    def rule(s: Site, *args: Node, **params: Any) -> Node:
        if s.type.dtype.bits == 16:
            raise NoLowering("computed in f32 by JAX's wrapper")
        options = {"dtype": jax_dtype(s.type.dtype)} if typed else {}
        return s.trace(lambda *xs: function(*xs, **options), *aligned(s, args))[0]

    return rule


for _name in ("igamma", "igammac", "igamma_grad_a", "random_gamma_grad", "bessel_i0e",
              "regularized_incomplete_beta"):  # fmt: skip
    if hasattr(special, f"{_name}_impl"):
        lower(_name)(_special(getattr(special, f"{_name}_impl")))
