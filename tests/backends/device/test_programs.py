"""Whole functions through the runtime of the GPU backends, on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from device_backend import BACKEND
from executed import agrees, func_of
from kernel_cases import CASES, Spec, random_array

from stack.backends.device.tensors import adopt
from stack.errors import StackError
from stack.frontends.torch.tensors.arrays import call_opaque
from stack.ir import Builder, Func, Node, param, tensor
from stack.run.backend import Executable
from stack.run.compile import compile_func


def check(func: Func, arrays: list[np.ndarray], tolerance: float = 1e-5) -> Executable:
    executable = compile_func(func, BACKEND)
    agrees(executable, func, arrays, tolerance)
    return executable


@pytest.mark.parametrize(("build", "specs"), CASES, ids=lambda c: getattr(c, "__name__", None))
def test_cases(
    build: Callable[..., Node | tuple[Node, ...]], specs: list[Spec], rng: np.random.Generator
) -> None:
    arrays = [random_array(s, rng) for s in specs]
    check(func_of(build, specs), arrays, 2e-2 if specs[0][0] in ("bf16", "f16") else 1e-5)


DOTS = (
    ("m k, k n -> m n", (5, 7), (7, 3)),
    ("m k, n k -> m n", (5, 7), (3, 7)),
    ("k m, k n -> n m", (7, 5), (7, 3)),
    ("b m k, b k n -> b m n", (2, 5, 7), (2, 7, 3)),
    ("b m h k, b n h k -> b h m n", (2, 5, 3, 4), (2, 6, 3, 4)),
    ("b h m n, b n h k -> b m h k", (2, 3, 5, 6), (2, 6, 3, 4)),
    ("m k, k -> m", (5, 7), (7,)),
    ("k, k -> ", (7,), (7,)),
    ("m k, n -> m n", (5, 7), (3,)),
    ("m k, k n -> m n", (5, 0), (0, 3)),
    ("m k, k n -> m n", (0, 7), (7, 3)),
)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32", "u8"])
@pytest.mark.parametrize(("rule", "left", "right"), DOTS)
def test_dots(rule: str, left: Spec, right: Spec, dtype: str, rng: np.random.Generator) -> None:
    func = func_of(lambda b, x, y: b.dot(x, y, rule=rule), [(dtype, *left), (dtype, *right)])
    arrays = [random_array((dtype, *s), rng) for s in (left, right)]
    check(func, arrays, 3e-2 if dtype == "bf16" else 1e-5)


def test_integer_dot_without_a_matrix_product(rng: np.random.Generator) -> None:
    from stack.backends.device.products import integer_dot

    func = func_of(
        lambda b, x, y: b.dot(x, y, rule="b m h k, b n h k -> b h m n"),
        [("i64", 2, 5, 3, 4), ("i64", 2, 6, 3, 4)],
    )
    x, y = (rng.integers(-(2**62), 2**62, p.shape) for p in func.params)
    found = integer_dot(func.results[0], torch.from_numpy(x), torch.from_numpy(y), torch.int64)
    np.testing.assert_array_equal(found.numpy(), func.interpret(x, y))


def test_results_that_are_inputs_constants_or_twice_the_same(rng: np.random.Generator) -> None:
    b = Builder()
    x = param("x", tensor("f32", 3, 4))
    y = b.exp(x)
    flat = b.reshape(x, type=tensor("f32", 12))
    table = b.const(np.arange(40, dtype=np.float32))
    func = b.func("main", [x], [x, y, y, flat, table, b.reshape(y, type=flat.type)])
    value = rng.normal(size=(3, 4)).astype(np.float32)
    executable = check(func, [value])
    assert executable.prepare is not None
    assert executable.call is not None
    inputs = executable.prepare([value])
    found = [*inputs, *executable.call(inputs), *executable.call(inputs)]
    assert len({t.data_ptr() for t in found}) == len(found)


def test_empty_and_scalar() -> None:
    b = Builder()
    x = param("x", tensor("f32", 0, 4))
    s = param("s", tensor("f32"))
    func = b.func("main", [x, s], [b.exp(x), b.reduce(x, kind="max", axes=(0,)), b.neg(s)])
    check(func, [np.zeros((0, 4), np.float32), np.asarray(2, np.float32)])


@pytest.mark.parametrize("start", [0, 5])
def test_loops_and_branches(start: int, rng: np.random.Generator) -> None:
    b = Builder()
    i, x = param("i", tensor("i32")), param("x", tensor("f32", 4))
    test = b.block([i, x], [b.lt(i, 5)])
    body = b.block([i, x], [b.add(i, 1), b.mul(x, 1.5)])
    outside = param("v", tensor("f32", 4))
    loop = b.while_(b.const(start, "i32"), outside, blocks=(test, body))
    after = b.item(loop, index=1)
    yes = b.block([x], [b.exp(x)])
    no = b.block([x], [b.neg(x)])
    pick = param("pick", tensor("i32"))
    chosen = b.cond(pick, after, blocks=(yes, no))
    func = b.func("main", [outside, pick], [chosen, after])
    value = rng.normal(size=4).astype(np.float32)
    check(func, [value, np.asarray(0, np.int32)])
    executable = check(func, [value, np.asarray(1, np.int32)])
    assert executable.profile is not None
    assert len(executable.profile([value, np.asarray(1, np.int32)])) == len(executable.kernels)


def test_memory_that_is_not_there_is_an_error_with_bytes_and_value() -> None:
    b = Builder()
    x = param("x", tensor("f32"))
    huge = b.broadcast(x, axes=(), type=tensor("f32", 1 << 50))
    func = b.func("main", [x], [b.exp(huge)])
    executable = compile_func(func, BACKEND)
    with pytest.raises(StackError, match=rf"f32\[{1 << 50}\] needs {4 << 50} bytes"):
        executable.run([np.asarray(1, np.float32)])


def test_arrays_of_the_device_are_taken_as_they_are() -> None:
    types = [tensor("f32", 8), tensor("f32", 8), tensor("f32", 4, 2)]
    dense = torch.randn(8)
    apart = torch.randn(9)[1:]
    turned = torch.randn(2, 4).T
    found = adopt([dense, apart, turned], types, torch.device("cpu"))
    assert found[0].data_ptr() == dense.data_ptr()
    assert found[1].data_ptr() % 16 == 0
    assert found[2].is_contiguous()
    assert torch.equal(found[1], apart)
    assert torch.equal(found[2], turned)
    with pytest.raises(TypeError, match=r"torch\.float64"):
        adopt([dense.double(), apart, turned], types, torch.device("cpu"))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", ["i64", "i32", "u8"])
def test_convolutions_of_integers(dtype: str, groups: int, rng: np.random.Generator) -> None:
    """Torch has none on a GPU."""
    specs: list[Spec] = [(dtype, 2, 4, 9, 8), (dtype, 6, 4 // groups, 3, 2)]

    def build(b: Builder, x: Node, w: Node) -> Node:
        return b.conv(
            x, w, stride=[2, 1], low=[1, 0], high=[0, 2], lhs_dilation=[1, 2], rhs_dilation=[1, 3],
            groups=groups,
        )  # fmt: skip

    arrays = [random_array(s, rng) for s in specs]
    check(func_of(build, specs), arrays, 0)


VIEWS: dict[str, tuple[tuple[int, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "transpose.int": ((0, 2), lambda x: x.swapaxes(0, 2)),
    "diagonal.default": ((0, 0, 1), lambda x: x.diagonal(0, 0, 1)),
    "select.int": ((1, 1), lambda x: x[:, 1]),
}


@pytest.mark.parametrize("op", VIEWS)
def test_views_that_the_framework_makes(op: str, rng: np.random.Generator) -> None:
    numbers, view = VIEWS[op]
    array = rng.standard_normal((3, 4, 4)).astype(np.float32)
    want = view(np.exp(array))

    def build(b: Builder, x: Node) -> tuple[Node, ...]:
        call = ((("tensor", 0, "f32"), *(("value", n) for n in numbers)), ())
        attrs = {"target": f"torch:aten.{op}", "call": call}
        made = b.op("opaque", [b.op("exp", [x])], attrs, hint=tensor("f32", *want.shape))
        return made, b.op("sin", [b.op("exp", [b.op("neg", [made])])])

    func = func_of(build, [("f32", *array.shape)])
    executable = compile_func(func, BACKEND, options={"call_opaque": call_opaque})
    for _ in range(2):
        found = executable.run([array])
        np.testing.assert_allclose(found[0], want, rtol=1e-5)
        np.testing.assert_allclose(found[1], np.sin(np.exp(-want)), rtol=1e-4, atol=1e-5)
