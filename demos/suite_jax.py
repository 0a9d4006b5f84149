"""JAX programs with scan, vmap and while: recurrent, attention, GPT-2, an ODE, a state space; and
programs of a few operations, for which calls and launches count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stack.demos import models, models_jax, suite_jax_blocks
from stack.demos.suite import Setting

Target = tuple[Callable[..., Any], tuple[Any, ...]]


def _draw(setting: Setting, *shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    array = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * scale
    return _put(setting, array)


def _put(setting: Setting, array: Any) -> Any:
    kind = "gpu" if setting.large else "cpu"
    return jax.device_put(jnp.asarray(array), jax.devices(kind)[0])


def _finish(setting: Setting, fn: Callable[..., Any], args: tuple[Any, ...]) -> Target:
    """Returns a program, or gradients of its mean squared result by its first argument."""
    if not setting.train:
        return fn, args

    def loss(*given: Any) -> Any:
        leaves = jax.tree.leaves(fn(*given))
        return sum(jnp.square(leaf).mean() for leaf in leaves)

    return jax.grad(loss), args


def rnn_scan(setting: Setting) -> Target:
    """A gated recurrent network over time with `lax.scan`."""
    steps, batch, width = (512, 64, 1024) if setting.large else (64, 8, 256)
    names = ("wz", "uz", "wr", "ur", "wh", "uh")
    params = {
        name: _draw(setting, width, width, seed=number, scale=width**-0.5)
        for number, name in enumerate(names)
    }

    def net(params: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            z = jax.nn.sigmoid(x @ params["wz"] + h @ params["uz"])
            r = jax.nn.sigmoid(x @ params["wr"] + h @ params["ur"])
            new = jnp.tanh(x @ params["wh"] + (r * h) @ params["uh"])
            h = (1 - z) * h + z * new
            return h, h

        start = jnp.zeros((xs.shape[1], xs.shape[2]), xs.dtype)
        return jax.lax.scan(step, start, xs)[1]

    return _finish(setting, net, (params, _draw(setting, steps, batch, width, seed=9)))


def vmap_attention(setting: Setting) -> Target:
    """Attention of one head, mapped over heads, then over the batch."""
    batch, heads, length, size = (4, 16, 2048, 128) if setting.large else (1, 8, 256, 64)

    def head(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.T / jnp.sqrt(jnp.asarray(q.shape[-1], q.dtype))
        line = jnp.arange(scores.shape[-1])
        scores = jnp.where(line > line[:, None], -jnp.inf, scores)
        return jax.nn.softmax(scores, axis=-1) @ v

    args = tuple(_draw(setting, batch, heads, length, size, seed=seed) for seed in range(3))
    return _finish(setting, jax.vmap(jax.vmap(head)), args)


def gpt2_jax(setting: Setting) -> Target:
    """The loss of GPT-2 small with two layers, or its gradients."""
    sizes = {"seq": 1024, "batch": 8, "vocab": 32000} if setting.large else {"vocab": 8192}
    config = replace(models.GPT2, layers=2, **sizes)
    fn, (params, tokens, targets) = models_jax.make_gpt2(config)
    args = (jax.tree.map(lambda a: _put(setting, a), params), _put(setting, tokens),
            _put(setting, targets))  # fmt: skip
    return (jax.grad(fn) if setting.train else fn), args


def ode_while(setting: Setting) -> Target:
    """A neural ODE by Euler's method with `while_loop`; for gradients, a loop of fixed length."""
    batch, width, steps = (4096, 512, 64) if setting.large else (64, 128, 32)
    params = {
        "a": _draw(setting, width, width, seed=1, scale=width**-0.5),
        "b": _draw(setting, width, width, seed=2, scale=width**-0.5),
    }

    def slope(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["a"]) @ params["b"] - x

    def forward(params: Any, x: Any) -> Any:
        def ahead(state: Any) -> Any:
            return state[0] < steps

        def step(state: Any) -> Any:
            return state[0] + 1, state[1] + slope(params, state[1]) / steps

        return jax.lax.while_loop(ahead, step, (0, x))[1]

    def counted(params: Any, x: Any) -> Any:
        return jax.lax.fori_loop(0, steps, lambda _, y: y + slope(params, y) / steps, x)

    fn = counted if setting.train else forward
    return _finish(setting, fn, (params, _draw(setting, batch, width)))


