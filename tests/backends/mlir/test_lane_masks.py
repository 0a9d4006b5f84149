"""Comparisons of neighbouring places with another one: of bytes, where no data says which."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from executed import agrees, func_of, needs_avx512

from stack.ir import Builder, Func, Node, constant, tensor
from stack.ir.types import I64
from stack.run.compile import compile_func

pytest.importorskip("torch_mlir")
LEAST, MOST = -(1 << 63), (1 << 63) - 1


def compared(op: str, lanes: int, begins: list[int], bounds: list[int], is_mirrored: bool) -> Func:
    """Numbers of those lanes that are so from each `begin` on, by all bounds, or by one of data."""

    def build(b: Builder, x: Node, *data: Node) -> tuple[Node, ...]:
        type_, zero, made = tensor("i64", lanes), b.sub(x, x), list[Node]()
        for begin, end in itertools.product(begins, data or [constant(v, I64) for v in bounds]):
            first, last = (b.broadcast(v, axes=(), type=type_) for v in (constant(begin, I64), end))
            place = b.add(b.iota(axis=0, type=type_), first)
            test = b.op(op, [last, place] if is_mirrored else [place, last])
            made.append(b.select(test, x, zero))
        return tuple(made)

    return func_of(build, [("f32", lanes), *([] if bounds else [("i64",)])])


def check(func: Func, *data: int) -> str:
    """Values are the interpreter's; the text of the kernel."""
    made = compile_func(func, "mlir", options={"cache": False})
    x = np.arange(1, func.params[0].tensor.size + 1, dtype=np.float32)  # pyright: ignore
    agrees(made, func, [x, *(np.asarray(v, np.int64) for v in data)], 0)
    return "".join(str(k.text) for k in made.kernels)


@pytest.mark.every(3)
@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
@pytest.mark.parametrize("lanes", [1, 37, 64, 200])
def test_values(op: str, lanes: int, is_mirrored: bool) -> None:
    bounds = [-5, -3, 0, 1, lanes - 4, lanes - 1, lanes, 1 << 40]
    check(compared(op, lanes, [0, -3], bounds, is_mirrored))


@needs_avx512
def test_one_comparison_of_bytes() -> None:
    tests = re.findall(r"cmpi (.*)", check(compared("lt", 64, [-3], [40], False)))
    assert len([t for t in tests if t.endswith("vector<64xi8>")]) == 1
    assert not [t for t in tests if t.endswith("vector<64xi64>")]


@pytest.mark.parametrize("op", ["lt", "le", "gt", "ge"])
def test_what_data_says_is_compared_as_it_is(op: str) -> None:
    """A difference to it may be none of 64 bits, as one to a number may."""
    bounds = [LEAST, LEAST + 1, -1, 3, MOST - 1, MOST]
    func = compared(op, 16, [1], [], False)
    for bound in bounds:
        assert "xi8>" not in check(func, bound)
    check(compared(op, 16, [1], bounds, False))
