"""Programs of `stackc bench cpu`: blocks, attention, functions and norms, twelve blocks, matmuls.

Every factory serves both frontends with the same weights and inputs, as those in
demos/transformer.py do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from stack.demos import models

Target = tuple[Any, tuple[Any, ...]]


def block(
    frontend: str = "torch",
    model: str = "gpt2",
    seq: int = 128,
    dtype: str = "f32",
    seed: int = 0,
    gradients: bool = True,
) -> Target:
    """Returns one transformer block of GPT-2 or Llama, with naive attention.

    `gradients`: True if torch computes gradients of the weights.
    """
    configs: dict[str, Any] = {"gpt2": models.GPT2, "llama": models.LLAMA}
    config = replace(configs[model], seq=seq, seed=seed)
    if frontend == "torch":
        from stack.demos import models_torch

        module, args = _torch_cast(getattr(models_torch, f"make_{model}_block")(config), dtype)
        return module.requires_grad_(gradients), args
    from stack.demos import models_jax

    return _jax_cast(getattr(models_jax, f"make_{model}_block")(config), dtype)


def _torch_cast(made: Target, dtype: str) -> Target:
    module, args = made
    if dtype == "f32":
        return module, args
    import torch

    return module.to(torch.bfloat16), tuple(a.to(torch.bfloat16) for a in args)


def _jax_cast(made: Target, dtype: str) -> Target:
    fn, args = made
    if dtype == "f32":
        return fn, args
    import jax

    return fn, jax.tree.map(lambda a: a.astype(jax.numpy.bfloat16), args)


def blocks(frontend: str = "torch", count: int = 12, seq: int = 128) -> Target:
    """Returns equal blocks in sequence, each with its own weights."""
    made = [block(frontend, "gpt2", seq, "f32", seed) for seed in range(count)]
    if frontend == "torch":
        import torch

        return torch.nn.Sequential(*(module for module, _ in made)).eval(), made[0][1]

    def stacked(params: Any, x: Any) -> Any:
        for (fn, _), weights in zip(made, params, strict=True):
            x = fn(weights, x)
        return x

    return stacked, ([args[0] for _, args in made], made[0][1][1])


def attention(
    frontend: str = "torch",
    source: str = "naive",
    mask: str = "none",
    seq: int = 512,
    dtype: str = "f32",
) -> Target:
    """Attention of 12 heads of 64. `source`: plain matmuls and softmax, or the framework's call."""
    arrays = tuple(_draw(1, 12, seq, 64, seed=seed) for seed in range(3))
    is_causal, is_naive = mask == "causal", source == "naive"
    if frontend == "torch":
        import torch

        kind = torch.float32 if dtype == "f32" else torch.bfloat16
        function = _torch_attention(is_causal) if is_naive else _torch_library(is_causal)
        return function, tuple(torch.from_numpy(a).to(kind) for a in arrays)
    import jax.numpy as jnp

    kind = jnp.float32 if dtype == "f32" else jnp.bfloat16
    function = _jax_attention(is_causal) if is_naive else _jax_library(is_causal)
    return function, tuple(jnp.asarray(a, dtype=kind) for a in arrays)


def _torch_attention(is_causal: bool) -> Callable[..., Any]:
    import torch

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.transpose(-1, -2) * 0.125
        if is_causal:
            line = torch.arange(scores.shape[-1])
            scores = scores.masked_fill(line > line[:, None], float("-inf"))
        return torch.softmax(scores, dim=-1) @ v

    return attention


