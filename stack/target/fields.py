"""Fields of machine descriptions: each number has a unit, a range and a meaning."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any


class Tuning:
    """Base class of a group of tuned numbers, such as `GpuRows`: tile sizes and thresholds.

    Each field is made by `tuned`. A target file may override it.
    """


def number(unit: str, low: float, high: float, doc: str) -> Any:
    """A field that every file of this kind must have; values outside of its range are errors."""
    return field(metadata={"unit": unit, "low": low, "high": high, "doc": doc})


def tuned(value: float, unit: str, low: float, high: float, doc: str, source: str) -> Any:
    """A number of a `Tuning`, with its value for a target whose file does not set it.

    `doc` says what the number limits, and `source` where the value comes from.
    """
    metadata = {"unit": unit, "low": low, "high": high, "doc": doc, "source": source}
    return field(default=value, metadata=metadata)


def numbers_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The numbers of a kind of machine, or of a group."""
    return {f.name: f for f in dataclasses.fields(cls) if "unit" in f.metadata}


def groups_of(cls: type[Any]) -> dict[str, Tuning]:
    """The groups of tuned numbers of a kind of machine, with their usual values."""
    return {f.name: f.default for f in dataclasses.fields(cls) if isinstance(f.default, Tuning)}
