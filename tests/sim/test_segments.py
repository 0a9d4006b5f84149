"""Segments of a rank's program, and the collectives that are in flight beside them."""

from __future__ import annotations

import pytest

from stack.ir import Builder, Func, param, tensor
from stack.mesh.meshes import parse_mesh
from stack.sim import machine, simulate
from stack.sim.segments import Segment, beside_collectives, steps_of

SIZE = 64


def products(count: int) -> Func:
    """Products with weights of which each rank has half of the rows."""
    b = Builder()
    x = param("x", tensor("f32", SIZE, SIZE))
    weights = [param(f"w{i}", tensor("f32", SIZE // 2, SIZE)) for i in range(count)]
    made = x
    for weight in weights:
        whole = b.all_gather(weight, axis=0, mesh="dp=2", over="dp")
        made = b.dot(made, whole, rule="m k, k n -> m n")
    return b.func("f", [x, *weights], [made])


@pytest.mark.parametrize("count", [1, 3])
def test_the_gather_of_the_next_weight_is_in_flight(count: int) -> None:
    steps = steps_of(products(count), 1)
    found = beside_collectives(steps)
    segments = [s.work for s in steps if isinstance(s.work, Segment)]
    assert [s in found for s in segments] == [True] * (count - 1) + [False]


def test_a_collective_starts_after_the_computation_that_was_launched_before() -> None:
    """The gather of a weight waits for the segment before the one that it runs beside."""
    found = simulate(products(3), parse_mesh("dp=2"), machine("h200"), bucket=1)
    computes, gathers = (
        [e for e in found.events if e.rank == 0 and e.stream == stream]
        for stream in ("compute", "communicate")
    )
    assert [e.name for e in gathers] == ["all_gather"] * 3
    assert gathers[1].start < computes[0].end  # beside the first product
    assert gathers[2].start >= computes[0].end
