"""The race of sharded training at toy size: all layouts, on 2, 4 and 8 gloo processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from started_ranks import torchrun

pytest.importorskip("torch")

from race_ranks import held_by_systems

from stack.demos.mesh_tables import system
from stack.run.ranks import Ranks

NAMES = (
    *("ours FSDP", "ours TP", "ours TP + SP"),
    *("ours CP heads", "ours CP ring", "ours CP ring zigzag"),
)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_losses_are_those_of_one_model(ranks: int, tmp_path: Path) -> None:
    """Ours under each strategy and torch's FSDP2, in f32, before and after some steps."""
    names = [*NAMES, f"ours 1F1B PP2 x DP{ranks // 2}", "torch FSDP2"]
    names += [f"ours DP2 x TP{ranks // 2}"] * (ranks > 2)
    asked = ["--rounds", "2", "--backend", "", "--seconds", "900", "--only", *names]
    given = ["-m", "stack.demos.mesh_race", str(tmp_path), *asked]
    found = torchrun("--nproc-per-node", str(ranks), *given)
    assert found.returncode == 0, found.stderr
    made = json.loads((tmp_path / "mesh_race.json").read_text())
    assert [row["system"] for row in made["systems"]] == names
    assert "OUT --rounds 2" in made["command"] and made["device"].startswith(f"{ranks} x gloo")
    losses: dict[int, set[tuple[float, float]]] = {}
    for row in made["systems"]:
        assert "note" not in row, row
        ends = (round(row["first_loss"], 3), round(row["last_loss"], 3))
        losses.setdefault(row["model"]["tokens"], set()).add(ends)
        if row["system"].startswith("ours"):
            assert row["predicted_ms"] > 0 and row["predicted_gib"] > 0
        assert system(row).count("|") == 13
    assert len(losses) == 2
    for ends in losses.values():  # rounding may fall either way
        assert max(a for a, _ in ends) - min(a for a, _ in ends) <= 1e-3
        assert max(b for _, b in ends) - min(b for _, b in ends) <= 1e-3
        assert all(b < a for a, b in ends)


def test_a_system_leaves_no_weights(tmp_path: Path) -> None:
    """Compiled, so that passes refuse streams: an exception that is kept refers to the model."""
    with Ranks(2, ["race_ranks"], limit=300) as ranks:
        found = ranks.run(held_by_systems, str(tmp_path / "store"), "mlir")
    for own in found:
        assert set(own) == {"FSDP", "CP ring", "1F1B"}
        for during, after in own.values():
            assert during > 0
            assert after == 0
