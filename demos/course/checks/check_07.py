from __future__ import annotations

from typing import Any

import numpy as np

import stack.mini as mini


def check_gradient(student: Any) -> None:
    """softplus_gradient agrees with differences in double precision"""
    forward = lambda x: np.log1p(np.exp(x))
    record = mini.elementwise(forward, "log1pf(expf({0}))", student.softplus_gradient)
    held = mini.OPS.get("softplus")
    mini.OPS["softplus"] = record
    try:
        x = mini.param(mini.Type("f32", (5,)), "x")
        made = mini.make("softplus", x)
        total = mini.make("reduce", made, axes=(0,), kind="sum")
        _, found = mini.grad(mini.Func("f", (x,), (total,))).interpret(np.linspace(-3, 3, 5))
    finally:
        del mini.OPS["softplus"]
        if held is not None:
            mini.OPS["softplus"] = held
    at = np.linspace(-3, 3, 5)
    wanted = (forward(at + 1e-6) - forward(at - 1e-6)) / 2e-6
    assert np.allclose(found, wanted, atol=1e-6), f"{found} is not {wanted}"


def check_kept(student: Any) -> None:
    """is_kept: a product is kept, a cheap elementwise op is computed again"""
    assert student.is_kept(4 * 64 * 256, 2 * 64 * 256 * 4096, 1e12, 1e11)
    assert not student.is_kept(4 * 64 * 256, 3 * 64 * 256, 1e12, 1e11)


def check_segment(student: Any) -> None:
    """best_segment is about the square root of the number of layers"""
    for layers, wanted in ((1, (1,)), (16, (4,)), (36, (6,)), (7, (1, 7)), (12, (3, 4))):
        assert student.best_segment(layers) in wanted, layers