def _torch_library(is_causal: bool) -> Callable[..., Any]:
    import torch.nn.functional as F

    def attention(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    return attention


def _jax_attention(is_causal: bool) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.swapaxes(-1, -2) * 0.125
        if is_causal:
            line = jnp.arange(scores.shape[-1])
            scores = jnp.where(line > line[:, None], -jnp.inf, scores)
        return jax.nn.softmax(scores, axis=-1) @ v

    return attention


def _jax_library(is_causal: bool) -> Callable[..., Any]:
    import jax

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        return jax.nn.dot_product_attention(q, k, v, is_causal=is_causal).swapaxes(1, 2)

    return attention


def _draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def product(
    frontend: str = "torch",
    rows: int = 128,
    depth: int = 768,
    columns: int = 768,
    dtype: str = "f32",
) -> Target:
    """A linear layer without bias: rows of `depth` by a matrix `[columns, depth]`; i8 to i32."""
    x, w = _draw(rows, depth), _draw(columns, depth, seed=1)
    if dtype == "i8":
        x, w = ((20 * a).clip(-127, 127).astype(np.int8) for a in (x, w))
    if frontend == "torch":
        import torch

        held = tuple(torch.from_numpy(a) for a in (x, w))
        if dtype == "bf16":
            held = tuple(a.bfloat16() for a in held)
        by = torch.ops.aten._int_mm if dtype == "i8" else torch.matmul
        return lambda x, w: by(x, w.T), held
    import jax
    import jax.numpy as jnp

    kind = {"i8": jnp.int8, "bf16": jnp.bfloat16}.get(dtype, jnp.float32)
    sums = jnp.int32 if dtype == "i8" else kind
    across = (((1,), (1,)), ((), ()))
    held = tuple(jnp.asarray(a, dtype=kind) for a in (x, w))
    return lambda x, w: jax.lax.dot_general(x, w, across, preferred_element_type=sums), held


def pointwise(frontend: str = "torch", name: str = "gelu_tanh", width: int = 3072) -> Target:
    """One function of 512 rows: gelu_erf, gelu_tanh, softmax, layer_norm, rms_norm or rope."""
    x, gain, bias = _draw(512, width), 1 + 0.1 * _draw(width, seed=1), 0.1 * _draw(width, seed=2)
    halves = np.outer(np.arange(512), 10000 ** (-np.arange(0, width, 2) / width))
    angles = np.concatenate([halves, halves], axis=-1)
    arrays = {
        "layer_norm": (x, gain, bias),
        "rms_norm": (x, gain),
        "rope": (x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)),
    }.get(name, (x,))
    if frontend == "torch":
        import torch

        return _torch_function(name), tuple(torch.from_numpy(a) for a in arrays)
    import jax.numpy as jnp

    return _jax_function(name), tuple(jnp.asarray(a) for a in arrays)


def awkward(
    frontend: str = "torch",
    name: str = "softmax",
    rows: int = 511,
    width: int = 769,
    layout: str = "dense",
) -> Target:
    """Returns a function on rows with an awkward layout.

    Layouts: `columns` (every second one), `transposed`, `unaligned` (one element off), `expanded`
    (one row for all), or a `slice` of a larger array. Only torch has such arrays.
    """
    if frontend != "torch":
        raise ValueError(f"{frontend} has no strided arrays: take --frontend torch")
    import torch

    x = _laid_out(rows, width, layout)
    rest = (_draw(width, width, seed=1),) if name == "product" else ()
    if name == "layer_norm":
        rest = (1 + 0.1 * _draw(width, seed=1), 0.1 * _draw(width, seed=2))
    return _torch_function(name), (x, *map(torch.from_numpy, rest))


def _laid_out(rows: int, width: int, layout: str) -> Any:
    import torch

    shape = {
        "columns": (rows, 2 * width),
        "transposed": (width, rows),
        "unaligned": (rows * width + 1,),
        "expanded": (1, width),
        "slice": (rows + 3, width + 67),
    }.get(layout, (rows, width))
    x = torch.from_numpy(_draw(*shape))
    if layout == "columns":
        return x[:, ::2]
    if layout == "transposed":
        return x.T
    if layout == "unaligned":
        return x[1:].view(rows, width)
    return x[2:-1, 33 : 33 + width] if layout == "slice" else x.expand(rows, width)


def _torch_function(name: str) -> Callable[..., Any]:
    import torch
    import torch.nn.functional as F

    def product(x: Any, w: Any) -> Any:
        return x @ w

    def gelu_erf(x: Any) -> Any:
        return F.gelu(x)

    def gelu_tanh(x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    def relu(x: Any) -> Any:
        return F.relu(x)

    def sum(x: Any) -> Any:
        return x.sum(-1)

    def softmax(x: Any) -> Any:
        return torch.softmax(x, dim=-1)

    def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
        return F.layer_norm(x, x.shape[-1:], gain, bias)

    def rms_norm(x: Any, gain: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    return locals()[name]


def _jax_function(name: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def gelu_erf(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def gelu_tanh(x: Any) -> Any:
        return jax.nn.gelu(x, approximate=True)

    def softmax(x: Any) -> Any:
        return jax.nn.softmax(x, axis=-1)

    def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias

    def rms_norm(x: Any, gain: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * gain

    def rope(x: Any, cos: Any, sin: Any) -> Any:
        first, second = jnp.split(x, 2, axis=-1)
        return x * cos + jnp.concatenate([-second, first], axis=-1) * sin

    return locals()[name]
