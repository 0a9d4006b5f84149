"""Facts of ops, on numbers: what a record says holds, and what it does not say has an exception."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from op_instances import instance

from stack.ir import Block, Builder, Func, Node, ops, param, tensor
from stack.ir.algebra import COMBINE, ELEMENTWISE, INF
from stack.ir.elementwise_ops import BINARY, COMPARE, UNARY
from stack.ir.ops import OPS

Array = np.ndarray[Any, Any]
b = Builder()
KINDS = {**{n: k for n, (k, _, _) in (UNARY | BINARY).items()}, **dict.fromkeys(COMPARE, "iuf")}
ONE = [n for n in ELEMENTWISE if n in UNARY]
TWO = [n for n in ELEMENTWISE if n in BINARY or n in COMPARE]
COUNT = 400
# where an op is defined, and an inverse brings back what went in
DOMAIN = {
    "sqrt": (0.01, 9), "rsqrt": (0.01, 9), "log": (0.01, 9), "log2": (0.01, 9), "log1p": (-0.9, 9),
    "asin": (-1, 1), "acos": (-1, 1), "acosh": (1, 9), "atanh": (-0.99, 0.99),
    "lgamma": (0.1, 9), "digamma": (-0.9, 9),
    "erfinv": (-0.99, 0.99), "tanh": (-4, 4), "erf": (-3, 3),
}  # fmt: skip


def apply(op: str, *args: Any) -> Array:
    arrays = [np.asarray(a) for a in args]
    names = {"bool": "bool", "int64": "i64", "float64": "f64"}
    params = [param(f"x{i}", tensor(names[a.dtype.name], *a.shape)) for i, a in enumerate(arrays)]
    return Func("f", Block(params, [b.op(op, params)])).interpret(*arrays)


def types(op: str) -> Iterator[str]:
    """Element types that an op is tried with."""
    yield from (t for t, kind in (("f", "f"), ("i", "i"), ("b", "b")) if kind in KINDS[op])


def draw(op: str, kind: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "b":
        return rng.random(COUNT) < 0.5
    if kind == "i":
        return rng.integers(0 if op in ("shl", "shr") else -6, 7, COUNT)
    low, high = DOMAIN.get(op, (-5.0, 5.0))
    coarse = rng.random(COUNT) < 0.3  # equal operands, halves, whole numbers
    return np.where(coarse, np.clip(np.round(rng.uniform(low, high, COUNT)), low, high),
                    rng.uniform(low, high, COUNT))  # fmt: skip


def close(a: Array, c: Array) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.allclose(a, c, rtol=1e-9, atol=1e-9, equal_nan=True))


def value(number: float, kind: str) -> Array:
    """A number of a record in an element type."""
    if kind == "f":
        return np.full(COUNT, float(number))
    if kind == "b":
        return np.full(COUNT, number not in (0, -INF))
    limits = {INF: np.iinfo(np.int64).max, -INF: np.iinfo(np.int64).min}
    return np.full(COUNT, limits.get(number, number), np.int64)


@pytest.mark.parametrize("op", [*ONE, *TWO])
def test_monotone(op: str) -> None:
    facts = ELEMENTWISE[op]
    signs = facts.monotone or (0,) * (1 if op in ONE else 2)
    kinds = ["b"] if op in ("and", "or") else list(types(op))
    for operand, sign in enumerate(signs):
        seen: set[int] = set()
        for kind in kinds:
            args = [draw(op, kind, i) for i in range(len(signs))]
            low, high = np.sort([args[operand], draw(op, kind, 9)], axis=0)
            results = [
                apply(op, *(x if i == operand else a for i, a in enumerate(args)))
                for x in (low, high)
            ]
            with np.errstate(invalid="ignore"):
                step = results[1].astype(float) - results[0].astype(float)
            seen |= set(np.sign(step[np.isfinite(step)]).astype(int).tolist())
        if sign:
            assert -sign not in seen, f"{op} does not rise with operand {operand}"
        elif kinds and "f" in kinds:
            assert seen >= {1, -1}, f"{op} is monotone in operand {operand}"


@pytest.mark.parametrize("op", TWO)
def test_laws_of_two_operands(op: str) -> None:
    facts = ELEMENTWISE[op]
    commutes, associates, keeps = [], [], []
    for kind in types(op):
        x, y, z = (draw(op, kind, i) for i in range(3))
        commutes.append(close(apply(op, x, y), apply(op, y, x)))
        keeps.append(close(apply(op, x, x), x))
        if op in BINARY:
            associates.append(close(apply(op, apply(op, x, y), z), apply(op, x, apply(op, y, z))))
        for table, is_neutral in ((facts.neutral, True), (facts.absorbing, False)):
            for operand, number in table.items():
                if (kind == "f" and number == -1) or (kind == "b" and math.isinf(number)):
                    continue
                held = value(number, kind)
                if kind == "i" and math.isinf(number) and op in ("add", "sub"):
                    continue  # integers have no infinity to absorb
                other = np.where(x == 0, 1, x) if op == "div" else x
                found = apply(op, *((held, other) if operand == 0 else (other, held)))
                assert close(found, other if is_neutral else held), (op, kind, operand, number)
    assert facts.commutative == all(commutes), op
    assert facts.associative == (all(associates) and bool(associates)), op
    assert facts.idempotent == (all(keeps) and op in BINARY), op


@pytest.mark.parametrize("op", COMPARE)
def test_comparisons(op: str) -> None:
    facts = ELEMENTWISE[op]
    x, y = draw(op, "i", 1), draw(op, "i", 2)
    assert (apply(op, x, x) == facts.reflexive).all()
    assert (apply(op, x, y) == ~apply(facts.negated, x, y)).all()
    assert facts.is_order == (op not in ("eq", "ne"))


@pytest.mark.parametrize("op", ONE)
def test_laws_of_one_operand(op: str) -> None:
    facts = ELEMENTWISE[op]
    kind = next(types(op))
    x, y = draw(op, kind, 1), draw(op, kind, 2)
    made = apply(op, x)
    if facts.inverse:
        assert close(apply(facts.inverse, made), x)
    if op not in ("isnan", "isfinite", "erfinv", "atanh", "acosh", "asin", "acos", "log"):
        with np.errstate(all="ignore"):
            assert facts.idempotent == close(apply(op, made), made), op
    low, high = facts.range
    assert kind == "b" or not ((made < low) | (made > high)).any()
    for inner, outer in facts.maps:
        for t in types(op):
            x, y = draw(op, t, 1), draw(op, t, 2)
            if t == "i" and op == "abs" and inner == "mul":
                x, y = x % 50, y % 50
            assert close(apply(op, apply(inner, x, y)), apply(outer, apply(op, x), apply(op, y)))
    if "f" in KINDS[op] and made.dtype.kind == "f":
        edge = np.array([-1.0, -0.0, 0.0, 1.0, -2.0, 0.5])
        assert np.isinf(apply(op, edge)).any() == facts.pole, op


def test_a_reduction_combines_by_an_op_whose_neutral_element_it_starts_from() -> None:
    from stack.ir.space import identity
    from stack.ir.types import BOOL, F32, I32

    for kind, op in COMBINE.items():
        facts = ELEMENTWISE[op]
        assert facts.associative and facts.commutative
        for dtype, name in ((F32, "f"), (I32, "i"), (BOOL, "b")):
            if dtype.kind not in KINDS[op]:
                continue
            number = facts.neutral[0]
            start = identity(kind, dtype)
            if name == "i" and math.isinf(number):
                assert start == (np.iinfo(np.int32).max if number > 0 else np.iinfo(np.int32).min)
            else:
                assert start == value(number, name)[0], (kind, dtype)


LINEAR = (
    "add", "sub", "neg", "mul", "div", "select", "reshape", "transpose", "broadcast", "slice",
    "reverse", "pad", "concat", "gather", "reduce", "scan", "dot", "conv",
)  # fmt: skip


@pytest.mark.parametrize("op", LINEAR)
def test_linear(op: str) -> None:
    """f(x + 2 y) = f(x) + 2 f(y) in each group of operands, the others fixed."""
    rng = random.Random(op)
    held = np.random.default_rng(1)
    tried = 0
    for _ in range(400):
        made = instance(op, rng)
        if made is None or made[0].tensor.dtype.name not in ("f32", "f64"):
            continue
        node, arrays = made
        facts = ops.algebra_of(node)
        if op in ("reduce", "scan"):
            assert bool(facts.linear) == (node.attrs["kind"] == "sum")
        for group in facts.linear:
            first, second = (
                [
                    held.standard_normal(a.shape).astype(a.dtype) if i in group else a
                    for i, a in enumerate(arrays)
                ]
                for _ in range(2)
            )
            both = [x + 2 * y if i in group else x
                    for i, (x, y) in enumerate(zip(first, second, strict=True))]  # fmt: skip
            one, two, sum_ = (run(node, a) for a in (first, second, both))
            with np.errstate(invalid="ignore"):
                fine = np.isfinite(sum_)
                assert np.allclose(sum_[fine], (one + 2 * two)[fine], rtol=1e-3, atol=1e-3), op
            tried += 1
    assert tried > 2, op


def run(node: Node, arrays: list[Array]) -> Array:
    return np.asarray(Func("f", Block(node.args, [node])).interpret(*arrays))


def test_every_fact_is_of_an_op() -> None:
    assert set(ELEMENTWISE) <= set(OPS)
    assert all(OPS[name].algebra is facts for name, facts in ELEMENTWISE.items())
    whole = [n for n, op in OPS.items() if op.is_view and op.windows is None]
    assert whole == ["reshape", "transpose", "broadcast"]
