"""Strided rows of products are transposed once, if many panels read them."""

from __future__ import annotations

import numpy as np
import pytest

import stack
from stack import Pipeline
from stack.ir import parse
from stack.target import load

torch = pytest.importorskip("torch")

ON_CPUS = "stream{loops=cpu}"


def product(dtype: str, sums: str, m: int, k: int, n: int, rule: str, made: str = "") -> str:
    """A product of rows with the layout of the rule, and the op that computes them."""
    shape = f"[{k}, {m}]" if rule.startswith("k") else f"[{m}, {k}]"
    rows = f"%r = {made} : {dtype}{shape}\n" if made else ""
    return f"""func @f(%x: {dtype}{shape}, %w: {dtype}[{k}, {n}]) -> ({sums}[{m}, {n}]) at tensor {{
      {rows}%z = dot(%{"r" if made else "x"}, %w) {{rule="{rule}, k n -> m n"}} : {sums}[{m}, {n}]
      return %z
    }}
    """


def test_rows_that_lie_across_are_turned_before_and_expected() -> None:
    func = parse(product("f32", "f32", 512, 768, 768, "k m"))
    wanted = parse("""func @f(%x: f32[768, 512], %w: f32[768, 768]) -> (f32[512, 768]) at tensor {
      %t = transpose(%x) {perm=[1, 0]} : f32[512, 768]
      %z = dot(%t, %w) {rule="m k, k n -> m n"} : f32[512, 768]
      return %z
    }
    """)
    made = Pipeline(ON_CPUS).run(func, target=load("avx2")).func
    assert made.results == wanted.results
    assert Pipeline(ON_CPUS).run(made, target=load("avx2")).func is made


@pytest.mark.parametrize(
    "text, target",
    [
        (product("f32", "f32", 512, 768, 768, "m k"), "avx2"),  # they are contiguous
        (product("f32", "f32", 64, 4096, 16, "k m"), "avx2"),  # one panel reads them
        (product("f32", "f32", 1, 768, 768, "k m"), "avx2"),  # one row is contiguous both ways
        (product("f32", "f32", 512, 768, 768, "k m", "exp(%x)"), "avx2"),  # a kernel makes them
    ],
)
def test_kept(text: str, target: str) -> None:
    func = parse(text)
    assert Pipeline(ON_CPUS).run(func, target=load(target)).func is func


@pytest.mark.parametrize("target, is_turned", [("amx", True), ("avx2", False)])
def test_instructions_for_neighbours_want_any_rows_turned(target: str, is_turned: bool) -> None:
    func = parse(product("bf16", "bf16", 64, 64, 32, "k m"))
    made = Pipeline(ON_CPUS).run(func, target=load(target)).func
    assert any(n.op == "transpose" for n in made.nodes) is is_turned


def test_values_of_batches_are_the_same() -> None:
    func = parse("""func @f(%x: f32[3, 9, 7], %w: f32[3, 9, 4096]) -> (f32[3, 7, 4096]) at tensor {
      %z = dot(%x, %w) {rule="b k m, b k n -> b m n"} : f32[3, 7, 4096]
      return %z
    }
    """)
    made = Pipeline(ON_CPUS).run(func, check=True, target=load("avx2")).func
    assert [n.op for n in made.nodes] == ["transpose", "dot"]


SIZES = ((64, 128, 96), (67, 133, 101), (1, 8, 8), (8, 8, 1))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "dtype, sizes",
    [
        *((dtype, sizes) for dtype in ("float32", "bfloat16") for sizes in SIZES),
        *(("int8", sizes) for sizes in ((64, 128, 96), (72, 136, 104), (24, 8, 8))),  # as torch's
    ],
)
def test_products_of_transposed_operands(dtype: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    generator = np.random.default_rng(0)
    left, right = generator.standard_normal((k, m)), generator.standard_normal((n, k))
    scale = 30 if dtype == "int8" else 1
    x, w = (torch.from_numpy(scale * a).to(getattr(torch, dtype)) for a in (left, right))
    by = torch._int_mm if dtype == "int8" else torch.matmul
    for other in (w.T, w.T.contiguous()):
        compiled = stack.compile(lambda x, w: by(x.T, w), x, other)
        wanted = x.T.double().numpy() @ other.double().numpy()
        tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "int8": 0}[dtype]
        for _ in range(2):
            found = compiled(x, other).double().numpy()
            assert np.abs(found - wanted).max() <= tolerance * np.abs(wanted).max()


def test_infinities_stay_in_their_rows() -> None:
    x, w = torch.ones(128, 64), torch.ones(128, 256)
    x[3, 5], x[7, 9] = float("inf"), float("nan")
    found = stack.compile(lambda x, w: x.T @ w, x, w)(x, w)
    torch.testing.assert_close(found, x.T @ w, equal_nan=True)
