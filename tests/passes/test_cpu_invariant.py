"""Loop-invariant work on a CPU: the axis becomes a loop inside, and the work is done before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_steps import check_steps, extents, lowered, steps_of
from executed import func_of, twice

import stack
from stack.ir import Builder, Func, Node
from stack.run.compile import compile_func

SHAPE = (6, 40, 70)


def weighted(steps: int, shape: tuple[int, ...] = SHAPE, summed: bool = False) -> Func:
    """x times a value of all axes but the first: a sum of so many terms."""

    def build(b: Builder, x: Node, y: Node) -> Node:
        made = y = b.broadcast(y, axes=tuple(range(1, len(shape))), type=x.type)
        for n in range(steps):
            made = b.add(b.mul(made, y), 1 + n)
        out = b.mul(x, made)
        return b.reduce(out, kind="sum", axes=(len(shape) - 1,)) if summed else out

    return func_of(build, [("f32", *shape), ("f32", *shape[1:])])


def test_steps_before_and_expected() -> None:
    steps = "reorder i j; reorder i k; split k 32 tail=peel; vectorize k.1; bind j cores"
    check_steps(str(weighted(8)), steps)


def test_the_axis_is_a_loop_inside_of_the_lanes() -> None:
    func = weighted(8)
    assert steps_of(func)[:2] == ["reorder i j", "reorder i k"]
    made = lowered(func, passes="fuse")
    assert extents(made, "parallel") == [40]
    assert 6 in extents(made, "serial")


def test_the_work_is_done_once() -> None:
    """The loop along the axis has the last product in it, and no other."""
    func = weighted(8, (6, 40, 32))
    made = str(lowered(func, passes="fuse"))
    work, loop = made.split('{kind="serial"}')
    assert work.count(": f32<32>") > 16
    assert loop.count(" = mul(") == 1


@pytest.mark.parametrize(
    "func",
    [weighted(1), weighted(8, (6, 70)), weighted(8, (6, 3, 70)), weighted(8, summed=True)],
    ids=["little work", "no other programs", "fewer than cores", "a sum"],
)
def test_other_programs_stay(func: Func) -> None:
    assert not any(step.startswith("reorder") for step in steps_of(func))


@pytest.mark.parametrize("last", [1, 3, 70, 200])
def test_values(last: int, rng: np.random.Generator) -> None:
    shape = (6, 40, last)
    func = weighted(8, shape)
    x, y = (rng.uniform(0.5, 1, s).astype(np.float32) for s in (shape, shape[1:]))
    x[3, 5], x[4, 6], y[7, 0] = np.nan, -0.0, np.inf
    made = exact = y.astype(np.float64)
    for n in range(8):
        made = made * exact + 1 + n
    exact = x * made
    for (found,) in twice(compile_func(func, "mlir", options={"cache": False}), func, [x, y]):
        np.testing.assert_allclose(found, exact, rtol=1e-6)
        assert np.signbit(found[4, 6]).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_places_in_an_image_are_found_once_for_all_channels(dtype: torch.dtype, mode: str) -> None:
    x, grid = torch.randn(2, 5, 9, 11), torch.rand(2, 33, 70, 2) * 2.4 - 1.2
    x[0, 1, 4] = torch.nan
    x, grid = x.to(dtype), grid.to(dtype)

    def program(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grid_sample(x, grid, mode=mode, align_corners=False)

    compiled = stack.compile(program, x, grid)
    exact = program(x.double(), grid.double())
    near = 1e-5 if dtype is torch.float32 else 2e-2
    found = compiled(x, grid).double()
    torch.testing.assert_close(found, exact, rtol=near, atol=near, equal_nan=True)
    func = compiled.run["loop"].func
    assert func is not None
    assert 5 in extents(func, "serial")
