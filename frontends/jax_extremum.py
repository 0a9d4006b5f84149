"""Maxima and minima along axes for JAX, with a derivative that XLA does not break."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

Array = Any


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def extremum(x: Array, kind: str, axes: tuple[int, ...]) -> Array:
    """The largest ("max") or the smallest ("min"); its derivative is that of the first place.

    JAX's own derivative asks which elements equal the result. XLA may compute these twice inside of
    one program, rounded differently: then none does, and their number, by which it divides, is 0.
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
