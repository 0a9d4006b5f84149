"""What a stream costs on a CPU, and what its parts would cost as kernels of their own.

In cycles of one core: multiply-adds in vectors, exponentials and the like, and the bytes of what is
as large as rows times keys, which the parts write and read again. The loop adds a correction of
every state for each panel of keys, and its last rows are done twice where they do not fill the
lanes. Where the CPU has no instruction for 16-bit floats that fits, it multiplies in f32, and the
parts are a library's. Where positions hide keys, it leaves their panels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from stack.errors import RuleError, UsageError
from stack.ir.alike import alone
from stack.ir.axes import parse_rule
from stack.ir.node import Node, walk
from stack.ir.traits import contractions, is_contraction
from stack.passes.exact_tiling.gemm import column_cost
from stack.passes.exact_tiling.stream import StreamTiler
from stack.passes.policies.blocks import stream_lowering
from stack.passes.policies.stream_shape import memory_side
from stack.passes.streaming.chain_price import check_chain
from stack.passes.streaming.terms import Refusal
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.log import Log
from stack.target import Cpu, Gpu, Target, as_cpu, as_gpu

VISIBLE = 0.55  # of all panels, where positions limit them: a triangle and its border
CORRECTION = 4  # instructions for a vector, each a cycle: load, multiply, add, store


@dataclass(frozen=True)
class Price:
    """Cycles of a stream, and of its parts one after another."""

    streamed: float
    unfused: float

    def __str__(self) -> str:
        return f"{self.streamed / 1e6:.3g} M cycles as one loop, {self.unfused / 1e6:.3g} M unfused"


def choose(stream: Node, loops: str, log: Log) -> str:
    """What the loop costs that a stream becomes, in words; empty where that is not known.

    Args:
        loops: `cpu`: panels of keys, where they cost less than the parts; `blocks`: any, chains of
            products where they cost less.
        log: of the pass, which knows the target.

    Raises:
        Refusal: there is no such loop, or it costs more than the parts.
    """
    text, refused = _choose(alone(stream), loops, log.target)
    if refused:
        raise Refusal(refused)
    return text


@lru_cache(maxsize=256)  # of equal layers one is priced
def _choose(stream: Node, loops: str, target: Target | None) -> tuple[str, str]:
    """What `choose` says, or why it refuses."""
    try:
        if loops == "blocks":
            gpu = as_gpu(target)
            _check(stream, gpu)
            return check_chain(stream, gpu), ""
        if loops != "cpu":
            raise UsageError(f"no loops {loops!r} for streams; there are: blocks, cpu")
        price = cpu_price(stream, as_cpu(target))
    except Refusal as why:
        return "", str(why)
    return (str(price), "") if price.streamed < price.unfused else ("", f"it costs {price}")


def _check(stream: Node, gpu: Gpu) -> None:
    """Raises Refusal if a stream has no kernel for a GPU: asked of its policy and its loop nest."""
    lowering = stream_lowering(stream, gpu)
    try:
        lowering.policy()
        lowering.nest()
    except CannotTile as why:
        raise Refusal(str(why)) from why


def _fits(kernel: Callable[[], Node]) -> Node:
    try:
        return kernel()
    except (CannotTile, RuleError) as why:
        raise Refusal(str(why)) from why


def cpu_price(stream: Node, cpu: Cpu) -> Price:
    """What a stream costs on a CPU.

    Raises:
        Refusal: what stands against a loop for it.
    """
    if not contractions(stream.blocks[0].nodes):
        raise Refusal("its rows are swept where they lie")
    try:
        tiler = StreamTiler(stream, target=cpu)
    except CannotTile as why:
        raise Refusal(str(why)) from why
    kernel = _fits(tiler.kernel)
    states, axes = stream.blocks[0], tiler.roles
    dots = contractions(states.nodes)
    plain, short = cpu.f32_rate / cpu.clock, cpu.bf16_rate / cpu.clock
    is_short = any(map(_is_short, filter(is_contraction, (n for _, n in walk(kernel.blocks[0])))))
    work = sum(_operations(d) / (short if is_short and _is_short(d) else plain) for d in dots)
    parts = sum(_operations(d) / (short if _is_short(d) else plain) for d in dots)
    inner = [d for d in dots if d not in states.results]
    between = 2 * sum(_bytes(d) for d in inner)
    between += 2 * sum(_bytes(d.args[1 - memory_side(d)]) for d in axes.wide)
    shared = math.prod(size for name, size in axes.sizes.items() if name != axes.column)
    elements = shared * tiler.extent / cpu.lanes * cpu.score_cycles
    held = max(tiler.tile, cpu.lanes)  # a register that is not full takes as long
    fill = tiler.programs * held / shared * column_cost(held // cpu.lanes, cpu)
    panels = tiler.programs * math.ceil(tiler.extent / tiler.step)
    corrections = panels * axes.columns * len(axes.wide) * held / cpu.lanes * CORRECTION
    is_limited = any(n.attrs.get("limited") for _, n in walk(kernel.blocks[0]))
    visible = VISIBLE if is_limited else 1
    rate = cpu.cache_rate if between <= 2 * cpu.cache_bytes else cpu.memory_rate
    launch = cpu.launch * cpu.clock
    streamed = launch + visible * ((work + elements) * fill + corrections)
    kernels = (len(dots) + 1) * launch  # what is between the products is one
    return Price(streamed, kernels + parts + elements + between * cpu.clock / rate)


def _is_short(dot: Node) -> bool:
    """Whether there are instructions for its operands, a library's at least."""
    return all(a.dtype.bits == 16 for a in dot.args)


def _operations(dot: Node) -> int:
    sizes = parse_rule(dot.attrs["rule"]).sizes([a.shape for a in dot.args])
    return 2 * math.prod(static(s) for s in sizes.values())


def _bytes(node: Node) -> int:
    return static(node.tensor.bytes)
