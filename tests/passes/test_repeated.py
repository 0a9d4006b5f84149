"""Programs that do most of their work alike do it once, before a loop over what differs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from executed import func_of, twice

import stack
from stack import Pipeline
from stack.ir import Builder, Func, Node
from stack.ir.node import walk
from stack.ir.traits import is_loop
from stack.passes.tiling.loops import extent_of
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


def loops(func: Func) -> list[str]:
    """Kinds and extents of the loops of all kernels, outermost first."""
    made = Pipeline("fuse,schedule,tile").run(func).func
    (kernel,) = (n for n in made.body.nodes if n.op == "kernel")
    return [f"{n.attrs['kind']} {extent_of(n)}" for n in all_loops(kernel)]


def all_loops(kernel: Node) -> list[Node]:
    nodes = dict.fromkeys(n for block, _ in walk(kernel.blocks[0]) for n in block.nodes)
    return [n for n in nodes if is_loop(n)]


def test_the_axis_is_a_loop_of_each_program() -> None:
    assert sorted(loops(weighted(8))) == ["grid 40", "serial 6"]


@pytest.mark.parametrize(
    "func",
    [weighted(1), weighted(8, (6, 70)), weighted(8, summed=True)],
    ids=["little work", "no other programs", "a sum"],
)
def test_other_programs_stay(func: Func) -> None:
    assert not [loop for loop in loops(func) if loop.startswith("serial")]


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
    kernel = next(n for n in func.body.nodes if n.op == "kernel")
    assert 5 in [extent_of(n) for n in all_loops(kernel) if n.attrs["kind"] == "serial"]
