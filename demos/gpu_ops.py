"""Hosted operators for `stackc bench ops gpu`: generated code and its rivals."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from stack.demos.gpu_attention import document_share
from stack.demos.gpu_rows import by_hand
from stack.demos.ops_programs import PROGRAMS, program
from stack.errors import StackError
from stack.frameworks import torch_private as private
from stack.frontends.torch.tensors.arrays import dtype_of
from stack.hosted import find
from stack.hosted.nodes import custom
from stack.ir.builder import Builder, param
from stack.ir.cost import cost
from stack.ir.types import TensorType
from stack.measure.gpu_program import GpuProgram, Rival

Tensor = torch.Tensor
LANGUAGES = ("helion", "cutile", "tilelang", "cutedsl")  # of kernels; each has a file `gpu_*.py`


def operator(
    op: str,
    mode: str = "forward",
    device: str = "cuda",
    width: int = 0,
    shape: Sequence[int] = (),
) -> GpuProgram:
    """Returns an operator with its rivals; `mode` "backward" times its gradients."""
    run, args = program(op, device, width=width, shape=shape)
    attributes = PROGRAMS[op][0]
    first = (lambda *xs: run(*xs)[0]) if find(op).results > 1 else run
    rivals = dict(_rivals(op, args))
    if any(k.device == "cuda" for k in find(op).kernels) and mode == "forward":
        rivals["hand"] = _first(by_hand(op, args, **attributes))
    elif _has_hand_gradient(op):
        rivals["hand"] = Rival("hand", lambda: first)
    flops, moved = _least(op, args, attributes)
    return GpuProgram(
        first,
        args,
        flops=flops * (2.5 if mode == "backward" else 1),
        bytes=moved,
        mode=mode,
        wanted=tuple(i for i, a in enumerate(args) if a.is_floating_point())
        if mode != "forward"
        else (),
        rivals=rivals,
    )


def _has_hand_gradient(op: str) -> bool:
    gradient = find(op).gradient
    return gradient is not None and any(k.device == "cuda" for k in gradient.kernels)


def _first(rival: Rival) -> Rival:
    """Wraps a rival implementation that returns several results to return only the first."""

    def make() -> Callable[..., Any]:
        run = rival.make()

        def call(*args: Tensor) -> Tensor:
            out = run(*args)
            return out[0] if isinstance(out, tuple) else out

        return call

    return Rival(rival.kind, make)


def _least(op: str, args: tuple[Tensor, ...], attributes: dict[str, Any]) -> tuple[float, float]:
    """Returns an operator's least work: flops of its matmuls, and bytes of operands and results."""
    made, b = find(op), Builder()
    types = [TensorType(dtype_of(a.dtype), tuple(a.shape)) for a in args]
    params = [param(n, t) for n, t in zip(made.operands, types, strict=True)]
    found = cost(custom(b, made, params, attributes)[0])
    share = 0.5 if attributes.get("causal") and args[0].shape[-2] > 1 else 1.0
    if op == "attention.with_documents":
        share = document_share(args[-1])
    is_integer = any(a.dtype is torch.int8 for a in args)
    if is_integer or all(a.element_size() == 1 for a in args[:2]):
        share /= 2  # 8-bit matmuls run at twice the rate of 16-bit ones
    return float(found.flops) * share, float(found.bytes)


# ---- rivals


def _rivals(op: str, args: tuple[Tensor, ...]) -> dict[str, Rival]:
    if op in ("attention.attention", "attention.with_lse"):
        return {
            "sdpa-cudnn": Rival("library", lambda: _sdpa("CUDNN_ATTENTION")),
            "sdpa-flash2": Rival("library", lambda: _sdpa("FLASH_ATTENTION")),
            "flex": Rival("peer", _flex),
        }
    if op == "attention.with_cache":
        return {"sdpa": Rival("library", lambda: _full)}
    if op == "attention.paged":
        return {"gather + sdpa": Rival("library", lambda: _gathered)}
    if op == "loss.linear_cross_entropy":
        return {"torch": Rival("library", lambda: _linear_loss)}
    if op == "norm.rms_norm":
        return {
            "torch": Rival("library", lambda: _rms),
            **{name: Rival("peer", partial(_written_in, name)) for name in LANGUAGES},
        }
    if op == "scan.inclusive":
        return {"torch.cumsum": Rival("library", lambda: lambda x: torch.cumsum(x, -1))}
    if op == "scan.gated":
        return {"associative_scan": Rival("peer", _associative)}
    if op in ("scan.gla", "scan.retention", "scan.delta"):
        return {"fla": Rival("peer", lambda: _fla(op))}
    if op in ("qgemm.fp8_tensor", "qgemm.fp8", "qgemm.fp8_block"):
        return {"_scaled_mm": Rival("library", _scaled)}
    if op.startswith("qgemm.") and args[0].is_floating_point():
        found = {"bf16": Rival("library", lambda: _unpacked(op, args))}
        if op == "qgemm.w8a8_dynamic":
            found["_int_mm"] = Rival("peer", _rounded)
        return found
    if op == "scan.ssd":
        return {"mamba-ssm": Rival("peer", _mamba)}
    return {}


