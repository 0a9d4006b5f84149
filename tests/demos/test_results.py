"""The table of results is what the recorded rows say."""

from __future__ import annotations

import json
from pathlib import Path

from stack.demos.results_table import HEAD, cases, joined, line

RESULTS = Path(__file__).parents[2] / "demos" / "results"


def test_the_table_is_that_of_the_rows() -> None:
    document = json.loads((RESULTS / "gpu-h100.json").read_text())
    table = "\n".join([HEAD, *(line(rows) for rows in cases(document["rows"]))])
    assert table in (RESULTS / "README.md").read_text()


def test_losing_rows_and_failures_have_lines() -> None:
    ours = {
        "row": "G6",
        "case": {"M": 16, "N": 8},
        "system": "stack-triton",
        "kind": "generated",
        "ms": 2.0,
        "ratio_to_best_peer": 0.5,
        "share_of_limit": None,
    }
    other = {**ours, "system": "eager", "kind": "library", "ms": 1.0}
    lost = {**ours, "system": "xla/ir", "kind": "peer", "ms": None}
    rows = joined([{"rows": [ours]}, {"rows": [other, lost], "date": "now"}])["rows"]
    (found,) = cases(rows)
    assert line(found) == (
        "| G6 | 16 8 | 2.000 | generated | 0.50x | - | eager 1.000, xla/ir fails | 1 |"
    )
