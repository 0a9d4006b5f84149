"""One program for several machines: schedules differ by the numbers of each, and say so."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from nest_cases import around
from stream_harness import prepared, streamed

import stack.plugins as plugins
from stack.errors import UsageError
from stack.explore.steps import stepped
from stack.ir import Builder, Func, param, tensor
from stack.ir.data import round_bf16
from stack.ir.node import Node, walk
from stack.ir.types import BF16
from stack.passes.gpu_products.tile_choice import Tile
from stack.passes.policies.cpu_streams import CpuStreams
from stack.run.compile import lower
from stack.run.record import Run
from stack.target import Cpu, Gpu, Target, as_cpu, as_gpu, load
from stack.target.files import numbers_of

GPUS, CPUS = ("sm_80", "sm_90", "sm_100"), ("avx2", "avx512", "amx", "neon", "generic")


def softmax(m: int, n: int, dtype: str = "f32") -> Func:
    b, x = Builder(), param("x", tensor(dtype, m, n))
    full = tensor("f32", m, n)
    wide = x if dtype == "f32" else b.cast(x, type=full)
    top = b.broadcast(b.reduce(wide, kind="max", axes=(1,)), axes=(0,), type=full)
    e = b.exp(b.sub(wide, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(1,)), axes=(0,), type=full)
    made = b.div(e, total)
    return b.func("softmax", [x], [made if dtype == "f32" else b.cast(made, type=x.type)])


def product(m: int, n: int, k: int, dtype: str, **attrs: str) -> Func:
    b = Builder()
    x, w = param("x", tensor(dtype, m, k)), param("w", tensor(dtype, k, n))
    return b.func("product", [x, w], [b.dot(x, w, rule="m k, k n -> m n", **attrs)])


def attention(heads: int, rows: int, keys: int, dtype: str = "f32", width: int = 64) -> Func:
    b = Builder()
    q = param("q", tensor(dtype, heads, rows, width))
    k, v = (param(n, tensor(dtype, heads, keys, width)) for n in "kv")
    full = tensor("f32", heads, rows, keys)
    scores = b.cast(b.dot(q, k, rule="h m d, h n d -> h m n"), type=full)
    top = b.broadcast(b.reduce(scores, kind="max", axes=(2,)), axes=(0, 1), type=full)
    e = b.exp(b.sub(scores, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(2,)), axes=(0, 1), type=full)
    weights = b.cast(b.div(e, total), type=full.with_dtype(q.dtype))
    return b.func("attention", [q, k, v], [b.dot(weights, v, rule="h m n, h n d -> h m d")])


def chain(m: int, k: int, n: int) -> Func:
    b = Builder()
    x, u, v = (param(c, tensor("bf16", *s)) for c, s in zip("xuv", ((m, k), (k, n), (n, k))))
    inner = b.max(b.dot(x, u, rule="m k, k n -> m n"), 0.0)
    return b.func("chain", [x, u, v], [b.dot(inner, v, rule="m n, n k -> m k")])


def column_sums(m: int, n: int) -> Func:
    b, x = Builder(), param("x", tensor("f32", m, n))
    return b.func("columns", [x], [b.reduce(x, kind="sum", axes=(0,))])


def lowered(func: Func, backend: str, target: Target) -> tuple[Func, str]:
    """A function at the last stage, and notes of passes; on a CPU also reasons of steps."""
    run = Run(func.name, "", backend)
    loaded = plugins.load("stack.backends", backend)
    made = lower(func, loaded, run, target=target)
    notes = [note for stage in run.records for note in stage.notes]
    if backend == "mlir":
        groups = stepped(run.func("scheduled"), loaded, target)
        notes += [step.why for kernel in groups for step in kernel.steps]
    return made, "\n".join(notes)


def kernels(func: Func) -> list[Node]:
    return [n for _, n in walk(func.body) if n.op == "kernel"]


# ---- GPUs


def test_a_large_product_has_as_many_programs_as_a_gpu_has_processors() -> None:
    func = product(4096, 4096, 4096, "bf16")
    for name, count in zip(GPUS, (108, 132, 148), strict=True):
        made, notes = lowered(func, "triton", load(name))
        (kernel,) = kernels(made)
        assert kernel.attrs["programs"] == count
        assert f"({count} processors, " in notes


def test_stages_are_those_that_shared_memory_has_room_for() -> None:
    """A tile of 128 x 128 x 64 takes 32 KiB a step: 163 KiB hold five, 227 KiB six."""
    tile, most = Tile(128, 128, 64, 4, 6), as_gpu(load("sm_90"))
    assert tile.fitted(BF16, most) == tile
    assert tile.fitted(BF16, as_gpu(load("sm_80"))) == replace(tile, stages=5)
    assert tile.fitted(BF16, replace(most, shared_bytes=16 << 10)) is None
    assert tile.fitted(BF16, replace(most, registers=8192)) is None
    func = product(4096, 4096, 4096, "bf16")
    for name, told in (("sm_80", "163 KiB shared"), ("sm_90", "227 KiB shared")):
        assert told in lowered(func, "triton", load(name))[1]


def test_few_rows_of_attention_run_in_parts_by_the_number_of_processors() -> None:
    func = attention(32, 1, 8192, "bf16", 128)
    parts: list[str] = []
    for name, count in zip(GPUS, (108, 132, 148), strict=True):
        _, notes = lowered(func, "triton", load(name))
        found = re.search(r"in parts of (\d+), for (\d+) processors", notes)
        assert found is not None
        assert int(found[2]) == count
        parts.append(found[1])
    assert parts[0] != parts[1]  # its processors are fewer, and its memory slower


def test_a_softmax_is_the_same_on_all_gpus() -> None:
    """Its rows depend on registers and threads, which are the same, and on no other number."""
    texts = {str(lowered(softmax(512, 4096), "triton", load(name))[0]) for name in GPUS}
    assert len(texts) == 1


def test_cuda_tiles_go_by_the_number_of_processors() -> None:
    func = product(1024, 1024, 1024, "f32")
    machine = as_gpu(load("sm_90"))
    texts = {str(lowered(func, "cuda", replace(machine, processors=n))[0]) for n in (4, 1024)}
    assert len(texts) == 2


# ---- CPUs


@pytest.mark.parametrize("name", CPUS)
def test_vectors_are_those_of_the_cpu(name: str) -> None:
    cpu = as_cpu(load(name))
    made, _ = lowered(softmax(64, 1000), "mlir", cpu)
    widest = max(int(w) for w in re.findall(r"f32<(\d+)>", str(made)))
    assert widest == 4 * cpu.lanes


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("avx512", "6 x 64 sums in 24 of 32 registers"),
        ("avx2", "6 x 16 sums in 12 of 16 registers"),
        ("neon", "6 x 16 sums in 24 of 32 registers"),
    ],
)
def test_a_product_holds_the_sums_that_the_registers_have_room_for(name: str, told: str) -> None:
    _, notes = lowered(product(512, 512, 512, "f32"), "mlir", load(name))
    assert told in notes


@pytest.mark.parametrize(
    ("name", "k", "told"),
    [
        ("amx", 512, "32 x 128 sums by tdpbf16ps"),
        ("amx", 8192, "32 x 32 sums by tdpbf16ps"),
        ("amx", 500, "6 x 64 sums by vdpbf16ps"),
        ("amx", 511, "32 x 128 sums by tdpbf16ps"),
        ("avx512", 512, "6 x 64 sums by vdpbf16ps"),
        ("avx512", 511, "6 x 64 sums by vdpbf16ps"),
        ("avx2", 512, "6 x 16 sums in 12 of 16 registers"),
    ],
)
def test_a_product_of_bf16_goes_by_what_the_cpu_has(name: str, k: int, told: str) -> None:
    made, notes = lowered(product(512, 512, k, "bf16"), "mlir", load(name))
    assert told in notes
    assert len(kernels(made)) == (1 if k % 2 == 0 else 3)  # two copies with zeros


def test_what_linux_refuses_is_told() -> None:
    cpu = replace(as_cpu(load("avx512")), refused="no AMX for this process")
    assert "no AMX for this process" in lowered(softmax(4, 64), "mlir", cpu)[1]


def across(dtype: str, is_made: bool) -> tuple[int, str]:
    """Kernels and notes of a product whose summed axis is strided in memory."""
    b = Builder()
    x, w = (param(n, tensor("bf16", *s)) for n, s in zip("xw", [(64, 64), (64, 128)]))
    left = b.exp(x) if is_made else x
    dot = b.dot(left, w, rule="k m, k n -> m n", type=tensor(dtype, 64, 128))
    made, notes = lowered(b.func("f", [x, w], [dot]), "mlir", load("amx"))
    return len(kernels(made)), notes


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_products_that_no_instruction_takes_are_left_to_a_library(dtype: str) -> None:
    count, notes = across(dtype, is_made=True)
    is_library = dtype == "bf16"  # a library widens operands for wide sums
    assert ("libraries have instructions for products of bf16" in notes) == is_library
    assert count == 1 + (not is_library)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_arguments_that_lie_across_are_turned_for_an_instruction(dtype: str) -> None:
    count, notes = across(dtype, is_made=False)
    assert "sums by tdpbf16ps" in notes
    assert count == 2  # the transposed argument, and the product


@pytest.mark.parametrize(
    ("name", "rows", "rule", "told"),
    [
        ("avx512", 4, "m k, n k -> m n", "4 x 16 sums by vdpbf16ps"),
        ("avx512", 8, "m k, n k -> m n", "4 x 16 sums by vdpbf16ps"),
        ("avx512", 16, "m k, n k -> m n", "4 x 16 sums by vdpbf16ps"),
        ("avx512", 32, "m k, n k -> m n", "4 x 64 sums by vdpbf16ps"),
        ("amx", 40, "m k, n k -> m n", "32 x 128 sums by tdpbf16ps"),
        ("amx", 4, "m k, k n -> m n", "4 x 64 sums by vdpbf16ps"),
        ("amx", 1, "m k, k n -> m n", "256 sums by vdpbf16ps"),
        ("amx", 4, "m k, n k -> m n", "libraries have instructions"),
        ("amx", 16, "m k, k n -> m n", "libraries have instructions"),
    ],
)
def test_few_rows_of_bf16_are_read_in_place(name: str, rows: int, rule: str, told: str) -> None:
    b = Builder()
    shapes = [(rows, 512), (2048, 512) if "n k" in rule else (512, 2048)]
    x, w = (param(n, tensor("bf16", *s)) for n, s in zip("xw", shapes))
    made, notes = lowered(b.func("f", [x, w], [b.dot(x, w, rule=rule)]), "mlir", load(name))
    assert told in notes
    assert len(kernels(made)) == ("libraries" not in told)
    assert ('name="panel"' in str(made)) == (rows >= 32)


@pytest.mark.parametrize("name", CPUS)
def test_attention_takes_rows_by_lanes(name: str) -> None:
    cpu = as_cpu(load(name))
    made, notes = lowered(attention(4, 128, 128), "mlir", cpu)
    assert "M cycles as one loop" in notes
    if "is not streamed" not in notes:
        vectors = 4 if cpu.registers == 32 else 2
        assert f"f32<{vectors * cpu.lanes}>" in str(made)


@pytest.mark.parametrize("name", CPUS)
@pytest.mark.parametrize("rows", [3, 128, 512])
def test_sums_leave_registers_for_what_is_multiplied(name: str, rows: int) -> None:
    cpu = as_cpu(load(name))
    _, notes = lowered(product(rows, 768, 512, "f32"), "mlir", cpu)
    found = re.search(r"(\d+) x (\d+) sums", notes)
    assert found, notes
    vectors = int(found[2]) // cpu.lanes
    assert int(found[1]) * vectors + vectors + 1 <= cpu.registers


@pytest.mark.parametrize("name", CPUS)
def test_what_is_lowered_for_another_cpu_means_the_same(
    name: str, rng: np.random.Generator
) -> None:
    for func in (softmax(9, 37), product(21, 40, 19, "f32"), attention(2, 70, 33)):
        arrays = [rng.standard_normal(p.tensor.shape, dtype=np.float32) for p in func.params]
        made, _ = lowered(func, "mlir", load(name))
        np.testing.assert_allclose(
            made.interpret(*arrays), func.interpret(*arrays), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("keys", [250, 331])
def test_panels_that_no_instruction_divides_are_multiplied_in_f32(
    keys: int, rng: np.random.Generator
) -> None:
    """Scores of a panel are in local memory: their rows need no copy."""
    func = prepared(attention(1, 40, keys, "bf16"))
    (stream,) = (n for n in streamed(func)[0].nodes if n.op == "stream")
    kernel = around(CpuStreams(stream, as_cpu(load("amx"))).kernel())
    arrays = [round_bf16(rng.standard_normal(p.tensor.shape, np.float32)) for p in func.params]
    q, k, v = (a.astype(np.float64) for a in arrays)
    scores = np.exp(q @ k.swapaxes(1, 2))
    want = scores / scores.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(kernel.interpret(*arrays), want, rtol=2e-2, atol=2e-2)


# ---- every number counts


@cache
def _programs(kind: type[Target]) -> tuple[tuple[str, Func], ...]:
    if kind is Cpu:
        many = [product(m, 512, k, "f32") for m, k in ((64, 4096), (512, 16384), (384, 512))]
        ragged = attention(1, 480, 512)  # the last rows do not fill registers
        streams = (attention(1, 256, 256), *(attention(4, 512, 512, t) for t in ("f32", "f16")))
        rows = (softmax(16, 8192), softmax(16, 512))
        return tuple(("mlir", f) for f in (*rows, *streams, ragged, *many))
    wide = attention(16, 4096, 8192, "bf16", 128)
    return (
        *(("triton", product(m, n, 4096, "bf16")) for m, n in ((4096, 4096), (512, 512))),
        *(("triton", product(2048, 2048, 2048, dtype)) for dtype in ("f32", "bf16")),
        *(
            ("triton", f)
            for f in (attention(32, 1, 8192, "bf16", 128), wide, column_sums(65536, 64))
        ),
        ("triton", softmax(64, 65536, "bf16")),
        *(("triton", product(1, 8192, k, "bf16")) for k in (8192, 4096)),
        ("triton", product(4096, 512, 4095, "bf16")),
        ("triton", chain(8192, 256, 1024)),
        ("triton", product(512, 1024, 1024, "f32", precision="tf32")),
        ("cuda", column_sums(4096, 64)),
        ("triton", attention(32, 16, 8192, width=128)),
    )


PRINTED = {"launch", "fetch"}  # what the printer of mlir reads


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("kind", "number"), [(k, n) for k in (Gpu, Cpu) for n in numbers_of(k)], ids=str
)
def test_every_number_is_one_that_some_program_goes_by(kind: type[Target], number: str) -> None:
    base = as_gpu(None) if kind is Gpu else as_cpu(None)
    value = getattr(base, number)
    whole = isinstance(value, int)
    for factor in (8, 1 / 8, 1 / 2, 64, 1 / 64):
        other = replace(base, **{number: max(1, int(value * factor)) if whole else value * factor})
        for backend, func in _programs(kind):
            try:
                if _text(backend, func, base) != _text(backend, func, other):
                    return
            except UsageError:  # no schedule fits
                return
    pytest.fail(f"nothing depends on {number}: a number that nothing reads describes nothing")


TUNED = [
    ("triton", softmax(4096, 300), "rows", "tile", 4096),
    ("triton", column_sums(4096, 1024), "rows", "columns", 64),
    ("triton", product(4096, 512, 256, "bf16"), "matmuls", "library_gain", 0.1),
    ("triton", column_sums(4096, 64), "parts", "gain", 0.01),
    ("mlir", attention(1, 256, 256), "streams", "panel", 32),
    ("mlir", product(512, 512, 16384, "f32"), "matmuls", "block_share", 0.05),
    ("mlir", softmax(16, 512), "rows", "vector_registers", 2),
]


@pytest.mark.parametrize(("backend", "func", "group", "number", "value"), TUNED)
def test_tuned_numbers_decide(
    backend: str, func: Func, group: str, number: str, value: float
) -> None:
    base = as_cpu(None) if backend == "mlir" else as_gpu(None)
    tuned = replace(getattr(base, group), **{number: value})
    other = replace(base, **{group: tuned})
    assert str(lowered(func, backend, other)[0]) != str(lowered(func, backend, base)[0])


@cache
def _text(backend: str, func: Func, target: Target) -> str:
    made, _ = lowered(func, backend, target)
    if backend != "mlir":
        return str(made)
    from stack.backends.mlir.printer import print_kernel

    return "".join(print_kernel(k, "k", target=target) for k in kernels(made))
