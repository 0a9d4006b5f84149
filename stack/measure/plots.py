"""A picture of a bench: our time against every other's, a panel for each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stack.errors import UsageError
from stack.measure.bench import Row, by_case


def plot_bench(rows: Sequence[Row], device: str, path: str | Path) -> None:
    """Write bars of times relative to the best other system; png, svg or pdf by the file's name.

    Raises UsageError where matplotlib is missing or does not know the format.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("plots need matplotlib: pip install 'stack-compiler[dev]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(r["row"] for r in rows))
    cases = {name: by_case([r for r in rows if r["row"] == name]) for name in names}
    heights = [0.35 * sum(len(c) for c in cases[name]) + 1 for name in names]
    library: Any = pyplot
    figure, axes = library.subplots(
        len(names), 1, figsize=(9, sum(heights) + 1), height_ratios=heights, squeeze=False
    )
    for axis, name in zip(axes[:, 0], names, strict=True):
        _panel(axis, name, cases[name])
    figure.suptitle(
        f"time relative to the best other system, lower is better\n{device}", fontsize=9
    )
    figure.tight_layout()
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    finally:
        library.close(figure)


def _panel(axis: Any, name: str, cases: Sequence[Sequence[Row]]) -> None:
    labels: list[str] = []
    values: list[float] = []
    colors: list[str] = []
    for rows in cases:
        title = " ".join(str(v) for v in rows[0]["case"].values())
        for row in rows:
            ratio = row["ratio_to_best_peer"]
            labels.append(f"{title}  {row['system']}")
            values.append(1 / ratio if ratio else 0.0)
            colors.append("#2a6f97" if row["system"].startswith("stack-") else "#bbbbbb")
    places = range(len(labels))
    axis.barh(places, values, color=colors)
    axis.set_yticks(list(places), labels, fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1, color="#222222", linewidth=0.8)
    axis.set_title(name, loc="left", fontsize=9)
