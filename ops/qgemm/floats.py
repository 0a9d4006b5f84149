"""Matmuls of narrow floats: 8 bits on both sides, and blocks of 4 to 8 bits that share scales.

Codes are bytes: use `tensor.view(torch.uint8)` on a float8 tensor of torch. Sources: Micikevicius
et al., "FP8 formats for deep learning", 2022; DeepSeek-V3, 2024, section 3.3 (blocks of 128); OCP
Microscaling Formats 1.0, 2023; NVIDIA, "Pretraining LLMs with NVFP4", 2025.
"""

from __future__ import annotations

from typing import Any

import stack.ops.qgemm.pack as pack
import stack.ops.qgemm.reference as reference
import stack.ops.qgemm.storage as storage
from stack.errors import RuleError
from stack.hosted import op
from stack.ir.types import TensorType
from stack.ops.qgemm.formats import MX_BLOCK, NV_BLOCK
from stack.ops.qgemm.integers import kernel, lines


def _decoded(np: Any, codes: Any, format: str, dtype: Any) -> Any:
    made = storage.format_named(format)
    storage.check("format", made.bits, 8, "codes are whole bytes here")
    return storage.minifloat(np, codes, format, dtype)


def _product(np: Any, x: Any, weight: Any) -> Any:
    rows = np.matmul(x.reshape(-1, x.shape[-1]), weight.swapaxes(0, 1))
    return rows.reshape(*x.shape[:-1], weight.shape[0])


def _not_fp8(*types: TensorType, format: str, block: int = 128) -> str:
    if format != "e4m3" or block != 128:
        return "it supports only e4m3 in blocks of 128"
    return lines(*types)


KERNELS = (kernel("gemm8_gluon:product", "f32", refuses=_not_fp8),)


@op(
    "qgemm.fp8",
    rule="... k: u8, n k: u8, ..., n -> ... n",
    reference=reference.fp8,
    kernels=KERNELS,
)
def fp8(np, x, weight, x_scale, weight_scale, *, format: str = "e4m3"):
    """x @ weight.T of 8-bit floats, times a scale per row and per column.

    `x [..., k]`, `weight [n, k]` uint8, codes of `format`, "e4m3" or "e5m2"; `x_scale [...]`,
    `weight_scale [n]` of one float type, which is also that of the sums and of the result.
    """
    left, right = (_decoded(np, codes, format, x_scale.dtype) for codes in (x, weight))
    return _product(np, left, right) * x_scale[..., None] * weight_scale


@op(
    "qgemm.fp8_tensor",
    rule="... k: u8, n k: u8, , -> ... n",
    reference=reference.fp8_tensor,
    kernels=KERNELS,
)
def fp8_tensor(np, x, weight, x_scale, weight_scale, *, format: str = "e4m3"):
    """x @ weight.T of 8-bit floats, times one scale per side: `x_scale []`, `weight_scale []`.

    The rest as for `fp8`.
    """
    left, right = (_decoded(np, codes, format, x_scale.dtype) for codes in (x, weight))
    return _product(np, left, right) * (x_scale * weight_scale)


@op(
    "qgemm.fp8_block",
    rule="... k: u8, n! k: u8, ... g, h g -> ... n!",
    reference=reference.fp8_block,
    kernels=KERNELS,
)
def fp8_block(np, x, weight, x_scale, weight_scale, *, format: str = "e4m3", block: int = 128):
    """x @ weight.T of 8-bit floats; `block` neighbours of x share a scale, squares of weight do.

    `x [..., k]`, `weight [n, k]` uint8, codes of `format`; `x_scale [..., k / block]` and
    `weight_scale [n / block, k / block]`, rounded up, of one float type, which the result has too.
    """
    if block < 1:
        raise RuleError(f"'block' must be at least 1, not {block}")
    (n, k), (down, across) = weight.shape, weight_scale.shape
    storage.check("x_scale", across, -(-k // block), f"a scale for each {block} of {k}")
    storage.check("weight_scale", down, -(-n // block), f"a scale for each {block} of {n}")
    left, right = (_decoded(np, codes, format, x_scale.dtype) for codes in (x, weight))
    squares = storage.repeated(np, storage.repeated(np, weight_scale, block, n, 0), block, k, 1)
    return _product(np, left * storage.repeated(np, x_scale, block, k, -1), right * squares)


@op("qgemm.mx", rule="... k, n b: u8, n g: u8 -> ... n", reference=reference.mx, packs=pack.mx)
def mx(np, x, codes, scales, *, format: str = "e2m1"):
    """x @ weight.T in a microscaling format: 32 neighbours of weight share a power of two.

    `x [..., k]` floats; `codes [n, k]` uint8 of `format` ("e4m3", "e5m2", "e3m2", "e2m3"), or `[n,
    k / 2]` of "e2m1", two per byte; `scales [n, k / 32]` uint8, E8M0. Weights are rounded to the
    type of x; sums are in at least f32.
    """
    k = x.shape[-1]
    each = 2 if storage.format_named(format).bits == 4 else 1
    storage.check_weights("codes", each * codes.shape[-1], k)
    storage.check_weights("scales", MX_BLOCK * scales.shape[-1], k)
    wide = np.result_type(x, np.float32)
    return storage.product(np, x, storage.mx(np, codes, scales, format, wide))


@op(
    "qgemm.nvfp4",
    rule="... k, n b: u8, n g: u8, -> ... n",
    reference=reference.nvfp4,
    packs=pack.nvfp4,
)
def nvfp4(np, x, packed, scales, scale):
    """x @ weight.T of NVFP4: 16 neighbours of weight share an E4M3 scale, and all share a float.

    `x [..., k]` floats; `packed [n, k / 2]` uint8, E2M1, the low half of each byte first;
    `scales [n, k / 16]` uint8, E4M3; `scale []` of the type of x.
    """
    k = x.shape[-1]
    storage.check_weights("packed", 2 * packed.shape[-1], k)
    storage.check_weights("scales", NV_BLOCK * scales.shape[-1], k)
    wide = np.result_type(x, np.float32)
    return storage.product(np, x, storage.nvfp4(np, packed, scales, scale.astype(wide)))
