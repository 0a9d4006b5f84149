"""Every tensor op in torch means what it means in NumPy; replays compile and export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch_harness import capture, to_array, to_tensor

import stack
from stack.demos import models, models_torch
from stack.frontends.torch.replay.space import callable_of, replay
from stack.ir.builder import Builder, param
from stack.ir.data import round_bf16
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.types import BF16, BOOL, DTYPES, F32, I32, I64, TensorType, tensor

RNG = np.random.default_rng(0)
KINDS = {"b": ["bool"], "i": ["i8", "i32", "i64"], "u": ["u8", "u16", "u32"], "f": ["f32", "f64"]}


def values(type_: TensorType, low: float = -4, high: float = 4) -> np.ndarray:
    dtype = type_.dtype
    if dtype.kind == "b":
        return RNG.random(type_.shape) > 0.5
    if dtype.kind in "iu":
        least = 0 if dtype.kind == "u" else int(low)
        return RNG.integers(least, int(high) + 1, type_.shape).astype(dtype.numpy)
    drawn = np.asarray(RNG.uniform(low, high, type_.shape)).astype(dtype.numpy)
    return round_bf16(drawn) if dtype is BF16 else drawn


def check(func: Func, *arrays: np.ndarray, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Eager replay and traced replay against the reference."""
    want = func.interpret(*arrays)
    want = want if isinstance(want, tuple) else (want,)
    inputs = [to_tensor(a, p.dtype) for a, p in zip(arrays, func.params, strict=True)]
    for run in (callable_of(func), replay(func)):
        found = run(*inputs)
        for mine, array, node in zip(found, want, func.results, strict=True):
            got = to_array(mine, node.dtype)
            assert got.shape == array.shape
            np.testing.assert_allclose(got, array, rtol=rtol, atol=atol, equal_nan=True)


def one(build: Callable[..., Any], *types: TensorType) -> Func:
    """A function that is one expression."""
    b = Builder()
    params = [param(f"p{i}", t) for i, t in enumerate(types)]
    out = build(b, *params)
    return b.func("f", params, out if isinstance(out, list) else [out])


def check_op(build: Callable[..., Any], *types: TensorType) -> None:
    check(one(build, *types), *(values(t) for t in types))


def dtypes_for(kinds: str) -> list[str]:
    return [name for kind in kinds for name in KINDS.get(kind, [])]


DOMAINS = {
    "acosh": (1.1, 9), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9),
    "log": (0.1, 9), "log2": (0.1, 9), "log1p": (-0.9, 9), "sqrt": (0, 9), "rsqrt": (0.1, 9),
    "erfinv": (-0.9, 0.9), "lgamma": (0.1, 9), "digamma": (0.1, 9), "tan": (-1.4, 1.4),
}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    low, high = DOMAINS.get(name, (-4, 4))
    for dtype in dtypes_for(UNARY[name][0]):
        type_ = tensor(dtype, 3, 4)
        func = one(lambda b, x: b.op(name, [x]), type_)
        check(func, values(type_, low, high), rtol=2e-5)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", [*BINARY, *COMPARE])
def test_binary(name: str) -> None:
    kinds = BINARY[name][0] if name in BINARY else "biuf"
    for dtype in dtypes_for(kinds):
        type_ = tensor(dtype, 3, 4)
        func = one(lambda b, x, y: b.op(name, [x, y]), type_, type_)
        x, y = values(type_), values(type_)
        if name in ("div", "rem") and DTYPES[dtype].is_integer:
            y = np.maximum(y, 1)
        if name in ("shl", "shr"):
            y = np.abs(y) % 5
        if name == "pow":
            x = np.abs(x)
            y = np.abs(y) % 4
        check(func, x, y.astype(x.dtype))


@pytest.mark.parametrize("name", ["eq", "lt", "ge", "max", "min", "add", "mul", "shr", "xor"])
def test_u64_keeps_its_top_bit(name: str) -> None:
    type_ = tensor("u64", 4)
    x = np.array([1, 1 << 63, (1 << 64) - 1, 5], np.uint64)
    y = np.array([1, 3, 1 << 63, 7], np.uint64)
    func = one(lambda b, a, c: b.op(name, [a, c]), type_, type_)
    check(func, x, y % 9 if name == "shr" else y)


