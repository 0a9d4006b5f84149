"""The meaning of every op, against Python, SciPy and torch, with the edge cases."""

from __future__ import annotations

import itertools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

from stack.errors import RuleError
from stack.ir import DTYPES, Block, Builder, Func, Node, constant, param, tensor
from stack.ir.data import round_bf16
from stack.ir.dim import symbol
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.ops import OPS
from stack.ir.tensor_ops import TENSOR_OPS
from stack.ir.types import DType, dtype_of

torch: Any = pytest.importorskip("torch")
warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
b = Builder()
FLOATS = ("f16", "bf16", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
# distance to the next number at 1, and what two roundings of a wide computation may cost
TOLERANCE = {"f16": 1e-3, "bf16": 8e-3, "f32": 5e-7, "f64": 1e-14}
TESTED: set[str] = set()


def run(op: str, *arrays: Any, dtypes: tuple[str, ...] = (), type: Any = None, **attrs: Any) -> Any:
    """Interpret one op on arrays."""
    TESTED.add(op)
    held = [np.asarray(a) for a in arrays]
    kinds = [DTYPES[d] for d in dtypes] or [dtype_of(a) for a in held]
    params = [
        param(f"p{i}", tensor(k, *a.shape))
        for i, (a, k) in enumerate(zip(held, kinds, strict=True))
    ]
    node = b.op(op, params, attrs, hint=type)
    return run_node(node, params, held)


def run_node(node: Node, params: list[Node], arrays: list[Any]) -> Any:
    results = [node]
    if hasattr(node.type, "items"):
        results = [b.item(node, index=i) for i in range(len(node.type.items))]
    out = Func("f", Block(params, results)).interpret(*arrays)
    for value, r in zip(out if len(results) > 1 else [out], results, strict=True):
        assert value.shape == r.shape, (node.op, value.shape, r.shape)
        assert value.dtype == np.dtype(r.dtype.numpy), (node.op, value.dtype, r.dtype)
        if r.dtype.name == "bf16":
            assert same(value, round_bf16(value))
    return out


def same(a: Any, c: Any) -> bool:
    """Equal shapes and elements; nan equals nan, and -0.0 is not 0.0."""
    a, c = np.asarray(a), np.asarray(c)
    if a.shape != c.shape:
        return False
    if a.dtype.kind != "f":
        return bool((a == c).all())
    signs = (np.signbit(a) == np.signbit(c)) | (a != 0)
    return bool((((a == c) & signs) | (np.isnan(a) & np.isnan(c))).all())


def rounded(value: Any, dtype: str) -> Any:
    """A wide result in an element type."""
    wide = np.asarray(value)
    with np.errstate(all="ignore"):
        if dtype == "bf16":
            return wide.astype(ml_dtypes.bfloat16).astype(np.float32)
        return wide.astype(DTYPES[dtype].numpy)


def numbers(dtype: str, *shape: int, seed: int = 0, low: float = -3, high: float = 3) -> Any:
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    if kind.kind == "f":
        return rounded(rng.uniform(low, high, shape), dtype)
    if kind.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(kind.numpy)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    limits = np.iinfo(kind.numpy)
    return rng.integers(limits.min, limits.max, shape, dtype=kind.numpy, endpoint=True)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 1e-4, 20.0, -20.0, 88.0, -104.0,
           math.inf, -math.inf, math.nan]  # fmt: skip


# ---- elementwise


UNARY_MEANING: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "log": np.log, "log2": np.log2, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": scipy.special.expit, "erf": scipy.special.erf,
    "erfinv": scipy.special.erfinv, "sign": np.sign,
    "lgamma": lambda x: torch.lgamma(torch.from_numpy(x)).numpy(),
    "digamma": lambda x: torch.digamma(torch.from_numpy(x)).numpy(),
    "isnan": np.isnan, "isfinite": np.isfinite,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [n for n, (kinds, _, _) in UNARY.items() if "f" in kinds])
def test_unary_of_floats(op: str, dtype: str) -> None:
    x = np.concatenate(
        [numbers(dtype, 200), rounded(SPECIAL, dtype), numbers(dtype, 50, low=0, high=1)]
    )
    with np.errstate(all="ignore"):
        expected = UNARY_MEANING[op](x.astype(np.float64))
    got = run(op, x, dtypes=(dtype,))
    if op.startswith("is"):
        assert (got == expected).all()
        return
    expected = rounded(expected, dtype)
    assert (np.isnan(got) == np.isnan(expected)).all(), x[np.isnan(got) != np.isnan(expected)]
    extra = 4 if op in ("lgamma", "digamma", "erfinv", "tan", "sinh", "cosh") else 1
    has_roots = op in ("lgamma", "digamma", "sin", "cos", "tan", "log", "log2")
    absolute = TOLERANCE[dtype] * (1 if has_roots else 1e-2)
    np.testing.assert_allclose(got, expected, rtol=extra * TOLERANCE[dtype], atol=absolute)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ["sigmoid", "rsqrt", "erf", "tanh", "exp", "log1p", "expm1"])
