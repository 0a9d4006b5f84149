"""Programs of `stackc bench gpu` besides attention and blocks: matmuls, norms, losses.

Naive sources, each with the libraries that have a hand-written equivalent.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from stack.errors import StackError
from stack.frontends.torch.tensors.arrays import dtype_of
from stack.hosted import find
from stack.ir.types import TensorType
from stack.measure.gpu_program import GpuProgram, Rival

Tensor = torch.Tensor
EPS = 1e-5


def wide(x: Tensor) -> Tensor:
    """Converts 16-bit floats to f32; others are unchanged, so the reference stays in f64."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _draw(*shape: int, device: str, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, device=device)).to(torch.bfloat16)


def liger(module: str, name: str) -> Any:
    """Imports a class of liger-kernel. Raises StackError if it is not installed."""
    if importlib.util.find_spec("liger_kernel") is None:
        raise StackError("liger-kernel is not installed")
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)


def by_hand(name: str, args: tuple[Any, ...], mean: bool = False, **attributes: Any) -> Rival:
    """Returns our hand-written kernel of an operator as a rival; without one, building it fails."""

    def make() -> Callable[..., Any]:
        made = find(name)
        read = made.read(attributes)
        types = [TensorType(dtype_of(a.dtype), tuple(a.shape)) for a in args]
        kernel = made.kernel_for("cuda", types, read)
        if kernel is None:
            raise StackError(f"{name} has no hand-written kernel for {', '.join(map(str, types))}")
        run = lambda *given: kernel(*given, **read)
        return (lambda *given: run(*given).mean()) if mean else run

    return Rival("hand", make)


# ---- products


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.T


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


