"""JAX programs with scan, vmap and while: recurrent, attention, GPT-2, an ODE, a state space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stack.demos import models, models_jax
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


PROGRAMS: dict[str, Callable[[Setting], Target]] = {
    "rnn_scan": rnn_scan,
    "vmap_attention": vmap_attention,
    "gpt2_jax": gpt2_jax,
    "ode_while": ode_while,
    "ssm_scan": ssm_scan,
    "mlp_vmap": mlp_vmap,
}
