"""Measure a fusion pass against the best fusings that are predicted, in interleaved rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stack.explore.lowering import Settings, all_stages, capture, label, with_random_inputs
from stack.explore.table import number, table
from stack.explore.target import CommandTarget, ExampleCall
from stack.explore.terminal import Loud
from stack.measure.compare import Comparison, measure, ratio_text
from stack.measure.fusion_input import fusion_input, fusion_of
from stack.measure.fusion_optimum import Compared, Landscape, Standing, described, landscape
from stack.measure.plots import files_of, plot_landscape
from stack.measure.systems import (
    NO_OPTIONS,
    BenchProgram,
    Say,
    System,
    graph_system,
    program_of,
)
from stack.measure.timing import ROUNDS
from stack.run.pipeline_edits import DEFAULT


@dataclass
class Race:
    """Fusings of one program that were compiled and timed, each beside its prediction."""

    standings: list[Standing]
    comparison: Comparison


def race(
    program: BenchProgram,
    found: Compared,
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


def race_fusings(
    target: CommandTarget, settings: Settings, best: int, rounds: int, plot: str | None, say: Say
) -> int:
    """Prints the landscape of a target's fusings, and times the best ones and the pass's own.

    Returns the exit code.

    Args:
        best: how many of the best fusings are shown and timed.
        rounds: of timing; 0 times nothing.
        plot: a file for a picture of the landscape.
    """
    captured, frontend = capture(target, settings)
    stages, machine = all_stages(captured.func, settings)
    own, _ = all_stages(captured.func, replace(settings, passes=DEFAULT))
    found = landscape(fusion_input(captured.func, stages, machine, fusion_of(own)), best, say)
    print(described(found))
    if plot and isinstance(found, Landscape):
        marks = {s.name: s.seconds for s in found.standings}
        title = f"{label(target)}: {found.size} legal fusings, predicted for {found.machine}"
        plot_landscape(found.histogram, marks, title, plot)
        say(f"wrote {', '.join(map(str, files_of(plot)))}")
    elif plot:
        say("no picture: a search in parts does not know how all fusings are distributed")
    if not rounds or settings.machine:
        why = "--rounds 0" if not rounds else f"lowered for {found.machine}, by --target"
        print(f"\nnothing is measured: {why}")
        return 0
    if not isinstance(target, ExampleCall):
        captured = with_random_inputs(captured)
    program = program_of(captured, frontend)
    raced = race(
        program, found, backend=settings.backend, passes=settings.passes, rounds=rounds, say=say
    )
    try:
        print(f"\nmeasured in {rounds} interleaved rounds, relative to {found.ours.name}\n")
        print(race_table(raced))
        return int(raced.comparison.exit_code)
    finally:
        raced.comparison.close()
