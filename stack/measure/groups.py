"""Fusion groups of every system, aligned by source line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.explore.table import table
from stack.ir.func import Func
from stack.measure.systems import System
from stack.run.backend import Kernel

Group = dict[str, Any]


def line_of(source: str) -> str:
    """Returns a source line without its module: `block.py:42` of "block.py:42 attn.wq"."""
    return source.split(" ")[0]


def groups_of(system: System, number: int, kernel: Kernel) -> Group:
    """Describes kernel `number` of a system: its source operations, as one fusion group."""
    return {
        "id": f"{system.name}#{number}",
        "system": system.label,
        "via": system.via,
        "kernel": kernel.name,
        "kind": kernel.kind,
        "source": list(dict.fromkeys(line_of(s) for s in kernel.source)),
        "ops": list(kernel.ops),
        "flops": kernel.flops,
        "bytes": kernel.bytes,
    }


def align(systems: Sequence[System]) -> list[Group]:
    """Describes the fusion groups of all systems, and which groups share source lines.

    The entry "aligned" of a group lists the groups of other systems with a common source line.
    """
    groups: list[Group] = []
    for system in systems:
        if system.runner is None:
            continue
        for number, kernel in enumerate(system.runner.kernels, 1):
            groups.append(groups_of(system, number, kernel))
    by_line: dict[str, list[Group]] = {}
    for group in groups:
        for line in group["source"]:
            by_line.setdefault(line, []).append(group)
    for group in groups:
        others = {
            other["id"]: None
            for line in group["source"]
            for other in by_line[line]
            if (other["system"], other["via"]) != (group["system"], group["via"])
        }
        group["aligned"] = list(others)
    return groups


def source_lines(func: Func) -> dict[str, list[str]]:
    """Maps source lines, in program order, to the ops they became."""
    found: dict[str, list[str]] = {}
    pending = [func.body]
    while pending:
        block = pending.pop(0)
        for node in block.nodes:
            for line in dict.fromkeys(map(line_of, block.locs.get(node, ()))):
                ops = found.setdefault(line, [])
                if node.op not in ops:
                    ops.append(node.op)
            pending.extend(node.blocks)
    return found


def alignment_table(func: Func, groups: Sequence[Group]) -> str:
    """Formats a row per source line and a column per system, with numbers of its groups."""
    lines = source_lines(func)
    # a program of another framework has other lines, so its column would be empty
    shared = [g for g in groups if not lines.keys().isdisjoint(g["source"])]
    systems = list(dict.fromkeys(f"{g['system']}/{g['via']}" for g in shared))
    cells: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        mark = "L" if group["kind"] == "library" else ""
        number = group["id"].rpartition("#")[2]
        for line in group["source"]:
            cells.setdefault((line, f"{group['system']}/{group['via']}"), []).append(number + mark)
    rows: list[list[str]] = []
    for line, ops in lines.items():
        found = [_numbers(cells.get((line, s), [])) for s in systems]
        rows.append([line, *found, ", ".join(ops)])
    return table(["source line", *systems, "ops"], rows, drop=["ops", *reversed(systems)])


def _numbers(texts: list[str], most: int = 4) -> str:
    shown = " ".join(texts[:most])
    return f"{shown} +{len(texts) - most}" if len(texts) > most else shown
