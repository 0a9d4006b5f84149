"""Tables of one run: stages, kernels, coverage. Built from the manifest of a new or saved run."""

from __future__ import annotations

from typing import Any

from stack.explore.table import cut, number, scaled, table
from stack.run.retreat import STAGE

Manifest = dict[str, Any]
CAPTURED = "captured"  # its notes say so if a training step is not cut by our passes


def stage_table(manifest: Manifest) -> str:
    """Returns one row per stage: the pipeline that produced it, its time and its size."""
    rows: list[list[object]] = []
    for entry in manifest["stages"]:
        is_ir = str(entry["file"]).endswith(".stack")
        rows.append(
            [
                entry["name"],
                number(float(entry["ms"])) if entry["pass"] else "-",
                entry["ops"] if is_ir else "-",
                entry["groups"] if is_ir else "-",
                "yes" if entry["changed"] else "no",
                entry["file"],
                cut(str(entry["pass"]), 72),
            ]
        )
    head = ["stage", "ms", "ops", "groups", "changed", "file", "pass pipeline"]
    return table(head, rows)


def kernel_table(manifest: Manifest) -> str:
    """Returns one row per kernel, library call and fallback, in execution order."""
    rows = [
        [
            entry["name"],
            entry["kind"],
            scaled(entry["flops"]),
            scaled(entry["bytes"], "B"),
            intensity(entry["flops"], entry["bytes"]),
            op_counts(entry["ops"]),
            source_text(entry["source"]),
        ]
        for entry in manifest["kernels"]
    ]
    if not rows:
        return "no kernels"
    head = ["kernel", "kind", "flops", "bytes", "flop/byte", "ops", "source"]
    warned = [f"{e['name']}: {e['warning']}" for e in manifest["kernels"] if e.get("warning")]
    return "\n".join([table(head, rows), *warned])


def phase_table(manifest: Manifest) -> str:
    """Returns the compile time by phase, the longest first."""
    taken = {str(p["phase"]): float(p["ms"]) for p in manifest.get("phases", ())}
    total = sum(taken.values())
    rows: list[list[object]] = [
        [name, number(ms), f"{100 * ms / total:.0f} %"]
        for name, ms in sorted(taken.items(), key=lambda entry: -entry[1])
        if ms
    ]
    return table(["phase", "ms", "share"], rows)


def derivations(manifest: Manifest) -> list[str]:
    """Returns the derivations of streams, and a line on what a training step saves."""
    notes = [n for s in manifest["stages"] if "stream" in s["rewrites"] for n in s.get("notes", ())]
    cuts = [s for s in manifest["stages"] if "partition" in s["rewrites"] or s["name"] == CAPTURED]
    told = (*notes, *(n for s in cuts for n in s.get("notes", ())[:1]))
    return list(dict.fromkeys(map(str, told)))


def retreats(manifest: Manifest) -> list[str]:
    """Returns notes on the kernels that a compiler refused, and their replacements."""
    return [str(n) for s in manifest["stages"] if s["name"] == STAGE for n in s["notes"]]


def coverage_line(coverage: dict[str, Any]) -> str:
    """Returns a line with the ops that were compiled, sent to a library, or fell back."""
    total = int(coverage.get("ops", 0))
    if not total:
        return "coverage: no ops"

    def share(kind: str) -> str:
        return f"{coverage[kind]} {kind} ({100 * coverage[kind] / total:.0f} %)"

    kinds = ("native", "library", *(["hosted"] if coverage.get("hosted") else ()), "fallback")
    parts = ", ".join(map(share, kinds))
    names = ", ".join(f"{name} x{n}" for name, n in coverage["fallback_ops"].items())
    return f"coverage: {total} ops: {parts}" + (f"; fallback: {names}" if names else "")


def describe(manifest: Manifest) -> str:
    """Returns all tables of a run."""
    coverage = manifest["coverage"]
    head = f"{manifest['target'] or 'a function'}: {manifest['frontend']} -> {manifest['backend']}"
    machine = manifest.get("machine")
    head += f" for {machine}" if machine else ""
    parts = [head, stage_table(manifest)]
    if manifest["kernels"]:
        parts.append(kernel_table(manifest))
    parts.extend(derivations(manifest))
    parts.extend(retreats(manifest))
    parts.append(coverage_line(coverage))
    if manifest.get("phases"):
        parts.append(phase_table(manifest))
    return "\n\n".join(parts)


def intensity(flops: float, size: float) -> str:
    """Formats the operations per byte of memory traffic."""
    return number(flops / size) if size else "-"


def op_counts(ops: list[str]) -> str:
    """Counts ops in order of first use: `dot, add x2`."""
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())


def source_text(lines: list[str], most: int = 3) -> str:
    """Joins source lines, grouped by file: `block.py:42,44 mlp.py:7`."""
    files: dict[str, list[str]] = {}
    for line in lines:
        place = line.split(" ")[0]
        file, _, number_ = place.rpartition(":")
        held = files.setdefault(file, [])
        if number_ not in held:
            held.append(number_)
    parts: list[str] = []
    for file, numbers in files.items():
        shown = ",".join(numbers[:most])
        more = f"+{len(numbers) - most}" if len(numbers) > most else ""
        parts.append(f"{file}:{shown}{more}" if file else shown)
    return " ".join(parts)
