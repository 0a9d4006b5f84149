"""Tables from measured collectives: fits, choices, and losing rows that stay."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from stack.demos.collectives_table import judged, markdown
from stack.ops.collectives import Network, build
from stack.ops.collectives.network import Link

RANKS, SIZES = 4, (1 << 13, 1 << 19, 1 << 25)
PUSH, PULL, MESSAGE = Link(4e-6, 6e-12), Link(8e-6, 3e-12), Link(1e-5, 3e-12)


def row(kind: str, algorithm: str, size: int, seconds: float) -> dict[str, Any]:
    told = {"collective": "all_reduce", "kind": kind, "algorithm": algorithm, "bytes": size}
    return {**told, "us": seconds * 1e6, "spread": 0.0, "bus_gb_per_s": size / seconds / 1e9}


def measured() -> list[dict[str, Any]]:
    """Times that follow the links, except that two shots of large messages take twice as long."""
    rows: list[dict[str, Any]] = []
    for size in SIZES:
        rows.append(row("library", "nccl", size, 5e-6 + size * 1e-12))
        for way, schedule, link in (
            ("push", "one_shot", PUSH),
            ("one_shot", "one_shot", PULL),
            ("two_shot", "two_shot", PULL),
        ):
            took = Network(link).seconds(build("all_reduce", schedule, RANKS), size)
            is_slow = way == "two_shot" and size == SIZES[-1]
            rows.append(row("hand", way, size, took * (2.5 if is_slow else 1)))
        rows.append(row("schedule", "ring", size, 1e-4))
    rows.append({**row("peer", "one_shot", SIZES[0], 1.0), "note": "torch refuses"})
    del rows[-1]["us"]
    return rows


def test_links_are_found_and_choices_judged_by_what_was_measured() -> None:
    made = judged(measured(), MESSAGE, RANKS)
    for name, link in (("push", PUSH), ("pull", PULL), ("message", MESSAGE)):
        assert made["fit"][name]["alpha_us"] == pytest.approx(link.alpha * 1e6, rel=1e-3)
        assert made["fit"][name]["gb_per_s"] == pytest.approx(1e-9 / link.beta, rel=1e-3)
    chosen = {c["bytes"]: c for c in made["choices"] if c["kind"] == "hand"}
    assert [chosen[s]["picked"] for s in SIZES] == ["push", "one_shot", "two_shot"]
    assert [chosen[s]["best"] for s in SIZES] == ["push", "one_shot", "one_shot"]
    assert chosen[SIZES[0]]["regret"] == 0.0
    last = chosen[SIZES[-1]]
    assert last["regret"] == pytest.approx(last["measured_us"] / last["best_us"] - 1)
    assert last["regret"] > 0.1
    assert (last["first"], chosen[SIZES[0]]["first"]) == ("nccl", "ours push")


def test_all_rows_stand_in_the_table() -> None:
    made = {
        "date": "2026-01-01", "device": "4 x a GPU", "versions": {"nccl": "1"}, "command": "run",
        **judged(measured(), MESSAGE, RANKS),
    }  # fmt: skip
    text = markdown(made)
    assert "| bytes | nccl | ours push | ours one_shot | ours two_shot | torch one_shot |" in text
    assert "| 8 KiB |" in text and "torch refuses" in text
    assert text.count("\n| 32 MiB |") == 1
    assert "| all_reduce | 32 MiB | ring 100 | ring | ring | 0% |" in text
    assert "| ours | 2 of 3 |" in text
