"""Transformer models: sizes, weights and inputs, without a framework.

`models_torch` has them as modules, `models_jax` as functions, both with the same `make_` functions:

    module, (x,) = models_torch.make_llama_block(LlamaConfig())
    block, (params, x) = models_jax.make_llama_block(LlamaConfig())

The source is naive on purpose. Attention is ``softmax(q @ k.T / sqrt(d) + mask) @ v`` in plain
matmul and softmax, so every optimization comes from the compiler. Weights are drawn with NumPy
under the names of the torch ``state_dict``. The JAX functions take the same arrays as a nested
dict.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class GPT2Config:
    """GPT-2: pre-LayerNorm, fused qkv projection with bias, tanh-GELU. By default GPT-2 small."""

    width: int = 768
    heads: int = 12
    ffn: int = 3072
    seq: int = 128
    batch: int = 1
    eps: float = 1e-5
    layers: int = 1
    vocab: int = 256
    seed: int = 0
    written_out: bool = True  # naive attention; else torch's own function

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


@dataclass(frozen=True)
class LlamaConfig:
    """Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no bias."""

    width: int = 768
    heads: int = 12
    kv_heads: int = 4
    ffn: int = 2048
    seq: int = 128
    batch: int = 1
    eps: float = 1e-5
    rope_theta: float = 10000.0
    seed: int = 0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


LLAMA = LlamaConfig()
GPT2 = GPT2Config()
TINY_GPT2 = GPT2Config(width=64, heads=4, ffn=256, seq=32, batch=2, layers=2, vocab=128)


def gpt2_block_shapes(cfg: GPT2Config, prefix: str = "") -> Shapes:
    w, f = cfg.width, cfg.ffn
    shapes: Shapes = {
        "ln_1.weight": (w,), "ln_1.bias": (w,),
        "attn.qkv.weight": (3 * w, w), "attn.qkv.bias": (3 * w,),
        "attn.proj.weight": (w, w), "attn.proj.bias": (w,),
        "ln_2.weight": (w,), "ln_2.bias": (w,),
        "mlp.fc.weight": (f, w), "mlp.fc.bias": (f,),
        "mlp.proj.weight": (w, f), "mlp.proj.bias": (w,),
    }  # fmt: skip
    return {prefix + name: shape for name, shape in shapes.items()}


def gpt2_shapes(cfg: GPT2Config) -> Shapes:
    shapes: Shapes = {"wte.weight": (cfg.vocab, cfg.width), "wpe.weight": (cfg.seq, cfg.width)}
    for i in range(cfg.layers):
        shapes |= gpt2_block_shapes(cfg, f"h.{i}.")
    return shapes | {"ln_f.weight": (cfg.width,), "ln_f.bias": (cfg.width,)}


def llama_block_shapes(cfg: LlamaConfig) -> Shapes:
    w, f, kv = cfg.width, cfg.ffn, cfg.kv_heads * cfg.head_dim
    return {
        "attn_norm.weight": (w,),
        "attn.wq.weight": (w, w), "attn.wk.weight": (kv, w),
        "attn.wv.weight": (kv, w), "attn.wo.weight": (w, w),
        "mlp_norm.weight": (w,),
        "mlp.gate.weight": (f, w), "mlp.up.weight": (f, w), "mlp.down.weight": (w, f),
    }  # fmt: skip


def draw(shapes: Shapes, seed: int) -> Arrays:
    """Returns random weights. Gains and biases are random too: a dropped one changes the output."""
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, shape in shapes.items():
        value = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("bias"):
            value *= 0.1
        elif len(shape) == 1:
            value = 1 + 0.1 * value
        elif name.startswith(("wte", "wpe")):
            value *= 0.1
        else:
            value *= 1 / math.sqrt(shape[1])
        arrays[name] = value.astype(np.float32)
    return arrays


def rope_tables(cfg: LlamaConfig) -> Arrays:
    """Returns cosine and sine of every position's angles, ``[seq, head_dim]``, as equal halves."""
    frequencies = cfg.rope_theta ** (-np.arange(0, cfg.head_dim, 2) / cfg.head_dim)
    angles = np.outer(np.arange(cfg.seq), frequencies)
    angles = np.concatenate([angles, angles], axis=-1)
    return {
        "attn.cos": np.cos(angles).astype(np.float32),
        "attn.sin": np.sin(angles).astype(np.float32),
    }


def gpt2_block_weights(cfg: GPT2Config) -> Arrays:
    return draw(gpt2_block_shapes(cfg), cfg.seed)


def gpt2_weights(cfg: GPT2Config) -> Arrays:
    return draw(gpt2_shapes(cfg), cfg.seed)


def llama_block_weights(cfg: LlamaConfig) -> Arrays:
    return draw(llama_block_shapes(cfg), cfg.seed) | rope_tables(cfg)


def hidden(cfg: GPT2Config | LlamaConfig) -> np.ndarray:
    """Returns the input activations of a block."""
    return np.random.default_rng(cfg.seed + 1).standard_normal(
        (cfg.batch, cfg.seq, cfg.width), dtype=np.float32
    )


def token_batches(cfg: GPT2Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields (tokens, next tokens) without end: sequences that count up in steps of 1 to 3."""
    rng = np.random.default_rng(cfg.seed + 2)
    while True:
        start = rng.integers(0, cfg.vocab, (cfg.batch, 1))
        step = rng.integers(1, 4, (cfg.batch, 1))
        text = (start + step * np.arange(cfg.seq + 1)) % cfg.vocab
        yield text[:, :-1], text[:, 1:]


def nest(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Converts ``{"attn.wq.weight": a}`` to the pytree ``{"attn": {"wq": {"weight": a}}}``."""
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        *path, leaf = name.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), path, tree)[leaf] = value
    return tree


def state(module: Any) -> dict[str, Any]:
    """Converts the weights of a torch module to the pytree of its JAX version, in NumPy."""
    return nest(
        {name: tensor.detach().float().numpy() for name, tensor in module.state_dict().items()}
    )
