"""split_reductions on a CPU: reductions over merged axes are over the axes, where that pays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rule_cases import Kept, Rewrites, func

import stack
from stack.rewrite import Pipeline
from stack.rewrite.truth import Truth
from stack.target import as_cpu

BOTH = "%x: f32[2, 3, 4], %y: f32[2, 3, 4]"
PRODUCT = "%m = mul(%x, %y) : f32[2, 3, 4]\n"
REWRITES: Rewrites = {
    "all axes": (
        BOTH,
        f'{PRODUCT}%f = reshape(%m) : f32[24]\n%z = reduce(%f) {{axes=[0], kind="sum"}} : f32[]',
        f'{PRODUCT}%z = reduce(%m) {{axes=[0, 1, 2], kind="sum"}} : f32[]',
    ),
    "rows": (
        BOTH,
        f"{PRODUCT}%f = reshape(%m) : f32[2, 12]\n"
        '%z = reduce(%f) {axes=[1], kind="max"} : f32[2]',
        f'{PRODUCT}%z = reduce(%m) {{axes=[1, 2], kind="max"}} : f32[2]',
    ),
    "columns, axes of size 1": (
        "%x: f32[2, 3, 1, 5]",
        "%m = neg(%x) : f32[2, 3, 1, 5]\n%f = reshape(%m) : f32[6, 1, 5]\n"
        '%z = reduce(%f) {axes=[0], kind="sum"} : f32[1, 5]',
        '%m = neg(%x) : f32[2, 3, 1, 5]\n%z = reduce(%m) {axes=[0, 1], kind="sum"} : f32[1, 5]',
    ),
    "what stays is merged too": (
        "%x: f32[2, 3, 4, 5]",
        "%m = neg(%x) : f32[2, 3, 4, 5]\n%f = reshape(%m) : f32[6, 20]\n"
        '%z = reduce(%f) {axes=[1], kind="min"} : f32[6]',
        "%m = neg(%x) : f32[2, 3, 4, 5]\n"
        '%s = reduce(%m) {axes=[2, 3], kind="min"} : f32[2, 3]\n%z = reshape(%s) : f32[6]',
    ),
}
KEPT: Kept = {
    "an input": (
        "%x: f32[2, 3, 4]",
        '%f = reshape(%x) : f32[24]\n%z = reduce(%f) {axes=[0], kind="sum"} : f32[]',
    ),
    "what others read": (
        "%x: f32[3, 4]",
        "%m = neg(%x) : f32[3, 4]\n%f = reshape(%m) : f32[12]\n"
        '%s = reduce(%f) {axes=[0], kind="sum"} : f32[]\n%z = add(%f, %s) : f32[12]',
    ),
    "a split": (
        "%x: f32[12]",
        "%m = neg(%x) : f32[12]\n%f = reshape(%m) : f32[3, 4]\n"
        '%z = reduce(%f) {axes=[1], kind="sum"} : f32[3]',
    ),
    "axes that do not fall together": (
        "%x: f32[3, 4]",
        "%m = neg(%x) : f32[3, 4]\n%f = reshape(%m) : f32[2, 6]\n"
        '%z = reduce(%f) {axes=[1], kind="sum"} : f32[2]',
    ),
    "only what stays is merged": (
        BOTH,
        f'{PRODUCT}%f = reshape(%m) : f32[6, 4]\n%z = reduce(%f) {{axes=[1], kind="sum"}} : f32[6]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    params, before, after = REWRITES[name]
    program, pipeline = func(params, before), Pipeline("split_reductions")
    made = pipeline.run(program, check=True, target=as_cpu(None)).func
    want = func(params, after)
    assert made.results == want.results, f"{made}\n{want}"
    assert Truth(program).problem(made) == ""
    assert pipeline.run(made, target=as_cpu(None)).func is made


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    program = func(*KEPT[name])
    assert Pipeline("split_reductions").run(program, target=as_cpu(None)).func is program


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (2, 129, 31), (64, 31, 65)])
def test_flattened_products(shape: tuple[int, ...], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x, y = (torch.randn(shape[::-1]).to(getattr(torch, dtype)).mT.mT for _ in range(2))
    x, y = x.permute(2, 1, 0), y.permute(2, 1, 0)  # neither is contiguous

    def program(x: Any, y: Any) -> tuple[Any, ...]:
        """A norm of rows, and contractions over all axes and over all but one."""
        rows = (x.float() * y.float()).flatten(1).sum(1)
        return rows, torch.einsum("bij,bij->", x, y), torch.einsum("bij,bij->i", x, y)

    rows, whole, kept = stack.compile(program, x, y)(x, y)
    products = x.double().numpy() * y.double().numpy()
    size = np.abs(products)
    rounding = 1e-6 if dtype == "float32" else 2.0**-8
    np.testing.assert_array_less(
        abs(rows.double().numpy() - products.sum((1, 2))), 1e-6 * size.sum((1, 2)) + 1e-30
    )
    assert abs(float(whole) - products.sum()) <= rounding * size.sum() + 1e-30
    apart = abs(kept.double().numpy() - products.sum((0, 2)))
    np.testing.assert_array_less(apart, rounding * size.sum((0, 2)) + 1e-30)


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_what_is_not_finite_reaches_a_contraction(special: float) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 5, 67)
    x[2, 4, 66] = special
    compiled = stack.compile(lambda x, y: torch.einsum("bij,bij->", x, y), x, torch.ones_like(x))
    np.testing.assert_equal(float(compiled(x, torch.ones_like(x))), special)
