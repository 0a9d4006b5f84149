"""Breakdown of matmul time on a CPU: counted instructions and bytes, divided by measured rates.

    python -m stack.demos.cpu_products [--rows C6] [--only dtype=f32] [--plot FILE] [--json]

The cases are those of `stackc bench cpu`: C6 (matmuls alone), C1 (those of whole blocks). The table
shows the time of a kernel, the counts of the passes, and the inner loop in its assembly. The rates
of multiplying, loading and copying, and an empty kernel call, are measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from math import prod
from typing import Any

from stack.backends.mlir.views import is_raised, mma_of
from stack.calls.graph import CompiledGraph
from stack.demos import cpu_peaks
from stack.explore.table import scaled, table
from stack.ir.contraction import is_along_depth
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.traits import is_kernel, is_stream, unconverted
from stack.measure.bench import programs_of
from stack.measure.cpu import cpu_cases
from stack.measure.inner_loop import InnerLoop, inner_loop, kernels_of
from stack.measure.kernels import kernel_timings
from stack.measure.plots import plot_parts
from stack.measure.roofline import copy_rates
from stack.measure.suite import Case, select
from stack.measure.timing import Timing
from stack.passes.steps.panels import BlockProduct, block_products
from stack.passes.tiling.frame import extent_of, static
from stack.run.backend import Kernel
from stack.target import Cpu, Mma, cpu_at_hand

PARTS = ("multiply", "load", "memory", "wait", "call", "rest")
KINDS = (("bf16", "bf16", "f32"), ("i8", "i8", "i32"))
COPIES = (1 << 20, 4 << 20, 16 << 20, 64 << 20)
ROUNDS, CALLS = 5, 5  # rounds over the numbers of threads, and consecutive calls in each
_PIECES = re.compile(r"%count = llvm\.mlir\.constant\((\d+) ")


@dataclass(frozen=True)
class Machine:
    """Rates of some number of threads: instructions and bytes per second, seconds of an empty call.

    `multiplies` by instruction; `copies` by bytes read, counting reads and writes.
    """

    threads: int
    multiplies: dict[str, float]
    loads: float
    copies: dict[int, float]
    call: float

    def copied(self, size: float) -> float:
        """Returns the rate of the largest measured copy of at most `size` bytes."""
        fitting = [s for s in self.copies if s <= size]
        return self.copies[max(fitting, default=min(self.copies))]

    def or_better(self, other: Machine) -> Machine:
        """Returns the better one of each rate in two measurements of the same threads."""
        multiplies = {k: max(v, other.multiplies[k]) for k, v in self.multiplies.items()}
        copies = {k: max(v, other.copies[k]) for k, v in self.copies.items()}
        loads, call = max(self.loads, other.loads), min(self.call, other.call)
        return Machine(self.threads, multiplies, loads, copies, call)


@dataclass(frozen=True)
class Counts:
    """Instructions and bytes of a matmul.

    Attributes:
        multiplies: multiply-add instructions.
        loads: loads of their operands into registers.
        packed: bytes of packed panels that are written; 0 if operands are read in place.
        panels: bytes of panels of columns that tiles read.
    """

    multiplies: int = 0
    loads: int = 0
    packed: int = 0
    panels: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def counts_of(product: BlockProduct, cpu: Cpu) -> Counts:
    """Counts the instructions and bytes of a `dot` of blocks in all iterations of its loops."""
    dot, mma = product.dot, mma_of(product.dot, cpu)
    rows, lanes, _ = product.tile
    depth = prod(n for name, n in product.sizes.items() if name != product.lane)
    is_packed = unconverted(product.panel).args[0].tensor.space == "local"
    if mma and mma.offset and not is_raised(product.rows):
        rows += 1  # the row of offsets
    vectors, steps = -(-lanes * dot.dtype.bytes // cpu.vector_bytes), depth
    if mma and mma.rows > 1:  # two by two: four loads for four multiplications
        multiplies = loads = -(-rows // mma.rows) * (lanes // mma.lanes)
        steps //= mma.depth
    elif is_along_depth(dot) and not is_packed:
        few = min(lanes, cpu.sums_beside(rows))
        multiplies, loads = rows * lanes, (rows + few) * lanes // few
        steps //= mma.group * mma.lanes if mma else cpu.lanes
    else:
        multiplies, loads = rows * vectors, rows + vectors
        steps //= mma.depth if mma else 1
    size = static(unconverted(product.panel).tensor.bytes)
    own = [n for n in product.around if n not in product.tiles]
    times, chunks = (prod(map(extent_of, loops)) for loops in (product.around, own))
    packed = chunks * size if is_packed and product.tiles else 0
    return Counts(multiplies * steps * times, loads * steps * times, packed, times * size)


@dataclass(frozen=True)
class Product:
    """A compiled kernel with a matmul; with one row it is a reduction, without counts.

    Attributes:
        instruction: the multiply instruction; "fma" for f32.
        flops: flops of one instruction.
        tile: rows and lanes of accumulators in registers.
        pieces: units of work shared by threads; 1 if the kernel runs on one.
    """

    case: str
    kernel: Kernel
    counts: Counts
    instruction: str
    flops: int
    tile: tuple[int, ...]
    pieces: int
    loop: InnerLoop | None

    @property
    def title(self) -> str:
        return f"{self.case} {self.kernel.name}"


def instruction_of(mma: Mma | None) -> str:
    """Returns the instruction's name in a machine's rates."""
    return mma.name if mma else "fma"


def machine_of(threads: int, cpu: Cpu, mmas: Sequence[Mma | None]) -> Machine:
    """Measures the rates of `threads` threads of this machine, and the time of an empty call."""
    with_threads(threads)
    rates = {instruction_of(m): cpu_peaks.rate(cpu_peaks.multiplying(cpu, m)) for m in mmas}
    call = cpu_peaks.seconds(cpu_peaks.multiplying(cpu), steps=1, rounds=500)
    return Machine(threads, rates, cpu_peaks.rate(cpu_peaks.loading(cpu)), copy_rates(COPIES), call)


def with_threads(count: int) -> int:
    """Sets torch's number of threads, which our kernels use; returns the previous one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return before


