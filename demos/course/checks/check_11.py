from __future__ import annotations

import math
from typing import Any


def _row(system: str, ms: float | None, spread: float | None, **more: Any) -> dict[str, Any]:
    row = {"system": system, "via": "ir", "ok": True, "kernels": 3, "library_calls": 0}
    return {**row, "run_ms": ms, "run_ms_spread": spread, **more}


def check_ratio(student: Any) -> None:
    """ratio is None where a time is missing or moves too much"""
    still, other = _row("a", 2.0, 0.01), _row("b", 3.0, 0.1)
    assert student.ratio(still, other) == 1.5
    assert student.ratio(still, _row("b", 3.0, 0.3)) is None
    assert student.ratio(_row("a", 2.0, 0.2), other) is None
    assert student.ratio(still, _row("b", None, None)) is None


def check_kernels(student: Any) -> None:
    """fewest_kernels counts library calls, and leaves out who is wrong"""
    rows = [
        _row("a", 1.0, 0.0),
        _row("b", 1.0, 0.0, kernels=1, library_calls=2),
        _row("c", 1.0, 0.0, kernels=1, ok=False),
        _row("d", 1.0, 0.0, kernels=9),
    ]
    assert sorted(student.fewest_kernels(rows)) == ["a/ir", "b/ir"]


def check_mean(student: Any) -> None:
    """geometric_mean of 2 and 1/2 is 1, and None is left out"""
    assert math.isclose(student.geometric_mean([2.0, 0.5, None]), 1.0)
    assert math.isclose(student.geometric_mean([8.0, 1.0, 1.0]), 2.0)
    assert student.geometric_mean([None]) is None
