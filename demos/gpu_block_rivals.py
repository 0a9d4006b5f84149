"""Blocks of `gpu_blocks` that call attention kernels explicitly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stack.measure.gpu_program import Rival

Tensor = torch.Tensor


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)


def with_sdpa(block: nn.Module) -> Rival:
    """Inductor on the block with torch's attention, which chooses its kernel itself."""

    def make() -> Callable[..., Any]:
        other: Any = copy.copy(block)
        other.attend = _sdpa
        return torch.compile(other, dynamic=False)

    return Rival("peer", make)


def llama_in_jax(block: Any) -> Rival:
    """XLA with cuDNN's attention, on the block's own weights; needs jax for CUDA."""
    last: list[Any] = []

    def wait() -> None:
        for array in last:
            array.block_until_ready()

    def make() -> Callable[[Tensor], Tensor]:
        import jax
        import jax.numpy as jnp

        def lent(x: Tensor) -> Any:
            return jnp.from_dlpack(x.detach())

        weights = {name: lent(p) for name, p in block.named_parameters()}
        weights |= {"cos": lent(block.cos), "sin": lent(block.sin)}
        heads, groups, size = block.heads, block.groups, block.size

        def norm(x: Any, gain: Any) -> Any:
            y = x.astype(jnp.float32)
            y = y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)
            return y.astype(x.dtype) * gain

        def turned(w: Any, x: Any) -> Any:
            low, high = jnp.split(x, 2, axis=-1)
            mixed = jnp.concatenate([-high, low], axis=-1)
            return x * w["cos"][:, None] + mixed * w["sin"][:, None]

        def program(w: Any, x: Any) -> Any:
            def linear(name: str, y: Any) -> Any:
                return y @ w[f"{name}.weight"].T

            y = norm(x, w["first.gain"])
            shape = (*x.shape[:2], -1, size)
            q = turned(w, linear("wq", y).reshape(shape))
            k = turned(w, linear("wk", y).reshape(shape))
            v = linear("wv", y).reshape(shape)
            assert q.shape[2] == heads and k.shape[2] == groups
            y = jax.nn.dot_product_attention(
                q, k, v, scale=1 / math.sqrt(size), is_causal=True, implementation="cudnn"
            )
            x = x + linear("wo", y.reshape(x.shape))
            y = norm(x, w["second.gain"])
            return x + linear("down", jax.nn.silu(linear("gate", y)) * linear("up", y))

        compiled = jax.jit(program)

        def run(x: Tensor) -> Tensor:
            last[:] = [compiled(weights, lent(x))]
            return torch.from_dlpack(last[0])

        return run

    return Rival("peer", make, wait=wait)
