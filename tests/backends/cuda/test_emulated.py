"""The printed text itself, run on the CPU: layouts of registers, barriers, copies, alignment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_emulator import COMPILER, emulate
from gpu_cases import (
    EPILOGUES,
    PRODUCTS,
    RUNGS,
    TURNED,
    Build,
    Shape,
    assert_near,
    einsum,
    epilogue_of,
    floats,
    gpu_kernel,
    product_of,
    several,
)
from kernel_cases import CASES, Spec, group_of, layernorm, program, random_array, softmax
from nest_cases import fused
from rounding_cases import chain, in_f32, numbers

from stack.backends.cuda import BACKEND
from stack.ir import DTYPES, Node
from stack.passes.gpu_layout.lower import lower_kernel
from stack.passes.nest.emit import emit
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.run.compile import lower
from stack.run.record import Run
from stack.target import as_gpu, load

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")
NO_BLOCKS = ("scatter_rows", "scatter_set", "running_max_back")  # a library does them
ROWS = [c for c in CASES if c[0].__name__ not in NO_BLOCKS]
RULE = "m k, k n -> m n"


def compare(group: Node, arrays: list[np.ndarray], dtype: str, folder: Path) -> None:
    with np.errstate(all="ignore"):
        wants = several(program(group).interpret(*arrays))
    for got, want in zip(emulate(gpu_kernel(group), arrays, folder), wants, strict=True):
        assert_near(got, want, dtype)


def check_rows(build: Build, specs: list[Spec], rng: np.random.Generator, folder: Path) -> None:
    arrays = [random_array(s, rng) for s in specs]
    compare(group_of(build, specs), arrays, str(specs[0][0]), folder)


@pytest.mark.parametrize(
    ("build", "specs"),
    [
        (softmax, [("bf16", 1, 3, 129), ("bf16", 3, 129)]),
        (softmax, [("f32", 1, 3, 1028), ("f32", 3, 1028)]),
        (layernorm, [("bf16", 6, 104), ("bf16", 104), ("bf16", 104)]),
        TURNED[2],
        TURNED[4],
    ],
)
def test_rows(build: Build, specs: list[Spec], rng: np.random.Generator, tmp_path: Path) -> None:
    check_rows(build, specs, rng, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "specs"), [*ROWS, *TURNED])
def test_all_rows(
    build: Build, specs: list[Spec], rng: np.random.Generator, tmp_path: Path
) -> None:
    check_rows(build, specs, rng, tmp_path)


@pytest.mark.parametrize("depth", [129, 4096])
def test_long_products_of_f32_round_little(
    depth: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    """One product after another has an error of fourteen roundings at a depth of 4096."""
    first, second = (32, depth), (depth, 32)
    arrays = [rng.random(s).astype(np.float32) for s in (first, second)]
    (found,) = emulate(gpu_kernel(product_of(RULE, first, second, "f32")), arrays, tmp_path)
    exact = arrays[0].astype(np.float64) @ arrays[1].astype(np.float64)
    errors = (found - exact) / (exact.max() * 2.0**-24)
    assert np.sqrt((errors**2).mean()) < 6


@pytest.mark.every(2)
@pytest.mark.parametrize("rung", list(RUNGS))
def test_every_rung_of_the_ladder(rung: str, rng: np.random.Generator, tmp_path: Path) -> None:
    rule, first, second = RULE, (33, 264), (264, 24)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    kernel = gpu_kernel(product_of(rule, first, second, "bf16"), RUNGS[rung], "sm_80")
    (found,) = emulate(kernel, arrays, tmp_path)
    assert_near(found, einsum(rule, *arrays), "bf16")


@pytest.mark.every(5)
@pytest.mark.parametrize(("stages", "dtype"), [(1, "f16"), (3, "f16"), (3, "f32"), (3, "f64")])
@pytest.mark.parametrize("rule", ["m k, n k -> m n", "k m, k n -> m n", "k m, n k -> m n"])
def test_both_orders_of_both_operands(
    rule: str, stages: int, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    sizes = {"m": 20, "n": 40, "k": 264}
    first, second = (
        tuple(sizes[n] for n in part.split()) for part in rule.split(" -> ")[0].split(",")
    )
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    told = f"m=32 n=64 k=16 stages={stages}"
    kernel = gpu_kernel(product_of(rule, first, second, dtype), told, "sm_80")
    (found,) = emulate(kernel, arrays, tmp_path)
    assert_near(found, einsum(rule, *arrays), dtype)


def test_products_of_integers_wrap_as_they_do_elsewhere(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    first, second = (rng.integers(-(2**31), 2**31, s).astype(np.int32) for s in ((9, 40), (40, 33)))
    (found,) = emulate(
        gpu_kernel(product_of(RULE, first.shape, second.shape, "i32")), [first, second], tmp_path
    )
    np.testing.assert_array_equal(found, first @ second)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "first", "second"), PRODUCTS)
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_all_products(
    rule: str, first: Shape, second: Shape, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    arrays = [floats(s, dtype, rng) for s in (first, second)]
    (found,) = emulate(gpu_kernel(product_of(rule, first, second, dtype)), arrays, tmp_path)
    assert_near(found, einsum(rule, *arrays), dtype)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("build", "shapes"), EPILOGUES[::3], ids=lambda c: getattr(c, "__name__", None)
)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_epilogues(
    build: Build, shapes: list[Shape], dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    group = epilogue_of(build, shapes, dtype)
    compare(group, [floats(s, dtype, rng) for s in shapes], dtype, tmp_path)


def test_a_missing_wait_shows(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies come late here, as they may on a GPU: the emulator sees what a GPU would."""
    import cuda_emulator

    real = cuda_emulator.print_kernel

    def broken(*args: object, **named: object) -> object:
        import dataclasses

        source = real(*args, **named)  # pyright: ignore[reportArgumentType]
        return dataclasses.replace(source, text=source.text.replace("copies_wait<2>();", ""))

    monkeypatch.setattr(cuda_emulator, "print_kernel", broken)
    rule, first, second = "m k, k n -> m n", (32, 264), (264, 32)
    arrays = [floats(s, "bf16", rng) for s in (first, second)]
    kernel = gpu_kernel(product_of(rule, first, second, "bf16"), "m=32 n=32 k=16 stages=3", "sm_80")
    (found,) = emulate(kernel, arrays, tmp_path)
    with pytest.raises(AssertionError):
        assert_near(found, einsum(rule, *arrays), "bf16")


