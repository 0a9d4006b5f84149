"""Code for CPUs that are not at hand: AVX2 and vectors of 128 bits run here, NEON by emulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executed import agrees, func_of, is_sound
from kernel_cases import Spec, layernorm, random_array, softmax
from product_cases import gate
from random_programs import random_program

from stack.backends.mlir.compiler import check_runs_here
from stack.errors import UsageError
from stack.ir import Builder, Func, Node, tensor
from stack.run.backend import Executable
from stack.run.compile import compile_func
from stack.target import as_cpu, cpu_at_hand, load
from stack.target.files import save

pytest.importorskip("torch_mlir")
torch = pytest.importorskip("torch")
Make = Callable[[Func], Executable]

# the last has neither multiply-adds nor conversions of 16 bits
TARGETS = ("avx2", "generic", "sse2", "neon")


@pytest.fixture(params=TARGETS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Returns a function that compiles a program for a target, ready to run."""
    name = str(request.param)
    if name == "neon":
        for package in ("unicorn", "llvmlite"):
            pytest.importorskip(package)
        from emulated_arm import emulated

        return emulated
    if name == "sse2":
        name = str(tmp_path / "sse2.toml")
        save(replace(as_cpu(load("generic")), name="sse2", arch="x86-64"), Path(name))
    try:
        check_runs_here(as_cpu(load(name)))
    except UsageError as error:
        pytest.skip(str(error))
    return lambda func: compile_func(func, "mlir", options={"cache": False, "target": name})


def attention(b: Builder, q: Node, k: Node, v: Node) -> Node:
    full = tensor("f32", q.shape[0], q.shape[1], k.shape[1])
    scores = b.dot(q, k, rule="h m d, h n d -> h m n")
    top = b.broadcast(b.reduce(scores, kind="max", axes=(2,)), axes=(0, 1), type=full)
    e = b.exp(b.sub(scores, top))
    total = b.broadcast(b.reduce(e, kind="sum", axes=(2,)), axes=(0, 1), type=full)
    return b.dot(b.div(e, total), v, rule="h m n, h n d -> h m d")


def reductions(b: Builder, x: Node) -> tuple[Node, ...]:
    kinds = ("sum", "prod", "max", "min") if x.dtype.kind != "b" else ("and", "or")
    return tuple(b.reduce(x, kind=k, axes=(axis,)) for k in kinds for axis in (0, 1))


def gelu(b: Builder, x: Node) -> Node:
    return b.mul(b.mul(x, 0.5), b.add(b.erf(b.mul(x, 0.5**0.5)), 1.0))


def tails(b: Builder, x: Node) -> tuple[Node, ...]:
    """Functions of C's library: angles of many bits, and a remainder."""
    return b.sin(b.mul(x, 1e6)), b.rem(x, b.const(0.7, "f32"))


def product(b: Builder, x: Node, w: Node) -> Node:
    return b.dot(x, w, rule="m k, k n -> m n")


def apart(b: Builder, x: Node) -> Node:
    """Rows of lanes 3 apart, to the last element of their memory."""
    steps = (x.shape[0] - 3 * 36 - 1) // 4
    return b.exp(b.unfold(x, axis=0, window=(37,), stride=(steps,), dilation=(3,)))


def across(b: Builder, x: Node) -> Node:
    """Rows that are columns of memory, without their sums."""
    rows = b.transpose(x, perm=(1, 0))
    total = b.reduce(rows, kind="sum", axes=(1,))
    return b.sub(rows, b.broadcast(total, axes=(0,), type=rows.type))


def short_rows(b: Builder, x: Node) -> Node:
    """A picture with its channels last, and one more of them."""
    last = b.transpose(x, perm=(1, 2, 0))
    zero = b.cast(b.const(0, "i32"), type=tensor(x.dtype.name))
    return b.pad(last, zero, low=(1, 1, 0), high=(0, 1, 1), interior=(0, 0, 0))


