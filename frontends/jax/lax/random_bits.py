"""Lowerings of random bits and special functions, by tracing JAX's own decompositions.

Typed random keys are represented by their words: `key<fry>[n]` is `u32[n, 2]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from stack.frameworks import jax_private as private
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
    return s.trace(lambda x: private.seed_words(x, impl), seeds)[0]


def _key(s: Site) -> Any:
    """Returns the abstract value of the keys, and their generator implementation."""
    aval = s.eqn.invars[0].aval
    return aval, private.key_generator(aval.dtype)


@_keyed("random_split")
def _split(s: Site, keys: Node, *, shape: Any, **_: Any) -> Node:
    aval, impl = _key(s)
    return s.trace(lambda x: private.split_words(impl, x, aval.ndim, shape), keys)[0]


@_keyed("random_fold_in")
def _fold_in(s: Site, keys: Node, data: Node, **_: Any) -> Node:
    aval, impl = _key(s)

    def fold_in(x: Any, d: Any) -> Any:
        return private.fold_words(impl, x, d, aval.shape)

    return s.trace(fold_in, keys, data)[0]


@_keyed("random_bits")
def _bits(s: Site, keys: Node, *, bit_width: int, shape: Any, **_: Any) -> Node:
    aval, impl = _key(s)

    def bits(x: Any) -> Any:
        return private.bits_of_words(impl, x, aval.ndim, bit_width, shape)

    return s.trace(bits, keys)[0]


@_keyed("random_gamma")
def _gamma(s: Site, keys: Node, alpha: Node, *, log_space: bool, **_: Any) -> Node:
    _, impl = _key(s)

    def gamma(x: Any, a: Any) -> Any:
        return private.gamma_of_words(impl, x, a, log_space)

    return s.trace(gamma, keys, alpha)[0]


@lower("threefry2x32")
def _threefry(s: Site, *args: Node, **_: Any) -> list[Node]:
    return s.trace(private.threefry_rounds, *args)


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
    _function_ = private.special_function(_name)
    if _function_ is not None:
        lower(_name)(_special(_function_))