def test_16_bit_floats_round_once(op: str, dtype: str) -> None:
    if dtype not in ("f16", "bf16"):
        return
    every = np.arange(0x0400, 0x7800 if dtype == "f16" else 0x4000, dtype=np.uint16)
    x = (
        every.view(np.float16)
        if dtype == "f16"
        else (every.astype(np.uint32) << 16).view(np.float32)
    )
    with np.errstate(all="ignore"):
        expected = rounded(UNARY_MEANING[op](x.astype(np.float64)), dtype)
    got = run(op, x, dtypes=(dtype,))
    wrong = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    assert wrong.mean() < 2e-3  # f32 in between may turn a tie
    np.testing.assert_allclose(got[wrong], expected[wrong], rtol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("op", ["lgamma", "digamma", "erf", "erfinv"])
def test_special_functions_over_their_range(op: str) -> None:
    x = {
        "erfinv": np.concatenate([np.linspace(-1, 1, 4001), 1 - np.logspace(-16, -1, 100)]),
        "erf": np.linspace(-7, 7, 4001),
    }.get(op, np.concatenate([np.linspace(-20.3, 170, 4001), np.logspace(-300, 300, 500)]))
    reference = {
        "erfinv": scipy.special.erfinv, "erf": scipy.special.erf,
        "lgamma": scipy.special.gammaln, "digamma": scipy.special.digamma,
    }[op]  # fmt: skip
    with np.errstate(all="ignore"):
        expected = reference(x)
    np.testing.assert_allclose(run(op, x), expected, rtol=2e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
def test_unary_of_integers(dtype: str) -> None:
    limits = np.iinfo(DTYPES[dtype].numpy)
    x = np.concatenate([numbers(dtype, 50), np.array([limits.min, limits.max, 0, 1], limits.dtype)])
    wide = [int(v) for v in x]
    mask = (1 << limits.bits) - 1

    def wrap(values: list[int]) -> Any:
        raw = np.array([v & mask for v in values], np.uint64)
        return raw.astype(f"u{limits.dtype.itemsize}").view(limits.dtype)

    assert same(run("neg", x), wrap([-v for v in wide]))
    assert same(run("abs", x), wrap([abs(v) for v in wide]))  # of the smallest number: itself
    assert same(run("sign", x), wrap([(v > 0) - (v < 0) for v in wide]))
    assert same(run("not", x), wrap([~v for v in wide]))


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


INTEGER_MEANING: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda x, y, n: x + y,
    "sub": lambda x, y, n: x - y,
    "mul": lambda x, y, n: x * y,
    "div": lambda x, y, n: truncated(x, y) if y else -1,
    "rem": lambda x, y, n: x - y * truncated(x, y) if y else x,
    "max": lambda x, y, n: max(x, y),
    "min": lambda x, y, n: min(x, y),
    "and": lambda x, y, n: x & y,
    "or": lambda x, y, n: x | y,
    "xor": lambda x, y, n: x ^ y,
    "shl": lambda x, y, n: x << y if 0 <= y < n else 0,
    "shr": lambda x, y, n: x >> y if 0 <= y < n else -(x < 0),
    "pow": lambda x, y, n: (
        pow(x, y, 1 << n) if y >= 0 else {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    ),
}


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("op", INTEGER_MEANING)
def test_binary_of_integers(op: str, dtype: str) -> None:
    limits = np.iinfo(DTYPES[dtype].numpy)
    edge = [limits.min, limits.max, 0, 1, 2, 7, limits.bits - 1, limits.bits, limits.bits + 1]
    edge += [-1, -2, -7, limits.min + 1] if limits.min else []
    pairs = list(itertools.product(edge, edge))
    x, y = (np.array([p[k] for p in pairs], limits.dtype) for k in range(2))
    x = np.concatenate([x, numbers(dtype, 100, seed=1)])
    y = np.concatenate([y, numbers(dtype, 100, seed=2)])
    mask = (1 << limits.bits) - 1
    raw = [
        INTEGER_MEANING[op](int(u), int(v), limits.bits) & mask for u, v in zip(x, y, strict=True)
    ]
    expected = np.array(raw, np.uint64).astype(f"u{limits.dtype.itemsize}").view(limits.dtype)
    got = run(op, x, y)
    wrong = got != expected
    assert same(got, expected), (x[wrong][:5], y[wrong][:5], got[wrong][:5], expected[wrong][:5])


FLOAT_MEANING: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "rem": np.fmod,
    "pow": np.power, "atan2": np.arctan2, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FLOAT_MEANING)
def test_binary_of_floats(op: str, dtype: str) -> None:
    pairs = list(itertools.product(SPECIAL, SPECIAL))
    x, y = (rounded([p[k] for p in pairs], dtype) for k in range(2))
    x = np.concatenate([x, numbers(dtype, 300, seed=1)])
    y = np.concatenate([y, numbers(dtype, 300, seed=2)])
    with np.errstate(all="ignore"):
        wide = np.float64 if dtype != "f64" else np.longdouble
        expected = rounded(FLOAT_MEANING[op](x.astype(wide), y.astype(wide)), dtype)
    got = run(op, x, y, dtypes=(dtype, dtype))
    assert (np.isnan(got) == np.isnan(expected)).all()
    if op in ("pow", "atan2"):
        np.testing.assert_allclose(got, expected, rtol=2 * TOLERANCE[dtype])
    else:  # rounded once
        wrong = ~((got == expected) | np.isnan(got))
        assert not wrong.any(), (x[wrong], y[wrong], got[wrong], expected[wrong])


@pytest.mark.parametrize("op", ["max", "min"])
def test_nan_wins(op: str) -> None:
    nan, one = np.float32(np.nan), np.float32(1)
    for pair in ((nan, one), (one, nan), (nan, nan)):
        assert np.isnan(run(op, *pair))


@pytest.mark.parametrize("op", COMPARE)
def test_compare(op: str) -> None:
    meaning = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
               "gt": operator.gt, "ge": operator.ge}[op]  # fmt: skip
    for dtype in ("f32", "bf16", "i8", "u64", "bool"):
        values = [v for v in SPECIAL if v != 1e-4] if dtype in FLOATS else [0, 1]  # exact ones
        if dtype in ("i8", "u64"):
            limits = np.iinfo(DTYPES[dtype].numpy)
            values = [limits.min, limits.max, 0, 1]
        pairs = list(itertools.product(values, values))
        x, y = (np.array([p[k] for p in pairs], DTYPES[dtype].numpy) for k in range(2))
        assert run(op, x, y, dtypes=(dtype, dtype)).tolist() == [meaning(u, v) for u, v in pairs]
    z = np.array([1 + 2j, np.nan])
    if op in ("eq", "ne"):
        assert run(op, z, z).tolist() == [meaning(v, v) for v in z.tolist()]


def test_logic_of_bool() -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    assert run("and", x, y).tolist() == [False, False, False, True]
    assert run("or", x, y).tolist() == [False, True, True, True]
    assert run("xor", x, y).tolist() == [False, True, True, False]
    assert run("not", x).tolist() == [True, True, False, False]
    assert run("add", x, y).tolist() == [False, True, True, True]
    assert run("mul", x, y).tolist() == [False, False, False, True]
    assert run("max", x, y).tolist() == [False, True, True, True]
    assert run("min", x, y).tolist() == [False, False, False, True]


