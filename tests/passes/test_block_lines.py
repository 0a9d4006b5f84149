"""Products of one row: summed place by place, and the places after the loop."""

from __future__ import annotations

import numpy as np
import pytest

from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.ir.types import BF16, F32
from stack.passes.gpu_products.tile_choice import Product, ranked
from stack.rewrite import Pipeline
from stack.target import as_gpu

GPU = as_gpu(None)

ALONG, ACROSS = "a k, n k -> a n", "a k, k n -> a n"


def product(
    rule: str, left: tuple[int, ...], right: tuple[int, ...], made: tuple[int, ...], dtype: str
) -> Func:
    shapes = [", ".join(map(str, s)) for s in (left, right, made)]
    return parse(
        f"func @f(%x: {dtype}[{shapes[0]}], %w: {dtype}[{shapes[1]}]) -> ({dtype}[{shapes[2]}])"
        f' at tensor {{\n  %z = dot(%x, %w) {{rule="{rule}"}} : {dtype}[{shapes[2]}]\n'
        "  return %z\n}\n"
    )


def kernel(func: Func) -> tuple[Func, list[Node]]:
    result = Pipeline("fuse,schedule,blocks").run(func).func
    verify(result)
    assert parse(str(result)) is result
    return result, [n for _, n in walk(result.body)]


def loops(nodes: list[Node]) -> list[Node]:
    return [n for n in nodes if n.op == "loop" and n.attrs["kind"] == "serial"]


def compare(func: Func, rng: np.random.Generator, tolerance: float) -> list[Node]:
    result, nodes = kernel(func)
    drawn = [rng.standard_normal([int(s) for s in p.shape]) for p in func.params]
    kinds = {"f64": np.float64, "f16": np.float16}
    args = [a.astype(kinds.get(func.params[0].dtype.name, np.float32)) for a in drawn]
    got = np.asarray(result.interpret(*args), np.float64)
    want = np.asarray(func.interpret(*args), np.float64)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return nodes


@pytest.mark.every(5)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("depth", [257, 601, 2048])
@pytest.mark.parametrize("width", [1, 7, 64])
@pytest.mark.parametrize("rule", [ALONG, ACROSS])
def test_values(rule: str, width: int, depth: int, dtype: str, rng: np.random.Generator) -> None:
    right = (width, depth) if rule == ALONG else (depth, width)
    func = product(rule, (1, depth), right, (1, width), dtype)
    nodes = compare(func, rng, {"f32": 1e-4, "f64": 1e-12}.get(dtype, 0.5))
    for loop in loops(nodes):
        assert not any(n.op == "reduce" for n in loop.blocks[0].nodes)
        assert loop.attrs["ahead"] == (3 if rule == ALONG else 4)
    assert loops(nodes) or (rule == ALONG and depth < 1024)  # a tile has the whole sum


@pytest.mark.parametrize(
    ("rule", "left", "right", "made"),
    [
        ("k, n k -> n", (601,), (7, 601), (7,)),
        ("n k, k -> n", (7, 601), (601,), (7,)),
        ("b k, b n k -> b n", (3, 601), (3, 7, 601), (3, 7)),
        ("a b k, k n -> a b n", (1, 1, 601), (601, 7), (1, 1, 7)),
    ],
)
def test_other_axes(
    rule: str,
    left: tuple[int, ...],
    right: tuple[int, ...],
    made: tuple[int, ...],
    rng: np.random.Generator,
) -> None:
    nodes = compare(product(rule, left, right, made, "f32"), rng, 1e-4)
    assert not any(n.op == "dot" for n in nodes)
    assert len(loops(nodes)) == (1 if right[-1] == 7 else 0)  # along k, a tile has the whole sum


def test_values_that_are_not_finite() -> None:
    x, w = np.ones((1, 601), np.float32), np.ones((4, 601), np.float32)
    w[0, 600], w[1, 3], w[2, 5] = np.inf, np.nan, -np.inf
    result, _ = kernel(product(ALONG, x.shape, w.shape, (1, 4), "f32"))
    np.testing.assert_array_equal(result.interpret(x, w), [[np.inf, np.nan, -np.inf, 601]])


def test_what_follows_is_in_the_kernel(rng: np.random.Generator) -> None:
    func = parse(
        "func @f(%x: f32[1, 600], %w: f32[40, 600], %b: f32[1, 40]) -> (f32[1, 40]) at tensor {\n"
        f'  %z = dot(%x, %w) {{rule="{ALONG}"}} : f32[1, 40]\n'
        "  %s = add(%z, %b) : f32[1, 40]\n  %r = tanh(%s) : f32[1, 40]\n  return %r\n}\n"
    )
    nodes = compare(func, rng, 1e-4)
    assert sum(n.op == "kernel" for n in nodes) == 1


def test_two_rows_are_a_matrix_product() -> None:
    _, nodes = kernel(product(ALONG, (2, 512), (64, 512), (2, 64), "bf16"))
    assert any(n.op == "dot" and n.tensor.space == "tile" for n in nodes)


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_one_row_has_tiles_of_its_own(dtype: object) -> None:
    for across in (False, True):
        tiles = ranked(Product(1, 4096, 4096, across=across), dtype, GPU)  # pyright: ignore
        assert all(t.rows == 1 for t in tiles)
        assert all((t.step > 16 * t.lanes) != across for t in tiles)
    assert not any(t.rows == 1 for t in ranked(Product(2, 4096, 4096), dtype, GPU))  # pyright: ignore