def gemm(m: int, n: int, k: int, device: str = "cuda", right: str = "column-major") -> GpuProgram:
    """Returns x weight^T, as in linear layers, or x weight; eager is cuBLAS."""
    is_row = right == "row-major"
    shape = (k, n) if is_row else (n, k)
    x, weight = _draw(m, k, device=device), _draw(*shape, device=device, scale=k**-0.5)

    def hand() -> Callable[..., Tensor]:
        from stack.ops.gemm.persistent_triton import matmul

        return matmul

    return GpuProgram(
        product if is_row else linear,
        (x, weight),
        flops=2.0 * m * n * k,
        bytes=2.0 * (m * k + n * k + m * n),
        split=(0, None),
        parts=max(1, min(m, m * n // (1 << 26))),
        rivals={} if is_row else {"hand-persistent": Rival("hand", hand)},
    )


def bias_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x @ weight.T + bias, approximate="tanh")


def swiglu_pair(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate.T) * (x @ up.T)


def residual_norm(x: Tensor, weight: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ weight.T + residual
    return y, torch.rsqrt(wide(y).pow(2).mean(-1, keepdim=True) + EPS)


def row_quantize(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y = wide(x @ weight.T)
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    # kept as floats: a value that rounds to the other side is off by one step, not more
    return torch.round(y / scale), scale


def epilogue(
    name: str, m: int = 8192, width: int = 8192, ffn: int = 28672, device: str = "cuda"
) -> GpuProgram:
    """Returns a matmul of a 70B model's MLP with its epilogue."""
    n, k = (width, ffn) if name == "residual_norm" else (ffn, width)
    x, weight = _draw(m, k, device=device), _draw(n, k, device=device, scale=k**-0.5)
    fn, more, count, extra = {
        "bias_gelu": (bias_gelu, (_draw(n, device=device),), 1, 0.0),
        "swiglu_pair": (swiglu_pair, (_draw(n, k, device=device, scale=k**-0.5),), 2, 0.0),
        "residual_norm": (residual_norm, (_draw(m, n, device=device),), 1, 4.0 * m),
        "row_quantize": (row_quantize, (), 1, 4.0 * m),
    }[name]
    cut: tuple[int | None, ...] = tuple(0 if name == "residual_norm" else None for _ in more)
    args = (x, weight, *more)
    written = (4.0 if name == "row_quantize" else 2.0) * m * n + extra
    return GpuProgram(
        fn,
        args,
        flops=2.0 * m * n * k * count,
        bytes=sum(a.nbytes for a in args) + written,
        split=(0, None, *cut),
        parts=max(1, min(m, m * n // (1 << 26))),
    )


# ---- norms


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    y = wide(x)
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * gain


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    y = wide(x)
    mean = y.mean(-1, keepdim=True)
    variance = (y - mean).pow(2).mean(-1, keepdim=True)
    return ((y - mean) * torch.rsqrt(variance + EPS)).to(x.dtype) * gain + bias


def add_rms_norm(x: Tensor, residual: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, gain), total


def norm(
    name: str = "rms_norm",
    rows: int = 32768,
    width: int = 4096,
    mode: str = "forward",
    device: str = "cuda",
) -> GpuProgram:
    """Returns a norm of many rows, or its gradients."""
    x = _draw(rows, width, device=device)
    gain = (1 + 0.1 * torch.randn(width, device=device)).to(torch.bfloat16)
    shift = _draw(width, device=device, scale=0.1)
    fn, args, written = {
        "rms_norm": (rms_norm, (x, gain), 1),
        "layer_norm": (layer_norm, (x, gain, shift), 1),
        "add_rms_norm": (add_rms_norm, (x, _draw(rows, width, device=device), gain), 2),
    }[name]
    moved = sum(a.nbytes for a in args) + written * x.nbytes
    if mode == "backward":  # reads x and the gradient of the result, writes the gradient of x
        moved = 3.0 * x.nbytes
    rows_cut: tuple[int | None, ...] = tuple(0 if a.dim() == 2 else None for a in args)
    return GpuProgram(
        fn,
        args,
        bytes=moved,
        mode=mode,
        wanted=tuple(range(len(args))),
        split=rows_cut,
        parts=max(1, x.numel() // (1 << 27)),
        rivals=_norm_rivals(name) | _norm_by_hand(name, args, mode),
    )


def _norm_by_hand(name: str, args: tuple[Any, ...], mode: str) -> dict[str, Rival]:
    if mode != "forward" or name not in ("rms_norm", "layer_norm"):
        return {}
    return {"hand": by_hand(f"norm.{name}", args, eps=EPS)}


def _norm_rivals(name: str) -> dict[str, Rival]:
    def liger_rms() -> Callable[..., Tensor]:
        function = liger("rms_norm", "LigerRMSNormFunction")
        # not in place: the gradient of the result is used again
        return lambda x, gain: function.apply(x, gain, EPS, 0.0, "llama", False)

    def liger_layer() -> Callable[..., Tensor]:
        function = liger("layer_norm", "LigerLayerNormFunction")
        return lambda x, gain, bias: function.apply(x, gain, bias, EPS)

    def torch_rms() -> Callable[..., Tensor]:
        return lambda x, gain: F.rms_norm(x, x.shape[-1:], gain, EPS)

    def torch_layer() -> Callable[..., Tensor]:
        return lambda x, gain, bias: F.layer_norm(x, x.shape[-1:], gain, bias, EPS)

    return {
        "rms_norm": {
            "torch-rms_norm": Rival("library", torch_rms),
            "liger": Rival("peer", liger_rms),
        },
        "layer_norm": {
            "torch-layer_norm": Rival("library", torch_layer),
            "liger": Rival("peer", liger_layer),
        },
    }.get(name, {})


# ---- softmax and losses


def naive_softmax(x: Tensor) -> Tensor:
    y = wide(x)
    shifted = torch.exp(y - y.amax(-1, keepdim=True))
    return (shifted / shifted.sum(-1, keepdim=True)).to(x.dtype)


def softmax(rows: int = 16384, width: int = 131072, device: str = "cuda") -> GpuProgram:
    """Returns a softmax of long rows."""
    x = _draw(rows, width, device=device)
    library = Rival("library", lambda: lambda x: torch.softmax(x, dim=-1))
    return GpuProgram(
        naive_softmax,
        (x,),
        bytes=2.0 * x.nbytes,
        exps=float(x.numel()),
        split=(0,),
        parts=max(1, x.numel() // (1 << 27)),
        rivals={"torch-softmax": library, "hand": by_hand("norm.softmax", (x,))},
    )


def cross_entropy_loss(logits: Tensor, target: Tensor) -> Tensor:
    y = wide(logits)
    top = y.amax(-1, keepdim=True)
    total = (y - top).exp().sum(-1).log() + top[:, 0]
    picked = y.gather(-1, target[:, None])[:, 0]
    return (total - picked).mean()


def cross_entropy(
    rows: int = 8192, vocab: int = 131072, mode: str = "forward", device: str = "cuda"
) -> GpuProgram:
    """Returns the mean cross-entropy of logits; `mode` "train" adds their gradient."""
    logits = _draw(rows, vocab, device=device)
    target = torch.randint(0, vocab, (rows,), device=device)

    def by_liger() -> Callable[..., Any]:
        function = liger("cross_entropy", "LigerCrossEntropyFunction")

        def run(logits: Tensor, target: Tensor) -> Tensor:
            return function.apply(logits, target, None)[0]

        return run

    library = Rival("library", lambda: lambda x, t: F.cross_entropy(x, t))
    hand: dict[str, Rival] = {}
    if mode == "forward":
        hand["hand"] = by_hand("loss.cross_entropy", (logits, target), mean=True)
    return GpuProgram(
        cross_entropy_loss,
        (logits, target),
        bytes=(1.0 if mode == "forward" else 2.0) * logits.nbytes,
        exps=float(logits.numel()),
        mode=mode,
        wanted=(0,),
        rivals={
            "torch-cross_entropy": library,
            "liger": Rival("peer", by_liger, spoils=True),
            **hand,
        },
    )


def linear_cross_entropy_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return cross_entropy_loss(x @ weight.T, target)


def linear_cross_entropy(
    tokens: int = 8192, width: int = 4096, vocab: int = 131072, device: str = "cuda"
) -> GpuProgram:
    """Returns the loss of a language model's last layer, with gradients of its input and weight."""
    x, weight = _draw(tokens, width, device=device), _draw(vocab, width, device=device, scale=0.02)
    target = torch.randint(0, vocab, (tokens,), device=device)

    def by_liger() -> Callable[..., Any]:
        function = liger("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction")

        def run(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
            return function.apply(x, weight, target)[0]

        return run

    def by_torch() -> Callable[..., Tensor]:
        return lambda x, weight, target: F.cross_entropy(F.linear(x, weight), target)

    return GpuProgram(
        linear_cross_entropy_loss,
        (x, weight, target),
        flops=6.0 * tokens * width * vocab,
        bytes=2.0 * (x.nbytes + weight.nbytes),
        mode="train",
        wanted=(0, 1),
        rivals={
            "torch-cross_entropy": Rival("library", by_torch),
            "liger": Rival("peer", by_liger, spoils=True),
        },
    )
