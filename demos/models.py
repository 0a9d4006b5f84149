"""Transformer models as torch modules; `models_jax` has them as JAX functions that share weights.

The source is naive on purpose: attention is ``softmax(q @ k.T / sqrt(d) + mask) @ v`` in plain
matmul and softmax, so that whatever a compiler makes of it is the compiler's doing. Weights are
drawn with NumPy under the names of the torch ``state_dict``; the JAX functions take the same arrays
as a nested dict. Importing this file needs neither framework.

    module, (x,) = torch_llama_block(LlamaConfig())
    block, (params, x) = jax_llama_block(LlamaConfig())
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
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
    written_out: bool = True  # attention; else torch's own function

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


# ------------------------------------------------------------------------------------------ weights


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
    """Random weights. Gains and biases are random too: a dropped one changes the output."""
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
    """Cosine and sine of every position's angles, ``[seq, head_dim]``; a row's halves are equal."""
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
    """The activations that a block is run on."""
    return np.random.default_rng(cfg.seed + 1).standard_normal(
        (cfg.batch, cfg.seq, cfg.width), dtype=np.float32
    )


def token_batches(cfg: GPT2Config) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """An endless stream of (tokens, next tokens): sequences that count up in steps of 1 to 3."""
    rng = np.random.default_rng(cfg.seed + 2)
    while True:
        start = rng.integers(0, cfg.vocab, (cfg.batch, 1))
        step = rng.integers(1, 4, (cfg.batch, 1))
        text = (start + step * np.arange(cfg.seq + 1)) % cfg.vocab
        yield text[:, :-1], text[:, 1:]


def nest(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """``{"attn.wq.weight": a}`` as the pytree ``{"attn": {"wq": {"weight": a}}}``."""
    tree: dict[str, Any] = {}
    for name, value in arrays.items():
        *path, leaf = name.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), path, tree)[leaf] = value
    return tree


def state(module: Any) -> dict[str, Any]:
    """The weights of one of the torch modules as the pytree of its JAX twin, in NumPy."""
    return nest(
        {name: tensor.detach().float().numpy() for name, tensor in module.state_dict().items()}
    )


# -------------------------------------------------------------------------------------------- torch


@functools.cache
def torch_modules() -> SimpleNamespace:
    """The torch module classes, defined on first use."""
    import torch
    import torch.nn.functional as F
    from torch import Tensor, nn

    def causal_mask(x: Tensor) -> Tensor:
        s = x.shape[1]
        return torch.full((s, s), float("-inf"), dtype=x.dtype, device=x.device).triu(1)

    def split_heads(x: Tensor, heads: int) -> Tensor:
        b, s, w = x.shape
        return x.view(b, s, heads, w // heads).transpose(1, 2)

    def merge_heads(x: Tensor) -> Tensor:
        b, h, s, d = x.shape
        return x.transpose(1, 2).reshape(b, s, h * d)

    class GPT2Attention(nn.Module):
        def __init__(self, cfg: GPT2Config):
            super().__init__()
            self.heads, self.head_dim = cfg.heads, cfg.head_dim
            self.written_out = cfg.written_out
            self.qkv = nn.Linear(cfg.width, 3 * cfg.width)
            self.proj = nn.Linear(cfg.width, cfg.width)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (split_heads(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1))
            if not self.written_out:
                found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.proj(merge_heads(found))
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim) + causal_mask(x)
            weights = torch.softmax(scores, dim=-1)
            return self.proj(merge_heads(weights @ v))

    class GPT2MLP(nn.Module):
        def __init__(self, cfg: GPT2Config):
            super().__init__()
            self.fc = nn.Linear(cfg.width, cfg.ffn)
            self.proj = nn.Linear(cfg.ffn, cfg.width)

        def forward(self, x: Tensor) -> Tensor:
            return self.proj(F.gelu(self.fc(x), approximate="tanh"))

    class GPT2Block(nn.Module):
        def __init__(self, cfg: GPT2Config):
            super().__init__()
            self.ln_1 = nn.LayerNorm(cfg.width, cfg.eps)
            self.attn = GPT2Attention(cfg)
            self.ln_2 = nn.LayerNorm(cfg.width, cfg.eps)
            self.mlp = GPT2MLP(cfg)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT2(nn.Module):
        """The language model: mean cross-entropy. The token embedding is the head too."""

        def __init__(self, cfg: GPT2Config):
            super().__init__()
            self.wte = nn.Embedding(cfg.vocab, cfg.width)
            self.wpe = nn.Embedding(cfg.seq, cfg.width)
            self.h = nn.ModuleList(GPT2Block(cfg) for _ in range(cfg.layers))
            self.ln_f = nn.LayerNorm(cfg.width, cfg.eps)

        def logits(self, tokens: Tensor) -> Tensor:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.wte(tokens) + self.wpe(positions)
            for block in self.h:
                x = block(x)
            return F.linear(self.ln_f(x), self.wte.weight)

        def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    class RMSNorm(nn.Module):
        def __init__(self, width: int, eps: float):
            super().__init__()
            self.eps = eps
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Tensor) -> Tensor:
            h = x.float()
            h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * h.to(x.dtype)

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    class LlamaAttention(nn.Module):
        cos: Tensor
        sin: Tensor

        def __init__(self, cfg: LlamaConfig):
            super().__init__()
            self.heads, self.kv_heads, self.head_dim = cfg.heads, cfg.kv_heads, cfg.head_dim
            self.wq = nn.Linear(cfg.width, cfg.width, bias=False)
            self.wk = nn.Linear(cfg.width, cfg.kv_heads * cfg.head_dim, bias=False)
            self.wv = nn.Linear(cfg.width, cfg.kv_heads * cfg.head_dim, bias=False)
            self.wo = nn.Linear(cfg.width, cfg.width, bias=False)
            for name, table in rope_tables(cfg).items():
                self.register_buffer(name.removeprefix("attn."), torch.from_numpy(table))

        def expand_heads(self, x: Tensor) -> Tensor:
            b, kv, s, d = x.shape
            group = self.heads // self.kv_heads
            return x[:, :, None].expand(b, kv, group, s, d).reshape(b, kv * group, s, d)

        def forward(self, x: Tensor) -> Tensor:
            s = x.shape[1]
            q = rotate(split_heads(self.wq(x), self.heads), self.cos[:s], self.sin[:s])
            k = rotate(split_heads(self.wk(x), self.kv_heads), self.cos[:s], self.sin[:s])
            v = split_heads(self.wv(x), self.kv_heads)
            k, v = self.expand_heads(k), self.expand_heads(v)
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim) + causal_mask(x)
            weights = torch.softmax(scores, dim=-1)
            return self.wo(merge_heads(weights @ v))

    class LlamaMLP(nn.Module):
        def __init__(self, cfg: LlamaConfig):
            super().__init__()
            self.gate = nn.Linear(cfg.width, cfg.ffn, bias=False)
            self.up = nn.Linear(cfg.width, cfg.ffn, bias=False)
            self.down = nn.Linear(cfg.ffn, cfg.width, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.silu(self.gate(x)) * self.up(x))

    class LlamaBlock(nn.Module):
        def __init__(self, cfg: LlamaConfig):
            super().__init__()
            self.attn_norm = RMSNorm(cfg.width, cfg.eps)
            self.attn = LlamaAttention(cfg)
            self.mlp_norm = RMSNorm(cfg.width, cfg.eps)
            self.mlp = LlamaMLP(cfg)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attn(self.attn_norm(x))
            return x + self.mlp(self.mlp_norm(x))

    return SimpleNamespace(GPT2Block=GPT2Block, GPT2=GPT2, LlamaBlock=LlamaBlock)


def _load(module: Any, weights: Arrays) -> Any:
    import torch

    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return module


def torch_gpt2_block(cfg: GPT2Config) -> tuple[Any, tuple[Any]]:
    import torch

    module = _load(torch_modules().GPT2Block(cfg), gpt2_block_weights(cfg)).eval()
    return module, (torch.from_numpy(hidden(cfg)),)


def torch_llama_block(cfg: LlamaConfig) -> tuple[Any, tuple[Any]]:
    import torch

    module = _load(torch_modules().LlamaBlock(cfg), llama_block_weights(cfg)).eval()
    return module, (torch.from_numpy(hidden(cfg)),)


def torch_gpt2(cfg: GPT2Config) -> tuple[Any, tuple[Any, Any]]:
    import torch

    tokens, targets = next(token_batches(cfg))
    return _load(torch_modules().GPT2(cfg), gpt2_weights(cfg)), (
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
    )
