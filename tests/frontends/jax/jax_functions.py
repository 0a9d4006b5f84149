"""Small JAX programs: movement, reductions, sorting and convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import jax.scipy as jsp
from jax import lax
from jax_inputs import IMAGE, KERNEL, X, enter

# ---- movement, reduction, sorting

enter(
    {
        "lax.reshape": lambda x: lax.reshape(x, (6, 4), (1, 0)),
        "lax.rev": lambda x: lax.rev(x, (0, 1)),
        "lax.pad": lambda x: lax.pad(x, 0.5, ((1, -1, 2), (-2, 3, 0))),
        "lax.tile": lambda x: jnp.tile(x, (2, 1, 3)),
        "lax.split": lambda x: lax.split(x, [2, 1, 3], 1),
        "lax.squeeze": lambda x: lax.squeeze(x[:1], (0,)),
        "lax.expand_dims": lambda x: lax.expand_dims(x, (0, 2)),
        "lax.collapse": lambda x: lax.collapse(x, 0),
        "lax.concatenate": lambda x: lax.concatenate([x, x[:1], x[:0]], 0),
        "lax.iota": lambda x: lax.broadcasted_iota(jnp.uint8, (3, 4), 1),
        "lax.broadcast": lambda x: lax.broadcast(x, (2, 1)),
        "lax.broadcast_in_dim": lambda x: lax.broadcast_in_dim(x[:1], (3, 5, 6), (1, 2)),
        "lax.dynamic_slice": lambda x: lax.dynamic_slice(x, (jnp.uint32(3), jnp.uint32(9)), (2, 2)),
        "lax.dynamic_update_slice": lambda x: lax.dynamic_update_slice(
            x, x[:2, :2], (jnp.int16(-1), jnp.int16(9))
        ),
        "lax.gather": lambda x: jnp.take(x, jnp.array([[0, 9], [-1, 2]]), axis=1, mode="fill"),
        "lax.scatter": lambda x: x.at[jnp.array([0, 2]), jnp.array([1, 9])].set(5.0),
        "lax.scatter_apply": lambda x: x.at[1, 1].apply(jnp.abs),
        "lax.scatter_scalar": lambda x: x.sum().at[()].add(2.0),
        "lax.argsort": lambda x: jnp.argsort(x, axis=0, descending=True),
        "lax.sort": lambda x: lax.sort(
            (x, x * 2, jnp.arange(24).reshape(4, 6)), dimension=0, num_keys=1
        ),
        "lax.sort.two_keys": lambda x: lax.sort((jnp.round(x * 3), x, -x), dimension=1, num_keys=2),
        "lax.sort.unstable": lambda x: lax.sort(x, is_stable=False),
        "lax.top_k": lambda x: lax.top_k(x, 3),
        "lax.top_k.axis": lambda x: lax.top_k(x, 2, axis=0),
        "lax.approx_max_k": lambda x: lax.approx_max_k(x, 2),
        "lax.approx_min_k": lambda x: lax.approx_min_k(x, 2),
        "lax.argmax": lambda x: lax.argmax(x, 1, jnp.uint8),
        "lax.argmin": lambda x: lax.argmin(x, 0, jnp.int16),
        "lax.cumsum": lambda x: lax.cumsum(x, 1, reverse=True),
        "lax.cumprod": lambda x: lax.cumprod(x, 0),
        "lax.cummax": lambda x: lax.cummax(x, 1),
        "lax.cummin": lambda x: lax.cummin(x, 1, reverse=True),
        "lax.reduce": lambda x: lax.reduce(x, 1.0, lambda a, b: a * b + a, [1]),
        "lax.reduce.two": lambda x: lax.reduce(
            (x, -x), (0.0, 0.0), lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), [0]
        ),
        "lax.reduce.max": lambda x: lax.reduce(x, -jnp.inf, lax.max, [0]),
        "lax.reduce.start": lambda x: lax.reduce(x, 0.7, lax.min, [0]),
        "lax.reduce_window": lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 3), (1, 2), "SAME"),
        "lax.reduce_window.max": lambda x: lax.reduce_window(
            x, -jnp.inf, lax.max, (2, 2), (1, 1), ((1, 0), (0, 1)), (2, 1), (1, 2)
        ),
        "lax.reduce_window.mul": lambda x: lax.reduce_window(
            x, 1.0, lax.mul, (2, 2), (2, 2), "VALID"
        ),
        "lax.reduce_window.fn": lambda x: lax.reduce_window(
            x, 0.0, lambda a, b: a + 2 * b, (2, 1), (1, 1), "VALID"
        ),
        "lax.select_and_scatter": jax.grad(
            lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID").sum()
        ),
        "lax.select_and_gather": lambda x: jax.jvp(
            lambda y: lax.reduce_window(y, jnp.inf, lax.min, (2, 2), (1, 1), "SAME"), (x,), (x * 2,)
        ),
        "lax.associative_scan": lambda x: lax.associative_scan(jnp.add, x),
        "lax.dot": lambda x: lax.dot(x, x.T),
        "lax.dot.precision": lambda x: lax.dot(x, x.T, precision="highest"),
        "lax.dot.preferred": lambda x: lax.dot(
            x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16), preferred_element_type=jnp.float32
        ),
        "lax.dot.algorithm": lambda x: lax.dot(
            x, x.T, precision=lax.DotAlgorithmPreset.F32_F32_F32
        ),
        "lax.dot.int8": lambda x: lax.dot(
            (x * 9).astype(jnp.int8), (x.T * 9).astype(jnp.int8), preferred_element_type=jnp.int32
        ),
        "lax.batch_matmul": lambda x: lax.batch_matmul(x[None], x.T[None]),
        "lax.ragged_dot": lambda x: lax.ragged_dot(
            x, jnp.stack([x.T, x.T * 2])[:, :6, :4], jnp.array([3, 1], jnp.int32)
        ),
        "jnp.searchsorted": lambda x: jnp.searchsorted(jnp.sort(x[0]), x[1]),
        "jnp.unique": lambda x: jnp.unique(jnp.round(x * 3), size=5, fill_value=9),
        "jnp.nonzero": lambda x: jnp.nonzero(x > 0.5, size=9, fill_value=-1),
        "jnp.bincount": lambda x: jnp.bincount((x * 5).astype(int).ravel(), length=6),
        "jnp.histogram": lambda x: jnp.histogram(x, bins=4)[0],
        "jnp.median": lambda x: jnp.median(x, axis=1),
        "jnp.quantile": lambda x: jnp.quantile(x, 0.3, axis=0),
        "jnp.einsum": lambda x: jnp.einsum("ij,kj->ik", x, x),
        "jnp.convolve": lambda x: jnp.convolve(x[0], x[1]),
        "jnp.interp": lambda x: jnp.interp(x, jnp.linspace(0, 1, 5), jnp.arange(5.0)),
        "jnp.roll": lambda x: jnp.roll(x, (1, -2), (0, 1)),
        "jnp.cross": lambda x: jnp.cross(x[:, :3], x[:, 3:]),
        "jnp.trapezoid": lambda x: jnp.trapezoid(x),
        "jnp.polyfit": lambda x: jnp.polyfit(x[0], x[1], 2),
        "jnp.packbits": lambda x: jnp.packbits(x > 0.5),
        "jnp.unpackbits": lambda x: jnp.unpackbits((x * 200).astype(jnp.uint8)),
        "jnp.ldexp": lambda x: jnp.ldexp(x, 3),
        "jnp.frexp": lambda x: jnp.frexp(x),
        "jnp.gcd": lambda x: jnp.gcd((x * 99).astype(int), 12),
        "jnp.select": lambda x: jnp.select([x > 0.7, x > 0.4], [x, -x], 0),
        "jnp.piecewise": lambda x: jnp.piecewise(x, [x > 0.5], [jnp.sin, jnp.cos]),
        "jnp.logaddexp2": lambda x: jnp.logaddexp2(x, -x),
        "jnp.nan_to_num": lambda x: jnp.nan_to_num(jnp.log(x - 0.5)),
        "jnp.float_power": lambda x: jnp.float_power(x, 2.5),
        "jnp.divmod": lambda x: jnp.divmod(x, 0.3),
        "jnp.heaviside": lambda x: jnp.heaviside(x - 0.5, 0.5),
        "jnp.sinc": lambda x: jnp.sinc(x),
        "jnp.vander": lambda x: jnp.vander(x[0]),
        "jnp.kron": lambda x: jnp.kron(x, x[:2, :2]),
        "jnp.lexsort": lambda x: jnp.lexsort((x[0], jnp.round(x[1] * 2))),
        "jnp.partition": lambda x: jnp.sort(jnp.partition(x, 2, axis=1)[:, :2]),
        "jnp.fill_diagonal": lambda x: jnp.fill_diagonal(x, 3.0, inplace=False),
        "jnp.place": lambda x: jnp.put(x, jnp.array([1, 5]), 9.0, inplace=False),
        "jnp.compress": lambda x: jnp.compress(jnp.array([True, False, True]), x, axis=0, size=2),
        "jnp.isin": lambda x: jnp.isin(jnp.round(x * 4), jnp.array([1.0, 2.0])),
        "image.resize": lambda x: jax.image.resize(x, (7, 5), "bilinear"),
        "image.cubic": lambda x: jax.image.resize(x, (3, 9), "cubic"),
        "ndimage.map_coordinates": lambda x: jsp.ndimage.map_coordinates(
            x, [jnp.array([0.5, 1.2]), jnp.array([2.2, 3.0])], order=1
        ),
        "signal.convolve2d": lambda x: jsp.signal.convolve2d(x, x[:2, :2]),
        "signal.stft": lambda x: jnp.abs(jsp.signal.stft(x.ravel(), nperseg=8)[2]),
        "nn.dot_product_attention": lambda x: jax.nn.dot_product_attention(
            *[x.reshape(1, 4, 2, 3)] * 3
        ),
        "nn.one_hot": lambda x: jax.nn.one_hot((x * 5).astype(int), 4),
        "nn.logsumexp": lambda x: jax.nn.logsumexp(x, axis=1),
        "nn.standardize": lambda x: jax.nn.standardize(x),
        "nn.glu": lambda x: jax.nn.glu(x),
        "segment_sum": lambda x: jax.ops.segment_sum(x, jnp.array([0, 2, 0, 5]), 4),
        "segment_max": lambda x: jax.ops.segment_max(x, jnp.array([0, 2, 0, 3]), 4),
    },
    X,
)

# ---- convolutions


def _conv(**options: Any) -> Callable[..., Any]:
    def fn(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, **{"window_strides": (1, 1), "padding": "SAME", **options}
        )

    return fn


enter(
    {
        "conv": _conv(),
        "conv.valid": _conv(padding="VALID"),
        "conv.strides": _conv(window_strides=(2, 3)),
        "conv.padding": _conv(padding=((3, -1), (0, 2))),
        "conv.lhs_dilation": _conv(lhs_dilation=(2, 1), padding=((1, 2), (0, 1))),
        "conv.rhs_dilation": _conv(rhs_dilation=(2, 3)),
        "conv.both": _conv(
            lhs_dilation=(2, 2),
            rhs_dilation=(2, 1),
            window_strides=(2, 1),
            padding=((2, 2), (1, 1)),
        ),
        "conv.precision": _conv(precision="highest"),
        "conv.preferred": _conv(preferred_element_type=jnp.float32),
        "conv.groups": lambda x, w: _conv(feature_group_count=2)(x, w[:, :2]),
        "conv.depthwise": lambda x, w: _conv(feature_group_count=4)(
            x, jnp.tile(w, (2, 1, 1, 1))[:8, :1]
        ),
        "conv.batch_groups": lambda x, w: _conv(batch_group_count=2)(x, w),
        "conv.nhwc": lambda x, w: _conv(dimension_numbers=("NHWC", "HWIO", "NHWC"))(
            x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
        ),
        "conv.mixed": lambda x, w: _conv(dimension_numbers=("HWNC", "OIHW", "NHCW"))(
            x.transpose(2, 3, 0, 1), w
        ),
        "conv.1d": lambda x, w: lax.conv_general_dilated(x[:, :, 0], w[:, :, 0], (1,), "SAME"),
        "conv.0d": lambda x, w: lax.conv_general_dilated(x[:, :, 0, 0], w[:, :, 0, 0], (), []),
        "conv.3d": lambda x, w: lax.conv_general_dilated(
            x[..., None], w[..., None], (1, 1, 1), "SAME"
        ),
        "conv.transpose": lambda x, w: lax.conv_transpose(
            x, w, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
        ),
        "conv.grad": jax.grad(lambda x, w: _conv(window_strides=(2, 2))(x, w).sum(), (0, 1)),
        "conv.grad_groups": lambda x, w: jax.grad(
            lambda a, b: _conv(feature_group_count=2)(a, b).sum(), (0, 1)
        )(x, w[:, :2]),
        "conv.local": lambda x, w: lax.conv_general_dilated_local(
            x[:1, :2, :4, :4], jnp.ones((3, 8, 3, 3)), (1, 1), "VALID", (2, 2)
        ),
        "conv.patches": lambda x, w: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "VALID"),
        "conv.bf16": lambda x, w: _conv()(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)),
        "conv.int": lambda x, w: _conv()((x * 4).astype(jnp.int32), (w * 4).astype(jnp.int32)),
        "conv.empty": lambda x, w: _conv(padding="VALID")(x[:0], w),
        "conv.vmap": lambda x, w: jax.vmap(_conv(), (None, 0))(x, jnp.stack([w, -w])),
    },
    IMAGE,
    KERNEL,
)