def test_complex() -> None:
    x, y = numbers("c128", 20), numbers("c128", 20, seed=1)
    for op in ("add", "sub", "mul", "div"):
        np.testing.assert_allclose(run(op, x, y), FLOAT_MEANING[op](x, y), rtol=1e-14)
    np.testing.assert_allclose(run("neg", x), -x)
    np.testing.assert_allclose(run("reduce", x, kind="sum", axes=(0,)), x.sum())
    np.testing.assert_allclose(run("dot", x, y, rule="a, a ->"), (x * y).sum())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_shapes_and_scalars_of_elementwise_ops(dtype: str, shape: tuple[int, ...]) -> None:
    x, s = numbers(dtype, *shape), numbers(dtype, seed=3)
    c = numbers("bool", *shape)
    for name, (kinds, _, _) in UNARY.items():
        if "f" in kinds:
            run(name, x, dtypes=(dtype,))
    for name, (kinds, _, _) in BINARY.items():
        if "f" in kinds:
            for pair in ((x, x), (x, s), (s, x), (s, s)):
                run(name, *pair, dtypes=(dtype, dtype))
    for args in ((c, x, x), (c, s, x), (c, x, s), (c, s, s), (np.bool_(True), x, x)):
        got = run("select", *args, dtypes=("bool", dtype, dtype))
        assert same(got, np.broadcast_to(np.where(*args), got.shape))


# ---- conversion


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_cast(source: str, target: str) -> None:
    x = numbers(source, 64, low=0, high=100)
    if DTYPES[source].is_integer:
        x = x % 100
    got = run("cast", x, dtypes=(source,), type=tensor(target, 64))
    wide = x.astype(ml_dtypes.bfloat16) if source == "bf16" else x
    if DTYPES[source].kind == "c" and DTYPES[target].kind not in "cb":
        wide = wide.real
        if DTYPES[target].kind == "u":
            return
    expected = torch.from_numpy(x.copy()).numpy() if target == source else None
    if target == "bf16":
        expected = (
            np.asarray(wide).real.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        )
    elif expected is None:
        expected = wide.astype(DTYPES[target].numpy)
    assert same(got, expected)


def test_cast_of_odd_values() -> None:
    x = np.array([1.9, -1.9, 0.0, -0.0, 0.5, 100.7])
    assert run("cast", x, type=tensor("i32", 6)).tolist() == [1, -1, 0, 0, 0, 100]
    assert run("cast", x, type=tensor("bool", 6)).tolist() == [True, True, False, False, True, True]
    odd = np.array([np.nan, np.inf, 1e-300])
    assert run("cast", odd, type=tensor("bool", 3)).tolist() == [True] * 3
    assert run("cast", np.array([300, -1, 256]), type=tensor("u8", 3)).tolist() == [44, 255, 0]
    assert same(run("cast", odd, type=tensor("f32", 3)), np.float32([np.nan, np.inf, 0]))
    big = np.array([65504.0, 65520.0, 1e-8])
    assert same(run("cast", big, type=tensor("f16", 3)), np.float16([65504, np.inf, 0]))


PAIRS = [(s, t) for s in DTYPES for t in DTYPES
         if DTYPES[s].bits == DTYPES[t].bits and "bool" not in (s, t)]  # fmt: skip


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_bitcast(source: str, target: str, shape: tuple[int, ...]) -> None:
    held = {"bf16": ml_dtypes.bfloat16}
    x = numbers(source, *shape)
    bits = x.astype(held.get(source, x.dtype)).tobytes()
    got = run("bitcast", x, dtypes=(source,), type=tensor(target, *shape))
    back = got.astype(ml_dtypes.bfloat16) if target == "bf16" else got
    assert back.tobytes() == bits or np.isnan(np.asarray(got, dtype=np.complex128)).any()


def test_bitcast_of_a_transposed_array() -> None:
    x = numbers("f32", 2, 3)
    p = param("p", tensor("f32", 2, 3))
    node = b.bitcast(b.transpose(p, perm=(1, 0)), type=tensor("i32", 3, 2))
    assert same(run_node(node, [p], [x]), x.T.copy().view(np.int32))


# ---- leaves and movement


@pytest.mark.parametrize("dtype", [d for d in DTYPES if DTYPES[d].kind in "iuf"])
def test_iota(dtype: str) -> None:
    for shape in ((5,), (2, 3), (3, 0)):
        for axis in range(len(shape)):
            got = run("iota", type=tensor(dtype, *shape), axis=axis)
            assert same(got, np.indices(shape)[axis].astype(DTYPES[dtype].numpy))
    long = run("iota", type=tensor(dtype, 300), axis=0)
    assert long[100] == 100
    if dtype == "bf16":
        assert long[257] == 256  # to the nearest that there is


def test_size_and_const() -> None:
    TESTED.update(("size", "const"))
    n = symbol("n", 1, 10)
    x = param("x", tensor("f32", n))
    func = Func("f", Block((x,), (b.size_of(n * 2 + 1), b.size_of(3), constant([1, 2], "u8"))))
    out = func.interpret(np.zeros(4, np.float32))
    assert [v.tolist() for v in out] == [9, 3, [1, 2]]
    assert [v.dtype.name for v in out] == ["int64", "int64", "uint8"]
    with pytest.raises(ValueError, match=r"argument %x is f32\[n\].*n in 1..10.*\[11\]"):
        func.interpret(np.zeros(11, np.float32))


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4), (1, 1, 1)])
def test_views(shape: tuple[int, ...]) -> None:
    x = numbers("f32", *shape)
    flat = (math.prod(shape),)
    assert same(run("reshape", x, type=tensor("f32", *flat)), x.reshape(flat))
    assert same(run("transpose", x, perm=(2, 0, 1)), x.transpose(2, 0, 1))
    wide = (5, shape[0], shape[1], 2, shape[2])
    got = run("broadcast", x, type=tensor("f32", *wide), axes=(1, 2, 4))
    assert same(got, np.broadcast_to(x[None, :, :, None, :], wide))
    assert same(run("reverse", x, axes=(0, 2)), x[::-1, :, ::-1])
    assert same(run("reverse", x, axes=()), x)
    assert same(run("slice", x, start=(0, 0, 0), limit=(shape[0], 0, shape[2]), step=(1, 1, 3)),
                x[:, 0:0, ::3])  # fmt: skip
    assert same(run("concat", x, x[:1], x, axis=0), np.concatenate([x, x[:1], x]))


