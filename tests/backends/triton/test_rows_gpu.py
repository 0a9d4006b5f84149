"""Long rows, running sums and decays on a GPU, against double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from gpu_programs import decayed, layer, ratios, rms, running

import stack

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
Tensor = Any
LIMIT = {"float32": 2.0, "bfloat16": 3.0, "float16": 3.0}  # of the error of eager


def compare(fn: Callable[..., Tensor], args: list[Tensor], dtype: str) -> None:
    exact = fn(*(a.double() for a in args))
    compiled = stack.compile(fn, *args, backend="triton")
    found = compiled(*args)
    assert torch.equal(found, compiled(*args))
    assert not compiled.run.coverage["fallback"]
    scale = exact.abs().max()
    ours, eager = (float((f.double() - exact).abs().max() / scale) for f in (found, fn(*args)))
    assert ours <= max(LIMIT[dtype] * eager, 2e-6), (ours, eager)


def draw(dtype: str, *shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize("width", [32_769, 65_536, 131_072, 200_003])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("fn", [rms, layer, ratios], ids=lambda f: f.__name__)
def test_rows_that_are_held_in_part(fn: Callable[..., Tensor], dtype: str, width: int) -> None:
    compare(fn, [draw(dtype, 7, width), draw(dtype, width)], dtype)


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 2048, 16), 1), ((5, 9000), 1), ((3, 77), 0), ((1000, 7), 1)]
)
def test_running_sums(shape: tuple[int, ...], axis: int) -> None:
    compare(running(axis), [draw("float32", *shape)], "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_turned_copies(dtype: str) -> None:
    for shape in ((3, 700, 130), (2, 64, 2048), (5, 3, 4097)):
        compare(lambda x: x.mT.contiguous() * 2, [draw(dtype, *shape)], dtype)


@pytest.mark.parametrize("length", [37, 256, 1000])
def test_decays(length: int) -> None:
    step = -draw("float32", 16, length).abs().cumsum(-1)
    args = [draw("bfloat16", length, length), step, draw("bfloat16", 16, length, 64)]
    compare(decayed, args, "bfloat16")


@pytest.mark.parametrize(("width", "depth"), [(4096, 4096), (7, 601), (1000, 64), (33, 8192)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_products_of_one_row(dtype: str, width: int, depth: int) -> None:
    kind = "float32" if dtype == "float64" else dtype
    x = draw(dtype, 1, depth)
    compare(lambda x, w: x @ w.mT, [x, draw(dtype, width, depth)], kind)
    compare(lambda x, w: x @ w, [x, draw(dtype, depth, width)], kind)


def by_distance(updates: Tensor) -> Tensor:
    line = torch.arange(updates.shape[-1], device=updates.device)
    place = line - line[:, None] + updates.shape[-1] - 1
    table = torch.zeros(2 * len(line) - 1, dtype=updates.dtype, device=updates.device)
    return table.index_put((place,), updates, accumulate=True)


def by_clipped_distance(updates: Tensor) -> Tensor:
    line = torch.arange(updates.shape[-1], device=updates.device)
    place = (line - line[:, None]).clamp(-20, 20) + 20
    table = torch.zeros(41, dtype=updates.dtype, device=updates.device)
    return table.index_put((place,), updates, accumulate=True)


@pytest.mark.parametrize("length", [37, 512, 1000])
@pytest.mark.parametrize("fn", [by_distance, by_clipped_distance], ids=lambda f: f.__name__)
def test_sums_along_diagonals(fn: Callable[..., Tensor], length: int) -> None:
    compare(fn, [draw("float32", length, length)], "float32")