def ssm_scan(setting: Setting) -> Target:
    """A diagonal state space with `associative_scan`, gated by its input."""
    batch, length, width = (8, 4096, 1024) if setting.large else (1, 512, 256)
    params = {
        "gate": _draw(setting, width, width, seed=1, scale=width**-0.5),
        "value": _draw(setting, width, width, seed=2, scale=width**-0.5),
        "out": _draw(setting, width, width, seed=3, scale=width**-0.5),
    }

    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    def net(params: Any, x: Any) -> Any:
        decay = jax.nn.sigmoid(x @ params["gate"])
        value = (1 - decay) * (x @ params["value"])
        _, state = jax.lax.associative_scan(join, (decay, value), axis=1)
        return jax.nn.silu(state) @ params["out"]

    return _finish(setting, net, (params, _draw(setting, batch, length, width)))


def mlp_vmap(setting: Setting) -> Target:
    """An ensemble of MLPs: `vmap` over their weights."""
    count, batch, width = (16, 4096, 1024) if setting.large else (8, 64, 256)
    params = [
        (_draw(setting, count, width, width, seed=number, scale=width**-0.5),
         _draw(setting, count, width, seed=number + 9, scale=0.1))
        for number in range(3)
    ]  # fmt: skip

    def net(params: Any, x: Any) -> Any:
        for weight, bias in params:
            x = jax.nn.gelu(x @ weight + bias)
        return x

    args = (params, _draw(setting, batch, width))
    return _finish(setting, jax.vmap(net, in_axes=(0, None)), args)


# ---- programs of a few operations


def _take_sum(table: Any, places: Any) -> Any:
    return jnp.take(table, places, axis=0).sum(0)


def _segment_sum(rows: Any, places: Any) -> Any:
    return jax.ops.segment_sum(rows, places, num_segments=4096)


def _top_k(x: Any) -> Any:
    values, places = jax.lax.top_k(x, 8)
    return jax.nn.softmax(values), places


def _newton(x: Any) -> Any:
    square = jnp.abs(x) + 1
    return jax.lax.fori_loop(0, 20, lambda _, y: 0.5 * (y + square / y), square)


def _gated_scan(gate: Any, x: Any) -> Any:
    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return jax.lax.associative_scan(join, (jax.nn.sigmoid(gate), x), axis=1)[1]


def _conv_mean(x: Any, w: Any) -> Any:
    form = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=form)
    return jax.nn.relu(y).mean((1, 2))


Shape = tuple[int, ...]


def _few(
    fn: Callable[..., Any],
    *shapes: tuple[Shape, Shape],
    places: Sequence[tuple[int, int]] = (),
    half: bool = False,
) -> Callable[[Setting], Target]:
    """Returns the maker of a program on drawn arrays.

    Args:
        fn: the function of the arrays.
        shapes: the shape of each array, on a GPU and on a CPU.
        places: how many indices the last argument has, and of how many rows; likewise.
        half: whether the arrays are bf16 on a GPU.
    """

    def make(setting: Setting) -> Target:
        at = 0 if setting.large else 1
        args = [_draw(setting, *s[at], seed=number) for number, s in enumerate(shapes)]
        if half and setting.large:
            args = [a.astype(jnp.bfloat16) for a in args]
        if places:
            count, rows = places[at]
            args.append(_put(setting, np.random.default_rng(9).integers(0, rows, count, np.int32)))
        return _finish(setting, fn, tuple(args))

    return make


def _trained(make: Callable[[Setting], Target]) -> Callable[[Setting], Target]:
    """Returns the gradients of a program, where a setting asks for them."""
    return lambda setting: _finish(setting, *make(setting))


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "rnn_scan": rnn_scan,
    "vmap_attention": vmap_attention,
    "gpt2_jax": gpt2_jax,
    "ode_while": ode_while,
    "ssm_scan": ssm_scan,
    "mlp_vmap": mlp_vmap,
    "take_sum": _few(
        _take_sum, ((50_000, 256), (5_000, 64)), places=[(32, 50_000), (32, 5_000)], half=True
    ),
    "segment_sum": _few(
        _segment_sum, ((200_000, 64), (20_000, 16)), places=[(200_000, 4096), (20_000, 4096)]
    ),
    "top_k": _few(_top_k, ((4096, 256), (512, 256))),
    "newton": _few(_newton, ((2048, 2048), (512, 512))),
    "gated_scan": _few(_gated_scan, *[((8, 4096, 512), (1, 512, 128))] * 2),
    "conv_mean": _few(
        _conv_mean,
        ((16, 56, 56, 64), (2, 28, 28, 32)),
        ((3, 3, 64, 128), (3, 3, 32, 64)),
        half=True,
    ),
    "tanh_vmap": _few(
        jax.vmap(lambda x, w: jnp.tanh(x @ w), (0, None)),
        ((64, 512, 256), (8, 64, 64)),
        ((256, 256), (64, 64)),
    ),
    **{name: _trained(make) for name, make in suite_jax_blocks.PROGRAMS.items()},
}
