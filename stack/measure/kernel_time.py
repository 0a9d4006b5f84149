"""Explain a kernel's time from a saved run: bounds of the machine, code, registers.

Nothing is measured here: times are those that `stackc dump --profile` saved. Each other row is a
number of the record or of the target file. The likely limit is the largest bound.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from stack.errors import unknown_name
from stack.explore.assembly import NOWHERE, assembly, instructions
from stack.explore.kernel_rows import kernel_of, kind_of, loop_note, source_text
from stack.explore.saved_run import SavedRun, machine_of
from stack.explore.table import number, scaled
from stack.ir.cost import cost, group_reads
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_control
from stack.ir.types import TensorType
from stack.target import Cpu, Gpu, Target

_WIDTHS = (
    (re.compile(r"\bzmm\d+"), "512-bit vectors"),
    (re.compile(r"\bymm\d+"), "256-bit vectors"),
    (re.compile(r"\bxmm\d+"), "128-bit vectors and scalars"),
    (re.compile(r"ld\.global\S*\.v8|LDG\S*\.256"), "256-bit loads"),
    (re.compile(r"ld\.global\S*\.v4|LDG\S*\.128"), "128-bit loads"),
    (re.compile(r"ld\.global\S*\.v2|LDG\S*\.64"), "64-bit loads"),
    (re.compile(r"cp\.async|LDGSTS|UTMALDG"), "asynchronous copies"),
    (re.compile(r"wgmma|HGMMA"), "warpgroup matmuls"),
    (re.compile(r"\bmma\.sync|HMMA"), "warp matmuls"),
)
_WARP = 32
MOST = 6  # ops and values that are listed


def slow(run: SavedRun, name: str) -> list[tuple[str, str]]:
    """Returns `(name, value)` rows that explain a kernel's time: work, traffic, bounds, resources.

    Raises UsageError, with the known names, if the run has no kernel `name`.
    """
    entries = {str(k["name"]): k for k in run.kernels}
    if name not in entries:
        raise unknown_name(f"{run.folder} has no kernel", name, entries)
    entry = entries[name]
    machine = machine_of(run)
    group = _group(run, str(entry["stage_node"]))
    work = f"{scaled(entry['flops'])} operations, {scaled(entry['bytes'], 'B')}"
    lines = dict.fromkeys(s for k in run.kernels if k["name"] == name for s in k["source"])
    rows = [
        ("kernel", f"{name} ({kind_of(kernel_of(entry))})"),
        ("source", source_text(list(lines), 12)),
        ("work", work),
    ]
    if group is not None:
        rows += [("operations", _shares(_by_op(group[1]))), *_traffic(*group)]
    limits = bounds(entry, machine) if machine is not None else {}
    rows += [(f"bound by {what}", f"{number(s * 1e6)} us") for what, s in limits.items()]
    rows += list(_registers(entry, machine))
    rows += list(_code(run, name)) if entry["file"] else []
    rows += list(_measured(run, name))
    if entry.get("warning"):
        rows.append(("warning", str(entry["warning"])))
    if note := loop_note(kernel_of(entry)):
        rows.append(("loops", note))
    if limits:
        rows.append(("likely limit", _limit(entry, limits)))
    return rows


def bounds(entry: dict[str, Any], machine: Target) -> dict[str, float]:
    """Returns lower bounds of a kernel's seconds by resource: "arithmetic", "memory" and "launch".

    The rates of a GPU are reduced if the kernel has fewer thread blocks than the GPU processors.
    """
    has_dot = "dot" in entry["ops"]
    rate = machine.bf16_rate if has_dot and isinstance(machine, Gpu) else machine.f32_rate
    share = machine.cores if isinstance(machine, Cpu) else 1.0
    if isinstance(machine, Gpu) and _blocks(entry):
        share = min(1.0, _blocks(entry) / machine.processors)
    return {
        "arithmetic": float(entry["flops"]) / (rate * share),
        "memory": float(entry["bytes"]) / (machine.memory_rate * share),
        "launch": machine.launch,
    }


def _blocks(entry: dict[str, Any]) -> int:
    """Returns the number of thread blocks of a GPU kernel, or 0 if the run did not record it."""
    held = entry.get("resources", {})
    return int(held.get("blocks") or held.get("programs") or 0)


def _limit(entry: dict[str, Any], limits: dict[str, float]) -> str:
    spilled = int(entry.get("resources", {}).get("spilled", 0))
    if spilled:
        return f"registers: {spilled} bytes are spilled to memory"
    return max(limits, key=limits.__getitem__)


def _by_op(node: Node) -> Counter[str]:
    """Counts the scalar operations of a lowered node by op, including the nodes in its blocks.

    The body of a loop counts once, not once for each iteration.
    """
    flops: Counter[str] = Counter()
    # a stream computes its states and finishes them; its corrections are not counted
    inner = (node.blocks[0], node.blocks[2]) if node.op == "stream" else node.blocks
    for each in (n for block in inner for n in block.nodes):
        flops.update(_by_op(each))
    counted = 0 if inner else cost(node).flops
    flops[node.op] += counted if isinstance(counted, int) else 0
    return flops


def _shares(flops: Counter[str]) -> str:
    whole = sum(flops.values()) or 1
    shown = [f"{op} {100 * n / whole:.0f} %" for op, n in flops.most_common(MOST) if n]
    return ", ".join(shown) or "none"


def _traffic(block: Block, node: Node) -> Iterator[tuple[str, str]]:
    """Yields two table rows: the largest values that a node reads, and its results, in bytes.

    Of an operand of a fusion group, only the bytes that the group reads count.
    """
    if not node.blocks or is_control(node):
        read = {a: a.tensor.bytes for a in node.args if isinstance(a.type, TensorType)}
    else:
        inside = group_reads(node.blocks[0], node.args)
        read = {a: inside.get(p, 0) for p, a in zip(node.blocks[0].params, node.args, strict=False)}
    names = {a: block.names.get(a) or a.attrs.get("name") for a in read}
    sizes = {names[a]: n for a, n in read.items() if names[a] and isinstance(n, int)}
    largest = sorted(sizes.items(), key=lambda each: -each[1])[:MOST]
    if largest:
        yield "reads", ", ".join(f"%{name} {scaled(n, 'B')}" for name, n in largest)
    written = [t.bytes for t in node.types if isinstance(t.bytes, int)]
    yield "writes", f"%{block.names[node]} {scaled(sum(written), 'B')}"


def _group(run: SavedRun, name: str) -> tuple[Block, Node] | None:
    """Returns the node `name` before it is lowered to a kernel, and the block that contains it.

    Searches from the last stage to the first; returns None if no stage has a node of this name that
    is not a kernel.
    """
    for stage in reversed([s for s in run.stages if run.is_ir(s)]):
        for block, node in walk(run.func(stage).body):
            if block.names.get(node) == name and node.op != "kernel":
                return block, node
    return None


def _registers(entry: dict[str, Any], machine: Target | None) -> Iterator[tuple[str, str]]:
    """Yields rows on a GPU kernel: its resources, and how many thread blocks run at once.

    Yields nothing if the run did not record resources, as for a CPU kernel.
    """
    held: dict[str, int] = entry.get("resources", {})
    if not held:
        return
    yield "resources", ", ".join(f"{v} {k}" for k, v in held.items())
    threads = held.get("threads") or _WARP * held.get("warps", 0)
    if not isinstance(machine, Gpu) or not threads:
        return
    fits = {
        "registers": machine.registers // max(1, held.get("registers", 0) * threads),
        "shared memory": machine.shared_bytes // max(1, held.get("shared", 0)),
    }
    least = min(fits, key=fits.__getitem__)
    yield "blocks at once", f"{fits[least]} on a processor, by {least}"
    blocks = _blocks(entry)
    if blocks:
        waves = blocks / (machine.processors * max(1, fits[least]))
        yield "waves", f"{number(waves)}: {blocks} blocks on {machine.processors} processors"


def _measured(run: SavedRun, name: str) -> Iterator[tuple[str, str]]:
    """Yields a row with the median time of each call of a kernel, if the run has a profile."""
    seconds: list[list[float]] = run.profile.get("seconds") or []
    pairs = zip(run.kernels, seconds, strict=False)
    times = [median(rounds) for kernel, rounds in pairs if kernel["name"] == name]
    if times:
        yield "measured", ", ".join(f"{number(t * 1e6)} us" for t in times)


def _code(run: SavedRun, name: str) -> Iterator[tuple[str, str]]:
    """Yields rows on a kernel's assembly: vector widths, special instructions, and source lines."""
    stage, text = assembly(run, name)
    counts = [(len(found), what) for p, what in _WIDTHS if (found := p.findall(text))]
    if counts:
        yield f"code ({stage})", ", ".join(f"{what} x{n}" for n, what in counts)
    by_line = {line: len(held) for line, held in sorted(instructions(text).items())}
    if by_line.keys() - {NOWHERE}:
        yield "instructions", ", ".join(f"{line} x{n}" for line, n in by_line.items())
