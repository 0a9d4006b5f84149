"""A comparison as one web page without scripts."""

from __future__ import annotations

import html
from collections.abc import Sequence

from stack.explore.table import number, scaled
from stack.measure.compare import COLUMNS, Comparison
from stack.measure.groups import source_lines

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .25em .7em; text-align: left; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
tr.no td { background: #fdecea; }
code { font-size: 13px; }
"""


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{number(value)}</td>'
    if isinstance(value, int) and not isinstance(value, bool):
        return f'<td class="n">{value}</td>'
    text = "-" if value is None else "yes" if value is True else "no" if value is False else value
    return f"<td>{html.escape(str(text))}</td>"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], bad: Sequence[bool] = ()) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in head) + "</tr>"]
    for i, row in enumerate(rows):
        mark = ' class="no"' if i < len(bad) and bad[i] else ""
        lines.append(f"<tr{mark}>" + "".join(map(_cell, row)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def comparison_page(title: str, comparison: Comparison) -> str:
    """The page as text."""
    shown = [
        [scaled(row[c], "B") if c == "peak_bytes" else row[c] for c in COLUMNS]
        for row in comparison.rows
    ]
    bad = [not row["ok"] for row in comparison.rows]
    systems = list(dict.fromkeys(f"{g['system']}/{g['via']}" for g in comparison.groups))
    by_line: list[list[object]] = []
    for line, ops in source_lines(comparison.func).items():
        cells = [
            ", ".join(
                f"{g['id'].rpartition('#')[2]} {g['kernel']}"
                for g in comparison.groups
                if f"{g['system']}/{g['via']}" == system and line in g["source"]
            )
            for system in systems
        ]
        by_line.append([line, *cells, ", ".join(ops)])
    name = html.escape(title)
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title>',
        f"<style>{STYLE}</style><h1>{name}</h1><p>{html.escape(comparison.device)}</p>",
        _table(list(COLUMNS), shown, bad),
        "<h2>Fusion groups by source line</h2>",
        _table(["source line", *systems, "ops"], by_line),
        "</html>",
    ]
    return "\n".join(parts) + "\n"
