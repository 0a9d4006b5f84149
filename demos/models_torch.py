"""The models of `models` as torch modules, written naively."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stack.demos.models import (
    Arrays,
    GPT2Config,
    LlamaConfig,
    gpt2_block_weights,
    gpt2_weights,
    hidden,
    llama_block_weights,
    rope_tables,
    token_batches,
)


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
    """The language model with mean cross-entropy. The token embedding is also the head."""

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


def _load(module: nn.Module, weights: Arrays) -> None:
    module.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})


def make_gpt2_block(cfg: GPT2Config) -> tuple[GPT2Block, tuple[Tensor]]:
    """Returns a block and its input activations `[batch, seq, width]`."""
    module = GPT2Block(cfg).eval()
    _load(module, gpt2_block_weights(cfg))
    return module, (torch.from_numpy(hidden(cfg)),)


def make_llama_block(cfg: LlamaConfig) -> tuple[LlamaBlock, tuple[Tensor]]:
    """Returns a block and its input activations `[batch, seq, width]`."""
    module = LlamaBlock(cfg).eval()
    _load(module, llama_block_weights(cfg))
    return module, (torch.from_numpy(hidden(cfg)),)


def make_gpt2(cfg: GPT2Config) -> tuple[GPT2, tuple[Tensor, Tensor]]:
    """Returns a language model, a batch of tokens and the next tokens, each `[batch, seq]`."""
    module = GPT2(cfg)
    _load(module, gpt2_weights(cfg))
    tokens, targets = next(token_batches(cfg))
    return module, (torch.from_numpy(tokens), torch.from_numpy(targets))
