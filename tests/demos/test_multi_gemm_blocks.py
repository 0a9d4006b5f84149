"""A transformer block from either frontend: gate and up are one kernel, q, k and v one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.backends.triton import BACKEND
from stack.ir import Func, Node
from stack.rewrite import Pipeline

pytest.importorskip("torch")


BLOCK = [(1, 1), (1, 1), (2, 1), (3, 3)]  # two plain ones, gate and up, and q, k and v


def products(func: Func) -> list[tuple[int, int]]:
    """The numbers of products and of results of each kernel with products."""
    for name, passes in BACKEND.lowering.stages:
        func = Pipeline(passes).run(func).func
        if name == "fused":
            break
    groups = [n for n in func.nodes if n.op == "fusion"]
    return [(_dots(g), len(g.blocks[0].results)) for g in groups if _dots(g)]


def _dots(group: Node) -> int:
    return sum(n.op == "dot" for n in group.blocks[0].nodes)


def torch_block() -> tuple[Any, Any]:
    import torch

    from stack.demos.gpu_blocks import LlamaBlock

    block = LlamaBlock(256, 2, 1, 512, 128).to(torch.bfloat16)
    return block, torch.randn(1, 128, 256, dtype=torch.bfloat16)


def test_forward_in_torch() -> None:
    block, x = torch_block()
    made = products(stack.trace(block.eval().requires_grad_(False), x))
    assert sorted(made) == BLOCK


def test_the_forward_part_of_training_keeps_both_products() -> None:
    import torch

    from stack.frontends.torch.compile.dynamo_backend import GRAPHS

    block, x = torch_block()
    torch._dynamo.reset()
    call: Any = torch.compile(block, backend="stack", options={"backend": "interpreter"})
    result = call(x)
    result.backward(torch.ones_like(result))
    forward, backward = list(GRAPHS)[-2:]
    assert (2, 3) in products(forward.func)
    assert (3, 3) in products(forward.func)
    assert all(results >= count for count, results in products(backward.func))


def test_forward_in_jax() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape), dtype=jnp.bfloat16)

    def norm(x: Any) -> Any:
        y = x.astype(jnp.float32)
        return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype)

    def block(w: dict[str, Any], x: Any) -> Any:
        y = norm(x)
        q, k, v = ((y @ w[n]).reshape(2, 64, -1, 64) for n in ("q", "k", "v"))
        scores = jnp.einsum("bshd,btgd->bhst", q, k).astype(jnp.float32)
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        x = x + jnp.einsum("bhst,btgd->bshd", weights, v).reshape(x.shape) @ w["o"]
        y = norm(x)
        return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]

    shapes = {"q": (128, 128), "k": (128, 64), "v": (128, 64), "o": (128, 128)}
    shapes |= {"gate": (128, 512), "up": (128, 512), "down": (512, 128)}
    made = products(
        stack.trace(block, {n: drawn(*s) for n, s in shapes.items()}, drawn(2, 64, 128))
    )
    assert sorted(made) == BLOCK
