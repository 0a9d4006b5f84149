"""Plots of the demo of hosted operators, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import UsageError
from stack.releases import install_hint


def _library() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError(f"pictures need matplotlib: {install_hint('dev')}") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _saved(figure: Any, path: Path) -> None:
    figure.savefig(path)
    _library().close(figure)


def grids(path: Path, panels: Mapping[str, np.ndarray]) -> None:
    """Plots a matrix per panel, of queries and keys: dark where the attention score is kept."""
    figure, axes = _library().subplots(1, len(panels), figsize=(2.2 * len(panels), 2.5))
    for axis, (name, cells) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        axis.imshow(cells, cmap="Blues", vmin=0, vmax=1.3)
        axis.set_title(name, fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.supxlabel("keys", fontsize=8)
    figure.supylabel("queries", fontsize=8)
    _saved(figure, path)


def lines(
    path: Path, places: Sequence[float], found: Mapping[str, Sequence[float]], x: str, y: str
) -> None:
    """Plots a line for each name on log-log axes."""
    figure, axis = _library().subplots(figsize=(7, 4.5), layout="constrained")
    for name, values in found.items():
        axis.loglog(places, values, marker="o", label=name)
    axis.set_xticks(list(places), [str(p) for p in places])
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.legend(fontsize=7)
    _saved(figure, path)


def bars(path: Path, found: Mapping[str, float], y: str) -> None:
    """Plots a bar for each name."""
    width = max(4.0, 0.9 * len(found))
    figure, axis = _library().subplots(figsize=(width, 3), layout="constrained")
    axis.bar(list(found), list(found.values()), color="#2a6f97")
    axis.set_ylabel(y)
    axis.tick_params(axis="x", labelsize=7)
    _saved(figure, path)


def pairs(path: Path, names: Sequence[str], found: Mapping[str, Sequence[float]], x: str) -> None:
    """Plots, for each name, one bar per kind."""
    figure, axis = _sideways(names)
    height = 0.8 / len(found)
    for number, (kind, values) in enumerate(found.items()):
        axis.barh(np.arange(len(names)) + number * height, values, height, label=kind)
    axis.set_yticks(np.arange(len(names)) + 0.4 - height / 2, names, fontsize=8)
    axis.set_xlabel(x)
    axis.legend(fontsize=7)
    _saved(figure, path)


def stacked(
    path: Path,
    names: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    marks: Sequence[float | None],
    x: str,
    title: str,
) -> None:
    """Plots, for each name, a stacked bar of its parts, and a mark if given."""
    figure, axis = _sideways(names)
    start = np.zeros(len(names))
    for kind, values in parts.items():
        axis.barh(names, values, left=start, label=kind)
        start += np.asarray(values)
    known = [(mark, name) for mark, name in zip(marks, names, strict=True) if mark is not None]
    axis.plot(*map(list, zip(*known, strict=True)), "k|", markersize=14, label="predicted")
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlabel(x)
    axis.set_title(title, fontsize=9)
    axis.legend(fontsize=7)
    _saved(figure, path)


def _sideways(names: Sequence[str]) -> tuple[Any, Any]:
    size = (7, max(2.0, 0.4 * len(names) + 1))
    figure, axis = _library().subplots(figsize=size, layout="constrained")
    axis.invert_yaxis()
    return figure, axis
