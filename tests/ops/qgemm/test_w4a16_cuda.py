"""The CUDA C++ kernel of few rows: values of its text on a CPU, code for Hopper without a GPU."""

from __future__ import annotations

import ctypes
import math
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from cuda_emulator import COMPILER, built

from stack.hosted import find
from stack.hosted.native import missing_nvrtc
from stack.ir.types import DTYPES, TensorType
from stack.ops.qgemm import w4a16
from stack.ops.qgemm.formats import NF4
from stack.ops.qgemm.w4a16_cuda import kernel, zero
from stack.ops.qgemm.w4a16_cuda import w4a16 as launch
from stack.ops.qgemm.w4a16_cut import ROOM, Config, Form, config_for, held_of
from stack.ops.qgemm.w4a16_layouts import lay_awq, lay_gptq, lay_q4_k

# what the emulator lacks of CUDA C++; a block is a cluster of its own
SHIM = """
#undef __launch_bounds__
#define __launch_bounds__(...)
#define __constant__ static
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select) {
  const uint64_t both = uint64_t(y) << 32 | x;
  unsigned made = 0;
  for (int i = 0; i < 4; i++) made |= unsigned(both >> 8 * (select >> 4 * i & 7) & 255) << 8 * i;
  return made;
}
inline void copy_async(void* to, const void* from, bool is_there) {
  copy_async<16>(to, from, is_there);
}
inline unsigned raised(unsigned word) {
  const unsigned short first = narrow<TYPE>(ZERO).bits;
  return (word & 0x000f000f) | first | first << 16;
}
inline void multiply(float (&sum)[4], const unsigned (&a)[4], const uint2& b) {
  mma<TYPE>(sum, sum + 2, a, &b.x);
}
inline float number(unsigned short bits) { return widen(BESIDES{bits}); }
inline unsigned short narrow(float x) { return narrow<TYPE>(x).bits; }
inline void meet(int, int) { __syncthreads(); }
inline void meet_cluster() { __syncthreads(); }
inline void wait_for_earlier() {}
inline float held_by(unsigned, const float* at) { return *at; }
inline Index along() { return {threadIdx.y * 32 + threadIdx.x, 0, 0}; }
#define threadIdx along()
"""
GO = """
extern "C" void go(const unsigned short* x, const unsigned char* packed,
                   const Steps* scales, unsigned short* y, long long rows,
                   long long columns, long long depth, int blocks) {
  run_grid(blocks, WARPS, [=] { w4a16(x, packed, scales, y, rows, columns, depth); });
}
"""