def test_unfold() -> None:
    """Places of windows, then their taps, as NumPy slides them."""
    x = numbers("f32", 2, 9, 8, 3)
    slid = np.lib.stride_tricks.sliding_window_view(x, (5, 2), (1, 2))
    expected = slid[:, ::3, ::1, :, ::2, :].transpose(0, 1, 2, 4, 5, 3)
    got = run("unfold", x, axis=1, window=(3, 2), stride=(3, 1), dilation=(2, 1))
    assert same(got, expected)
    got = run("unfold", x, axis=3, window=(1,), stride=(2,), dilation=(1,))
    assert same(got, x[..., ::2, None])
    with pytest.raises(RuleError, match="a window of 11 on an axis of 9"):
        run("unfold", x, axis=1, window=(6,), stride=(1,), dilation=(2,))


def test_scalars_move() -> None:
    x = np.float32(2.5)
    assert same(run("reshape", x, type=tensor("f32", 1, 1)), np.full((1, 1), 2.5, np.float32))
    assert same(run("reshape", np.full((1, 1), 2.5, np.float32), type=tensor("f32")), x)
    assert same(run("broadcast", x, type=tensor("f32", 2, 0), axes=()), np.zeros((2, 0)))
    assert same(run("transpose", x, perm=()), x)
    assert same(run("slice", x, start=(), limit=(), step=()), x)
    assert same(run("pad", x, x, low=(), high=(), interior=()), x)


@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("gap", [0, 1, 3])
def test_pad(size: int, gap: int) -> None:
    x = numbers("f32", 2, size)
    got = run("pad", x, np.float32(np.nan), low=(1, 2), high=(0, 3), interior=(0, gap))
    spread = np.full((2, max(size + gap * (size - 1), 0)), np.nan, np.float32)
    spread[:, :: gap + 1] = x
    assert same(got, np.pad(spread, [(1, 0), (2, 3)], constant_values=np.nan))


def test_gather() -> None:
    x = numbers("f32", 5, 4, 3)
    i = np.array([[0, 4, 2], [2, 2, 1]])
    j = np.array([3, 0, 3], np.uint8)
    assert same(run("gather", x, i, rule="a! c d, p q -> p q c d"), x[i])
    assert same(run("gather", x, i, rule="a! c d, p q -> c q d p"), x[i].transpose(2, 1, 3, 0))
    # two index dims that share an axis, in either order of the operand
    got = run("gather", x, i, j, rule="a! c! d, p q, q -> p q d")
    assert same(got, x[i, j[None, :]])
    k = i % 3
    got = run("gather", x, j, k, rule="a c! d!, q, p q -> p a q")
    assert same(got, x[:, j[None, :], k].transpose(1, 0, 2))
    # an index that follows a plain axis, as in take_along_axis
    k = np.random.default_rng(0).integers(0, 4, (5, 3))
    assert same(run("gather", x, k, rule="a c! d, a d -> a d"),
                np.take_along_axis(x, k[:, None, :], 1)[:, 0])  # fmt: skip
    assert same(run("gather", x, np.int64(2), rule="a! c d, -> c d"), x[2])
    assert same(run("gather", x, rule="a c d -> d a c"), x.transpose(2, 0, 1))
    assert run("gather", x, np.zeros((0,), np.int32), rule="a! c d, p -> c p d").shape == (4, 0, 3)
    square = numbers("f32", 3, 3)
    assert same(run("gather", square, rule="a a -> a"), np.diagonal(square))


@pytest.mark.parametrize("kind", ["set", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "i32", "bf16", "f16"])
def test_scatter(kind: str, dtype: str) -> None:
    x = numbers(dtype, 6, 4) if dtype in FLOATS else numbers(dtype, 6, 4) % 10
    i = np.array([[0, 5], [5, 2], [5, 0]])
    u = numbers(dtype, 3, 2, 4, seed=5) if dtype in FLOATS else numbers(dtype, 3, 2, 4, seed=5) % 10
    combine: dict[str, Callable[[Any, Any], Any]] = {
        "set": lambda a, c: c, "add": lambda a, c: a + c, "mul": lambda a, c: a * c,
        "max": max, "min": min,
    }  # fmt: skip
    expected = x.astype(np.float64 if dtype in FLOATS else np.int64)
    for place in np.ndindex(3, 2):
        for d in range(4):
            at = (i[place], d)
            expected[at] = combine[kind](expected[at], u[(*place, d)])
    before = x.copy()
    kinds = (dtype, "i64", dtype)
    got = run("scatter", x, i, u, dtypes=kinds, rule="v! d, p q, p q d -> v! d", kind=kind)
    assert same(x, before)  # the operand is not written to
    if dtype in FLOATS:
        np.testing.assert_allclose(
            got, rounded(expected, dtype), rtol=2 * TOLERANCE[dtype], atol=1e-6
        )
    else:
        assert same(got, expected)


def test_scatter_shapes() -> None:
    j = np.array([2, 0])
    u = numbers("f32", 2, 4)
    y = np.zeros((4, 3), np.float32)
    got = run("scatter", y, j, u, rule="a d!, p, p a -> a d!", kind="add")
    expected = y.copy()
    expected[:, 2], expected[:, 0] = u[0], u[1]
    assert same(got, expected)
    # two indexed axes, repeated positions add up
    i = np.array([1, 1, 1])
    k = np.array([2, 0, 2])
    got = run(
        "scatter", y, i, k, np.float32([1, 10, 100]), rule="a! d!, p, p, p -> a! d!", kind="add"
    )
    expected = y.copy()
    expected[1, 2], expected[1, 0] = 101, 10
    assert same(got, expected)
    # a scalar index: one row
    got = run(
        "scatter", y, np.int64(3), np.float32([7, 8, 9]), rule="a! d, , d -> a! d", kind="set"
    )
    assert got[3].tolist() == [7, 8, 9]
    empty = run(
        "scatter",
        y,
        np.zeros(0, int),
        np.zeros((0, 3), np.float32),
        rule="a! d, p, p d -> a! d",
        kind="set",
    )
    assert same(empty, y)
    nan = run(
        "scatter",
        y,
        np.array([0]),
        np.float32([[np.nan, 1, 2]]),
        rule="a! d, p, p d -> a! d",
        kind="max",
    )
    assert np.isnan(nan[0, 0])


