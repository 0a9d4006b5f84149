"""Programs whose partitions are compared.

The sizes are those of the suite `stackc bench sharding`: a batch of 8, 64 positions, width 256,
1024 hidden units, 8 heads and 8 experts, images of 64 by 64 with 16 channels, float32. The suite
defines the shardings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

BATCH, LENGTH, WIDTH, HIDDEN, HEADS, EXPERTS, CAPACITY = 8, 64, 256, 1024, 8, 8, 32
CHANNELS = 16
Weights = dict[str, Any]
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def mlp(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def attention(x: Any, q: Any, k: Any, v: Any, o: Any) -> Any:
    """Softmax attention without a mask."""
    heads = (*x.shape[:2], HEADS, -1)
    queries = (x @ q).reshape(heads)
    keys = (x @ k).reshape(heads)
    values = (x @ v).reshape(heads)
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) * (WIDTH // HEADS) ** -0.5
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), values)
    return mixed.reshape(x.shape) @ o


def experts(x: Any, router: Any, up: Any, down: Any) -> Any:
    """A mixture of experts: each token goes to two experts, up to their capacity (GShard)."""
    weight = jax.nn.softmax(x @ router)
    best, chosen = jax.lax.top_k(weight, 2)
    mask = jax.nn.one_hot(chosen, EXPERTS)  # batch, token, choice, expert
    place = (jnp.cumsum(mask.reshape(BATCH, -1, EXPERTS), 1) - 1).reshape(mask.shape)
    slot = jax.nn.one_hot(place.astype(jnp.int32), CAPACITY) * mask[..., None]
    send = slot.sum(2)  # batch, token, expert, slot
    combine = (slot * best[..., None, None]).sum(2)
    held = jnp.einsum("bsec,bsd->ebcd", send, x)
    made = jnp.einsum("ebcf,efd->ebcd", jax.nn.gelu(jnp.einsum("ebcd,edf->ebcf", held, up)), down)
    return jnp.einsum("bsec,ebcd->bsd", combine, made)


def convolutions(x: Any, first: Any, second: Any, third: Any) -> Any:
    """3 by 3 convolutions over images; the second has stride 2."""

    def conv(x: Any, weight: Any, stride: int = 1) -> Any:
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), ((1, 1), (1, 1)))

    h = jax.nn.gelu(conv(x, first))
    h = jax.nn.gelu(conv(h, second, 2))
    return conv(h, third)


def norm(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def layers(x: Any, weights: list[Weights]) -> Any:
    """Blocks of a transformer in sequence."""
    for w in weights:
        x = x + attention(norm(x), w["q"], w["k"], w["v"], w["o"])
        x = x + mlp(norm(x), w["up"], w["down"])
    return x


def add_rows(table: Any, index: Any, rows: Any) -> Any:
    """The gradient of a word table, added to it."""
    return table.at[index].add(rows)


def step(model: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a gradient descent step on the squared result of a model, which gives new weights."""

    def run(x: Any, *weights: Any) -> Any:
        slopes = jax.grad(lambda w: 0.5 * (model(x, *w) ** 2).sum())(weights)
        return jax.tree.map(lambda w, slope: w - 0.1 * slope, weights, slopes)

    return run


# ---- with arguments


def _array(*shape: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(shape)
    return (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)


def _weights() -> Weights:
    square = {name: _array(WIDTH, WIDTH) for name in "qkvo"}
    return {**square, "up": _array(WIDTH, HIDDEN), "down": _array(HIDDEN, WIDTH)}


def _x() -> np.ndarray[Any, Any]:
    return _array(BATCH, LENGTH, WIDTH)


def mlp_forward() -> Program:
    held = _weights()
    return mlp, (_x(), held["up"], held["down"])


def mlp_train() -> Program:
    model, args = mlp_forward()
    return step(model), args


def attention_forward() -> Program:
    held = _weights()
    return attention, (_x(), *(held[name] for name in "qkvo"))


def experts_forward() -> Program:
    up, down = _array(EXPERTS, WIDTH, HIDDEN), _array(EXPERTS, HIDDEN, WIDTH)
    return experts, (_x(), _array(WIDTH, EXPERTS), up, down)


def convolutions_forward() -> Program:
    weights = [_array(CHANNELS, CHANNELS, 3, 3) * i for i in (1, 2, 3)]
    return convolutions, (_array(BATCH, CHANNELS, LENGTH, LENGTH), *weights)


def add_rows_forward(words: int = 4096) -> Program:
    index = np.random.default_rng(0).integers(0, words, BATCH * LENGTH)
    return add_rows, (_array(words, WIDTH), index, _array(len(index), WIDTH))


def layers_forward(count: int = 8) -> Program:
    return layers, (_x(), [_weights() for _ in range(count)])


def layers_train(count: int = 8) -> Program:
    return step(layers), (_x(), [_weights() for _ in range(count)])