def drawn(rows: int, columns: int, depth: int, group: int, dtype: Any) -> list[Any]:
    x, scales = torch.randn(rows, depth), torch.rand(columns, depth // group)
    packed = torch.randint(0, 256, (columns, depth // 2), dtype=torch.uint8)
    return [x.to(dtype), packed, scales.to(dtype)]


def stored(name: str, rows: int, columns: int, depth: int, group: int, dtype: Any) -> list[Any]:
    """`drawn` for any operator, by what packs its weights."""
    x = torch.randn(rows, depth).to(dtype)
    if name == "q4_k":
        blocks = torch.randint(0, 256, (columns, depth // 256, 144), dtype=torch.uint8)
        blocks[..., :4] = torch.rand(*blocks.shape[:2], 2).half().view(torch.uint8)
        return [x, blocks.reshape(columns, -1)]
    packs = find(f"qgemm.{name}").packs
    assert packs is not None
    held = map(torch.from_numpy, packs(torch.randn(columns, depth).numpy(), group))
    packed = [t.to(dtype) if t.is_floating_point() else t for t in held]
    return [x, *packed]


def off(found: Any, args: list[Any], name: str = "w4a16") -> float:
    exact = find(f"qgemm.{name}")(*(a.double() if a.is_floating_point() else a for a in args))
    return float((found.double() - exact).norm() / exact.norm())


def emulated(x: Any, packed: Any, scales: Any, form: Form, config: Config, folder: Path) -> Any:
    """The results of the kernel's text on a CPU."""
    (rows, depth), columns = x.shape, len(packed)
    made = kernel(x.dtype, config, 1 << (rows - 1).bit_length(), form)
    body = made.source[made.source.index("constexpr int TILES") :]
    body = re.sub("extern __shared__ .*;", "", body)
    shim = SHIM.replace("TYPE", "bf16" if x.dtype is torch.bfloat16 else "f16")
    shim = shim.replace("ZERO", str(zero(x.dtype)))
    shim = shim.replace("BESIDES", "bf16" if scales.dtype is torch.bfloat16 else "f16")
    library = built(f"#define __device__\n{shim}{body}{GO}", folder)
    y = torch.full((rows, columns), torch.nan, dtype=x.dtype)
    library.go(
        *(ctypes.c_void_p(t.data_ptr()) for t in (x, packed, scales, y)),
        *map(ctypes.c_longlong, (rows, columns, depth)),
        math.ceil(columns / config.tall),
    )
    return y


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    ("rows", "columns", "depth", "group", "dtype", "config"),
    [
        (3, 40, 640, 128, torch.bfloat16, Config(1, 2, 2, 1, 3)),
        (13, 33, 512, 256, torch.float16, Config(2, 1, 1, 1, 2)),
    ],
)
def test_values(
    rows: int, columns: int, depth: int, group: int, dtype: Any, config: Config, tmp_path: Path
) -> None:
    """Fewer rows than a tile has, columns that fill no block, teams with nothing left to do."""
    args = drawn(rows, columns, depth, group, dtype)
    assert off(emulated(*args, Form(group), config, tmp_path), args) < 4e-3


@pytest.mark.every(2)
@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(
    ("name", "group", "dtype"),
    [
        ("w4a16_awq", 256, torch.float16),
        ("w4a16_gptq", 32, torch.bfloat16),
        ("nf4", 64, torch.bfloat16),
        ("q4_k", 32, torch.bfloat16),
    ],
)
def test_values_of_other_layouts(name: str, group: int, dtype: Any, tmp_path: Path) -> None:
    """Zero points, groups smaller than a chunk, groups of k in any order, codes of a table."""
    x, *held = args = stored(name, 3, 40, 256, group, dtype)
    if name == "nf4":
        form, laid, order = Form(group, is_near=True, table=NF4), held, []
    elif name == "q4_k":
        form, laid, order = Form(group, True, "minima"), lay_q4_k(*held), []
    elif name == "w4a16_awq":
        form, laid, order = Form(group, True, "zeros"), lay_awq(*held), []
    else:
        args[4] = held[3] = held[3][torch.randperm(256)]
        form, (*laid, order) = Form(group, True, "zeros"), lay_gptq(*held)
        order = [order]
    near = x[:, order[0]].contiguous() if order else x
    found = emulated(near, *laid, form, Config(1, 1, 1, 1, 2), tmp_path)
    assert off(found, args, name) < 4e-3


@pytest.mark.skipif(missing_nvrtc() != "", reason="needs NVRTC")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 16])
def test_it_compiles_for_hopper(rows: int, dtype: Any) -> None:
    config = config_for(rows, 8192, 8192, Form(128), 132)
    made = kernel(dtype, config, rows, Form(128)).cubin("sm_90")
    assert made.startswith(b"\x7fELF")


@pytest.mark.parametrize("rows", [1, 7, 16, 32])
@pytest.mark.parametrize(
    "form", [Form(128), Form(64, True, "zeros"), Form(64, True, table=NF4)], ids=str
)
def test_every_cut_has_room(rows: int, form: Form) -> None:
    for columns, depth in ((48, 128), (4096, 14336), (8192, 28672)):
        config = config_for(rows, columns, depth, form, 132)
        assert config.shared(held_of(rows), form) <= ROOM
        assert config.stages > 1


def test_it_is_for_few_rows_in_groups_of_128() -> None:
    def why_not(rows: int, group: int) -> str:
        types = [TensorType(DTYPES[d], s) for d, s in (
            ("bf16", (rows, 1024)), ("u8", (64, 512)), ("bf16", (64, 1024 // group)),
        )]  # fmt: skip
        return w4a16.kernels[0].why_not(types, {})

    assert why_not(17, 128) == "17 rows of x are more than 16"
    assert why_not(1, 64) == "groups are 64 weights, not multiples of 128"
    assert why_not(8, 256) == missing_nvrtc()


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "depth", "group"), [
    (1, 256, 1024, 128), (8, 77, 1152, 128), (16, 4096, 4096, 512), (5, 64, 256, 128),
    (17, 200, 2048, 128), (32, 1024, 1024, 256),
])  # fmt: skip
def test_parts_of_a_sum_on_a_gpu(rows: int, columns: int, depth: int, group: int) -> None:
    """Blocks of a cluster, some of which have nothing to add."""
    args = [a.cuda() for a in drawn(rows, columns, depth, group, torch.bfloat16)]
    exact = [a.cpu() for a in args]
    assert off(launch(*args).cpu(), exact) < 4e-3
    for parts in (1, 2, 8):
        config = Config(2, 2, 2, parts, 3)
        assert off(launch(*args, config).cpu(), exact) < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["w4a16_awq", "w4a16_gptq", "nf4", "q4_k"])
@pytest.mark.parametrize(("rows", "group"), [(1, 64), (16, 128), (30, 32)])
def test_other_layouts_on_a_gpu(name: str, rows: int, group: int) -> None:
    args = stored(name, rows, 272, 1024, group, torch.bfloat16)
    if name == "w4a16_gptq" and rows > 1:
        args[4] = args[4][torch.randperm(1024)]
    kernel = find(f"qgemm.{name}").kernels[0]
    assert off(kernel(*(a.cuda() for a in args)).cpu(), args, name) < 4e-3


@pytest.mark.gpu
def test_it_waits_for_what_comes_before() -> None:
    """A start before earlier kernels end: x is theirs; graphs keep that."""
    args = [a.cuda() for a in drawn(4, 1024, 1024, 128, torch.bfloat16)]
    exact = [a.cpu() for a in args]
    x = args[0]
    made = launch(x + 0, *args[1:])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(8):
            made = launch(launch(x, *args[1:]) * 0 + x, *args[1:])
    graph.replay()
    assert off(made.cpu(), exact) < 4e-3
