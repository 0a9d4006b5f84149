"""Kernels on a GPU against f64: run all of this with `pytest -m gpu tests/backends/cuda`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from executed import is_sound
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    RUNGS,
    TURNED,
    Build,
    Shape,
    assert_exact,
    assert_near,
    einsum,
    epilogue_of,
    floats,
    gpu_kernel,
    product_of,
)
from kernel_cases import CASES, Spec, group_of, random_array, softmax

from stack.backends.cuda import nvrtc
from stack.backends.cuda.printer import print_kernel
from stack.ir import Node, TupleType
from stack.run.compile import compile_func

pytestmark = pytest.mark.gpu
NO_BLOCKS = ("scatter_rows", "scatter_set", "running_max_back")  # a library does them
ROWS = [c for c in CASES if c[0].__name__ not in NO_BLOCKS]


def on_gpu(kernel: Node, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Results of one kernel, run twice: the second run must not differ."""
    import torch

    from stack.backends.cuda.launch import device_target, loaded
    from stack.frontends.torch.tensors.arrays import TORCH_DTYPE

    device = torch.device("cuda", torch.cuda.current_device())
    source = print_kernel(kernel, "test", readable=True)
    binary = nvrtc.compile_cubin(source.text, source.name, device_target(device))
    launch = loaded(source, binary, device)
    inputs = [
        torch.from_numpy(np.array(a)).to(device).to(TORCH_DTYPE[p.dtype])
        for a, p in zip(arrays, kernel.blocks[0].params, strict=False)
    ]
    inputs += [
        torch.from_numpy(np.array(n.attrs["value"].array)).to(device)
        for n in kernel.args[len(arrays) :]
    ]
    types = kernel.type.items if isinstance(kernel.type, TupleType) else (kernel.type,)
    found: list[list[Any]] = []
    for _ in range(2):
        outs = [
            torch.full([int(s) for s in t.shape], 77, dtype=TORCH_DTYPE[t.dtype], device=device)  # pyright: ignore[reportArgumentType]
            for t in types
        ]
        launch(inputs, outs)
        torch.cuda.synchronize()
        wide = {torch.bfloat16: torch.float32}
        found.append([o.to(wide.get(o.dtype, o.dtype)).cpu().numpy() for o in outs])
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)
    return found[0]


def compare(group: Node, arrays: list[np.ndarray], dtype: str, kernel: Node | None = None) -> None:
    made = kernel if kernel is not None else gpu_kernel(group)
    assert_exact(on_gpu(made, arrays), group, arrays, dtype)


@pytest.mark.parametrize(("build", "specs"), ROWS, ids=lambda c: getattr(c, "__name__", None))
def test_rows(build: Build, specs: list[Spec], rng: np.random.Generator) -> None:
    compare(group_of(build, specs), [random_array(s, rng) for s in specs], str(specs[0][0]))


@pytest.mark.parametrize(("build", "specs"), TURNED, ids=lambda c: getattr(c, "__name__", None))
def test_turned(build: Build, specs: list[Spec], rng: np.random.Generator) -> None:
    compare(group_of(build, specs), [random_array(s, rng) for s in specs], str(specs[0][0]))


@pytest.mark.parametrize("size", [1, 31, 33, 128, 129, 1028, 4099, 16384, 50_000])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64"])
def test_rows_of_every_length(size: int, dtype: str, rng: np.random.Generator) -> None:
    specs: list[Spec] = [(dtype, 2, 3, size), (dtype, 3, size)]
    compare(group_of(softmax, specs), [random_array(s, rng) for s in specs], dtype)


@pytest.mark.parametrize("size", [70, 1100])
def test_inf_and_nan_stay_in_their_rows(size: int, rng: np.random.Generator) -> None:
    specs: list[Spec] = [("f32", 1, 4, size), ("f32", 4, size)]
    x, mask = (random_array(s, rng) for s in specs)
    x[0, 1, 3], x[0, 2, size - 1], mask[3, :5] = np.nan, np.inf, -np.inf
    compare(group_of(softmax, specs), [x, mask], "f32")