def test_wide_unsigned_wraps() -> None:
    type_ = tensor("u32", 3)
    func = one(lambda b, x: b.shr(b.mul(b.add(x, x), x), 3), type_)
    check(func, np.array([1, 0xFFFFFFFF, 0x80000001], np.uint32))


def test_choices_and_casts() -> None:
    wide = tensor("f32", 2, 3)
    check_op(lambda b, t, x, y: b.select(t, x, y), tensor("bool", 2, 3), wide, wide)
    check_op(lambda b, t, x: b.select(t, x, 0.5), tensor("bool"), wide)
    for source in ("bool", "i8", "u8", "u32", "f32", "bf16", "f16"):
        for target in ("bool", "i8", "i64", "u32", "f32", "bf16", "f64"):
            type_ = tensor(source, 5)
            func = one(lambda b, x, t=target: b.cast(x, type=tensor(t, 5)), type_)
            check(func, values(type_, 0, 4))


@pytest.mark.parametrize(
    "pair", [("f32", "i32"), ("i32", "f32"), ("f32", "u32"), ("u32", "f32"), ("f64", "i64"),
             ("bf16", "i16"), ("i16", "bf16"), ("u64", "f64"), ("f16", "u16")],
)  # fmt: skip
def test_bitcast(pair: tuple[str, str]) -> None:
    source, target = tensor(pair[0], 4), tensor(pair[1], 4)
    func = one(lambda b, x: b.bitcast(x, type=target), source)
    check(func, values(source, 0, 4), rtol=0, atol=0)


def test_leaves() -> None:
    b = Builder()
    iota = b.iota(axis=1, type=tensor("u32", 2, 3))
    table = b.const(np.arange(4.0), F32)
    half = b.const(np.array([1.5, float("nan")]), "bf16")
    largest = b.const(np.uint64((1 << 64) - 1))
    check(b.func("f", [], [iota, table, half, largest, b.const(True)]))


def test_movement() -> None:
    x = tensor("f32", 3, 4)
    check_op(lambda b, v: b.reshape(v, type=tensor("f32", 2, 6)), x)
    check_op(lambda b, v: b.transpose(v, perm=(1, 0)), x)
    check_op(lambda b, v: b.broadcast(v, type=tensor("f32", 3, 2, 4), axes=(0, 2)), x)
    check_op(lambda b, v: b.slice(v, start=(0, 1), limit=(3, 4), step=(2, 1)), x)
    check_op(lambda b, v: b.reverse(v, axes=(0, 1)), x)
    check_op(lambda b, v: b.concat(v, v, axis=1), x)
    pads = {"low": (1, 0), "high": (0, 2), "interior": (0, 2)}
    check_op(lambda b, v: b.pad(v, 7.0, **pads), x)
    check_op(lambda b, v, s: b.pad(v, s, **pads), x, tensor("f32"))
    check_op(lambda b, v: b.pad(v, 7.0, **pads), tensor("f32", 0, 4))


def index(*shape: int) -> np.ndarray:
    return RNG.integers(0, 3, shape)


GATHERS = [
    ("v! d, i -> i d", [(5, 4)], [(6,)]),
    ("v! d, i j -> d i j", [(5, 4)], [(2, 3)]),
    ("a b!, a k -> a k", [(3, 5)], [(3, 2)]),
    ("a! b! c, i, i j -> c i j", [(3, 4, 2)], [(5,), (5, 6)]),
    ("a! b, -> b", [(3, 4)], [()]),
]


@pytest.mark.parametrize("case", GATHERS, ids=lambda c: c[0])
def test_gather(case: Any) -> None:
    rule, (shape,), places = case
    types = [tensor("f32", *shape), *(tensor("i64", *s) for s in places)]
    func = one(lambda b, x, *i: b.gather(x, *i, rule=rule), *types)
    check(func, values(types[0]), *(index(*s) for s in places))


