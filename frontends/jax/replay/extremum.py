"""Maxima and minima along axes for JAX, with a safe derivative, and the largest elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def extremum(x: Array, kind: str, axes: tuple[int, ...]) -> Array:
    """Returns the maximum ("max") or minimum ("min"); the gradient goes to its first occurrence.

    JAX's own derivative compares all elements with the result and divides by the number of equal
    ones. XLA may compute the two sides with different rounding; then no element is equal, and it
    divides by 0.
    """
    return jnp.max(x, axes) if kind == "max" else jnp.min(x, axes)


@extremum.defjvp
def _derivative(
    kind: str, axes: tuple[int, ...], primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    out = extremum(*primals, kind, axes)
    last = range(out.ndim, out.ndim + len(axes))
    x, tangent = (
        jnp.moveaxis(a, axes, tuple(last)).reshape(*out.shape, -1) for a in (*primals, *tangents)
    )
    place = (jnp.argmax if kind == "max" else jnp.argmin)(x, -1, keepdims=True)
    return out, jnp.take_along_axis(tangent, place, -1)[..., 0]


def largest(args: Sequence[Array], count: int, axis: int) -> tuple[Array, ...]:
    """Returns the largest `count` elements of the first array, and the others at their places.

    XLA has `top_k` of f32, whose order is that of the bits as integers, negative ones reversed.
    """
    keys = jnp.moveaxis(args[0], axis, -1)
    bits = jnp.where(keys < 0, keys ^ np.int32(0x7FFFFFFF), keys)
    _, places = lax.top_k(lax.bitcast_convert_type(bits, np.float32), count)
    places = jnp.moveaxis(places, -1, axis)
    return tuple(jnp.take_along_axis(a, places, axis, mode="promise_in_bounds") for a in args)
