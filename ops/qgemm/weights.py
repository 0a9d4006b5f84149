"""Matmuls with weights of few bits: groups of 4-bit codes, NF4, GGUF blocks, 2:4 sparsity.

All compute `x [..., k] @ weight.T`, with weights rounded to the type of x, and sums in at least
f32. The declarations say how `weight [n, k]` is stored. Derivatives flow to x and to float scales.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import stack.ops.qgemm.pack as pack
import stack.ops.qgemm.reference as reference
import stack.ops.qgemm.storage as storage
from stack.errors import RuleError
from stack.hosted import Kernel, op
from stack.hosted.native import missing_nvrtc
from stack.ir.types import TensorType

# rows of x up to which the CUDA C++ kernel is faster than Triton's kernel; than having no kernel
FEW, SOME = 16, 32
CHUNK = 128  # weights of a row that it processes at a time


def _few_rows(path: str, refuses: Callable[..., str]) -> Kernel:
    """Declares the CUDA C++ kernel for few rows of x; `path` is its function for one layout."""
    dtypes = "bf16", "f16"
    return Kernel("cuda", path, "nvrtc", dtypes, refuses, capturable=True, arch="sm_90")


def _not_few_rows(
    x: TensorType, groups: int, scales: TensorType | None, least: int = 32, most: int = SOME
) -> str:
    """Returns why the CUDA C++ kernel for few rows of x cannot run; "" if it can.

    Groups must be multiples of `least` weights, and x has at most `most` rows.
    """
    rows, size = prod(map(int, x.shape[:-1])), int(x.shape[-1]) // groups
    if scales is not None and x.dtype is not scales.dtype:
        return "two element types"
    if rows > most:
        return f"{rows} rows of x are more than {most}"
    if size % least:
        return f"groups are {size} weights, not multiples of {least}"
    if size % CHUNK and CHUNK % size:
        return f"groups are {size} weights, not multiples of {least} that fit {CHUNK}"
    if int(x.shape[-1]) % CHUNK:
        return f"rows of {x.shape[-1]} weights are not multiples of {CHUNK}"
    return missing_nvrtc()


def _not_halves(x: TensorType, packed: TensorType, scales: TensorType, **_: Any) -> str:
    return _not_few_rows(x, int(scales.shape[1]), scales, CHUNK, FEW)


def _not_near(x: TensorType, packed: TensorType, scales: TensorType, **_: Any) -> str:
    return _not_few_rows(x, int(scales.shape[1]), scales)


def _not_words(x: TensorType, words: TensorType, zeros: TensorType, *rest: Any, **_: Any) -> str:
    return _not_few_rows(x, int(rest[0].shape[0]), rest[0])


def _not_blocks(x: TensorType, blocks: TensorType, **_: Any) -> str:
    return _not_few_rows(x, int(x.shape[-1]) // 32, None)


def _not_w4a16(x: TensorType, packed: TensorType, scales: TensorType, **_: Any) -> str:
    if x.dtype is not scales.dtype:
        return "two element types"
    size = int(packed.shape[1]) // int(scales.shape[1])
    return "" if size % 16 == 0 else f"groups are {2 * size} weights, not multiples of 32"


@op(
    "qgemm.w4a16",
    rule="... k, n b: u8, n g -> ... n",
    reference=reference.w4a16,
    packs=pack.w4a16,
    kernels=(
        _few_rows("stack.ops.qgemm.w4a16_cuda:w4a16", _not_halves),
        Kernel(
            "cuda",
            "stack.ops.qgemm.w4a16_triton:w4a16",
            "triton",
            ("bf16", "f16"),
            _not_w4a16,
            capturable=True,
        ),
        Kernel("cpu", "stack.ops.qgemm.w4a16_c:w4a16", "c", ("f32",), _not_w4a16, share=0.3),
    ),
)
def w4a16(np, x, packed, scales):
    """x @ weight.T with 4-bit weights that share a scale in groups: Frantar et al., GPTQ, 2022.

    `x [..., k]` floats; `packed [n, k / 2]` uint8, codes are value + 8; `scales [n, groups]` of the
    type of x, one for every k / groups neighbours. The first half of a group is in the low halves
    of its bytes and the second in the high ones, so that both are multiplied with neighbours of x.
    """
    storage.check_pairs(packed, "scales", scales, x.shape[-1])
    return storage.product(np, x, storage.int4(np, packed, scales))


@op(
    "qgemm.w4a16_awq",
    rule="... k, k w: i32, g w: i32, g n! -> ... n!",
    reference=reference.w4a16_awq,
    packs=pack.w4a16_awq,
    kernels=(_few_rows("stack.ops.qgemm.w4a16_layouts:awq", _not_words),),
)
def w4a16_awq(np, x, qweight, qzeros, scales):
    """x @ weight.T with weights in AutoAWQ's GEMM layout: Lin et al., AWQ, 2023.

    `x [..., k]` floats; `qweight [k, n / 8]`, `qzeros [groups, n / 8]` int32; a word contains
    columns 0, 2, 4, 6, 1, 3, 5, 7 of 8, from its low end; `scales [groups, n]` of the type of x.
    """
    groups, n = scales.shape
    storage.check(
        "qweight", qweight.shape[1] * 8, n, "8 columns to a word, one for each of 'scales'"
    )
    storage.check_groups("scales", groups, x.shape[-1])
    return storage.product(np, x, storage.awq(np, qweight, qzeros, scales))


@op(
    "qgemm.w4a16_gptq",
    rule="... k, w n!: i32, g v: i32, g n!, k: int < g -> ... n!",
    reference=reference.w4a16_gptq,
    packs=pack.w4a16_gptq,
    kernels=(_few_rows("stack.ops.qgemm.w4a16_layouts:gptq", _not_words),),
)
def w4a16_gptq(np, x, qweight, qzeros, scales, g_idx):
    """x @ weight.T with weights in AutoGPTQ's layout: Frantar et al., GPTQ, 2022.

    `x [..., k]` floats; `qweight [k / 8, n]` int32, 8 rows per word from its low end;
    `qzeros [groups, n / 8]` int32, zero points minus 1; `scales [groups, n]` of the type of x;
    `g_idx [k]` int32, the group of each k.
    """
    n = scales.shape[1]
    storage.check_weights("qweight", 8 * qweight.shape[0], x.shape[-1])
    storage.check("qzeros", qzeros.shape[1] * 8, n, "8 columns to a word, one for each of 'scales'")
    return storage.product(np, x, storage.gptq(np, qweight, qzeros, scales, g_idx))


@op(
    "qgemm.nf4",
    rule="... k, n b: u8, n g -> ... n",
    reference=reference.nf4,
    packs=pack.nf4,
    kernels=(_few_rows("stack.ops.qgemm.w4a16_layouts:nf4", _not_near),),
)
def nf4(np, x, packed, absmax):
    """x @ weight.T with weights in NF4: Dettmers et al., QLoRA, 2023.

    `x [..., k]` floats; `packed [n, k / 2]` uint8, even k in the high half of a byte, as in
    bitsandbytes; `absmax [n, groups]` of the type of x, one for every k / groups neighbours.
    """
    storage.check_pairs(packed, "absmax", absmax, x.shape[-1])
    return storage.product(np, x, storage.nf4(np, packed, absmax))


@op(
    "qgemm.sparse24",
    rule="... k, n h, n q: u8 < 16 -> ... n",
    reference=reference.sparse24,
    packs=pack.sparse24,
)
def sparse24(np, x, values, places):
    """x @ weight.T with two of every four neighbours of weight 0: Mishra et al., 2021.

    `x [..., k]` floats; `values [n, k / 2]` of the type of x, two for every four neighbours;
    `places [n, k / 4]` uint8: the index of the first, 0 to 3, plus 4 times that of the second.
    """
    k = x.shape[-1]
    storage.check_weights("values", 2 * values.shape[-1], k)
    storage.check_weights("places", 4 * places.shape[-1], k)
    return storage.product(np, x, storage.sparse24(np, values, places))


def _check_blocks(blocks: Any, k: Any, size: int, count: int) -> None:
    """Raise RuleError if rows of blocks of `size` bytes do not contain k weights."""
    if blocks.shape[-1] % size:
        raise RuleError(f"'blocks' has {blocks.shape[-1]} bytes in a row, not a multiple of {size}")
    storage.check_weights("blocks", blocks.shape[-1] // size * count, k)


@op("qgemm.q8_0", rule="... k, n b: u8 -> ... n", reference=reference.q8_0, packs=pack.q8_0)
def q8_0(np, x, blocks):
    """x @ weight.T with GGUF's Q8_0: `blocks [n, k / 32 * 34]` uint8, as in its files."""
    _check_blocks(blocks, x.shape[-1], 34, 32)
    return storage.product(np, x, storage.q8_0(np, blocks))


@op(
    "qgemm.q4_k",
    rule="... k, n b: u8 -> ... n",
    reference=reference.q4_k,
    kernels=(_few_rows("stack.ops.qgemm.w4a16_layouts:q4_k", _not_blocks),),
)
def q4_k(np, x, blocks):
    """x @ weight.T with GGUF's Q4_K: `blocks [n, k / 256 * 144]` uint8, as in its files."""
    _check_blocks(blocks, x.shape[-1], 144, 256)
    return storage.product(np, x, storage.q4_k(np, blocks))


@op("qgemm.q6_k", rule="... k, n b: u8 -> ... n", reference=reference.q6_k)
def q6_k(np, x, blocks):
    """x @ weight.T with GGUF's Q6_K: `blocks [n, k / 256 * 210]` uint8, as in its files."""
    _check_blocks(blocks, x.shape[-1], 210, 256)
    return storage.product(np, x, storage.q6_k(np, blocks))
