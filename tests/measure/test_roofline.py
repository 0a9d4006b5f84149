"""Peak rates of a machine."""

from __future__ import annotations

import time

import pytest

from stack.measure import roofline
from stack.measure.roofline import best_time, measure_ceilings


def test_slow_calls_are_timed_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SECONDS", 0.2)
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.15)

    assert best_time(slow, rounds=100) >= 0.15
    assert len(calls) == 3  # one that does not count, and two until the time is up
    calls.clear()
    best_time(lambda: calls.append(1), rounds=5)
    assert len(calls) == 6


def test_bf16_is_at_least_as_fast_as_what_it_can_be_widened_to() -> None:
    pytest.importorskip("torch")
    found = measure_ceilings(quick=True)
    assert found.of("bf16") >= found.of("f32")