@pytest.mark.parametrize(("rule", "first", "second"), PRODUCTS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_products(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator
) -> None:
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    (found,) = on_gpu(gpu_kernel(product_of(rule, first, second, dtype)), arrays)
    assert_near(found, einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("shape", [(512, 768, 384), (257, 384, 520), (1000, 136, 4096)])
@pytest.mark.parametrize("rule", ["m k, k n -> m n", "m k, n k -> m n", "k m, n k -> m n"])
def test_large_products(
    rule: str, shape: tuple[int, int, int], dtype: str, rng: np.random.Generator
) -> None:
    sizes = dict(zip("mnk", shape, strict=True))
    parts = rule.split(" -> ")[0].split(",")
    first, second = (tuple(sizes[n] for n in part.split()) for part in parts)
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    (found,) = on_gpu(gpu_kernel(product_of(rule, first, second, dtype)), arrays)
    assert_near(found, einsum(rule, *arrays), dtype)


@pytest.mark.parametrize("rung", list(RUNGS))
@pytest.mark.parametrize("shape", [(33, 24, 40), (256, 384, 512), (130, 136, 72)])
def test_every_rung_of_the_ladder(
    rung: str, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, n, k = shape
    arrays = [floats(s, "bf16", rng) for s in ((m, k), (k, n))]
    group = product_of("m k, k n -> m n", (m, k), (k, n), "bf16")
    kernel = gpu_kernel(group, RUNGS[rung], "sm_80")
    (found,) = on_gpu(kernel, arrays)
    assert_near(found, einsum("m k, k n -> m n", *arrays), "bf16")


@pytest.mark.parametrize(("build", "shapes"), EPILOGUES, ids=lambda c: getattr(c, "__name__", None))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_epilogues(build: Build, shapes: list[Shape], dtype: str, rng: np.random.Generator) -> None:
    group = epilogue_of(build, shapes, dtype)
    compare(group, [floats(s, dtype, rng) for s in shapes], dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_inf_and_nan_of_products(dtype: str, rng: np.random.Generator) -> None:
    x, w = floats((9, 20), dtype, rng), floats((70, 20), dtype, rng)
    x[3, 5], x[8, 19], w[69, 2] = np.inf, np.nan, -np.inf
    (found,) = on_gpu(gpu_kernel(product_of("m k, n k -> m n", x.shape, w.shape, dtype)), [x, w])
    with np.errstate(all="ignore"):
        assert_near(found, einsum("m k, n k -> m n", x, w), dtype)


@pytest.mark.parametrize("name", ["llama_block", "gpt2_block"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_transformer_blocks(name: str, dtype: str) -> None:
    """A whole block: our kernels only, as exact as eager."""
    import copy

    import torch

    import stack
    from stack.demos import cpu_rows

    module, args = cpu_rows.block("torch", name.removesuffix("_block"), 128, dtype)
    want = copy.deepcopy(module).double()(*(a.double() for a in args)).detach()
    module, args = module.cuda(), tuple(a.cuda() for a in args)
    eager = module(*args).detach().double().cpu()
    compiled = stack.compile(module, *args, backend="cuda")
    found = compiled(*args)
    assert found.device.type == "cuda"
    error, allowed = (found.detach().double().cpu() - want).abs().max(), (eager - want).abs().max()
    assert compiled.run.coverage["fallback"] == 0
    assert error <= max(3 * allowed, 1e-5 * want.abs().max()), (error, allowed)
    again = compiled(*args)
    assert torch.equal(found, again)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow and nan are meant
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    from random_programs import random_program

    made = random_program(20_000 + seed)
    is_sound(compile_func(made.func, "cuda", options={"cache": False}), made)


def test_inputs_of_any_alignment_and_order() -> None:
    import torch

    import stack

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    whole = torch.randn(1025, 64, device="cuda")
    x, y = whole.flatten()[1 : 1 + 1024 * 64].view(1024, 64), whole.t()[:, :1024].t()
    y = y.contiguous().t().contiguous().t()
    compiled = stack.compile(twice, x, y, backend="cuda")
    assert torch.equal(compiled(x, y), x * 2 + y)


def test_the_ladder_runs(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    from stack.demos.gemm_ladder import main

    path = tmp_path / "ladder.json"
    assert main(["--size", "1024", "--table", "--rounds", "3", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [r["name"] for r in rows] == [*RUNGS, "cublas"]
    assert all(r["ms"] > 0 for r in rows)


@pytest.mark.parametrize(
    "case", ["columns", "all", "rows", "layer norm", "cross-entropy", "product"], ids=lambda c: c
)
def test_sums_of_f32_round_no_more_than_eager(case: str) -> None:
    """Root mean square of errors over 16 draws: one scalar's error is luck."""
    import torch

    import stack

    def labels() -> Any:
        return torch.randint(0, 300, (2048,), device="cuda")

    programs: dict[str, tuple[Any, tuple[int, ...]]] = {
        "columns": (lambda x: x.sum(0), (5000, 70)),
        "all": (lambda x: x.sum(), (300_007,)),
        "rows": (lambda x: x.sum(-1), (9, 70_000)),
        "layer norm": (lambda x: torch.nn.functional.layer_norm(x, (4096,)), (50, 4096)),
        "cross-entropy": (torch.nn.functional.cross_entropy, (2048, 300)),
        "product": (lambda x: x @ x.T + 1, (80, 4096)),
    }
    run, shape = programs[case]
    compiled: Any = None
    squares = [0.0, 0.0]
    for _ in range(16):
        args = [torch.rand(shape, device="cuda"), *([labels()] if case == "cross-entropy" else [])]
        compiled = compiled or stack.compile(run, *args, backend="cuda")
        exact = run(args[0].double(), *args[1:])
        for i, result in enumerate((compiled(*args), run(*args))):
            squares[i] += float(((result - exact) ** 2).mean())
    assert squares[0] <= 4 * squares[1]
