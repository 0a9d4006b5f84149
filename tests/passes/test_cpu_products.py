"""Products on a CPU: the steps of tiles, and what the kernels of these compute."""

from __future__ import annotations

import numpy as np
import pytest
from cpu_steps import check_steps, lowered

from stack.ir import parse
from stack.rewrite import random_inputs

PRODUCT = """func @main(%x: f32[M, K], %w: f32[K, N], %b: f32[N]) -> (f32[M, N]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[M, N]
  %c = broadcast(%b) {axes=[1]} : f32[M, N]
  %z = add(%y, %c) : f32[M, N]
  return %z
}
"""
BARE = """func @main(%x: f32[M, K], %w: f32[K, N]) -> (f32[M, N]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[M, N]
  return %y
}
"""
HEADS = """func @main(%x: f32[2, 40, 3, 16], %w: f32[2, 33, 3, 16])
  -> (f32[2, 3, 40, 33]) at tensor {
  %y = dot(%x, %w) {rule="b s h d, b t h d -> b h s t"} : f32[2, 3, 40, 33]
  %z = mul(%y, 0.25:f32) : f32[2, 3, 40, 33]
  return %z
}
"""
TWICE = """func @main(%x: f32[9, 4], %w: f32[4, 24]) -> (f32[9, 24], f32[9, 24]) at tensor {
  %y = dot(%x, %w) {rule="m k, k n -> m n"} : f32[9, 24]
  %z = exp(%y) : f32[9, 24]
  return %y, %z
}
"""


COLUMNS = """func @main(%x: f32[9, 4], %w: f32[4, 24], %b: f32[24])
  -> (f32[9, 24], f32[24]) at tensor {
  %f = fusion(%x, %w, %b) {kind="gemm", name="dot_add"} : (f32[9, 24], f32[24])
    {(%p0: f32[9, 4], %p1: f32[4, 24], %p2: f32[24])
    %y = dot(%p0, %p1) {rule="m k, k n -> m n"} : f32[9, 24]
    %e = exp(%p2) : f32[24]
    %c = broadcast(%e) {axes=[1]} : f32[9, 24]
    %z = add(%y, %c) : f32[9, 24]
    return %z, %e
  }
  %z = item(%f) {index=0} : f32[9, 24]
  %e = item(%f) {index=1} : f32[24]
  return %z, %e
}
"""


FLAT = """func @main(%x: f32[{b}, {m}, {k}], %w: f32[{b}, {k}, 1], %c: f32[{b}, {m}])
  -> (f32[{b}, {m}]) at tensor {{
  %y = dot(%x, %w) {{rule="b m k, b k n -> b m n"}} : f32[{b}, {m}, 1]
  %e = exp(%y) : f32[{b}, {m}, 1]
  %r = reshape(%e) : f32[{b}, {m}]
  %z = mul(%r, %c) : f32[{b}, {m}]
  return %z
}}
"""


def sized(text: str, m: int, k: int, n: int) -> str:
    for letter, size in (("M", m), ("K", k), ("N", n)):
        text = text.replace(f"[{letter}", f"[{size}").replace(f" {letter}]", f" {size}]")
    return text


STEPS = {
    "tiles that start early": (
        sized(PRODUCT, 60, 96, 70),
        "reorder i j; split j 8 tail=overlap; reorder j.1 i; split i 12 tail=overlap;"
        " bind j.0 cores; vectorize j.1; fission i.1 k; microkernel i.1; pack p1; prefetch p1",
    ),
    "one panel": (
        sized(PRODUCT, 30, 20, 8),
        "split i 10 tail=overlap; vectorize j; fission i.1 k; microkernel i.1",
    ),
    "one tile": (
        sized(PRODUCT, 3, 20, 8),
        "vectorize j; fission i k; microkernel i",
    ),
    "one row": (
        sized(PRODUCT, 1, 20, 40),
        "split j 8 tail=overlap; bind j.0 cores; vectorize j.1; microkernel k",
    ),
    "sums that are stored as they are": (
        sized(BARE, 30, 20, 8),
        "split i 10 tail=overlap; vectorize j; microkernel i.1",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps(name: str) -> None:
    check_steps(*STEPS[name], near=1e-4)


@pytest.mark.parametrize("text", [HEADS, TWICE, COLUMNS], ids=["heads", "twice", "columns"])
def test_one_product_of_each_group(text: str) -> None:
    func = parse(text)
    made = lowered(func, passes="canonicalize" if "fusion" in text else "fuse")
    assert str(made).count("= dot(") == 1
    args = random_inputs(func)
    for have, want in zip(made.interpret(*args), func.interpret(*args), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("b, m, k", [(1, 1, 1), (2, 1, 1), (1, 1, 5), (1, 3, 1), (2, 4, 3)])
def test_results_without_the_axis_of_one_column(b: int, m: int, k: int) -> None:
    """The loop over the column stays, for the steps that tile a product."""
    func = parse(FLAT.format(b=b, m=m, k=k))
    args = random_inputs(func)
    found = lowered(func).interpret(*args)
    np.testing.assert_allclose(found, func.interpret(*args), rtol=1e-5)
