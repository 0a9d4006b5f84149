"""Results of `mesh_race` as Markdown tables and plots.

python -m stack.demos.mesh_tables FILE.json [--plot FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.demos.ops_pictures import lines, pairs, stacked

COLUMNS = (
    *("system", "layers", "batch x tokens", "ms", "tokens/s", "exposed, ms", "idle, ms"),
    *("GiB of each GPU", "predicted ms", "exposed", "GiB", "loss"),
)
MOVED = ("collective", "KiB", "us", "GB/s of the bus", "predicted us")
Row = dict[str, Any]


def header(made: Row) -> str:
    """Formats date, device, versions and command."""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{made['date']}, {made['device']}, {versions}\n\n    {made['command']}\n"


def system(row: Row) -> str:
    """Formats the table row of one system, or the reason why it was not measured."""
    model = row["model"]
    start = [row["system"], str(model["layers"]), f"{model['batch']} x {model['tokens']}"]
    if "ms" not in row:
        return _line([*start, row.get("note", ""), *[""] * 8])
    loss = f"{row['first_loss']:.4f} to {row['last_loss']:.4f}"
    return _line(
        [
            *start,
            f"{row['ms']:.1f}{' (noisy)' if row['spread'] > 0.05 else ''}",
            f"{row['tokens_per_s']:.0f}",
            _number(row, "exposed_ms"),
            _number(row, "idle_ms"),
            ", ".join(f"{n:.1f}" for n in row["peak_gib"]),
            _number(row, "predicted_ms"),
            _number(row, "predicted_exposed_ms"),
            _number(row, "predicted_gib"),
            loss,
        ]
    )


def moved(row: Row) -> str:
    """Formats the table row of one collective at one size: time, bandwidth and prediction."""
    told = "" if row["is_fitted"] else f"{row['predicted_us']:.1f}"
    size, bus = str(row["bytes"] // 1024), f"{row['bus_gb_per_s']:.1f}"
    return _line([row["collective"], size, f"{row['us']:.1f}", bus, told])


def _number(row: Row, name: str) -> str:
    return f"{row[name]:.1f}" if name in row else ""


def _head(names: Sequence[str]) -> tuple[str, str]:
    return _line(names), "|" + "---|" * len(names)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def pictures(made: Row, folder: Path) -> None:
    """Plots the parts of steps, measured and predicted memory, and bus bandwidth by size."""
    folder.mkdir(parents=True, exist_ok=True)
    done = [row for row in made["systems"] if "exposed_ms" in row]
    for number, (tokens, rows) in enumerate(_by_length(done).items()):
        names = [row["system"] for row in rows]
        parts = {p: [row[f"{p}_ms"] for row in rows] for p in ("compute", "exposed", "idle")}
        marks = [row.get("predicted_ms") for row in rows]
        title = f"{rows[0]['model']['batch']} x {tokens} tokens, {made['device']}"
        stacked(folder / f"mesh-steps{number}.png", names, parts, marks, "ms of a step", title)
    known = [row for row in done if "predicted_gib" in row]
    both = {
        "measured": [max(row["peak_gib"]) for row in known],
        "predicted": [row["predicted_gib"] for row in known],
    }
    pairs(folder / "mesh-memory.png", [row["system"] for row in known], both, "GiB of a GPU")
    sizes = sorted({row["bytes"] for row in made["collectives"]})
    found: dict[str, list[float]] = {}
    for row in made["collectives"]:
        found.setdefault(row["collective"], []).append(row["bus_gb_per_s"])
    lines(folder / "mesh-bus.png", [n // 1024 for n in sizes], found, "KiB", "GB/s of the bus")


def _by_length(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["model"]["tokens"], []).append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="tables and plots of a race")
    parser.add_argument("file", type=Path)
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="write plots to this folder")
    given = parser.parse_args()
    made = json.loads(given.file.read_text())
    print(header(made), *_head(COLUMNS), *map(system, made["systems"]), sep="\n")
    print("", *_head(MOVED), *map(moved, made["collectives"]), sep="\n")
    if given.plot is not None:
        pictures(made, given.plot)


if __name__ == "__main__":
    main()
