"""Pictures of the demo of hosted operators; matplotlib draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import UsageError


def _library() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("pictures need matplotlib: pip install 'stack-compiler[dev]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _saved(figure: Any, path: Path) -> None:
    figure.savefig(path)
    _library().close(figure)


def grids(path: Path, panels: Mapping[str, np.ndarray]) -> None:
    """A square of rows and columns for each: dark where something is seen."""
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
    """A line for each name, both axes by powers."""
    figure, axis = _library().subplots(figsize=(7, 4.5), layout="constrained")
    for name, values in found.items():
        axis.loglog(places, values, marker="o", label=name)
    axis.set_xticks(list(places), [str(p) for p in places])
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.legend(fontsize=7)
    _saved(figure, path)


def bars(path: Path, found: Mapping[str, float], y: str) -> None:
    """A bar for each name."""
    width = max(4.0, 0.9 * len(found))
    figure, axis = _library().subplots(figsize=(width, 3), layout="constrained")
    axis.bar(list(found), list(found.values()), color="#2a6f97")
    axis.set_ylabel(y)
    axis.tick_params(axis="x", labelsize=7)
    _saved(figure, path)