def parts_of(product: Product, machine: Machine, seconds: float) -> dict[str, float]:
    """Splits the seconds of a matmul into parts; the remainder of the model is "rest".

    Loads count only beyond the multiplies, which run at the same time. Packing is modeled as a
    copy, and so is reading an operand in place.
    """
    counts = product.counts
    multiply = counts.multiplies / machine.multiplies[product.instruction]
    load = max(0.0, counts.loads / machine.loads - multiply)
    packing = 2 * counts.packed / machine.copied(counts.packed)
    memory = packing or moving(product, machine)
    turns = -(-product.pieces // machine.threads) * machine.threads
    wait = (multiply + load + memory) * (turns / product.pieces - 1)
    found = {"multiply": multiply, "load": load, "memory": memory, "wait": wait}
    found["call"] = machine.call
    return {**found, "rest": seconds - sum(found.values())}


def moving(product: Product, machine: Machine) -> float:
    """Returns the seconds of a copy with the traffic of the matmul, which it takes at least."""
    return product.kernel.bytes / machine.copied(product.kernel.bytes / 2)


def share_of(product: Product, machine: Machine, seconds: float) -> float:
    """Returns the least time of a matmul, by its multiplies or a copy, as a share of `seconds`."""
    rate = machine.multiplies[product.instruction]
    times = product.kernel.flops / product.flops if product.tile else 0.0
    return max(times / rate, moving(product, machine)) / seconds


# ---- products of a program


def compiled(case: Case) -> tuple[CompiledGraph, Any]:
    """Compiles the program of a case with the default pipeline; returns also its inputs."""
    program = programs_of(case)[0]
    return CompiledGraph(program.captured, program.frontend, "mlir"), program.storage


def products_of(case: str, graph: CompiledGraph, executable: Any, cpu: Cpu) -> dict[int, Product]:
    """Returns the matmul kernels by number, equal ones once; streams are excluded."""
    tiled: Func = graph.run.func("tiled")
    groups: Func = graph.run.func("scheduled")
    streams = {groups.body.names[n] for n in groups.nodes if is_stream(n)}
    nodes = {tiled.body.names[n]: n for n in tiled.nodes if is_kernel(n)}
    listings = kernels_of(executable.artifacts["asm"]())
    found: dict[str, tuple[int, Product]] = {}
    for i, kernel in enumerate(executable.kernels):
        node = nodes.get(kernel.stage_node)
        is_own = node is not None and kernel.stage_node not in streams
        if node is not None and is_own and "dot" in kernel.name and kernel.name not in found:
            found[kernel.name] = i, _product(case, kernel, node, listings[kernel.name], cpu)
    return dict(found.values())


def _product(case: str, kernel: Kernel, node: Node, listing: str, cpu: Cpu) -> Product:
    products = [*block_products(node)]
    # beside the tiles of rows there may be one row of zeros
    dot = max((p.dot for p in products), key=lambda dot: prod(map(static, dot.shape)), default=None)
    mma = mma_of(dot, cpu) if dot is not None else None
    each = 2 * (mma.rows * mma.lanes * mma.depth if mma else cpu.lanes)
    shared = _PIECES.search(kernel.text)
    return Product(
        case,
        kernel,
        sum((counts_of(p, cpu) for p in products), Counts()),
        instruction_of(mma),
        each,
        tuple(d for d in dot.shape if isinstance(d, int)) if dot is not None else (),
        int(shared[1]) if shared else 1,
        inner_loop(listing),
    )


@dataclass(frozen=True)
class Row:
    """A matmul on a number of threads."""

    product: Product
    machine: Machine
    seconds: float
    spread: float

    @property
    def parts(self) -> dict[str, float]:
        return parts_of(self.product, self.machine, self.seconds)

    @property
    def share(self) -> float:
        return share_of(self.product, self.machine, self.seconds)


def rows_of(case: Case, machines: Sequence[Machine], cpu: Cpu) -> Iterator[Row]:
    """Yields each matmul of a case on each number of threads; every round times all numbers."""
    graph, storage = compiled(case)
    executable = graph.executable_for(storage)
    times: list[list[list[float]]] = [[] for _ in machines]
    for _ in range(ROUNDS):
        for machine, held in zip(machines, times, strict=True):
            with_threads(machine.threads)
            timed = kernel_timings(executable, storage, CALLS)
            assert timed is not None
            held.append([t.median for t in timed])
    for i, product in products_of(case.title, graph, executable, cpu).items():
        for machine, held in zip(machines, times, strict=True):
            timing = Timing(tuple(kernels[i] for kernels in held))
            yield Row(product, machine, timing.median, timing.spread)


def measured(cases: Sequence[Case], counts: Sequence[int]) -> list[Row]:
    """Returns the rows of all cases; rates are the better ones of before and after the cases."""
    cpu = cpu_at_hand()
    mmas = [None, *(m for kinds in KINDS for m in cpu.mmas(kinds))]
    threads = with_threads(counts[0])
    try:
        before = [machine_of(n, cpu, mmas) for n in counts]
        rows = [row for case in cases for row in rows_of(case, before, cpu)]
        machines = {n: m.or_better(machine_of(n, cpu, mmas)) for n, m in zip(counts, before)}
    finally:
        with_threads(threads)
    return [replace(row, machine=machines[row.machine.threads]) for row in rows]


# ---- what is shown


def machines_of(rows: Sequence[Row]) -> list[Machine]:
    """Returns the machines by number of threads."""
    return list({r.machine.threads: r.machine for r in rows}.values())


def describe(rows: Sequence[Row]) -> str:
    """Formats the rates, the counts of each matmul, and the breakdown of its time."""
    lines: list[str] = []
    for m in machines_of(rows):
        rates = [f"{name} {rate / 1e9:.2f}" for name, rate in m.multiplies.items()]
        copies = [f"{size >> 20} MiB {rate / 1e9:.1f}" for size, rate in m.copies.items()]
        lines.append(
            f"{m.threads} threads, 1e9 a second: {', '.join(rates)}, loads {m.loads / 1e9:.2f};"
            f" bytes copied: {', '.join(copies)}; a call: {1e6 * m.call:.1f} us"
        )
    counts: dict[str, list[object]] = {}
    times: list[list[object]] = []
    for row in rows:
        p, c = row.product, row.product.counts
        what: list[object] = ["reduction", *["-"] * 5]
        if p.tile:
            packed = scaled(c.packed, "B") if c.packed else "in place"
            what = [p.instruction, "x".join(map(str, p.tile)), scaled(c.multiplies)]
            what += [scaled(c.loads), packed, scaled(c.panels, "B")]
        counts[p.title] = [p.title, *what, p.pieces, p.loop or "-"]
        taken = f"{1e6 * row.seconds:.0f} us", f"{100 * row.spread / row.seconds:.0f} %"
        shares = [f"{100 * t / row.seconds:.0f} %" for t in row.parts.values()]
        times.append([p.title, row.machine.threads, *taken, f"{100 * row.share:.0f} %", *shares])
    head = ["product", "by", "tile", "multiplies", "loads", "packed", "panels", "pieces"]
    return "\n\n".join(
        (
            "\n".join(lines),
            table([*head, "inner loop"], counts.values()),
            table(["product", "threads", "time", "spread", "of rate", *PARTS], times),
        )
    )


def as_dict(row: Row) -> dict[str, Any]:
    """Returns a dictionary for JSON."""
    p = row.product
    return {
        "case": p.case,
        "kernel": p.kernel.name,
        "instruction": p.instruction,
        "tile": p.tile,
        "pieces": p.pieces,
        "counts": asdict(p.counts),
        "inner_loop": asdict(p.loop) if p.loop else None,
        "threads": row.machine.threads,
        "ms": 1e3 * row.seconds,
        "spread": 1e3 * row.spread,
        "share_of_rate": row.share,
        "parts_ms": {name: 1e3 * taken for name, taken in row.parts.items()},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="C6")
    parser.add_argument("--only", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", default="1,2", metavar="N,N")
    parser.add_argument("--plot", metavar="FILE", help="plot a stacked bar for each row")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    cases = select(cpu_cases(), args.rows, args.only)
    rows = measured(cases, [int(n) for n in args.threads.split(",")])
    if args.plot:
        bars = {f"{r.product.title}, {r.machine.threads}": list(r.parts.values()) for r in rows}
        plot_parts(bars, PARTS, args.plot)
    if args.json:
        held = {
            "machines": [asdict(m) for m in machines_of(rows)],
            "rows": [as_dict(r) for r in rows],
        }
        print(json.dumps(held, indent=1))
    else:
        print(describe(rows))


if __name__ == "__main__":
    main()