@pytest.mark.each
@pytest.mark.parametrize("kind", ["add", "mul", "max", "min", "set"])
@pytest.mark.parametrize("dtype", ["f32", "i32", "bool"])
def test_scatter(kind: str, dtype: str) -> None:
    rule = "a! b, i, i b -> a! b"
    types = [tensor(dtype, 4, 3), tensor("i64", 3), tensor(dtype, 3, 3)]
    func = one(lambda b, x, i, u: b.scatter(x, i, u, rule=rule, kind=kind), *types)
    places = np.array([2, 0, 3] if kind == "set" else [2, 0, 2])
    check(func, values(types[0]), places, values(types[2]))


def test_scatter_into_one_number() -> None:
    """Inductor writes into an expanded tensor as if it were dense: it must not be given one."""

    def program(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.zeros_like(x).scatter(-1, i, w), torch.zeros_like(x).scatter_add(-1, i, w)

    rows = torch.arange(64)[:, None]
    args = torch.zeros(64, 8), (rows + torch.tensor([0, 3])) % 8, torch.rand(64, 2)
    compiled = stack.compile(program, *args, backend="inductor")
    torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)


@pytest.mark.each
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u32"])
def test_reduce(kind: str, dtype: str) -> None:
    for axes in ((0,), (0, 2), (0, 1, 2), ()):
        type_ = tensor(dtype, 2, 3, 4)
        func = one(lambda b, x, a=axes: b.reduce(x, kind=kind, axes=a), type_)
        check(func, values(type_, 1, 3), rtol=1e-2 if dtype == "bf16" else 1e-5)
    if dtype == "f32":
        check(
            one(lambda b, x: b.reduce(x, kind=kind, axes=(0,)), tensor("f32", 0, 2)),
            np.zeros((0, 2), np.float32),
        )


@pytest.mark.parametrize("dtype", ["bool", "i32", "u8"])
def test_reduce_bits(dtype: str) -> None:
    for kind in ("and", "or"):
        check_op(lambda b, x, k=kind: b.reduce(x, kind=k, axes=(0, 1)), tensor(dtype, 2, 3, 4))


