"""Convert rows of `stackc bench gpu --json` to the table of `demos/results/README.md`.

python -m stack.demos.results_table FILE.json ...          prints the table
python -m stack.demos.results_table FILE.json ... -o all.json   and joins the files
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from stack.measure.plots import plot_all
from stack.measure.roofline import Ceilings
from stack.measure.timing import is_noisy

COMPILED = ("G21",)  # rows with the fastest of several fresh processes
HEAD = """| row | case | ours, ms | kind | vs best | of limit | others, ms | run |
|---|---|---|---|---|---|---|---|"""


def joined(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins documents: the first run's device, versions and ceilings, and the rows of all.

    Each row has the number of its run; documents that were joined before keep theirs.
    """
    rows = [
        {**row, "run": row.get("run", number)}
        for number, document in enumerate(documents, 1)
        for row in document["rows"]
    ]
    problems = [p for document in documents for p in document.get("problems", ())]
    in_order = [row for case in cases(rows) for row in case]
    return {**documents[0], "rows": in_order, "problems": problems}


def cases(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Groups rows by case, sorted by the number of their row."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["row"] + json.dumps(row["case"]), []).append(row)
    return sorted(found.values(), key=lambda rows: int(rows[0]["row"][1:]))


def line(rows: list[dict[str, Any]]) -> str:
    """Formats the rows of one case as a line of the table: our time and all others."""
    ours = next(r for r in rows if r["system"].startswith("stack"))
    words = " ".join(str(v) for k, v in ours["case"].items() if k not in ("D", "graph"))
    others = [f"{r['system']} {_number(r['ms'])}" for r in rows if r is not ours]
    ratio, share = ours["ratio_to_best_peer"], ours["share_of_limit"]
    shown = f"{ratio:.2f}x" if ratio else "-"
    if ratio and ours["row"] not in COMPILED and any(map(_moves, (ours, _best(rows)))):
        shown = "noisy"
    cells = [
        *(ours["row"], words, _number(ours["ms"]), ours["kind"]),
        shown,
        f"{share:.2f}" if share else "-",
        ", ".join(others),
        str(ours.get("run", "-")),
    ]
    return f"| {' | '.join(cells)} |"


def _best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of the fastest system that is neither ours nor a hand-written kernel."""
    peers = [r for r in rows if r["kind"] != "hand" and not r["system"].startswith("stack")]
    return min((r for r in peers if r["ms"]), key=lambda r: r["ms"])


def _moves(row: dict[str, Any]) -> bool:
    return is_noisy(row["ms"], row.get("spread"))


def _number(value: float | None) -> str:
    if value is None:
        return "fails"
    return f"{value:.3f}" if value < 100 else f"{value:.0f}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description="bench rows as a Markdown table")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, help="write all rows as one document")
    parser.add_argument("--plot", type=Path, help="plot ratios, and a roofline")
    given = parser.parse_args()
    document = joined([json.loads(path.read_text()) for path in given.files])
    print(HEAD, *(line(rows) for rows in cases(document["rows"])), sep="\n")
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n")
    if given.plot is not None:
        measured = document["ceilings"]
        ceilings = Ceilings(
            {"bf16": measured["F_bf16_gflops"] * 1e9},
            {1 << 30: measured["B_gbytes"] * 1e9},
            measured["threads"],
            measured["how"],
        )
        plot_all(document["rows"], document["device"], ceilings, given.plot)


if __name__ == "__main__":
    main()