SAMPLE: list[tuple[Callable[..., Any], list[Spec]]] = [
    (softmax, [("f32", 2, 2, 257), ("f32", 2, 257)]),
    (softmax, [("f32", 0, 2, 5), ("f32", 2, 5)]),
    (layernorm, [("f64", 2, 127), ("f64", 127), ("f64", 127)]),
    (layernorm, [("bf16", 6, 101), ("bf16", 101), ("bf16", 101)]),
    (gelu, [("f32", 1009)]),
    (tails, [("f32", 37)]),
    (product, [("f32", 31, 67), ("f32", 67, 45)]),
    (product, [("bf16", 9, 64), ("bf16", 64, 33)]),
    (product, [("i32", 7, 19), ("i32", 19, 23)]),
    (gate, [("f32", 21, 64), ("f32", 33, 64), ("f32", 21, 33)]),
    *((apart, [(dtype, 4 * 131 + 3 * 36 + 1)]) for dtype in ("f32", "f16", "bf16", "f64")),
    *((across, [(dtype, 37, 35)]) for dtype in ("f32", "bf16", "f64")),
    *((short_rows, [(d, n, 3, 37)]) for d in ("f32", "f16", "bf16", "i64") for n in (1, 2)),
    (attention, [("f32", 2, 70, 16), ("f32", 2, 131, 16), ("f32", 2, 131, 16)]),
    *((reductions, [(dtype, 13, 29)]) for dtype in ("f32", "i64", "u8", "bool")),
]


@pytest.mark.each
@pytest.mark.parametrize(
    ("build", "specs"), SAMPLE, ids=lambda c: getattr(c, "__name__", None) or str(c[0][0])
)
def test_programs(
    build: Callable[..., Any],
    specs: list[Spec],
    made: Make,
    rng: np.random.Generator,
) -> None:
    func = func_of(build, specs)
    near = {"bf16": 2e-2, "f16": 2e-3}.get(str(specs[0][0]), 2e-5)
    agrees(made(func), func, [random_array(s, rng) for s in specs], near)


BITS = (0, 1, 0x7FFF, 0x8000, 0x8001, 0x3F808000, 0x3F818000, 0x3F818001, 0x7F7FFFFF, 0x7F800000,
        0x7F800001, 0x7FC00000, 0x7FFFFFFF)  # fmt: skip


def test_rounding_to_bf16(made: Make, rng: np.random.Generator) -> None:
    """Ties to even, what rounds to infinity, nan with few bits, denormals, both signs."""
    drawn = rng.integers(0, 1 << 31, 200, dtype=np.uint32)
    bits = np.concatenate([np.array(BITS, np.uint32), drawn])
    x = np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)
    func = func_of(lambda b, x: b.cast(x, type=tensor("bf16", *x.shape)), [("f32", len(x))])
    (found,) = made(func).run([x])
    want, got = torch.from_numpy(x).bfloat16(), torch.from_numpy(found.view(np.int16))
    is_nan = want.isnan()
    assert torch.equal(got.view(torch.bfloat16).isnan(), is_nan)
    assert torch.equal(got[~is_nan], want.view(torch.int16)[~is_nan])


def test_bf16_needs_no_library(made: Make) -> None:
    """No CPU is without code for it."""
    program = made(func_of(layernorm, [("bf16", 6, 100), ("bf16", 100), ("bf16", 100)]))
    assert {k.kind for k in program.kernels} == {"generated"}


def test_what_leaves_an_array_is_a_fault_of_the_emulated_cpu() -> None:
    unicorn = pytest.importorskip("unicorn")
    pytest.importorskip("llvmlite")
    from emulated_arm import emulated

    program = emulated(func_of(gelu, [("f32", 37)]))
    x = np.zeros(37, np.float32)
    program.run([x])
    with pytest.raises(unicorn.UcError, match="UC_ERR_READ_UNMAPPED"):
        program.run([x[:36]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int, made: Make) -> None:
    program = random_program(seed)
    is_sound(made(program.func), program)


def test_products_call_no_function_where_there_are_no_multiply_adds(tmp_path: Path) -> None:
    save(replace(as_cpu(load("generic")), name="sse2", arch="x86-64"), tmp_path / "sse2.toml")
    func = func_of(product, [("f32", 31, 67), ("f32", 67, 45)])
    options = {"cache": False, "target": str(tmp_path / "sse2.toml")}
    if "neon" in cpu_at_hand().features:
        pytest.skip("code of x86-64")
    made = compile_func(func, "mlir", options=options).artifacts["asm"]
    listing = made if isinstance(made, str) else made()
    if "mulps" not in listing:
        pytest.skip("no disassembler")
    assert "call" not in inner_lines(listing)


def inner_lines(listing: str) -> str:
    """From the first product to the last."""
    lines = listing.splitlines()
    at = [i for i, line in enumerate(lines) if "mulps" in line]
    return "\n".join(lines[at[0] : at[-1]])
