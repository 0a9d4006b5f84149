"""Plots of a bench, one panel per row, and of the landscape of fusings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.errors import UsageError
from stack.measure.bench import Row, by_case
from stack.measure.convex_cuts import Histogram
from stack.measure.roofline import Ceilings
from stack.releases import install_hint

OURS, THEIRS = "#2a6f97", "#bbbbbb"
LONGEST = 4.0  # longer bars are cut


def plot_all(rows: Sequence[Row], device: str, ceilings: Ceilings, path: str | Path) -> None:
    """Plots ratios as bars to `path`, and a roofline next to it if the rows have flops and bytes.

    A name without suffix writes svg and png. Raises UsageError if matplotlib is missing or does not
    support the format.
    """
    for name in files_of(path):
        plot_bench(rows, device, name)
        if any(_work(r) for r in rows):
            roof = name.with_stem(f"{name.stem}-roofline")
            plot_roofline(rows, device, ceilings, roof)


def files_of(path: str | Path) -> list[Path]:
    """Returns the files to plot to: svg and png for a name without suffix."""
    path = Path(path)
    return [path] if path.suffix else [path.with_suffix(s) for s in (".svg", ".png")]


def _library() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(f"plots need matplotlib: {install_hint('dev')}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: str | Path) -> None:
    try:
        figure.savefig(path)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    finally:
        _library().close(figure)


def plot_bench(rows: Sequence[Row], device: str, path: str | Path) -> None:
    """Plots times relative to the best other system; the file's suffix selects png, svg or pdf.

    Raises UsageError if matplotlib is missing or does not support the format.
    """
    library = _library()
    names = list(dict.fromkeys(r["row"] for r in rows))
    cases = {name: by_case([r for r in rows if r["row"] == name]) for name in names}
    heights = [0.15 * sum(map(len, cases[name])) + 1 for name in names]
    figure, axes = library.subplots(
        len(names),
        1,
        figsize=(9, sum(heights) + 1),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, name in zip(axes[:, 0], names, strict=True):
        _panel(axis, name, cases[name])
    figure.suptitle(
        f"time relative to the best other system, lower is better\n{device}", fontsize=9
    )
    _save(figure, path)


def _work(row: Row) -> tuple[float, float] | None:
    """Returns a row's operations per byte, and its operations per second.

    Returns None if its operations, bytes or time are unknown.
    """
    flops, moved, ms = (float(row.get(k) or 0) for k in ("flops", "bytes", "ms"))
    return (flops / moved, flops / ms * 1e3) if flops and moved and ms else None


def plot_roofline(rows: Sequence[Row], device: str, ceilings: Ceilings, path: str | Path) -> None:
    """Plots the rate of every row with known operations and bytes, under the run's ceilings."""
    library = _library()
    figure, axis = library.subplots(figsize=(8, 5))
    peak, rate = max(ceilings.flops.values()), ceilings.bytes
    intensities = [2.0**i for i in range(-2, 16)]
    axis.loglog(intensities, [min(peak, rate * i) for i in intensities], color="#222222")
    marks = {"generated": "o", "hand": "^", "library": "s", "peer": "x"}
    for kind, mark in marks.items():
        for is_ours, color in ((True, OURS), (False, THEIRS)):
            points = [
                found
                for row in rows
                if row["kind"] == kind and _is_ours(row) == is_ours and (found := _work(row))
            ]
            if points:
                label = f"{kind}, {'ours' if is_ours else 'others'}"
                axis.scatter(*zip(*points), marker=mark, color=color, s=18, label=label)
    axis.set_xlabel("operations per byte of memory traffic")
    axis.set_ylabel("operations per second")
    axis.set_title(f"roofline of this run\n{device}", fontsize=9)
    axis.legend(fontsize=7)
    figure.tight_layout()
    _save(figure, path)


def _is_ours(row: Row) -> bool:
    return row["kind"] == "hand" or str(row["system"]).startswith("stack-")


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
            colors.append(OURS if _is_ours(row) else THEIRS)
    places = range(len(labels))
    axis.barh(places, values, color=colors)
    axis.set_yticks(list(places), labels, fontsize=7)
    axis.invert_yaxis()
    axis.axvline(1, color="#222222", linewidth=0.8)
    axis.set_xlim(0, min(LONGEST, max([1.1, *values])))
    axis.set_title(name, loc="left", fontsize=9)


def plot_parts(bars: Mapping[str, Sequence[float]], parts: Sequence[str], path: str | Path) -> None:
    """Plots a stacked bar for each name, as shares of its total; the suffix selects the format.

    Raises UsageError if matplotlib is missing or does not support the format.
    """
    library = _library()
    figure, axis = library.subplots(figsize=(9, 0.2 * len(bars) + 1.5), layout="constrained")
    left = [0.0] * len(bars)
    for i, part in enumerate(parts):
        shares = [100 * values[i] / sum(values) for values in bars.values()]
        axis.barh(list(bars), shares, left=left, label=part)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set_xlabel("% of the time")
    axis.legend(fontsize=7)
    _save(figure, path)


def plot_landscape(
    histogram: Histogram, marks: Mapping[str, float], title: str, path: str | Path
) -> None:
    """Plots the number of fusings by predicted cost, relative to the lowest cost of `marks`.

    `marks` are the costs of single fusings by name. A path without suffix writes svg and png.
    Raises UsageError if matplotlib is missing or does not support the format.
    """
    library = _library()
    low = min(marks.values())
    pairs = zip(histogram.costs / low, histogram.counts, strict=True)
    known = [(float(c), float(n)) for c, n in pairs if n >= 1]
    right = max(c for c, _ in known) * 0.6 + 0.4  # names of marks past it are left of them
    for name in files_of(path):
        figure, axis = library.subplots(figsize=(8, 4.5), layout="constrained")
        axis.vlines(*zip(*((c, 0.5, n) for c, n in known)), color=THEIRS, linewidth=1.5)
        axis.set_yscale("log")
        for place, (mark, cost) in enumerate(marks.items()):
            color = OURS if place == 0 else "#222222"
            axis.axvline(
                cost / low, color=color, linewidth=1, linestyle=("-", "--", ":")[place % 3]
            )
            axis.annotate(
                mark,
                (cost / low, 0.97 - 0.06 * place),
                xycoords=("data", "axes fraction"),
                xytext=(-4 if cost / low > right else 4, 0),
                ha="right" if cost / low > right else "left",
                textcoords="offset points",
                color=color,
                fontsize=8,
            )
        axis.set_xlabel("predicted cost, relative to the best fusing")
        axis.set_ylabel("legal fusings")
        axis.set_title(title, fontsize=9)
        _save(figure, name)
