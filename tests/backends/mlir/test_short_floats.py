"""16-bit floats at any size: vectors of them that no register holds, on all CPUs, both ways."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from executed import is_sound
from random_programs import short_program

from stack.backends.mlir import jit
from stack.backends.mlir.compiler import Compiler
from stack.ir import DTYPES, Builder, Func, Node, param, tensor
from stack.run.compile import compile_func, find_backend, lower
from stack.run.record import Run
from stack.target import Cpu, as_cpu, load

pytest.importorskip("torch_mlir")
torch = pytest.importorskip("torch")
from random_short_floats import short_floats, wrong  # noqa: E402

CPUS: dict[str, Cpu] = {name: as_cpu(load(name)) for name in ("avx512", "amx", "avx2")}
CPUS["sse2"] = replace(as_cpu(load("generic")), name="sse2", arch="x86-64")
QUICK, PARTS, MANY = 12, 10, 200


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)  # overflow and nan are meant


def moves(n: int, short: str) -> Func:
    """Values read in one basic block and written in another: repeats, and conversions beside."""
    b = Builder()
    x, y = param("x", tensor(short, n)), param("y", tensor("f32", n))
    other = DTYPES["f16" if short == "bf16" else "bf16"]

    def twice(z: Node) -> Node:
        wide = b.broadcast(z, axes=(0,), type=tensor(z.dtype.name, n, 2))
        return b.reshape(wide, type=tensor(z.dtype.name, 2 * n))

    results = [
        twice(x),
        b.mul(x, 2.0),
        twice(b.cast(y, type=x.tensor)),
        b.cast(x, type=x.tensor.with_dtype(other)),
        b.select(b.gt(y, 0.0), x, b.reverse(x, axes=(0,))),
    ]
    return b.func("main", [x, y], results)


@pytest.mark.each
@pytest.mark.parametrize("short", ["bf16", "f16"])
@pytest.mark.parametrize("name", CPUS)
def test_llvm_has_code_for_vectors_of_any_length(name: str, short: str) -> None:
    if "neon" in CPUS[name].features:
        pytest.skip("code of x86-64")
    for n in (1, 17, 33, 65):
        func = lower(moves(n, short), find_backend("mlir"), Run(), target=CPUS[name])
        for text in Compiler(func, CPUS[name], None).by_text:
            jit.compile_object(text)


@pytest.mark.every(2)
@pytest.mark.parametrize("seed", range(QUICK))
def test_programs(seed: int) -> None:
    program = short_program(seed)
    is_sound(compile_func(program.func, "mlir", options={"cache": False}), program)


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(QUICK // 2))
def test_torch_programs_and_their_gradients(seed: int) -> None:
    assert not wrong(seed, backward=False)
    assert not wrong(100 + seed, backward=True)


@pytest.mark.parametrize("seed", [100058, 100193, 100268, 200042])
def test_programs_of_scalars_have_no_steps_that_need_an_axis(seed: int) -> None:
    program = short_floats(seed)
    assert any(line.endswith(" []") for line in program.log)
    assert not wrong(seed, backward=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_sweep_of_programs(part: int) -> None:
    for seed in range(1000 + part * MANY, 1000 + (part + 1) * MANY):
        program = short_program(seed)
        is_sound(compile_func(program.func, "mlir", options={"cache": False}), program)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_sweep_of_torch_programs(part: int) -> None:
    for seed in range(1000 + part * MANY, 1000 + (part + 1) * MANY):
        assert not (wrong(seed, backward=False) or wrong(seed, backward=True))
