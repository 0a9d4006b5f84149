"""Whole functions through the mlir backend against the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from executed import agrees, func_of
from kernel_cases import CASES, Spec, random_array

from stack.ir import Builder, Func, Node, param, tensor
from stack.run.compile import compile_func
from stack.run.record import Run

NO_CACHE = {"cache": False}


def check(func: Func, arrays: list[np.ndarray], tolerance: float = 1e-5) -> Run:
    run = Run("test")
    agrees(compile_func(func, "mlir", run, options=NO_CACHE), func, arrays, tolerance)
    return run


@pytest.mark.parametrize(("build", "specs"), CASES, ids=lambda c: getattr(c, "__name__", None))
def test_cases(
    build: Callable[..., Node | tuple[Node, ...]], specs: list[Spec], rng: np.random.Generator
) -> None:
    arrays = [random_array(s, rng) for s in specs]
    check(func_of(build, specs), arrays, 2e-2 if specs[0][0] in ("bf16", "f16") else 1e-5)


@pytest.mark.parametrize("width", [9, 17, 33, 113])
def test_odd_rows_of_bf16(width: int, rng: np.random.Generator) -> None:
    """LLVM aborts where it moves such a vector, where the CPU converts to bf16."""
    spec: Spec = ("bf16", 7, width)

    def moves(b: Builder, x: Node) -> tuple[Node, ...]:
        return (
            b.broadcast(x, axes=(0, 2), type=tensor("bf16", 7, 3, width)),
            b.pad(x, 0.0, low=(0, 0), high=(1, 0), interior=(0, 0)),
        )

    check(func_of(moves, [spec]), [random_array(spec, rng)])


def test_results_that_are_inputs_constants_or_twice_the_same(rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 3, 4))
    y = b.exp(x)
    flat = b.reshape(x, type=tensor("f32", 12))
    table = b.const(np.arange(40, dtype=np.float32))
    func = b.func("main", [x], [x, y, y, flat, table, b.reshape(y, type=flat.type)])
    value = rng.normal(size=(3, 4)).astype(np.float32)
    check(func, [value])
    executable = compile_func(func, "mlir", options=NO_CACHE)
    first, *_ = executable.run([value])
    assert not np.shares_memory(first, value)


def test_empty_and_scalar(rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 0, 4))
    s = param("s", tensor("f32"))
    func = b.func("main", [x, s], [b.exp(x), b.reduce(x, kind="max", axes=(0,)), b.neg(s)])
    check(func, [np.zeros((0, 4), np.float32), np.float32(2)])


def test_loops_and_branches(rng: np.random.Generator) -> None:
    b = Builder()
    i, x = param("i", tensor("i32")), param("x", tensor("f32", 4))
    test = b.block([i, x], [b.lt(i, 5)])
    body = b.block([i, x], [b.add(i, 1), b.mul(x, 1.5)])
    start = b.const(0, "i32")
    outside = param("v", tensor("f32", 4))
    loop = b.while_(start, outside, blocks=(test, body))
    p = param("p", tensor("f32", 4))
    branches = (b.block([p], [b.neg(p)]), b.block([p], [b.exp(p)]))
    pick = param("pick", tensor("bool"))
    chosen = b.cond(pick, b.item(loop, index=1), blocks=branches)
    func = b.func("main", [outside, pick], [chosen, b.item(loop, index=0)])
    value = rng.normal(size=4).astype(np.float32)
    check(func, [value, np.asarray(True)])
    check(func, [value, np.asarray(False)])


def test_a_kernel_is_compiled_once_for_equal_bodies() -> None:
    b = Builder()
    x = param("x", tensor("f32", 8, 64))
    y = x
    for _ in range(4):
        w = b.reduce(b.mul(y, y), kind="sum", axes=(1,))
        y = b.div(y, b.broadcast(w, axes=(0,), type=x.type))
        y = b.item(b.sort(y, axis=1, num_keys=1, descending=False), index=0)
    run = check(b.func("main", [x], [y]), [np.ones((8, 64), np.float32)])
    generated = [k for k in run.kernels if k.kind == "generated"]
    assert len(generated) == 4
    assert len({k.name for k in generated}) == 1


def test_integer_division_does_not_trap() -> None:
    b = Builder()
    x, y = param("x", tensor("i32", 4)), param("y", tensor("i32", 4))
    func = b.func("main", [x, y], [b.div(x, y), b.rem(x, y)])
    low = np.iinfo(np.int32).min
    executable = compile_func(func, "mlir", options=NO_CACHE)
    quotient, rest = executable.run(
        [np.array([7, -7, low, 5], np.int32), np.array([2, 2, -1, 0], np.int32)]
    )
    np.testing.assert_array_equal(quotient, [3, -3, low, -1])
    np.testing.assert_array_equal(rest, [1, -1, 0, 5])


@pytest.mark.parametrize("name", ["sort", "conv", "dot"])
def test_library_steps_are_labelled(name: str, rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 2, 3, 9, 8))
    if name == "sort":
        made = b.item(b.sort(x, axis=2, num_keys=1, descending=True), index=0)
    elif name == "conv":
        w = b.const(np.ones((4, 3, 3, 3), np.float32))
        pads = {"low": (1, 0), "high": (1, 2), "lhs_dilation": (1, 1), "rhs_dilation": (1, 2)}
        made = b.conv(x, w, stride=(2, 1), groups=1, **pads)
    else:
        made = b.dot(x, x, rule="a b c d, a b e d -> a b c e")
    run = check(b.func("main", [x], [made]), [rng.normal(size=(2, 3, 9, 8)).astype(np.float32)])
    assert {k.kind for k in run.kernels} <= {"library", "generated"}
    assert any(k.kind == "library" for k in run.kernels) or name == "dot"


def test_a_scatter_without_an_index() -> None:
    """No axis is marked: every update has one place, and there are two operands."""
    func = func_of(
        lambda b, x, u: b.scatter(b.neg(x), u, rule="a, a -> a", kind="add"),
        [("f32", 3), ("f32", 3)],
    )
    rng = np.random.default_rng()
    check(func, [rng.standard_normal(3).astype(np.float32) for _ in range(2)])
