"""Measure a fusion pass against the best fusings that are predicted, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stack.explore.optimum import Landscape, Standing
from stack.explore.table import number, table
from stack.explore.terminal import Loud
from stack.measure.compare import Comparison, measure, ratio_text
from stack.measure.systems import (
    NO_OPTIONS,
    BenchProgram,
    Say,
    System,
    graph_system,
    program_of,
)
from stack.measure.timing import ROUNDS
from stack.run.frontend import Captured, Frontend


@dataclass
class Race:
    """Fusings of one program that were compiled and timed, each beside its prediction."""

    standings: list[Standing]
    comparison: Comparison


def race(
    program: BenchProgram,
    found: Landscape,
    *,
    backend: str | None = None,
    passes: str = "default",
    options: Mapping[str, Any] = NO_OPTIONS,
    rounds: int = ROUNDS,
    say: Say = lambda _: None,
) -> Race:
    """Compiles the fusings of a landscape and times all in the same rounds, on equal arrays."""
    systems: list[System] = []
    for standing in found.standings:
        say(f"compiling: {standing.name}")
        text = f"{passes},{standing.edit}" if standing.edit else passes
        made = graph_system(program, backend, text, standing.name, options)
        made.label = standing.name
        systems.append(made)
    return Race(list(found.standings), measure(program, systems, rounds, say))


def race_table(found: Race) -> str:
    """Formats a row for each fusing: predicted and measured, relative to the pass's own."""
    own, predicted = found.comparison.rows[0], found.standings[0].seconds
    rows: list[list[object]] = []
    for standing, row in zip(found.standings, found.comparison.rows, strict=True):
        error = row["max_error"]
        rows.append(
            [
                standing.name,
                standing.kernels,
                f"{standing.seconds / predicted:.3f}x",
                ratio_text(own, row, is_race=False),
                None if row["run_ms"] is None else number(row["run_ms"]),
                None if error is None else f"{error:.1e}",
                "ok" if row["ok"] else Loud("NO"),
            ]
        )
    head = ["fusing", "kernels", "predicted", "measured", "ms", "error", "ok"]
    return table(head, rows, drop=["ms", "error"])


def measured(
    captured: Captured,
    frontend: Frontend,
    found: Landscape,
    *,
    backend: str | None,
    passes: str,
    rounds: int,
    say: Say,
) -> tuple[str, int]:
    """Times the best fusings and the pass's own; returns the table and the exit code."""
    program = program_of(captured, frontend)
    raced = race(program, found, backend=backend, passes=passes, rounds=rounds, say=say)
    try:
        return race_table(raced), raced.comparison.exit_code
    finally:
        raced.comparison.close()
