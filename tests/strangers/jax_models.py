"""Networks of the layers of flax and equinox, as functions of parameters and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def _key(n: int) -> Any:
    import jax

    return jax.random.key(n)


def _image(size: int = 16) -> Any:
    import jax

    return jax.random.normal(_key(1), (4, size, size, 3))


def _tokens(length: int = 12) -> Any:
    import jax

    return jax.random.randint(_key(1), (2, length), 0, 64)


def _linen(module: Any, *inputs: Any) -> Made:
    """A module of flax.linen without state besides its parameters."""
    return module.apply, (module.init(_key(0), *inputs), *inputs)


def flax_mixer() -> Made:
    """MLP-Mixer."""
    from flax import linen as nn

    class Mlp(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.width)(x)))

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(32, (4, 4), strides=(4, 4))(x)
            x = x.reshape(x.shape[0], -1, 32)
            for _ in range(2):
                y = nn.LayerNorm()(x).swapaxes(1, 2)
                x = x + Mlp(32)(y).swapaxes(1, 2)
                x = x + Mlp(64)(nn.LayerNorm()(x))
            return nn.Dense(10)(nn.LayerNorm()(x).mean(1))

    return _linen(Mixer(), _image())


def flax_transformer() -> Made:
    """A causal decoder with an embedding that is shared with the output."""
    from flax import linen as nn

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            embed = nn.Embed(64, 32)
            x, mask = embed(ids), nn.make_causal_mask(ids)
            for _ in range(2):
                y = nn.RMSNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(num_heads=4)(y, y, mask=mask)
                y = nn.RMSNorm()(x)
                x = x + nn.Dense(32)(nn.silu(nn.Dense(64)(y)) * nn.Dense(64)(y))
            return embed.attend(nn.RMSNorm()(x))

    return _linen(Decoder(), _tokens())


def flax_resnet() -> Made:
    """Residual blocks with batch norms in training: their averages are results."""
    from flax import linen as nn

    class ResNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.Conv(8, (3, 3), use_bias=False)(x)
            for width in (8, 16):
                y = nn.relu(nn.BatchNorm(use_running_average=False)(x))
                y = nn.Conv(width, (3, 3), (2, 2), use_bias=False)(y)
                y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
                y = nn.Conv(width, (3, 3), use_bias=False)(y)
                x = y + nn.Conv(width, (1, 1), (2, 2), use_bias=False)(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
            return nn.Dense(10)(x.mean((1, 2)))

    module, image = ResNet(), _image()
    made = module.init(_key(0), image)

    def apply(params: Any, averages: Any, image: Any) -> Any:
        return module.apply(
            {"params": params, "batch_stats": averages}, image, mutable=["batch_stats"]
        )

    return apply, (made["params"], made["batch_stats"], image)


def flax_lstm() -> Made:
    """A bidirectional LSTM: two scans."""
    from flax import linen as nn

    class Tagger(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(64, 32)(ids)
            forward = nn.RNN(nn.OptimizedLSTMCell(16, param_dtype=float))
            backward = nn.RNN(nn.GRUCell(16, param_dtype=float))
            return nn.Dense(8)(nn.Bidirectional(forward, backward)(x))

    return _linen(Tagger(), _tokens())


def flax_unet() -> Made:
    """Down and up again, with group norms and transposed convolutions."""
    from flax import linen as nn

    class UNet(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            kept = []
            for width in (8, 16):
                x = nn.swish(nn.GroupNorm(num_groups=4)(nn.Conv(width, (3, 3))(x)))
                kept.append(x)
                x = nn.avg_pool(x, (2, 2), (2, 2))
            x = nn.swish(nn.Conv(16, (3, 3), kernel_dilation=2)(x))
            for width, other in zip((16, 8), reversed(kept)):
                x = nn.ConvTranspose(width, (2, 2), (2, 2))(x)
                x = nn.swish(nn.Conv(width, (3, 3))(other + x))
            return nn.Conv(3, (1, 1))(x)

    return _linen(UNet(), _image())


def nnx_vit() -> Made:
    """A vision transformer of flax.nnx, split into its graph and its state."""
    import jax.numpy as jnp
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.norm1, self.norm2 = nnx.LayerNorm(32, rngs=rngs), nnx.LayerNorm(32, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 32, rngs=rngs, decode=False)
            self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class ViT(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.patches = nnx.Conv(3, 32, (4, 4), (4, 4), rngs=rngs)
            self.positions = nnx.Param(jnp.full((16, 32), 0.02))
            self.first, self.second = Block(rngs), Block(rngs)
            self.head = nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, image: Any) -> Any:
            x = self.patches(image)
            x = x.reshape(x.shape[0], -1, 32) + self.positions[...]
            return self.head(self.second(self.first(x)).mean(1))

    graph, state = nnx.split(ViT(nnx.Rngs(0)), nnx.Param)

    def apply(state: Any, image: Any) -> Any:
        return nnx.merge(graph, state)(image)

    return apply, (state, _image())


def _equinox(model: Any, *inputs: Any) -> Made:
    """A module of equinox, mapped over a batch."""
    import equinox as eqx
    import jax

    params, rest = eqx.partition(model, eqx.is_inexact_array)

    def apply(params: Any, *inputs: Any) -> Any:
        return jax.vmap(eqx.combine(params, rest))(*inputs)

    return apply, (params, *inputs)


def equinox_mlp() -> Made:
    import equinox as eqx
    import jax

    model = eqx.nn.MLP(16, 8, 32, 3, activation=jax.nn.softplus, key=_key(0))
    return _equinox(model, jax.random.normal(_key(1), (4, 16)))


def equinox_cnn() -> Made:
    """Convolutions with group norms and poolings, channels first."""
    import equinox as eqx
    import jax
    from equinox import nn

    keys = jax.random.split(_key(0), 3)
    model = nn.Sequential([
        nn.Conv2d(3, 8, 3, padding=1, key=keys[0]),
        nn.GroupNorm(4, 8),
        nn.Lambda(jax.nn.relu),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(8, 16, 3, groups=4, padding=1, key=keys[1]),
        nn.Lambda(jax.nn.gelu),
        nn.AdaptiveAvgPool2d(2),
        nn.Lambda(lambda x: x.reshape(-1)),
        nn.Linear(64, 10, key=keys[2]),
    ])  # fmt: skip
    assert isinstance(model, eqx.Module)
    return _equinox(model, _image().transpose(0, 3, 1, 2))


def equinox_transformer() -> Made:
    """Attention with rotary positions and RMS norms."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from equinox import nn

    class Decoder(eqx.Module):
        embed: nn.Embedding
        attention: nn.MultiheadAttention
        rotary: nn.RotaryPositionalEmbedding
        norms: list[nn.RMSNorm]
        mlp: nn.MLP
        head: nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.embed = nn.Embedding(64, 32, key=keys[0])
            self.attention = nn.MultiheadAttention(4, 32, key=keys[1])
            self.rotary = nn.RotaryPositionalEmbedding(8)
            self.norms = [nn.RMSNorm(32) for _ in range(3)]
            self.mlp = nn.MLP(32, 32, 64, 1, activation=jax.nn.gelu, key=keys[2])
            self.head = nn.Linear(32, 64, key=keys[3])

        def __call__(self, ids: Any) -> Any:
            def turned(q: Any, k: Any, v: Any) -> Any:
                turn = jax.vmap(self.rotary, in_axes=1, out_axes=1)
                return turn(q), turn(k), v

            x = jax.vmap(self.embed)(ids)
            mask = jnp.tril(jnp.ones((len(ids), len(ids)), bool))
            y = jax.vmap(self.norms[0])(x)
            x = x + self.attention(y, y, y, mask=mask, process_heads=turned)
            x = x + jax.vmap(self.mlp)(jax.vmap(self.norms[1])(x))
            return jax.vmap(self.head)(jax.vmap(self.norms[2])(x))

    return _equinox(Decoder(_key(0)), _tokens())


