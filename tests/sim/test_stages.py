"""Stages of a pipeline, simulated: the bubble of its schedule, messages, what is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stack.ir import Builder, param, tensor
from stack.sim import Cluster, Link, simulate_stages
from stack.sim.pipeline import KINDS, ChunkProgram, order_of, pipeline

N = 256
WEIGHT = N * N * 4


def machine(alpha: float = 0.0, memory: float = 1e18) -> Cluster:
    return Cluster("plain", "", 1e12, 1e12, memory, 1e9, 1.0, 0.0, (Link(alpha, 0.0),))


def product(reads: tuple[str, ...], made: str) -> ChunkProgram:
    """One product of two values."""
    b = Builder()
    params = [param(name, tensor("f32", N, N)) for name in reads]
    return ChunkProgram(
        b.func(made, params, [b.dot(*params, rule="m k, k n -> m n")]), reads, (made,)
    )


def parts(chunks: int) -> dict[tuple[str, int], ChunkProgram]:
    """A chain of products forward and back, and a gradient for each weight."""
    found: dict[tuple[str, int], ChunkProgram] = {}
    for c in range(chunks):
        found["F", c] = product((f"y{c - 1}" if c else "x", f"w{c}"), f"y{c}")
        last = c == chunks - 1
        found["B", c] = product((f"y{c}" if last else f"b{c + 1}", f"w{c}"), f"b{c}")
        found["W", c] = product((f"y{c}", f"b{c}"), f"g{c}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_time_is_that_of_the_schedule(kind: str) -> None:
    """Messages take no time, B and W as long as F; who gets a gradient does not wait for W."""
    schedule = pipeline(kind, 2, 8)
    found = simulate_stages(parts(schedule.chunks), order_of(schedule), machine())
    seconds = 2 * N**3 / 1e12
    early = kind != "zero_bubble"  # in the others B and W are one piece of the timetable
    assert found.seconds == pytest.approx((schedule.seconds - early) * seconds)
    assert len(found.events) == 3 * 8 * schedule.chunks


def test_messages_take_their_time() -> None:
    orders = order_of(pipeline("gpipe", 2, 1))
    near, far = (simulate_stages(parts(2), orders, machine(a)).seconds for a in (0.0, 1e-3))
    assert far == pytest.approx(near + 2e-3)  # forward and back


def test_gradients_of_microbatches_are_added() -> None:
    """Each weight's gradient is added after the first microbatch: two reads and a write."""
    orders = order_of(pipeline("gpipe", 1, 3))
    fast, slow = (
        simulate_stages(parts(1), orders, machine(memory=rate)).seconds for rate in (1e18, 1e15)
    )
    assert slow == pytest.approx(fast + 2 * 3 * WEIGHT / 1e15)


def test_replicas_reduce_a_gradient_after_its_last_microbatch() -> None:
    """The reduction of the last stage's gradient overlaps with the first stage's work."""
    orders = order_of(pipeline("1f1b", 2, 4))
    near = replace(machine(), links=(Link(1e-6, 0.0),), beside=1.25)
    alone, two = (simulate_stages(parts(2), orders, near, replicas=n) for n in (1, 2))
    assert two.seconds == pytest.approx(alone.seconds + 2e-6)
    reduced = {e.rank: e for e in two.events if e.stream == "communicate"}
    assert len(reduced) == 2 and reduced[1].end < reduced[0].start
    work = [e.end for e in two.events if e.rank == 1 and e.stream == "compute"]
    assert reduced[1].start == max(work)


def test_1f1b_holds_fewer_microbatches_than_gpipe() -> None:
    peaks = {
        kind: simulate_stages(parts(2), order_of(pipeline(kind, 2, 8)), machine()).peak
        for kind in ("gpipe", "1f1b")
    }
    assert peaks["gpipe"] >= 8 * WEIGHT > peaks["1f1b"]
