"""Tables of one run: stages, kernels, coverage. Built from the manifest of a new or saved run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.explore.kernel_rows import kernel_of, kernel_rows, loop_note
from stack.explore.layers import alike, base_name
from stack.explore.table import number, scaled, table
from stack.explore.terminal import Loud, filled, painted, view
from stack.run.backend import Kernel
from stack.run.retreat import STAGE

Manifest = dict[str, Any]
LEAST = 0.01  # the share of a phase in the compile time from which it is shown
SHOWN = 3  # values of equal layers that are named
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
                entry["pass"],
            ]
        )
    head = ["stage", "time ms", "ops", "groups", "changed", "file", "pass pipeline"]
    return table(head, rows, widest=72, drop=["file", "changed"], wrap=())


def kernel_table(manifest: Manifest) -> str:
    """Returns one row per kernel, library call and fallback, in execution order.

    Kernels of equal layers share a row, with the sums of their flops and bytes.
    """
    kernels = [kernel_of(entry) for entry in manifest["kernels"]]
    if not kernels:
        return "no kernels"

    def cells(held: Sequence[Kernel], _: Sequence[int]) -> list[object]:
        flops, moved = sum(k.flops for k in held), sum(k.bytes for k in held)
        work = [scaled(flops), scaled(moved, "B"), intensity(flops, moved)]
        return [held[0].computes or "-", *work, op_counts(list(held[0].ops))]

    head = ["computes", "flops", "bytes", "flop/byte", "ops"]
    shown = kernel_rows(kernels, head, cells, drop=["ops", "flop/byte"])
    noted = ((k.name, note) for k in kernels for note in (k.warning, loop_note(k)) if note)
    return "\n".join([shown, *dict.fromkeys(filled(f"{name}: {note}") for name, note in noted)])


def phase_table(manifest: Manifest) -> str:
    """Returns the compile time by phase, the longest first. Short ones are shown with --wide."""
    taken = {str(p["phase"]): float(p["ms"]) for p in manifest.get("phases", ())}
    total = sum(taken.values())
    rows: list[list[object]] = [
        [name, number(ms), f"{100 * ms / total:.0f} %"]
        for name, ms in sorted(taken.items(), key=lambda entry: -entry[1])
        if ms and (view().is_whole or ms >= LEAST * total)
    ]
    few = sum(map(bool, taken.values())) - len(rows)
    note = "rest: imports of modules, and work between the phases" if "rest" in taken else ""
    note += f"; {few} phases below 1 % (--wide shows all)" if few else ""
    return f"{table(['phase', 'ms', 'share'], rows)}\n{filled(note.removeprefix('; '))}".rstrip()


def derivations(manifest: Manifest) -> list[str]:
    """Returns the notes on how `stream` loops were derived, and on what a training step saves.

    A `stream` loop computes dependent reductions in one pass. Of notes that differ only in the
    names of values, as those of equal layers, the first is shown.
    """
    notes = [n for s in manifest["stages"] if "stream" in s["rewrites"] for n in s.get("notes", ())]
    cuts = [s for s in manifest["stages"] if "partition" in s["rewrites"] or s["name"] == CAPTURED]
    told = [str(n) for n in (*notes, *(n for s in cuts for n in s.get("notes", ())[:1]))]
    if view().is_whole:
        return list(dict.fromkeys(told))
    found: list[str] = []
    for group in alike(map(base_name, told)):
        others = list(dict.fromkeys(told[i].split(" ", 1)[0] for i in group))[1:]
        more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
        same = f"\n(the same holds for {', '.join(others[:SHOWN])}{more})" if others else ""
        found.append(told[group[0]] + same)
    return found


def retreats(manifest: Manifest) -> list[str]:
    """Returns notes on the kernels that a backend's compiler refused, and their replacements."""
    return [str(n) for s in manifest["stages"] if s["name"] == STAGE for n in s["notes"]]


def coverage_line(coverage: dict[str, Any]) -> str:
    """Returns a line with the ops that were compiled, sent to a library, or fell back."""
    total = int(coverage.get("ops", 0))
    if not total:
        return "coverage: no ops"

    def share(kind: str) -> str:
        return f"{coverage[kind]} {kind} ({100 * coverage[kind] / total:.0f} %)"

    more = [kind for kind in ("hosted", "python") if coverage.get(kind)]
    kinds = ("native", "library", *more, "fallback")
    parts = ", ".join(map(share, kinds))
    names = ", ".join(f"{name} x{n}" for name, n in coverage["fallback_ops"].items())
    steps = coverage.get("loop_steps")
    return (
        f"coverage: {total} ops: {parts}"
        + (f"; fallback: {names}" if names else "")
        + (f"; steps that Python runs in each iteration of loops: {steps}" if steps else "")
    )


def describe(manifest: Manifest) -> str:
    """Returns all tables of a run."""
    coverage = manifest["coverage"]
    head = f"{manifest['target'] or 'a function'}: {manifest['frontend']} -> {manifest['backend']}"
    machine = manifest.get("machine")
    head += f" for {machine}" if machine else ""
    parts = [filled(head), stage_table(manifest)]
    skipped = [name.partition("{")[0] for s in manifest["stages"] for name in s.get("skipped", ())]
    if skipped:
        parts.append(filled(f"skipped, as they have nothing to do: {', '.join(skipped)}"))
    if manifest["kernels"]:
        parts.append(kernel_table(manifest))
    parts.extend(map(filled, derivations(manifest)))
    parts.extend(map(filled, retreats(manifest)))
    covered = filled(coverage_line(coverage))
    is_loud = coverage.get("fallback") or coverage.get("python")
    parts.append(painted(covered, Loud(covered)) if is_loud else covered)
    if manifest.get("phases"):
        parts.append(phase_table(manifest))
    return "\n\n".join(parts)


def intensity(flops: float, size: float) -> str:
    """Formats a kernel's arithmetic intensity: its operations per byte of memory traffic."""
    return number(flops / size) if size else "-"


def op_counts(ops: list[str]) -> str:
    """Counts ops in order of first use: `dot, add x2`."""
    counts: dict[str, int] = {}
    for op in ops:
        counts[op] = counts.get(op, 0) + 1
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in counts.items())
