"""Step dot_parts: its text, its values beside f64, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest
from nest_cases import around, inside, kernel_of

from stack.ir.data import decode, encode
from stack.ir.types import BF16
from stack.passes.steps.primitives import IllegalStep, parse_steps, run_steps
from stack.target import load

SHARED = "split k 16; vectorize k.1; vectorize j; vectorize i; tensorize"


def product(left: str = "f32", right: str = "bf16", swapped: bool = False) -> str:
    """A product of rows and columns of these types in memory, computed in f32."""

    def wide(name: str, dtype: str, shape: str) -> tuple[str, str]:
        if dtype == "f32":
            return name, ""
        return f"{name}w", f"    {name}w = cast({name}) : f32[{shape}]\n"

    a, first = wide("%p0", left, "16, 20")
    b, second = wide("%p1", right, "32, 20")
    dot = f'dot({b}, {a}) {{rule="n k, m k -> m n"}}' if swapped else ""
    dot = dot or f'dot({a}, {b}) {{rule="m k, n k -> m n"}}'
    types = f"{left}[16, 20]", f"{right}[32, 20]"
    return (
        f"func @f(%x: {types[0]}, %w: {types[1]}) -> (f32[16, 32]) at tensor {{\n"
        '  %f = fusion(%x, %w) {kind="gemm", name="product"} : f32[16, 32]\n'
        f"    {{(%p0: {types[0]}, %p1: {types[1]})\n"
        f"{first}{second}    %y = {dot} : f32[16, 32]\n    return %y\n  }}\n  return %f\n}}\n"
    )


EXPECTED = """
%broadcast = broadcast(0.0:f32) {axes=[]} : f32<16x32>
%broadcast_1 = broadcast(-65536:i32) {axes=[]} : i32<16x16>
%broadcast_2 = broadcast(0.0:f32) {axes=[]} : f32<16x16>
%y = loop(%broadcast) {kind="serial", staged=true} : f32<16x32> {(%k.0 < 2: i32, %acc_1: f32<16x32>)
  %mul = mul(%k.0, 16:i32) : i32[]
  %load = load(%p0, 0:i32, %mul) {clip=true} : f32<16x16>
  %bitcast = bitcast(%load) : i32<16x16>
  %and = and(%bitcast, %broadcast_1) : i32<16x16>
  %bitcast_1 = bitcast(%and) : f32<16x16>
  %eq = eq(%load, %bitcast_1) : bool<16x16>
  %sub = sub(%load, %bitcast_1) : f32<16x16>
  %select = select(%eq, %broadcast_2, %sub) : f32<16x16>
  %bitcast_2 = bitcast(%select) : i32<16x16>
  %and_1 = and(%bitcast_2, %broadcast_1) : i32<16x16>
  %bitcast_3 = bitcast(%and_1) : f32<16x16>
  %sub_1 = sub(%select, %bitcast_3) : f32<16x16>
  %cast = cast(%sub_1) : bf16<16x16>
  %load_1 = load(%p1, 0:i32, %mul) {clip=true} : bf16<32x16>
  %dot = dot(%cast, %load_1) {rule="m k, n k -> m n"} : f32<16x32>
  %add = add(%acc_1, %dot) : f32<16x32>
  %cast_1 = cast(%bitcast_3) : bf16<16x16>
  %dot_1 = dot(%cast_1, %load_1) {rule="m k, n k -> m n"} : f32<16x32>
  %add_1 = add(%add, %dot_1) : f32<16x32>
  %cast_2 = cast(%bitcast_1) : bf16<16x16>
  %dot_2 = dot(%cast_2, %load_1) {rule="m k, n k -> m n"} : f32<16x32>
  %add_2 = add(%add_1, %dot_2) : f32<16x32>
  return %add_2
}
%store = store(%o0, %y, 0:i32, 0:i32) : f32[16, 32]
return %store
"""


def test_text() -> None:
    assert inside(kernel_of(product(), f"{SHARED}; dot_parts")).strip() == EXPECTED.strip()


def bf16(array: np.ndarray) -> np.ndarray:
    """The bf16 values nearest to an array's, as f32."""
    return decode(encode(array, BF16), BF16)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("swapped", [False, True])
def test_values(rng: np.random.Generator, swapped: bool, scale: float) -> None:
    """Errors are those of f32, not those of bf16, which are 2 ** 16 times as large."""
    x = (rng.standard_normal((16, 20)) * scale).astype(np.float32)
    w = bf16(rng.standard_normal((32, 20)))
    kernel = kernel_of(product(swapped=swapped), SHARED)
    made = run_steps(kernel, parse_steps("dot_parts"))
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    size = np.abs(x).astype(np.float64) @ np.abs(w).T
    for each in (kernel, made):
        have = np.asarray(around(each).interpret(x, w))
        assert (np.abs(have - want) / size).max() < 2.0**-22


def test_no_finite_numbers(rng: np.random.Generator) -> None:
    """Infinities, nan, the largest numbers, and numbers smaller than the smallest normal one."""
    x = rng.standard_normal((16, 20)).astype(np.float32)
    x[:6, 3] = np.inf, -np.inf, np.nan, 3.4028235e38, -3.4028235e38, 1e-44
    w = bf16(rng.uniform(0.25, 0.75, (32, 20)))
    made = run_steps(kernel_of(product(), SHARED), parse_steps("dot_parts"))
    with np.errstate(all="ignore"):
        have = np.asarray(around(made).interpret(x, w))
        want = (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)


REFUSED = {
    "two f32 operands": (product("f32", "f32"), SHARED, "no exact product of an f32 tile"),
    "two bf16 operands": (product("bf16", "bf16"), SHARED, "no exact product of an f32 tile"),
    "an f16 operand": (product("f32", "f16"), SHARED, "no exact product of an f32 tile"),
    "a rounded product": (product(), f"{SHARED} tf32", "no exact product of an f32 tile"),
    "no product yet": (product(), "split k 16", "no exact product of an f32 tile"),
}


@pytest.mark.parametrize(("program", "steps", "why"), REFUSED.values(), ids=REFUSED)
def test_refused(program: str, steps: str, why: str) -> None:
    kernel = kernel_of(program, steps)
    with pytest.raises(IllegalStep, match=why):
        run_steps(kernel, parse_steps("dot_parts"))


def test_refused_on_a_cpu() -> None:
    with pytest.raises(IllegalStep, match="dot_parts is for GPUs, and the target is a CPU"):
        run_steps(kernel_of(product(), SHARED), parse_steps("dot_parts"), load("avx2"))