def _sdpa(backend: str) -> Callable[..., Tensor]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


def _flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled: Any = torch.compile(flex_attention, dynamic=False)
    masks: dict[int, Any] = {}

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        if length not in masks:
            rule = lambda b, h, row, column: row >= column
            masks[length] = create_block_mask(rule, None, None, length, length, str(q.device))
        return compiled(q, k, v, block_mask=masks[length])

    return run


def _full(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """Runs torch's attention on whole KV caches: `lengths` is not read, as all caches are full."""
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _gathered(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
    keys, values = (pool[table].flatten(1, 2).transpose(1, 2) for pool in (k, v))
    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)


def _linear_loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy((x @ weight.T).float(), target.long(), reduction="none")


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


def _written_in(language: str) -> Callable[..., Tensor]:
    """Returns RMSNorm in another language of kernels."""
    return _module(f"stack.demos.gpu_{language}").rms_norm


def _scaled() -> Callable[..., Tensor]:
    """Returns torch's matmul of FP8 codes: cuBLAS, or CUTLASS if rows have scales."""
    turned: dict[int, Tensor] = {}  # cuBLAS expects column-major block scales

    def run(x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor) -> Tensor:
        codes = [t.view(torch.float8_e4m3fn) for t in (x, weight)]
        scales = x_scale, weight_scale
        if weight_scale.ndim == 1:
            scales = x_scale[:, None], weight_scale[None]
        elif weight_scale.ndim == 2:
            at = x_scale.data_ptr()
            if at not in turned:
                turned[at] = x_scale.T.contiguous().T
            scales = turned[at], weight_scale.T
        return torch.ops.aten._scaled_mm(codes[0], codes[1].T, *scales, out_dtype=torch.bfloat16)

    return run


def _rounded() -> Callable[..., Tensor]:
    """Returns torch's int8 matmul in Inductor, which fuses rounding of x and scaling of results."""

    def run(x: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
        wide = x.float()
        scale = wide.abs().amax(-1, keepdim=True) / 127
        codes = (wide / scale).round().to(torch.int8)
        sums = torch.ops.aten._int_mm(codes, weight.T)
        return (sums * scale * weight_scale).to(x.dtype)

    return torch.compile(run, dynamic=False)


def _unpacked(op: str, args: tuple[Tensor, ...]) -> Callable[..., Tensor]:
    """Returns cuBLAS on weights converted to bf16 in advance: what packed weights must beat."""
    x, *packed = args
    if op == "qgemm.w8a8_dynamic":
        weight = packed[0].to(x.dtype) * packed[1][:, None]
    else:
        one = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        weight = find(op)(one, *packed).T.contiguous()
    return lambda x, *packed: x @ weight.T


def _associative() -> Callable[..., Tensor]:
    def combine(earlier: Any, later: Any) -> Any:
        return earlier[0] * later[0], later[0] * earlier[1] + later[1]

    def run(gate: Tensor, x: Tensor, first: Tensor) -> Tensor:
        gates, values = private.associative_scan(combine, (gate, x), 1)
        return gates * first[:, None] + values

    return torch.compile(run, dynamic=False)


def _module(name: str) -> Any:
    """Imports a module of a peer. Raises StackError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise StackError(f"{error.name} is not installed") from error


def _fla(op: str) -> Callable[..., Tensor]:
    """flash-linear-attention's Triton kernels, on [b, n, h, d]."""
    ops = _module("fla.ops")

    def run(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, first: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if op == "scan.gla":
            out = ops.chunk_gla(q, k, v, rate.transpose(1, 2), initial_state=first)[0]
        elif op == "scan.delta":
            out = ops.chunk_delta_rule(q, k, v, rate.transpose(1, 2), initial_state=first)[0]
        else:
            gate = rate[None, None].expand(q.shape[:3])
            out = ops.chunk_simple_gla(q, k, v, gate, initial_state=first)[0]
        return out.transpose(1, 2)

    return run


def _mamba() -> Callable[..., Tensor]:
    combined = _module("mamba_ssm.ops.triton.ssd_combined")

    def run(
        x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor, first: Tensor
    ) -> Tensor:
        out = combined.mamba_chunk_scan_combined(
            x.transpose(1, 2), dt.transpose(1, 2), a.float(), b[:, :, None], c[:, :, None],
            chunk_size=256, D=skip,
        )  # fmt: skip
        return out.transpose(1, 2)

    return run
