"""Calls of hosted operators at laptop or GPU sizes, as run by `stackc bench ops`.

program("scan.gla")                     -> (function, arguments), in torch
program("scan.gla", device="cuda")      larger, in bf16
program("attention.with_lse", mode="backward")    the gradient that it declares
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from stack.errors import UsageError
from stack.hosted import find

Tensor = torch.Tensor
Target = tuple[Callable[..., Any], tuple[Tensor, ...]]


class Drawing:
    """Generator of random tensors on a program's device.

    `width` is that of heads, 0 for the default; `shape` has rows, results and depth of a matmul.
    """

    def __init__(self, device: str, width: int = 0, shape: Sequence[int] = ()) -> None:
        self.device = device
        self.width = width
        self.shape = shape
        self.large = device != "cpu"
        self.dtype = torch.bfloat16 if self.large else torch.float32

    def size(self, small: int, large: int) -> int:
        """Returns the size to use on this program's device: `small` on a CPU, `large` on a GPU."""
        return large if self.large else small

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Returns normally distributed numbers."""
        return (scale * torch.randn(*shape, device=self.device)).to(self.dtype)

    def between(self, low: float, high: float, *shape: int) -> Tensor:
        """Returns uniformly distributed numbers."""
        return (low + (high - low) * torch.rand(*shape, device=self.device)).to(self.dtype)

    def integers(self, below: int, *shape: int) -> Tensor:
        """Returns random integers from 0 to `below` - 1."""
        return torch.randint(0, below, shape, device=self.device, dtype=torch.int32)

    def codes(self, *shape: int) -> Tensor:
        """Returns random E4M3 numbers as bytes."""
        made = torch.randn(shape, device=self.device).to(torch.float8_e4m3fn)
        return made.view(torch.uint8)

    def ones(self, *shape: int, value: int = 1) -> Tensor:
        """Returns an array filled with one integer."""
        return torch.full(shape, value, device=self.device, dtype=torch.int32)


def _qkv(d: Drawing) -> tuple[Tensor, ...]:
    batch, heads, seq = d.size(1, 4), d.size(8, 16), d.size(1024, 4096)
    width = d.width or d.size(64, 128)
    return tuple(d.normal(batch, heads, seq, width) for _ in range(3))


def _documents(d: Drawing) -> tuple[Tensor, ...]:
    q, k, v = _qkv(d)
    ids = torch.arange(q.shape[2], device=d.device, dtype=torch.int32) // (q.shape[2] // 8)
    every = ids.expand(q.shape[0], -1).contiguous()
    return q, k, v, every, every.clone()


def _cached(d: Drawing) -> tuple[Tensor, ...]:
    batch, keys = d.size(2, 8), d.size(4096, 32768)
    q = d.normal(batch, 32, 1, 128)
    k, v = (d.normal(batch, 8, keys, 128) for _ in range(2))
    return q, k, v, d.ones(batch, value=keys)


def _paged(d: Drawing) -> tuple[Tensor, ...]:
    batch, keys, room = d.size(2, 8), d.size(4096, 32768), 16
    pages = batch * keys // room
    q = d.normal(batch, 32, 1, 128)
    pools = (d.normal(pages, room, 8, 128) for _ in range(2))
    table = torch.randperm(pages, device=d.device).to(torch.int32).reshape(batch, -1)
    return q, *pools, table, d.ones(batch, value=keys)


def _latent(d: Drawing) -> tuple[Tensor, ...]:
    batch, keys = d.size(2, 16), d.size(1024, 8192)
    heads = d.size(16, 128)
    return (
        d.normal(batch, heads, 1, 512),
        d.normal(batch, heads, 1, 64),
        d.normal(batch, keys, 512),
        d.normal(batch, keys, 64),
    )


def _heads(d: Drawing) -> tuple[int, int, int, int]:
    """Returns sizes of a recurrence: batch, heads, time steps and features of a head."""
    return d.size(1, 8), d.size(4, 16), d.size(1024, 4096), d.size(64, 128)


def _gla(d: Drawing) -> tuple[Tensor, ...]:
    b, h, n, w = _heads(d)
    q, k, v = (d.normal(b, h, n, w, scale=w**-0.5) for _ in range(3))
    return q, k, v, d.between(-0.2, 0.0, b, h, n, w), d.normal(b, h, w, w, scale=0.0)


def _retention(d: Drawing) -> tuple[Tensor, ...]:
    q, k, v, gate, first = _gla(d)
    return q, k, v, gate[0, :, 0, 0].contiguous(), first


def _delta(d: Drawing) -> tuple[Tensor, ...]:
    q, k, v, _, first = _gla(d)
    k = torch.nn.functional.normalize(k, dim=-1)
    return q, k, v, d.between(0.0, 1.0, *k.shape[:-1]), first


def _ssd(d: Drawing) -> tuple[Tensor, ...]:
    b, n, h, p, m = d.size(1, 8), d.size(1024, 4096), d.size(8, 80), 64, d.size(64, 128)
    return (
        d.normal(b, h, n, p),
        d.between(0.001, 0.1, b, h, n),
        d.between(-8.0, -1.0, h),
        d.normal(b, n, m, scale=m**-0.5),
        d.normal(b, n, m, scale=m**-0.5),
        d.between(0.0, 1.0, h),
        d.normal(b, h, m, p, scale=0.0),
    )


def _selective(d: Drawing) -> tuple[Tensor, ...]:
    b, n, c, m = d.size(1, 8), d.size(512, 4096), d.size(256, 1536), 16
    return (
        d.normal(b, n, c),
        d.between(0.001, 0.1, b, n, c),
        d.between(-8.0, -1.0, c, m),
        d.normal(b, n, m),
        d.normal(b, n, m),
        d.normal(c),
        d.normal(b, c, m, scale=0.0),
    )


def _gated(d: Drawing) -> tuple[Tensor, ...]:
    b, n, c = d.size(2, 8), d.size(1024, 32768), d.size(256, 1536)
    return d.between(0.8, 1.0, b, n, c), d.normal(b, n, c), d.normal(b, c)


def _sums(d: Drawing) -> tuple[Tensor, ...]:
    return (torch.randn(1, d.size(1 << 20, 1 << 26), device=d.device),)


def _loss(d: Drawing) -> tuple[Tensor, ...]:
    rows, width, classes = d.size(256, 8192), d.size(512, 4096), d.size(8192, 128256)
    x, weight = d.normal(rows, width), d.normal(classes, width, scale=0.02)
    return x, weight, d.integers(classes, rows)


def _rope(d: Drawing) -> tuple[Tensor, ...]:
    from stack.ops.attention import Rope

    q, _, _ = _qkv(d)
    tables = Rope(q.shape[-1]).tables(torch.arange(q.shape[2]).numpy())
    cos, sin = (torch.from_numpy(t).to(d.device).expand(q.shape[0], -1, -1) for t in tables)
    return q, cos.contiguous(), sin.contiguous()


def _weight(d: Drawing) -> Sequence[int]:
    """Returns sizes of a matmul: its rows, its results per row and its depth."""
    return d.shape or (d.size(64, 4096), d.size(512, 4096), d.size(512, 4096))


def _fp8(d: Drawing, x_scale: tuple[int, ...], w_scale: tuple[int, ...]) -> tuple[Tensor, ...]:
    m, n, k = _weight(d)
    codes = (d.codes(m, k), d.codes(n, k))
    scales = (torch.rand(s, device=d.device) + 0.5 for s in (x_scale, w_scale))
    return *codes, *scales


def _fp8_tensor(d: Drawing) -> tuple[Tensor, ...]:
    return _fp8(d, (), ())


def _fp8_rows(d: Drawing) -> tuple[Tensor, ...]:
    m, n, _ = _weight(d)
    return _fp8(d, (m,), (n,))


def _fp8_blocks(d: Drawing) -> tuple[Tensor, ...]:
    m, n, k = _weight(d)
    return _fp8(d, (m, k // 128), (-(-n // 128), k // 128))


def _packed(scheme: str) -> Callable[[Drawing], tuple[Tensor, ...]]:
    """Returns a function that draws a few rows, and weights packed for the operator."""

    def draw(d: Drawing) -> tuple[Tensor, ...]:
        m, n, k = d.size(1, 16), d.size(1024, 8192), d.size(1024, 8192)
        packs = find(scheme).packs
        assert packs is not None
        held = map(torch.from_numpy, packs(torch.randn(n, k).numpy(), 128))
        packed = (t.to(d.dtype) if t.is_floating_point() else t for t in held)
        return d.normal(m, k, scale=k**-0.5), *(t.to(d.device) for t in packed)

    return draw


def _integers(d: Drawing) -> tuple[Tensor, ...]:
    m, n, k = _weight(d)
    weight = torch.randint(-127, 128, (n, k), device=d.device, dtype=torch.int8)
    return d.normal(m, k), weight, d.between(0.001, 0.01, n)


def _rows(d: Drawing) -> tuple[Tensor, ...]:
    rows, width = d.size(1024, 32768), d.size(2048, 4096)
    return d.normal(rows, width), d.normal(width)


# for each operator its attributes, and the function that draws its operands
PROGRAMS: dict[str, tuple[dict[str, Any], Callable[[Drawing], tuple[Tensor, ...]]]] = {
    "attention.attention": ({"causal": True}, _qkv),
    "attention.with_lse": ({"causal": True}, _qkv),
    "attention.with_documents": ({"causal": True}, _documents),
    "attention.with_cache": ({}, _cached),
    "attention.paged": ({}, _paged),
    "attention.mla_absorbed": ({"scale": 192**-0.5}, _latent),
    "attention.rope": ({}, _rope),
    "qgemm.fp8_tensor": ({}, _fp8_tensor),
    "qgemm.fp8": ({}, _fp8_rows),
    "qgemm.fp8_block": ({}, _fp8_blocks),
    "qgemm.w4a16": ({}, _packed("qgemm.w4a16")),
    "qgemm.w4a16_awq": ({}, _packed("qgemm.w4a16_awq")),
    "qgemm.w4a16_gptq": ({}, _packed("qgemm.w4a16_gptq")),
    "qgemm.nf4": ({}, _packed("qgemm.nf4")),
    "qgemm.mx": ({}, _packed("qgemm.mx")),
    "qgemm.nvfp4": ({}, _packed("qgemm.nvfp4")),
    "qgemm.w8a8_dynamic": ({}, _integers),
    "norm.rms_norm": ({}, _rows),
    "loss.linear_cross_entropy": ({}, _loss),
    "scan.gated": ({}, _gated),
    "scan.selective": ({}, _selective),
    "scan.inclusive": ({}, _sums),
    "scan.ssd": ({}, _ssd),
    "scan.gla": ({}, _gla),
    "scan.retention": ({}, _retention),
    "scan.delta": ({}, _delta),
}


def program(
    op: str = "attention.attention",
    device: str = "cpu",
    frontend: str = "torch",
    mode: str = "forward",
    width: int = 0,
    shape: Sequence[int] = (),
) -> Target:
    """Returns a call of an operator, or of its declared gradient, with operands."""
    torch.manual_seed(0)
    attributes, draw = PROGRAMS[op]
    made = find(op)
    made.on("torch")  # so that Dynamo sees an operator of torch
    call, args = partial(made, **attributes), draw(Drawing(device, width, shape))
    if mode == "forward":
        return call, args
    if made.gradient is None:
        raise UsageError(f"{op} declares no gradient: the derivative of its decomposition is used")
    made.gradient.on("torch")
    out = call(*args)
    results = out if isinstance(out, tuple) else (out,)
    told = tuple(map(torch.randn_like, results))
    return partial(made.gradient, **attributes), (*args, *results, *told)