# ---- reductions


@pytest.mark.parametrize("dtype", [d for d in DTYPES if DTYPES[d].kind in "biuf"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("axes", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_reduce(kind: str, dtype: str, axes: tuple[int, ...]) -> None:
    x = numbers(dtype, 3, 4, 2)
    if DTYPES[dtype].is_integer:
        x = (x % 7).astype(x.dtype)
    got = run("reduce", x, dtypes=(dtype,), kind=kind, axes=axes)
    wide = x.astype(np.float64) if dtype in FLOATS else x
    function = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}[kind]
    if kind in ("sum", "prod"):
        expected = function(wide, axis=axes, dtype=wide.dtype)
    else:
        expected = function(wide, axis=axes)
    if dtype in FLOATS:
        np.testing.assert_allclose(
            got, rounded(expected, dtype), rtol=4 * TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
    else:
        assert same(got, expected)


IDENTITY: dict[str, Callable[[DType], Any]] = {
    "sum": lambda d: 0,
    "prod": lambda d: 1,
    "max": lambda d: -np.inf if d.is_float else np.iinfo(d.numpy).min if d.is_integer else False,
    "min": lambda d: np.inf if d.is_float else np.iinfo(d.numpy).max if d.is_integer else True,
    "and": lambda d: ~np.zeros((), d.numpy),
    "or": lambda d: 0,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", IDENTITY)
def test_reduce_of_nothing_gives_the_identity(kind: str, dtype: str) -> None:
    d = DTYPES[dtype]
    allowed = {"and": "biu", "or": "biu", "max": "biuf", "min": "biuf"}.get(kind, "biufc")
    if d.kind not in allowed:
        return
    x = np.zeros((2, 0, 3), d.numpy)
    got = run("reduce", x, dtypes=(dtype,), kind=kind, axes=(1,))
    assert same(got, np.full((2, 3), IDENTITY[kind](d), d.numpy))
    assert run("reduce", x, dtypes=(dtype,), kind=kind, axes=(0,)).shape == (0, 3)
    assert same(
        run("reduce", x, dtypes=(dtype,), kind=kind, axes=(0, 1, 2)),
        np.array(IDENTITY[kind](d), d.numpy),
    )


@pytest.mark.parametrize("dtype", ["bool", *SIGNED, *UNSIGNED])
def test_and_or(dtype: str) -> None:
    x = numbers(dtype, 3, 5)
    for kind, ufunc in (("and", np.bitwise_and), ("or", np.bitwise_or)):
        assert same(run("reduce", x, kind=kind, axes=(1,)), ufunc.reduce(x, axis=1))
        assert same(run("reduce", x, kind=kind, axes=(0, 1)), ufunc.reduce(x, axis=(0, 1)))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_inf_in_reductions(dtype: str) -> None:
    x = rounded([[1, np.nan, 3], [np.inf, -np.inf, 0], [-0.0, 0.0, -0.0], [np.inf, 1, 2]], dtype)
    for kind in ("max", "min", "sum", "prod"):
        got = run("reduce", x, dtypes=(dtype,), kind=kind, axes=(1,))
        with np.errstate(all="ignore"):
            expected = getattr(np, kind)(x.astype(np.float64), axis=1)
        assert (np.isnan(got) == np.isnan(expected)).all()
        assert (np.isnan(got) | (got == expected)).all()
        running = run("scan", x, dtypes=(dtype,), kind=kind, axis=1, reverse=False)
        assert np.isnan(running[0]).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_16_bit_floats_accumulate_in_f32(dtype: str) -> None:
    ones = rounded(np.ones(5000), dtype)
    assert run("reduce", ones, dtypes=(dtype,), kind="sum", axes=(0,)) == rounded(5000, dtype)
    small = rounded(np.full(4096, 1 / 256), dtype)
    assert run("reduce", small, dtypes=(dtype,), kind="sum", axes=(0,)) == 16
    assert run("scan", small, dtypes=(dtype,), kind="sum", axis=0, reverse=False)[-1] == 16
    pairs = rounded(np.full((8, 4096), 1 / 16), dtype)
    dot = run("dot", pairs, pairs, dtypes=(dtype,) * 2, rule="m k, n k -> m n")
    assert (dot == 16).all()
    batched = pairs.reshape(2, 4, 4096)
    dot = run("dot", batched, batched, dtypes=(dtype,) * 2, rule="b m k, b n k -> b m n")
    assert (dot == 16).all()
    x = rounded(np.full((1, 2048, 3), 1 / 16), dtype)
    w = rounded(np.full((1, 2048, 2), 1 / 16), dtype)
    assert (run("conv", x, w, dtypes=(dtype,) * 2, **conv_attrs(1)) == 16).all()
    # a large product that overflows, and returns to the range only in f32
    big = rounded([300.0, 300.0, 1e-4, 1e-4], dtype)
    got = run("reduce", big, dtypes=(dtype,), kind="prod", axes=(0,))
    np.testing.assert_allclose(got, 9e-4, rtol=2e-2)


@pytest.mark.parametrize("kind", ["max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i8", "u64", "bool"])
def test_argreduce(kind: str, dtype: str) -> None:
    values = [[3, 1, 3, 1], [0, 0, 0, 0], [1, 2, 3, 4], [4, 3, 2, 1]]
    x = np.array(values).astype(DTYPES[dtype].numpy)
    for axis in range(2):
        got = run("argreduce", x, dtypes=(dtype,), type=tensor("i32", 4), kind=kind, axis=axis)
        pick = max if kind == "max" else min
        lines = x if axis else x.T
        assert got.tolist() == [line.tolist().index(pick(line.tolist())) for line in lines]
    if dtype in FLOATS:
        odd = np.array([[1, np.nan, 9, np.nan], [np.inf, -np.inf, np.inf, -np.inf]], np.float32)
        got = run(
            "argreduce",
            rounded(odd, dtype),
            dtypes=(dtype,),
            type=tensor("i64", 2),
            kind=kind,
            axis=1,
        )
        assert got.tolist() == [1, 0 if kind == "max" else 1]
    assert run(
        "argreduce", np.zeros((0, 3), np.float32), type=tensor("i64", 0), kind=kind, axis=1
    ).shape == (0,)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8", "u8", "i64", "bool"])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan(kind: str, dtype: str, reverse: bool) -> None:
    x = numbers(dtype, 3, 5, 2)
    function = {"sum": operator.add, "prod": operator.mul, "max": max, "min": min}[kind]
    for axis in range(3):
        got = run("scan", x, dtypes=(dtype,), kind=kind, axis=axis, reverse=reverse)
        lines = np.moveaxis(x, axis, 0)
        lines = lines[::-1] if reverse else lines
        flat = lines.reshape(len(lines), -1)
        expected = np.empty(flat.shape, np.float64 if dtype in FLOATS else flat.dtype)
        for column in range(flat.shape[1]):
            total: Any = None
            for row in range(len(flat)):
                value = flat[row, column].item()
                total = value if total is None else function(total, value)
                if dtype == "bool":
                    total = bool(total)
                elif dtype not in FLOATS:
                    total &= (1 << DTYPES[dtype].bits) - 1
                    total -= (
                        (total >> (DTYPES[dtype].bits - 1) << DTYPES[dtype].bits)
                        if dtype[0] == "i"
                        else 0
                    )
                expected[row, column] = total
        expected = expected.reshape(lines.shape)
        expected = np.moveaxis(expected[::-1] if reverse else expected, 0, axis)
        if dtype in FLOATS:
            np.testing.assert_allclose(
                got, rounded(expected, dtype), rtol=4 * TOLERANCE[dtype], atol=2 * TOLERANCE[dtype]
            )
        else:
            assert same(got, expected)
    assert run("scan", x[:, :0], dtypes=(dtype,), kind=kind, axis=1, reverse=reverse).shape == (
        3,
        0,
        2,
    )


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i8", "u64", "bool"])
def test_sort(dtype: str, descending: bool) -> None:
    x = numbers(dtype, 4, 9)
    if dtype not in FLOATS:
        x = (x % 3).astype(x.dtype) if dtype != "bool" else x
    place = np.broadcast_to(np.arange(9), (4, 9)).copy()
    for axis in range(2):
        index = place if axis else np.broadcast_to(np.arange(4)[:, None], (4, 9)).copy()
        got, order = run(
            "sort", x, index, dtypes=(dtype, "i64"), axis=axis, num_keys=1, descending=descending
        )
        t = torch.from_numpy(x.astype(np.float64))
        expected, at = torch.sort(t, dim=axis, descending=descending, stable=True)
        assert same(got.astype(np.float64), expected.numpy())
        assert same(order, at.numpy())


@pytest.mark.parametrize("descending", [False, True])
def test_sort_puts_nan_where_the_largest_go(descending: bool) -> None:
    x = np.array([2.0, np.nan, -np.inf, np.inf, np.nan, 0.0, -0.0])
    i = np.arange(7)
    got, order = run("sort", x, i, axis=0, num_keys=1, descending=descending)
    if descending:
        assert order.tolist() == [1, 4, 3, 0, 5, 6, 2]
    else:
        assert order.tolist() == [2, 5, 6, 0, 3, 1, 4]
    assert same(got, x[order])


def test_sort_keeps_the_first() -> None:
    x = np.array([[3.0, 1.0, 3.0, np.nan], [2.0, 2.0, 2.0, 2.0]])
    place = np.broadcast_to(np.arange(4), (2, 4)).copy()
    got, order = run("sort", x, place, axis=1, num_keys=1, descending=True, first=2)
    assert same(got, np.array([[np.nan, 3.0], [2.0, 2.0]]))
    assert order.tolist() == [[3, 0], [0, 1]]
    got, order = run("sort", x, place, axis=1, num_keys=1, descending=True, first=3, start=1)
    assert same(got, np.array([[3.0, 3.0], [2.0, 2.0]]))
    assert order.tolist() == [[0, 2], [1, 2]]
    with pytest.raises(RuleError, match="start 1 without first"):
        run("sort", x, axis=1, num_keys=1, descending=True, start=1)
    with pytest.raises(RuleError, match="the first 2 of 4 elements, from 3 on"):
        run("sort", x, axis=1, num_keys=1, descending=True, first=2, start=3)
    with pytest.raises(RuleError, match="the first 5 of 4 elements"):
        run("sort", x, axis=1, num_keys=1, descending=True, first=5)


@pytest.mark.parametrize("descending", [False, True])
def test_sort_by_several_keys(descending: bool) -> None:
    rng = np.random.default_rng(0)
    a, c = rng.integers(0, 3, 30), rng.integers(0, 3, 30).astype(np.float32)
    got = run("sort", a, c, np.arange(30), axis=0, num_keys=2, descending=descending)
    sign = -1 if descending else 1
    expected = sorted(range(30), key=lambda k: (sign * a[k], sign * c[k], k))
    assert got[2].tolist() == expected
    assert run("sort", np.zeros((0, 2)), axis=0, num_keys=1, descending=descending).shape == (0, 2)


# ---- contractions


@pytest.mark.parametrize("rule", [
    "m k, k n -> m n", "b m k, b k n -> b m n", "m k, n k -> n m", "b h q d, b h k d -> b h q k",
    "k, k ->", "m, n -> m n", ", a -> a", ", ->", "a b, a b -> a b", "a b, c -> a",
    "a b, b c -> c a", "i i, i j -> j",
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i8", "i32", "u8", "bool"])
def test_dot(rule: str, dtype: str) -> None:
    sizes = {c: 2 + k for k, c in enumerate("abcdhijkmnq")}
    left, right = (side.split() for side in rule.split("->")[0].split(","))
    x, y = (
        numbers(dtype, *(sizes[c] for c in side), seed=k) for k, side in enumerate((left, right))
    )
    got = run("dot", x, y, dtypes=(dtype, dtype), rule=rule)
    wide = np.float64 if dtype in FLOATS else np.int64
    text = rule.replace(" ", "")
    expected = np.einsum(text, x.astype(wide), y.astype(wide))
    if dtype in FLOATS:
        np.testing.assert_allclose(
            got, rounded(expected, dtype), rtol=4 * TOLERANCE[dtype], atol=20 * TOLERANCE[dtype]
        )
    else:
        assert same(got, expected.astype(DTYPES[dtype].numpy))


def test_dot_into_a_wider_type() -> None:
    x, y = numbers("i8", 4, 300), numbers("i8", 300, 5, seed=1)
    got = run("dot", x, y, rule="m k, k n -> m n", type=tensor("i32", 4, 5))
    assert same(got, x.astype(np.int32) @ y.astype(np.int32))
    h, g = numbers("f16", 4, 300), numbers("f16", 300, 5, seed=1)
    got = run("dot", h, g, rule="m k, k n -> m n", type=tensor("f32", 4, 5))
    np.testing.assert_allclose(
        got, h.astype(np.float64) @ g.astype(np.float64), rtol=1e-5, atol=1e-5
    )
    q, r = numbers("bf16", 4, 300), numbers("bf16", 300, 5, seed=1)
    got = run("dot", q, r, dtypes=("bf16",) * 2, rule="m k, k n -> m n", type=tensor("f32", 4, 5))
    np.testing.assert_allclose(
        got, q.astype(np.float64) @ r.astype(np.float64), rtol=1e-5, atol=1e-5
    )


def test_dot_of_nothing() -> None:
    x, y = np.zeros((3, 0), np.float32), np.zeros((0, 2), np.float32)
    assert same(run("dot", x, y, rule="m k, k n -> m n"), np.zeros((3, 2), np.float32))
    nan = np.array([[np.nan, 1], [np.inf, 0]], np.float32)
    got = run("dot", nan, np.eye(2, dtype=np.float32), rule="m k, k n -> m n")
    assert np.isnan(got).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("ends", [[2, 2, 5], [0, 7, 9], [9, 9, 9]], ids=str)
@pytest.mark.parametrize(
    "rule",
    ["s! k, g^ k n, g^ -> s! n", "k s!, g^ n k, g^ -> n s!", "s! k, s! n, g^ -> g^ k n",
     "k s!, n s!, g^ -> n g^ k"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32"])
def test_ragged_dot(rule: str, dtype: str, ends: list[int]) -> None:
    """A dot with the matrix that says which row is in which group; here of 7 rows."""
    sizes = {"s": 7, "k": 4, "n": 5, "g": 3}
    text = rule.replace("!", "").replace("^", "").replace(" ", "")
    left, right, _ = text.split("->")[0].split(",")
    x, y = (
        numbers(dtype, *(sizes[c] for c in side), seed=k) for k, side in enumerate((left, right))
    )
    rows, starts = np.arange(7), np.array([0, *ends[:-1]])
    member = (rows >= starts[:, None]) & (rows < np.array(ends)[:, None])
    got = run("ragged_dot", x, y, np.array(ends), dtypes=(dtype, dtype, "i64"), rule=rule)
    made = text.partition("->")[2]
    wide = np.float64 if dtype in FLOATS else np.int64
    expected = np.einsum(f"{left},{right},gs->{made}", *(a.astype(wide) for a in (x, y, member)))
    if dtype not in FLOATS:
        assert same(got, expected.astype(DTYPES[dtype].numpy))
        return
    limit = 20 * TOLERANCE[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=limit, atol=limit)


def conv_attrs(rank: int, **change: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "stride": (1,) * rank, "low": (0,) * rank, "high": (0,) * rank,
        "lhs_dilation": (1,) * rank, "rhs_dilation": (1,) * rank, "groups": 1,
    }  # fmt: skip
    return plain | change


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_conv_as_torch(rank: int, stride: int, dilation: int, groups: int) -> None:
    x = numbers("f64", 2, 4, *(7, 6, 5)[:rank])
    w = numbers("f64", 8, 4 // groups, *(3, 2, 1)[:rank], seed=1)
    padding = (1, 2, 0)[:rank]
    attrs = conv_attrs(rank, stride=(stride,) * rank, low=padding, high=padding,
                       rhs_dilation=(dilation,) * rank, groups=groups)  # fmt: skip
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    expected = function(
        torch.from_numpy(x), torch.from_numpy(w), None, stride, padding, dilation, groups
    )
    np.testing.assert_allclose(run("conv", x, w, **attrs), expected.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("pad", [(0, 0), (2, -1), (-2, 3), (-1, -1), (4, 4)])
def test_conv_with_a_dilated_input_and_negative_padding(
    dilation: int, pad: tuple[int, int]
) -> None:
    x, w = numbers("f64", 1, 2, 6), numbers("f64", 3, 2, 2, seed=1)
    attrs = conv_attrs(1, low=(pad[0],), high=(pad[1],), lhs_dilation=(dilation,), stride=(2,))
    spread = np.zeros((1, 2, 5 * dilation + 1))
    spread[..., ::dilation] = x
    spread = np.pad(spread, [(0, 0), (0, 0), (max(pad[0], 0), max(pad[1], 0))])
    spread = spread[..., max(-pad[0], 0) : spread.shape[2] - max(-pad[1], 0)]
    expected = torch.conv1d(torch.from_numpy(spread.copy()), torch.from_numpy(w), stride=2)
    np.testing.assert_allclose(run("conv", x, w, **attrs), expected.numpy(), rtol=1e-12, atol=1e-12)


def test_conv_edges() -> None:
    x, w = numbers("f32", 2, 3, 4), numbers("f32", 5, 3, 6)
    assert run("conv", x, w, **conv_attrs(1)).shape == (2, 5, 0)  # the window does not fit
    assert run("conv", x, w, **conv_attrs(1, low=(-9,), high=(-9,))).shape == (2, 5, 0)
    assert same(run("conv", x[:, :0], w[:, :0], **conv_attrs(1, low=(1,), high=(1,))),
                np.zeros((2, 5, 1), np.float32))  # fmt: skip
    assert run("conv", x[:0], w, **conv_attrs(1, low=(2,))).shape == (0, 5, 1)
    empty = run("conv", x[..., :0], w, **conv_attrs(1, low=(4,), high=(4,), lhs_dilation=(2,)))
    assert same(empty, np.zeros((2, 5, 3), np.float32))
    points = run("conv", x[..., 0], w[..., 0], **conv_attrs(0))
    np.testing.assert_allclose(points, x[..., 0] @ w[..., 0].T, rtol=1e-5, atol=1e-5)
    half = numbers("i8", 1, 64, 5)
    kernel = numbers("i8", 2, 64, 3, seed=1)
    wide = torch.conv1d(
        torch.from_numpy(half.astype(np.float64)), torch.from_numpy(kernel.astype(np.float64))
    )
    assert same(
        run("conv", half, kernel, **conv_attrs(1)), wide.numpy().astype(np.int64).astype(np.int8)
    )


# ---- control


def test_control() -> None:
    TESTED.update(("cond", "while", "call", "fusion", "item", "param"))
    p = param("p", tensor("f32", 2))
    blocks = tuple(Block((p,), (b.mul(p, float(k + 1)),)) for k in range(3))
    x = np.float32([1, 2])
    for index, scale in ((-5, 1), (0, 1), (1, 2), (2, 3), (9, 3)):
        i = param("i", tensor("i32"))
        func = Func("f", Block((i, p), (b.cond(i, p, blocks=blocks),)))
        assert func.interpret(np.int32(index), x).tolist() == (x * scale).tolist()
    c = param("c", tensor("bool"))
    func = Func("f", Block((c, p), (b.cond(c, p, blocks=blocks[:2]),)))
    assert func.interpret(np.bool_(False), x).tolist() == [1, 2]
    assert func.interpret(np.bool_(True), x).tolist() == [2, 4]
    two = Block((p,), (b.neg(p), b.exp(p)))
    for op, attrs in (("call", {"name": "g"}), ("fusion", {"kind": "loop"})):
        made = b.op(op, (p,), attrs, (two,))
        func = Func("f", Block((p,), (b.item(made, index=1), b.item(made, index=0))))
        first, second = func.interpret(x)
        assert same(first, np.exp(x)) and same(second, -x)
    n, v = param("n", tensor("i64")), param("v", tensor("f32"))
    loop = b.while_(
        n, v, blocks=(Block((n, v), (b.gt(n, 0),)), Block((n, v), (b.sub(n, 1), b.mul(v, 2.0))))
    )
    func = Func("f", Block((n, v), (b.item(loop, index=1),)))
    assert func.interpret(np.int64(10), np.float32(1)) == 1024
    assert func.interpret(np.int64(-1), np.float32(1)) == 1
    single = b.while_(n, blocks=(Block((n,), (b.gt(n, 5),)), Block((n,), (b.sub(n, 2),))))
    assert Func("f", Block((n,), (single,))).interpret(np.int64(10)) == 4


# ---- calling


def test_arguments_are_checked_by_name() -> None:
    n = symbol("n", 2, 64, 2)
    x, y = param("x", tensor("f32", n, 3)), param("y", tensor("f32", 2 * n + 1))
    func = Func("f", Block((x, y), (b.neg(x),)))
    f32 = np.float32
    assert func.interpret(np.ones((4, 3), f32), np.ones(9, f32)).shape == (4, 3)
    with pytest.raises(TypeError, match=r"@f takes 2 arguments \(x, y\), got 1"):
        func.interpret(np.ones((4, 3), f32))
    with pytest.raises(ValueError, match=r"argument %x is f32\[n, 3\].*got shape \[4, 2\]"):
        func.interpret(np.ones((4, 2), f32), np.ones(9, f32))
    with pytest.raises(ValueError, match=r"argument %x .*got shape \[12\]"):
        func.interpret(np.ones(12, f32), np.ones(9, f32))
    with pytest.raises(ValueError, match=r"argument %y .*got shape \[8\]"):
        func.interpret(np.ones((4, 3), f32), np.ones(8, f32))
    with pytest.raises(ValueError, match=r"argument %x .*multiple of 2"):
        func.interpret(np.ones((5, 3), f32), np.ones(11, f32))
    with pytest.raises(TypeError, match=r"argument %x is f32\[.*\], got float64 values"):
        func.interpret(np.ones((4, 3)), np.ones(9, f32))
    # a size that appears only inside of an expression is solved
    alone = Func("f", Block((y,), (b.size_of(n),)))
    assert alone.interpret(np.ones(9, f32)) == 4
    with pytest.raises(ValueError, match="argument %y"):
        alone.interpret(np.ones(10, f32))


def test_bf16_arguments() -> None:
    x = param("x", tensor("bf16", 2))
    func = Func("f", Block((x,), (b.add(x, 1.0),)))
    got = func.interpret(np.array([1, 2], ml_dtypes.bfloat16))
    assert got.dtype == np.float32
    assert got.tolist() == [2, 3]
    assert func.interpret(np.float32([1.0009765625, 2])).tolist() == [2, 3]
    with pytest.raises(TypeError, match="bf16"):
        func.interpret(np.float64([1, 2]))


def test_strange_layouts_and_read_only_arguments() -> None:
    x = param("x", tensor("f32", 3, 2))
    func = Func("f", Block((x,), (b.exp(x), b.transpose(x, perm=(1, 0)))))
    array = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2].T
    frozen = array.copy()
    frozen.flags.writeable = False
    for held in (array, frozen, np.asfortranarray(frozen), array[::-1][::-1]):
        first, second = func.interpret(held)
        assert same(first, np.exp(array)) and same(second, array.T)


def test_every_tensor_op_is_tested_here() -> None:
    # the framework's, the operators', the kernels'; streams and collectives have files of their own
    outside = {"custom", "opaque", "kernel", "var", "stream"}
    untested = {n for n in TENSOR_OPS if n not in TESTED} - outside
    collected = {n for n in untested if OPS[n].kind not in ("foreign", "collective")}
    if len(TESTED) > 40:  # the whole file ran
        assert not collected
