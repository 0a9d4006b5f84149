"""Fields of machine descriptions: each number has a unit, a range and a meaning."""

from __future__ import annotations

from dataclasses import field
from typing import Any


class Tuning:
    """Base class of a group of tuned numbers, such as `GpuRows`: tile sizes and thresholds.

    Each field is made by `tuned`. A target file may override it.
    """


def number(unit: str, low: float, high: float, doc: str) -> Any:
    """Declares a required number of a machine description: a dataclass field with a unit, a range
    and a meaning. Loading a file with a number outside of the range is an error.
    """
    return field(metadata={"unit": unit, "low": low, "high": high, "doc": doc})


def tuned(value: float, unit: str, low: float, high: float, doc: str, source: str) -> Any:
    """Declares a number of a `Tuning`: a dataclass field whose default `value` is used if a target
    file does not set the number.

    `doc` says what the number limits, and `source` where the value comes from.
    """
    metadata = {"unit": unit, "low": low, "high": high, "doc": doc, "source": source}
    return field(default=value, metadata=metadata)
