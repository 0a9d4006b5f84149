"""Floats of 8 bits and integers of fewer: every code, numbers halfway between two, and programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import stack
from stack.ir.types import LONG_NAMES

FLOATS = [n for n in LONG_NAMES if n.startswith("float8") and n != "float8_e8m0fnu"]
INTEGERS = [n for n in LONG_NAMES if "int" in n]
IN_TORCH = [n for n in LONG_NAMES if n.startswith("float8") and hasattr(torch, n)]


def codes(name: str) -> np.ndarray:
    """All that a type has."""
    if "int" in name:
        bits = int(name[-1])
        numbers = np.arange(1 << bits) - ((1 << (bits - 1)) if name[0] == "i" else 0)
        return numbers.astype(getattr(ml_dtypes, name))
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))


def numbers(name: str) -> np.ndarray:
    """Numbers of a type, those halfway between two and beside these, all sizes, inf and nan."""
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        held = codes(name).astype(np.float32)
        held = np.unique(held[np.isfinite(held)])
        middle = (held[1:] + held[:-1]) / 2
        beside = [np.nextafter(middle, np.float32(end)) for end in (np.inf, -np.inf)]
        wide = rng.normal(size=500) * 10 ** rng.uniform(-8, 6, 500)
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-40, 464, 465, 61440, 248]
    return np.concatenate([held, middle, *beside, wide, ends]).astype(np.float32)


def check_same(got: Any, want: Any) -> None:
    """Equal, the sign of zeros too; a nan is a nan."""
    got, want = (np.asarray(a, np.float32) for a in (got, want))
    np.testing.assert_array_equal(got, want)
    zeros = want == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))


def check_native(compiled: Any) -> None:
    coverage = compiled.run.coverage
    assert coverage["fallback"] == coverage["library"] == 0, coverage


@pytest.mark.parametrize("name", LONG_NAMES)
def test_jax_casts_all_codes(name: str) -> None:
    # bf16 of what no f32 holds in full may be 0
    q = jnp.asarray(codes(name)["e8m0" in name :])

    def cast(q: Any) -> Any:
        return [q.astype(t) for t in ("float32", "bfloat16", "float16", "int32")]

    compiled = stack.compile(cast, q)
    for got, want in zip(compiled(q), jax.jit(cast)(q), strict=True):
        assert got.dtype == want.dtype
        check_same(got, want)
    check_native(compiled)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_jax_casts_numbers(name: str) -> None:
    dtype = getattr(jnp, name)
    x = jnp.asarray(numbers(name))

    def cast(x: Any, i: Any) -> Any:
        wide = [x, x.astype(jnp.bfloat16), x.astype(jnp.float16), i, i.astype(jnp.uint8)]
        return [v.astype(dtype) for v in wide]

    i = jnp.arange(-300, 300, 7)
    compiled = stack.compile(cast, x, i)
    for got, want in zip(compiled(x, i), jax.jit(cast)(x, i), strict=True):
        assert got.dtype == want.dtype
        check_same(got, want)
    check_native(compiled)


@pytest.mark.parametrize("name", IN_TORCH)
def test_torch_casts(name: str) -> None:
    dtype = getattr(torch, name)
    q = torch.arange("e8m0" in name, 256, dtype=torch.int32).to(torch.uint8).view(dtype)
    x = torch.from_numpy(numbers("float8_e4m3fn" if "e8m0" in name else name))

    def cast(q: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        return [q.float(), q.bfloat16(), x.to(dtype), x.bfloat16().to(dtype)]

    compiled = stack.compile(cast, q, x)
    for got, want in zip(compiled(q, x), cast(q, x), strict=True):
        assert got.dtype == want.dtype
        check_same(got.float(), want.float())
    if "e8m0" not in name:
        check_native(compiled)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a quantized weight": lambda q, x: x @ (q.astype(jnp.float32) * 0.5),
    "moves": lambda q, x: jnp.concatenate([q.T.reshape(8, 4), q[::-1, 1:5].T[:4].T[:8]])[2:],
    "rows": lambda q, x: q[jnp.array([1, 0, 3])].astype(jnp.float32),
    "a table": lambda q, x: q.at[2].set(q[0]).astype(jnp.float32),
    "a choice": lambda q, x: jnp.where(x[0, 0] > 9, q, q[::-1]),
    "a loop": lambda q, x: jax.lax.scan(lambda c, r: (c + r.astype(jnp.float32), r[::-1]), x[0], q),
    "a constant": lambda q, x: (q, jnp.asarray(np.arange(40) % 3, q.dtype).astype(jnp.float32)),
    "compared": lambda q, x: q > q[::-1],
    "computed with": lambda q, x: q + q,
}


@pytest.mark.every(5)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_jax_programs(name: str, program: str) -> None:
    run = PROGRAMS[program]
    q = jnp.asarray((np.arange(32).reshape(4, 8) % 7).astype(getattr(ml_dtypes, name)))
    x = jnp.ones((3, 8) if program == "a loop" else (3, 4))
    compiled = stack.compile(run, q, x)
    got, want = jax.tree.leaves(compiled(q, x)), jax.tree.leaves(jax.jit(run)(q, x))
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        check_same(a, b)
    fallbacks = compiled.run.coverage["fallback_ops"]
    assert fallbacks == ({"jax:add": 1} if program == "computed with" else {})


def test_torch_programs() -> None:
    weight = torch.randn(40, 8, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)

    def run(q: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = x @ (weight.float() * 0.5)
        return (
            product,
            q.t().reshape(-1)[3:],
            torch.cat([q, q]).view(torch.uint8),
            (x / 7).to(q.dtype),
        )

    q = torch.arange(32).view(4, 8).float().to(torch.float8_e5m2)
    x = torch.ones(3, 40)
    compiled = stack.compile(run, q, x)
    for got, want in zip(compiled(q, x), run(q, x), strict=True):
        assert got.dtype == want.dtype
        check_same(got.float(), want.float())
    check_native(compiled)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "i4", "u4"])
def test_the_ir_moves_and_reinterprets_them(dtype: str) -> None:
    text = (
        f"func @f(%x: {dtype}[4]) -> ({dtype}[2], u8[4]) at tensor {{\n"
        f"  %s = slice(%x) {{limit=[3], start=[1], step=[1]}} : {dtype}[2]\n"
        "  %b = bitcast(%x) : u8[4]\n  return %s, %b\n}\n"
    )
    func = stack.parse(text)
    assert stack.parse(str(func)) is func
    x = np.arange(4).astype("int8" if dtype[0] == "i" else "uint8")
    part, whole = func.interpret(x)
    np.testing.assert_array_equal(part, x[1:3])
    np.testing.assert_array_equal(whole, x.view(np.uint8))
    with pytest.raises(stack.errors.StackError, match="bitcast them and compute"):
        stack.parse(text.replace("bitcast(%x) : u8", "cast(%x) : f32").replace("u8[4]", "f32[4]"))
    with pytest.raises(stack.errors.StackError, match=f"does not take {dtype}"):
        stack.parse(text.replace("bitcast(%x) : u8", f"neg(%x) : {dtype}").replace("u8", dtype))
