"""Cost models of a stream, and of its parts as separate kernels.

On a CPU, costs are cycles of one core: multiply-adds in vectors, exponentials and the like, and
bytes of values as large as rows times keys, which separate kernels write and read. The loop adds a
correction of every state for each panel of keys. Its last rows are computed twice if they do not
fill the lanes. If the CPU has no fitting instruction for 16-bit floats, it multiplies in f32, and
the separate matmuls go to a library. If positions hide keys, the loop skips their panels.

On a GPU, a chain of matmuls is one loop, or one matmul after another. Without a correction, as in
`f(x a) b`, the loop saves only the traffic of the intermediate. It keeps as many sums per row as
the last matmul has columns, rounded up to a power of two, and tensor cores wait for the ops in
between. If rows meet as many other rows, the intermediate is large. If rows meet only a few
columns, it is small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from stack.errors import UsageError
from stack.ir.axes import parse_rule
from stack.ir.equivalence import class_representative
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions
from stack.passes.cpu_products.gemm import column_cost
from stack.passes.gpu_products.tile_choice import Product, best_seconds, may_round, tiles_of
from stack.passes.policies.cpu_streams import CpuStreams
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.stream_tiles import extents
from stack.passes.positions.streams import memory_side, stream_axes
from stack.passes.streaming.terms import DotsInMemory, Refusal
from stack.passes.tiling.frame import CannotTile, power_of_two, static
from stack.rewrite.log import Log
from stack.target import Cpu, Gpu, Target, as_cpu, as_gpu


@dataclass(frozen=True)
class Price:
    """Cycles of a stream, and of its parts one after another."""

    streamed: float
    unfused: float

    def __str__(self) -> str:
        return f"{self.streamed / 1e6:.3g} M cycles as one loop, {self.unfused / 1e6:.3g} M unfused"


def choose(stream: Node, loops: str, log: Log) -> str:
    """Describes the cost of the loop that a stream becomes; empty if it is not known.

    Args:
        stream: the stream.
        loops: `cpu`: panels of keys, if they cost less than the parts; `blocks`: any stream, chains
            of matmuls only if they cost less.
        log: of the pass, which has the target.

    Raises:
        Refusal: there is no such loop, or it costs more than the parts.
    """
    text, refusal = _choose(class_representative(stream), loops, log.target)
    if refusal is not None:
        raise refusal(text)
    return text


@lru_cache(maxsize=256)  # equal layers are priced once
def _choose(stream: Node, loops: str, target: Target | None) -> tuple[str, type[Refusal] | None]:
    """Returns the text of `choose` and None, or the reason and the class of a refusal.

    An exception is not kept: its traceback refers to the values of all callers.
    """
    try:
        if loops == "blocks":
            gpu = as_gpu(target)
            lowering_of(stream, gpu).check()  # no kernel is built
            return check_chain(stream, gpu), None
        if loops != "cpu":
            raise UsageError(f"no loops {loops!r} for streams; there are: blocks, cpu")
        price = cpu_price(stream, as_cpu(target))
    except CannotTile as why:
        return str(why), Refusal
    except Refusal as why:
        return str(why), type(why)
    if price.streamed < price.unfused:
        return str(price), None
    return f"it costs {price}", Refusal


def cpu_price(stream: Node, cpu: Cpu) -> Price:
    """Estimates the cost of a stream on a CPU.

    Raises:
        Refusal, CannotTile: the CPU has no loop for it.
    """
    if not contractions(stream.blocks[0].nodes):
        raise Refusal("its rows are reduced in place")
    lowering = CpuStreams(stream, cpu)
    lowering.check()
    states, axes = stream.blocks[0], stream_axes(stream)
    schedule = lowering.schedule
    extent, rows = static(streamed_extent(stream)), schedule.block("m")
    dots = contractions(states.nodes)
    plain, short = cpu.f32_rate / cpu.clock, cpu.bf16_rate / cpu.clock
    work = parts = 0.0
    for dot in dots:
        sizes = parse_rule(dot.attrs["rule"]).sizes([a.shape for a in dot.args])
        operations = 2 * prod(static(s) for s in sizes.values())
        # there are instructions for its 16-bit operands, at least in a library
        is_short = all(a.dtype.bits == 16 for a in dot.args)
        work += operations / (short if is_short and lowering.is_short else plain)
        parts += operations / (short if is_short else plain)
    inner = [d for d in dots if d not in states.results]
    between = 2 * sum(static(d.tensor.bytes) for d in inner)
    between += 2 * sum(static(d.args[1 - memory_side(d)].tensor.bytes) for d in axes.wide)
    shared = axes.batch * axes.rows
    elements = shared * extent / cpu.lanes * cpu.score_cycles
    programs = axes.batch * -(-axes.rows // rows)
    held = max(rows, cpu.lanes)  # a partly filled register takes as long
    fill = programs * held / shared * column_cost(held // cpu.lanes, cpu)
    panels = programs * math.ceil(extent / schedule.block("k"))
    corrections = panels * axes.columns * len(axes.wide) * held / cpu.lanes
    corrections *= cpu.streams.correction
    visible = cpu.streams.visible if lowering.is_limited else 1
    rate = cpu.cache_rate if between <= 2 * cpu.cache_bytes else cpu.memory_rate
    launch = cpu.launch * cpu.clock
    streamed = launch + visible * ((work + elements) * fill + corrections)
    kernels = (len(dots) + 1) * launch  # the ops between the matmuls are one kernel
    return Price(streamed, kernels + parts + elements + between * cpu.clock / rate)


def check_chain(stream: Node, gpu: Gpu) -> str:
    """Describes the cost of a chain. Empty for a stream with corrections, which is always built
    unless its loop would round operands to TF32.

    Raises:
        Refusal: the loop costs more than its matmuls, or leaves processors idle in a long one.
    """
    states, correct, _ = stream.blocks
    inner = [n for n in contractions(states.nodes) if n not in states.results]
    for dot in inner:
        _check_depth(dot, stream, gpu)
    sums = contractions(states.results)
    is_plain = correct.results == correct.params[: len(correct.results)]
    is_chain = is_plain and inner and len(sums) == len(states.results)
    dots = [*inner, *sums]
    if not is_chain and not (inner and all(map(may_round, dots))):
        return ""
    unfused = sum(best_seconds(_alone(d), d.args[0].dtype, gpu) for d in dots)
    if not is_chain:
        unfused += gpu.launch + _between(inner, sums) / gpu.memory_rate
    rows, _ = extents(stream, gpu)
    streamed = gpu.launch + sum(_seconds(d, d in sums, rows, gpu) for d in dots)
    text = f"it costs {streamed * 1e6:.3g} us as one loop, {unfused * 1e6:.3g} us unfused"
    if streamed >= unfused:
        raise Refusal(text) if is_chain else DotsInMemory(text)
    return text


def _alone(dot: Node) -> Product:
    """Returns the matmul with a kernel of its own, whose operands other kernels round."""
    return replace(_product(dot), rounded=may_round(dot))


def _between(inner: Sequence[Node], sums: Sequence[Node]) -> int:
    """Returns the bytes that reductions between the matmuls move if these are kernels: they read
    the results of the first ones, and write operands of the last ones."""
    return sum(static(d.tensor.size) * 4 for d in inner) * (2 if sums else 1)


def _check_depth(dot: Node, stream: Node, gpu: Gpu) -> None:
    """Raises Refusal if a matmul contracts an axis much longer than the streamed one, in fewer
    programs than there are processors. A kernel of its own splits that axis, and its result is
    much smaller than its operands."""
    extent, depth = static(streamed_extent(stream)), _product(dot).depth
    programs = -(-static(dot.tensor.size) // (extent * extents(stream, gpu)[0]))
    if programs < gpu.processors and depth >= gpu.streams.deep * extent:
        raise Refusal(f"{programs} programs would contract an axis of {depth} elements")


def _seconds(dot: Node, is_sum: bool, rows: int, gpu: Gpu) -> float:
    """Estimates a matmul in the loop, whose programs each have `rows` rows and a processor."""
    product, dtype = _product(dot), dot.args[0].dtype
    width = power_of_two(product.width) if is_sum else product.width
    programs = product.batch * -(-product.height // rows)
    waves = -(-programs // gpu.processors)
    flops = 2.0 * waves * gpu.processors * rows * product.depth * width
    return flops / (gpu.stream_rate * max(t.rate for t in tiles_of(product, dtype, gpu)))


def _product(dot: Node) -> Product:
    rule = parse_rule(dot.attrs["rule"])
    sizes = rule.sizes([a.shape for a in dot.args])
    left, right, made = ({a.names[0] for a in o} for o in (*rule.inputs, *rule.outputs))

    def size(names: Sequence[str] | set[str]) -> int:
        return prod(static(sizes[n]) for n in names)

    batch = size(left & right & made)
    return Product(
        size(left - right),
        size(right - left),
        size((left & right) - made),
        batch,
        rounds=may_round(dot),
    )
