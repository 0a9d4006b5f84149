"""Tables of kernels: a row for each, or for those that repeat in equal layers of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.explore.layers import equal_kernels, folded
from stack.explore.table import table
from stack.explore.terminal import Loud, view
from stack.run.backend import Kernel

Cells = Callable[[Sequence[Kernel], Sequence[int]], list[object]]
Entry = dict[str, Any]  # of a manifest
SUMS = ("flops", "bytes", "time")


def kernel_rows(
    kernels: Sequence[Kernel],
    head: Sequence[str] = (),
    cells: Cells = lambda _held, _numbers: [],
    drop: Sequence[str] = (),
    has_total: bool = False,
    widest: int = 60,
    most: int = 3,
) -> str:
    """Formats kernels in execution order: name, kind, the columns `head`, and source.

    Kernels of equal layers share a row, unless all rows are asked for. Its numbers are sums, as its
    head says, and two more columns show the number of calls and the modules.

    Args:
        cells: returns the cells of `head` for some kernels, given with their positions.
        drop: columns to hide first in a narrow terminal.
        has_total: adds a row of all kernels.
        most: source lines of a file that are listed.
    """
    every = range(len(kernels))
    groups = [[i] for i in every] if view().is_whole else equal_kernels(kernels)
    is_folded = len(groups) < len(kernels)
    has_modules = is_folded or (view().is_whole and any(k.modules for k in kernels))
    rows: list[list[object]] = []
    for group in groups:
        held = [kernels[i] for i in group]
        name, kind = held[0].name, kind_text(kind_of(held[0]))
        calls = [f"x {len(group)}"] if is_folded else []
        modules = [folded(m for k in held for m in k.modules)] if has_modules else []
        source = source_text(list(held[0].source), most)
        rows.append([name, kind, *calls, *cells(held, group), *modules, source])
    if has_total:
        calls = [f"x {len(kernels)}"] * is_folded
        rows.append(["all", "", *calls, *cells(kernels, every), *[""] * has_modules, ""])
    names = [f"sum {n}" if is_folded and n in SUMS else n for n in head]
    calls, modules = ["calls"] * is_folded, ["module"] * has_modules
    # the kind says nothing if all kernels are generated
    plain = ["kind"] if all(kind_of(k) == "generated" for k in kernels) else []
    count = f"{len(groups)} row{'s' * (len(groups) > 1)}"
    note = f"{len(kernels)} kernels in {count}, one for all equal layers"
    return table(
        ["kernel", "kind", *calls, *names, *modules, "source"],
        rows,
        widest,
        drop=[*plain, *drop],
        note=note if is_folded else "",
    )


def kernel_of(entry: Entry) -> Kernel:
    """Returns a kernel of a manifest, without its text."""
    source, ops, modules = (tuple(entry.get(key, ())) for key in ("source", "ops", "modules"))
    return Kernel(
        entry["name"],
        entry["kind"],
        source=source,
        ops=ops,
        flops=entry["flops"],
        bytes=entry["bytes"],
        warning=entry.get("warning", ""),
        modules=modules,
        computes=entry.get("computes", ""),
        loop_steps=entry.get("loop_steps", 0),
    )


def kind_of(kernel: Kernel) -> str:
    """Returns the kind of a kernel; "python" for control flow whose loops Python runs."""
    return "python" if kernel.loop_steps else kernel.kind


def kind_text(kind: str) -> str:
    """Returns the kind of a kernel as a cell; a fallback and Python have to be noticed."""
    return Loud(kind) if kind in ("fallback", "python") else kind


def loop_note(kernel: Kernel) -> str:
    """Returns how many steps of its loops Python runs; "" if it runs none."""
    steps = kernel.loop_steps
    count = f"{steps} step{'s' * (steps > 1)}"
    return f"Python runs {count} in each iteration of its loops" if steps else ""


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