def equinox_gru() -> Made:
    """A scan over a GRU cell, and one over an LSTM cell."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    from equinox import nn

    class Tagger(eqx.Module):
        gru: nn.GRUCell
        lstm: nn.LSTMCell
        head: nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 3)
            self.gru = nn.GRUCell(8, 16, key=keys[0])
            self.lstm = nn.LSTMCell(16, 16, key=keys[1])
            self.head = nn.Linear(16, 4, key=keys[2])

        def __call__(self, x: Any) -> Any:
            def step(carry: Any, x: Any) -> Any:
                state = self.gru(x, carry[0])
                cell = self.lstm(state, carry[1])
                return (state, cell), cell[0]

            zero = jnp.zeros_like(x, shape=(16,))
            _, states = jax.lax.scan(step, (zero, (zero, zero)), x)
            return jax.vmap(self.head)(states)

    return _equinox(Tagger(_key(0)), jax.random.normal(_key(1), (2, 10, 8)))


FACTORIES: dict[str, Callable[[], Made]] = {
    build.__name__.replace("_", "/", 1): build
    for build in (
        flax_mixer, flax_transformer, flax_resnet, flax_lstm, flax_unet, nnx_vit,
        equinox_mlp, equinox_cnn, equinox_transformer, equinox_gru,
    )
}  # fmt: skip
