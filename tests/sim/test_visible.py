"""Shares of scores that masks leave visible, and simulations in which ranks have other shares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stack.ir import Builder, Func, param, tensor
from stack.mesh.meshes import parse_mesh
from stack.passes.context_parallel import ContextParallel
from stack.rewrite import Pipeline
from stack.rewrite.stream_candidates import streamed
from stack.sim import machine, simulate
from stack.sim.costs import nodes_of
from stack.sim.rank_values import RankValues
from stack.sim.segments import Segment, steps_of
from stack.sim.stream_order import connected
from stack.sim.visible import SegmentPositions, visible_shares

T, D, RANKS = 1 << 16, 64, 4
H200 = machine("h200")


def masked(
    comparison: str = "ge", fill: float = -math.inf, data: bool = False, swapped: bool = False
) -> Func:
    """Attention whose scores are visible where the row compares to the column in this way, or, if
    `swapped`, where it does not. `data`: rows have positions that are an input."""
    b = Builder()
    x, ids = param("x", tensor("bf16", T, D)), param("ids", tensor("i64", T))
    h = b.tanh(x)
    s = b.dot(h, h, rule="m d, n d -> m n", type=tensor("f32", T, T))
    places = b.iota(axis=0, type=tensor("i64", T))
    sides = (ids if data else places, places)
    rows, columns = (
        b.broadcast(v, axes=(i,), type=tensor("i64", T, T)) for i, v in enumerate(sides)
    )
    test = getattr(b, comparison)(rows, columns)
    sides = (s, b.const(fill, "f32"))
    s = b.select(test, *(sides[::-1] if swapped else sides))
    top = b.broadcast(b.reduce(s, kind="max", axes=(1,)), axes=(0,), type=s.type)
    e = b.exp(b.sub(s, top))
    total = b.cast(b.reduce(e, kind="sum", axes=(1,)), type=tensor("bf16", T))
    made = b.dot(b.cast(e, type=tensor("bf16", T, T)), h, rule="m n, n d -> m d")
    factor = b.broadcast(b.rsqrt(total), axes=(0,), type=made.type)
    return b.func("f", [x, ids], [b.mul(factor, made)])


def shares(func: Func, values: RankValues) -> list[float]:
    """The share of each table of scores in a function."""
    nodes = nodes_of(func)
    inner = streamed(nodes, func.results, H200.stream_balance)
    tables = list(connected(nodes, inner))
    found = visible_shares(func.body, inner, tables, values)
    return [found.get(next(iter(table)), 1.0) for table in tables]


HALF = (T + 1) / (2 * T)


@pytest.mark.parametrize(
    ("func", "share"),
    [
        (masked(), HALF),
        (masked("le"), HALF),
        (masked("gt"), 1 - HALF),
        (masked("lt", swapped=True), HALF),
        (masked(fill=0.0), HALF),
        (masked(fill=-1e9), 1.0),  # hides only if no row is hidden as a whole
        (masked(data=True), 1.0),
        (masked("eq"), 1.0),
    ],
)
def test_share_under_a_mask(func: Func, share: float) -> None:
    (found,) = shares(func, RankValues())
    assert found == pytest.approx(share)


def ring(order: str = "sequence") -> tuple[Func, list[Segment]]:
    """The program of one rank of causal ring attention, and its segments."""
    passes = [ContextParallel(f"dp=2, cp={RANKS}", batch=("x",), dim=0, order=order)]
    local = Pipeline([*passes, *Pipeline("propagate,reshard,spmd,ring").passes]).run(masked()).func
    steps = steps_of(local, balance=H200.stream_balance)
    return local, [s.work for s in steps if isinstance(s.work, Segment)]


def test_a_rank_sees_the_parts_before_its_own() -> None:
    _, segments = ring()
    positions = SegmentPositions(segments, H200.stream_balance)
    (axes,) = positions.axes
    assert [axis.name for axis in axes] == ["cp"]
    part = (T // RANKS + 1) / (2 * T // RANKS)
    for rank in range(RANKS):
        found = [shares(s.func, positions.on(rank, s)) for s in segments]
        seen = sorted(share for own in found for share in own)
        hidden, whole = [0.0] * (RANKS - 1 - rank), [1.0] * rank
        assert seen == pytest.approx([*hidden, part, *whole])


def busy_seconds(order: str) -> list[float]:
    """The seconds that each rank of a ring computes."""
    local, _ = ring(order)
    found = simulate(local, parse_mesh(f"dp=2, cp={RANKS}"), H200)
    assert found.classes == tuple((rank, 2) for rank in range(RANKS))
    own = [[e for e in found.events if e.rank == rank] for rank in range(RANKS)]
    busy = [sum(e.end - e.start for e in events if e.stream == "compute") for events in own]
    assert found.seconds >= max(busy)
    return busy


def test_the_last_rank_is_the_slowest() -> None:
    busy = busy_seconds("sequence")
    steps = [busy[rank + 1] - busy[rank] for rank in range(RANKS - 1)]
    assert steps == pytest.approx([steps[0]] * (RANKS - 1)) and busy[-1] > 3 * busy[0]


def test_ranks_in_zigzag_order_take_equal_times() -> None:
    busy, uneven = busy_seconds("zigzag"), busy_seconds("sequence")
    assert busy == pytest.approx([busy[0]] * RANKS)
    assert busy[0] < 0.8 * uneven[-1]


def test_positions_that_travel() -> None:
    b = Builder()
    over = {"mesh": "dp=2, cp=2", "over": "cp"}
    start = b.part_start(size=8, **over)
    mine = b.add(b.iota(axis=0, type=tensor("i64", 4)), start)
    there = b.permute(mine, mesh=over["mesh"], order=(1, 0, 3, 2))
    rows = b.broadcast(there, axes=(0,), type=tensor("i64", 4, 4))
    values = RankValues(2)
    assert np.array_equal(values.of(mine), [0, 1, 2, 3])
    assert np.array_equal(values.of(rows), [[4], [5], [6], [7]])
    assert {axis.name for axes in values.read for axis in axes} == {"cp"}
    data = b.add(mine, param("x", tensor("i64", 4)))
    assert values.of(data) is None
