"""Every elementwise op over special and random values, numbers of rank 0 too, against eager torch.

All ops of an element type are one program, so that a type takes a second.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from stack.backends.mlir import REFUSED
from stack.frontends.torch.replay.space import callable_of
from stack.ir import DTYPES, Builder, Func, param, tensor
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.run.compile import compile_func

EDGES = (0.0, 1.0, 0.5, 2.5, 3.0, 88.0, 104.0, 1e-4, 1e-30, 1e30, 1e38, math.inf)
ONE_OPERAND = tuple(s * v for v in (*EDGES, 1e-40) for s in (1, -1)) + (math.nan,)
TWO_OPERANDS = tuple(s * v for v in EDGES for s in (1, -1)) + (math.nan,)
NUMBERS = (0.0, -0.0, 1.5, -math.inf, math.nan)  # that are tried one at a time
DRAWN = 60
TOLERANCE = {"f32": 3e-6, "f64": 2e-13}
# of two zeros either is the larger one; torch's sign of -0 is 0
ANY_ZERO = ("max", "min", "sign")


def program(names: list[str], dtype: str, operands: int, *shape: int) -> Func:
    """All ops on the same operands."""
    b = Builder()
    params = [param(f"x{i}", tensor(dtype, *shape)) for i in range(operands)]
    return b.func("main", params, [b.op(n, params) for n in names])


def names_of(dtype: str, table: dict[str, tuple[str, float, str]]) -> list[str]:
    kind = DTYPES[dtype].kind
    return [
        n for n, (kinds, _, _) in table.items() if kind in kinds and n not in REFUSED.split(",")
    ]


def values(dtype: str, special: tuple[float, ...], rng: np.random.Generator) -> np.ndarray:
    kind = DTYPES[dtype]
    if kind.kind == "b":
        return np.array([True, False])
    if kind.is_float:
        return np.array([*special, *rng.normal(scale=3, size=DRAWN)]).astype(kind.numpy)
    limits = np.iinfo(kind.numpy)
    whole = {0, 1, 2, 7, limits.max, limits.max - 1, limits.min, limits.min + 1, 64}
    whole |= {-1, -2, -7} if limits.min else set()
    drawn = rng.integers(limits.min, limits.max, 20, dtype=kind.numpy)
    return np.array([*sorted(whole), *drawn.tolist()], kind.numpy)


@np.errstate(all="ignore")
def differences(names: list[str], func: Func, arrays: list[np.ndarray]) -> dict[str, list[object]]:
    """By op: operands for which the backend is not eager, with both results."""
    found = compile_func(func, "mlir").run(arrays)
    wanted = callable_of(func)(*map(torch.from_numpy, arrays))
    is_float = arrays[0].dtype.kind == "f"
    wrong: dict[str, list[object]] = {}
    for name, got, expected in zip(names, found, wanted, strict=True):
        # eager's vectors give nan where the quotient is large
        want = np.fmod(*arrays) if name == "rem" and is_float else expected.numpy()
        bad = ~same(got, want, TOLERANCE.get(str(func.params[0].dtype), 0))
        if name not in ANY_ZERO and want.dtype.kind == "f":
            bad |= (want == 0) & (got == 0) & (np.signbit(want) != np.signbit(got))
        if bad.any():
            rows = [np.broadcast_to(a, bad.shape)[bad] for a in (*arrays, got, want)]
            wrong[name] = [tuple(map(float, row)) for row in list(zip(*rows, strict=True))[:4]]
    return wrong


def same(got: np.ndarray, want: np.ndarray, tolerance: float) -> np.ndarray:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype.kind != "f":
        return np.asarray(got == want)
    tiny = 4 * float(np.finfo(want.dtype).tiny)  # eager flushes some denormals
    return np.isclose(got, want, rtol=tolerance, atol=tiny, equal_nan=True)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i32", "i64", "u8", "bool"])
def test_one_operand(dtype: str, rng: np.random.Generator) -> None:
    names = names_of(dtype, UNARY)
    x = values(dtype, ONE_OPERAND, rng)
    assert not differences(names, program(names, dtype, 1, x.size), [x])


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i32", "i64", "u8", "bool"])
def test_two_operands(dtype: str, rng: np.random.Generator) -> None:
    names = [*names_of(dtype, BINARY), *COMPARE]
    x = values(dtype, TWO_OPERANDS, rng)
    pairs = np.array(list(itertools.product(x, x)), x.dtype)
    arrays = [np.ascontiguousarray(pairs[:, i]) for i in range(2)]
    if DTYPES[dtype].is_integer:
        names = [n for n in names if n not in ("shl", "shr")]  # torch's are undefined by much
    assert not differences(names, program(names, dtype, 2, len(pairs)), arrays)


@pytest.mark.parametrize("value", NUMBERS)
def test_one_number(value: float) -> None:
    names = names_of("f32", UNARY)
    func = program(names, "f32", 1)
    assert not differences(names, func, [np.array(value, np.float32)])


@pytest.mark.parametrize("value", NUMBERS)
def test_two_numbers(value: float) -> None:
    names = [*names_of("f32", BINARY), *COMPARE]
    func = program(names, "f32", 2)
    for other in NUMBERS:
        assert not differences(names, func, [np.array(v, np.float32) for v in (value, other)])