@pytest.mark.each
@pytest.mark.parametrize("rounds", [True, False], ids=["rounded", "excess precision"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_precision_between_ops(
    rounds: bool, dtype: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    func, arrays = chain(dtype), numbers(dtype, rng)
    want = func.interpret(*arrays) if rounds else in_f32(func, arrays, dtype)
    run = Run("", "", "cuda")
    (kernel,) = (n for n in lower(func, BACKEND, run, rounds=rounds).nodes if n.op == "kernel")
    np.testing.assert_array_equal(emulate(kernel, arrays, tmp_path)[0], want[0])


# loops with limits of their own: of one range, of several ranges, inside of a loop, of programs
SPECIALIZED = (
    "specialize j; bind i grid; launch 1",
    "partition j 5,20; specialize j; launch 2",
    "reorder i j; specialize j at=i; launch 1",
    "specialize j; bind i grid; split j 2; launch 2",
)


@pytest.mark.every(2)
@pytest.mark.parametrize("steps", SPECIALIZED)
def test_specialized_loops(steps: str, rng: np.random.Generator, tmp_path: Path) -> None:
    text = """func @f(%x: f32[4, 17], %y: f32[4, 17]) -> (f32[4, 34]) at tensor {
  %z = concat(%x, %y) {axis=1} : f32[4, 34]
  return %z
}
"""
    arrays = [floats((4, 17), "f32", rng) for _ in range(2)]
    kernel = run_steps(emit(fused(text)), parse_steps(steps), load("sm_90"))
    (found,) = emulate(lower_kernel(kernel, as_gpu(load("sm_90"))), arrays, tmp_path)
    np.testing.assert_array_equal(found, np.concatenate(arrays, 1))


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["u8", "i8", "u16", "i16", "u32"])
def test_masked_loads_of_integers(dtype: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """Neighbours are loaded together; masked lanes are 0."""
    text = f"""func @f(%x: {dtype}[5, 5, 2]) -> ({dtype}[5, 5, 2]) at tensor {{
  %z = reverse(%x) {{axes=[0]}} : {dtype}[5, 5, 2]
  return %z
}}
"""
    x = rng.integers(0, 99, (5, 5, 2)).astype(DTYPES[dtype].numpy)
    (found,) = emulate(gpu_kernel(fused(text)), [x], tmp_path)
    np.testing.assert_array_equal(found, x[::-1])
