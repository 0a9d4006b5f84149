"""Every hosted operator: its reference, its decomposition and the IR compute the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hosted_cases import CASES, Case, own

import stack
from stack.errors import RuleError, UsageError
from stack.hosted import find
from stack.hosted.nodes import custom, decomposed
from stack.ir.builder import Builder, param
from stack.ir.cost import cost
from stack.ir.ops import footprint
from stack.ir.types import TensorType, dtype_of


def node_of(case: Case, arrays: list[np.ndarray]) -> stack.Func:
    b = Builder()
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    params = [param(n, t) for n, t in zip(case.op.operands, types, strict=True)]
    return b.func("f", params, custom(b, case.op, params, case.attributes))


def results(value: object) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)  # pyright: ignore


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_is_the_decomposition_is_the_node(case: Case) -> None:
    arrays = case.arrays()
    read = case.op.read(case.attributes)
    func = node_of(case, arrays)
    assert stack.parse(str(func)) is func
    stack.verify(func)
    plain = results(case.op.decomposition(np, *arrays, **read))
    reference = results(case.op(*arrays, **case.attributes))
    for found, algorithm, expected in zip(
        results(func.interpret(*arrays)), reference, plain, strict=True
    ):
        assert found.dtype == expected.dtype == algorithm.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(algorithm, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_half_precision_is_summed_wide(case: Case) -> None:
    arrays = [a.astype(np.float16) if a.dtype == np.float64 else a for a in case.arrays()]
    wide = [a.astype(np.float64) if a.dtype == np.float16 else a for a in arrays]
    expected = results(case.op(*wide, **case.attributes))
    for found, exact in zip(results(node_of(case, arrays).interpret(*arrays)), expected):
        np.testing.assert_allclose(found, exact, rtol=2e-3, atol=2e-3 * max(1, np.abs(exact).max()))


def test_every_operator_has_a_case() -> None:
    assert {c.name for c in CASES} == own()


def test_a_node_may_read_all_and_costs_what_its_decomposition_costs() -> None:
    case = CASES[0]
    node = node_of(case, case.arrays()).results[0]
    x, weight = footprint(node, (1, 2, 3))
    assert x is not None and [(r.start, r.last) for r in x] == [(0, 1), (0, 2), (0, 7)]
    assert weight is not None and [(r.start, r.last) for r in weight] == [(0, 7)]
    assert cost(node).read == (2 * 3 * 8 + 8) * 8
    assert cost(node).written == 2 * 3 * 8 * 8


@pytest.mark.parametrize(
    ("name", "shapes", "told"),
    [
        ("norm.rms_norm", [(4, 8), (7,)], r"rule '\.\.\. d!, d! -> \.\.\. d!'.*'weight'"),
        ("norm.rms_norm", [(), (7,)], "'x' has 0 axes"),
        ("norm.layer_norm", [(4, 8), (8,), (1, 8)], "'bias' has 2 axes"),
        ("loss.cross_entropy", [(4, 8), (4, 1)], "'target' has 2 leading axes"),
        ("loss.linear_cross_entropy", [(4, 8), (9, 7), (4,)], "axis 'k'.*'weight'"),
        ("activation.swiglu", [(4, 8), (4, 9)], "'up'"),
        (
            "attention.attention",
            [(3, 4, 8), (2, 4, 8), (2, 4, 8)],
            "size 3 .*'q'.* product of g=2, r=1",
        ),
        ("attention.with_sinks", [(2, 5, 8), (2, 4, 8), (2, 4, 8), (2,)], "5 sees none of 4"),
        ("qgemm.w4a16", [(4, 12), (5, 6), (5, 5)], "'scales' has 5 groups"),
        ("qgemm.w4a16", [(4, 12), (5, 5), (5, 2)], "'packed' has 10 weights"),
        ("activation.swiglu", [(4, 8)], "takes 2 arrays"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_by_name(
    name: str, shapes: list[tuple[int, ...]], told: str
) -> None:
    made = find(name)
    asked = {"u8": np.uint8, "int": np.int32}
    dtypes = [asked.get(kind, np.float32) for kind in made.asked]
    with pytest.raises(RuleError, match=told):
        made(*(np.zeros(s, dtype) for s, dtype in zip(shapes, dtypes)))


@pytest.mark.parametrize("name", sorted(own()))
def test_elements_of_another_kind_are_refused_by_name(name: str) -> None:
    """Integers for floats and floats for integers, of every operand."""
    case = next(c for c in CASES if c.name == name)
    arrays = case.arrays("float32")
    for place, (operand, asked) in enumerate(zip(case.op.operands, case.op.asked, strict=True)):
        wrong = list(arrays)
        wrong[place] = arrays[place].astype(np.int32 if asked == "float" else np.float32)
        if asked != "any":
            with pytest.raises(RuleError, match=rf"{name}: '{operand}' has elements of"):
                case.op(*wrong, **case.attributes)


@pytest.mark.parametrize(
    ("name", "operand", "dtype", "told"),
    [
        (
            "attention.attention",
            "q",
            "float16",
            "'q' has elements of f16; to match the others it may have f32",
        ),
        (
            "lora.linear",
            "a",
            "float64",
            "'a' has elements of f64; to match the others it may have f32",
        ),
        (
            "attention.with_prefix",
            "prefix",
            "float32",
            "'prefix' .* to match the others it may have integers",
        ),
        (
            "attention.with_alibi",
            "slopes",
            "int8",
            "'slopes' .* to match the others it may have floats",
        ),
        ("qgemm.fp8", "x_scale", "float64", "'x_scale' .* f32; or 'weight_scale' .* f64"),
    ],
)
def test_elements_that_do_not_go_together_are_refused_by_name(
    name: str, operand: str, dtype: str, told: str
) -> None:
    case = next(c for c in CASES if c.name == name)
    arrays = case.arrays("float32")
    place = case.op.operands.index(operand)
    arrays[place] = arrays[place].astype(dtype)
    with pytest.raises(RuleError, match=told):
        case.op(*arrays, **case.attributes)


def test_elements_have_a_name() -> None:
    with pytest.raises(UsageError, match="no elements are called 'i33'; did you mean"):
        stack.op("toys.counted", rule="n: i33 -> n")(lambda np, x: x)


@pytest.mark.parametrize("name", sorted(own()))
def test_an_axis_that_is_reduced_is_not_empty(name: str) -> None:
    """Checks every operator, for every reduced axis of its rule."""
    case = next(c for c in CASES if c.name == name)
    shapes = [a.shape for a in case.arrays()]
    rule = case.op.rule_for([len(s) for s in shapes])
    kept = {axis for side in rule.outputs for axis in side}
    for reduced in {axis for side in rule.inputs for axis in side} - kept:
        if set(reduced.names) & {n for axis in kept for n in axis.names}:
            continue
        empty = [
            tuple(0 if axis == reduced else size for axis, size in zip(side, shape))
            for side, shape in zip(rule.inputs, shapes, strict=True)
        ]
        where = next(n for n, s in zip(case.op.operands, empty, strict=True) if 0 in s)
        with pytest.raises(RuleError, match=f"'{where}' has size 0 along '{reduced.names[0]}'"):
            case.op.shapes(empty)


@pytest.mark.parametrize("name", sorted(own()))
def test_an_axis_without_elements_has_a_result_or_is_named(name: str) -> None:
    """Checks every operator, for every axis of its rule."""
    case = next(c for c in CASES if c.name == name)
    arrays = case.arrays("float32")
    rule = case.op.rule_for([a.ndim for a in arrays])
    types = [TensorType(dtype_of(a), a.shape) for a in arrays]
    attributes = tuple(sorted(case.op.read(case.attributes).items()))
    for empty in {n for side in rule.inputs for axis in side for n in axis.names}:
        cut = tuple(
            t.with_shape(tuple(0 if empty in a.names else s for a, s in zip(side, t.shape)))
            for side, t in zip(rule.inputs, types, strict=True)
        )
        try:
            decomposed(case.op, cut, attributes)
        except RuleError as error:
            assert re.search(rf"'({'|'.join(case.op.operands)})'", str(error)), error


@pytest.mark.parametrize("name", sorted(own()))
def test_an_axis_of_two_sizes_is_named(name: str) -> None:
    """Checks every operator; each argument gets one more along each axis that another has too."""
    case = next(c for c in CASES if c.name == name)
    types = [TensorType(dtype_of(a), a.shape) for a in case.arrays("float32")]
    rule = case.op.rule_for([t.rank for t in types])
    for place, side in enumerate(rule.inputs):
        for at, axis in enumerate(side):
            shapes = [t.shape for t in types]
            if sum(axis in s for s in rule.inputs) > 1:
                own = shapes[place]
                shapes[place] = (*own[:at], int(own[at]) + 1, *own[at + 1 :])
                with pytest.raises(RuleError, match=f"'({'|'.join(case.op.operands)})'"):
                    case.op.shapes(shapes)


@pytest.mark.parametrize(
    ("packed", "told"), [("uint8", "'scales' has 5 groups"), ("int32", "'packed' .* asks for u8")]
)
def test_frameworks_refuse_the_same_before_a_kernel_is_asked(packed: str, told: str) -> None:
    made = find("qgemm.w4a16")
    arrays = [np.zeros((4, 12), "f4"), np.zeros((5, 6), packed), np.zeros((5, 5), "f4")]
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    tensors, traced = list(map(torch.from_numpy, arrays)), list(map(jax.numpy.asarray, arrays))
    for run, args in ((made, tensors), (made, traced), (jax.jit(made), traced)):
        with pytest.raises(RuleError, match=told):
            run(*args)
    with pytest.raises(Exception, match=f"(?s){told}.*at {Path(__file__).name}"):
        stack.compile(lambda *xs: made(*xs), *tensors)


def test_attributes_are_refused_by_name() -> None:
    x, w = np.zeros((2, 3)), np.zeros(3)
    with pytest.raises(UsageError, match="'ep'; did you mean 'eps'"):
        find("norm.rms_norm")(x, w, ep=1.0)
    with pytest.raises(UsageError, match="'eps' is a float, not '1'"):
        find("norm.rms_norm")(x, w, eps="1")
    with pytest.raises(UsageError, match=r"norm\.rms_norm"):
        find("norm.rms_nom")