@pytest.mark.parametrize(
    ("rule", "left", "right"),
    [
        ("s! k, g^ n k, g^ -> n s!", (7, 4), (3, 5, 4)),
        ("k s!, s! n, g^ -> n g^ k", (4, 7), (7, 5)),
    ],
)
def test_ragged_dot(rule: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    types = (tensor("f32", *left), tensor("f32", *right), tensor("i64", 3))
    func = one(lambda b, *args: b.op("ragged_dot", args, {"rule": rule}), *types)
    for ends in ([2, 2, 5], [0, 7, 9]):
        check(func, *map(values, types[:2]), np.array(ends))


def test_order() -> None:
    x = tensor("f32", 3, 5)
    hint = tensor("i32", 3)
    for kind in ("max", "min"):
        check_op(lambda b, v, k=kind: b.argreduce(v, kind=k, axis=1, type=hint), x)
    for kind in ("sum", "prod", "max", "min"):
        for back in (False, True):
            check_op(lambda b, v, k=kind, r=back: b.scan(v, kind=k, axis=1, reverse=r), x)
    for down in (False, True):
        func = one(lambda b, v, d=down: sort(b, v, d), tensor("i32", 2, 9))
        check(func, RNG.integers(0, 4, (2, 9)).astype(np.int32))


def sort(b: Builder, v: Node, descending: bool) -> list[Node]:
    second = b.iota(axis=1, type=TensorType(I64, v.shape))
    parity = b.and_(v, 1)
    both = b.sort(parity, v, second, axis=1, num_keys=2, descending=descending)
    return [b.item(both, index=i) for i in range(3)]


@pytest.mark.parametrize("dtype", ["bool", "u8", "i32", "i64", "f32"])
def test_dots_that_sum_over_an_axis_of_one_operand(dtype: str) -> None:
    types = tensor(dtype, 3, 4), tensor(dtype, 2, 4, 5)
    check_op(lambda b, x, y: b.dot(x, y, rule="a k, m k n -> a n"), *types)


def test_contractions() -> None:
    rule = "a m k, a n k -> a n m"
    for dtype in ("f32", "i64"):
        check_op(
            lambda b, x, y: b.dot(x, y, rule=rule), tensor(dtype, 2, 3, 4), tensor(dtype, 2, 5, 4)
        )
    half = tensor("bf16", 3, 4)
    check_op(lambda b, x: b.dot(x, x, rule="m k, n k -> m n", type=tensor("f32", 3, 3)), half)
    at = {
        "stride": (2, 1), "low": (1, -1), "high": (0, 2), "lhs_dilation": (1, 2),
        "rhs_dilation": (2, 1), "groups": 2,
    }  # fmt: skip
    check_op(
        lambda b, x, w: b.conv(x, w, **at), tensor("f32", 2, 4, 7, 6), tensor("f32", 6, 2, 2, 3)
    )


# ---- control


def branch(value: float) -> Block:
    b = Builder()
    x = param("x", tensor("f32", 3))
    return b.block([x], [b.mul(x, value)])


def countdown(b: Builder, n: Node, x: Node) -> list[Node]:
    def block(make: Callable[..., list[Node]]) -> Block:
        inner = Builder()
        params = [param("n", n.type), param("x", x.type)]
        return inner.block(params, make(inner, *params))

    test = block(lambda c, i, _: [c.gt(i, 0)])
    body = block(lambda c, i, v: [c.sub(i, 1), c.mul(v, 2.0)])
    both = b.op("while", [n, x], blocks=[test, body])
    return [b.item(both, index=i) for i in range(2)]


@pytest.mark.parametrize("which", [-1, 0, 1, 2, 9])
def test_cond(which: int) -> None:
    blocks = [branch(2.0), branch(3.0), branch(5.0)]
    types = [TensorType(I32, ()), tensor("f32", 3)]
    func = one(lambda b, i, x: b.op("cond", [i, x], blocks=blocks), *types)
    check(func, np.array(which, np.int32), values(types[1]))


def test_bool_cond() -> None:
    types = [TensorType(BOOL, ()), tensor("f32", 3)]
    blocks = [branch(2.0), branch(3.0)]
    func = one(lambda b, i, x: b.op("cond", [i, x], blocks=blocks), *types)
    for flag in (True, False):
        check(func, np.array(flag), values(types[1]))


def test_while() -> None:
    types = [TensorType(I64, ()), tensor("f32", 3)]
    func = one(countdown, *types)
    for n in (0, 4):
        check(func, np.array(n), values(types[1]))


def test_calls_and_fusions() -> None:
    def build(b: Builder, x: Node) -> Node:
        called = b.call(x, name="double", blocks=[branch(2.0)])
        return b.fusion(called, kind="loop", blocks=[branch(3.0)])

    check_op(build, tensor("f32", 3))


# ---- whole programs


def test_replay_compiles_and_exports() -> None:
    cfg = models.LlamaConfig(width=32, heads=4, kv_heads=2, ffn=64, seq=8)
    module, args = models_torch.make_llama_block(cfg)
    captured = capture(module, *args)
    inputs = (*captured.bound, *captured.flatten(*args))
    again = replay(captured.func)
    with torch.no_grad():
        eager = module(*args)
        torch.testing.assert_close(again(*inputs)[0], eager, rtol=1e-4, atol=1e-5)
        compiled = torch.compile(again, backend="aot_eager")
        torch.testing.assert_close(compiled(*inputs)[0], eager, rtol=1e-4, atol=1e-5)
        exported = torch.export.export(again, inputs)
        torch.testing.assert_close(exported.module()(*inputs)[0], eager, rtol=1e-4, atol=1e-5)


def test_replay_of_a_program_from_jax() -> None:
    jax = pytest.importorskip("jax")
    from stack.frontends.jax import FRONTEND as JAX

    def f(key: Any, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            carry = carry * 0.5 + row
            return carry, carry.sum()

        noise = jax.random.uniform(key, x.shape)
        return jax.lax.scan(step, x[0], x + noise)

    args = (jax.random.PRNGKey(0), jax.numpy.ones((4, 3)))
    captured = JAX.capture(f, args)
    arrays = [
        np.array(JAX.to_numpy(a, p.dtype))
        for a, p in zip([*captured.bound, *captured.flatten(*args)], captured.func.params)
    ]
    check(captured.func, *arrays)
