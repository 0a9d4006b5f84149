"""Cost model for a chain of matmuls on a GPU: one loop, or one matmul after another.

Without a correction, as in `f(x a) b`, the loop saves only the traffic of the intermediate. It
keeps as many sums per row as the last matmul has columns, rounded up to a power of two, and tensor
cores wait for the ops in between. If rows meet as many other rows, the intermediate is large. If
rows meet only a few columns, it is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from stack.ir.axes import parse_rule
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions
from stack.passes.gpu_products.tile_choice import Product, best_seconds, may_round, tiles_of
from stack.passes.policies.stream_extents import extents
from stack.passes.streaming.terms import DotsInMemory, Refusal
from stack.passes.tiling.frame import power_of_two, static
from stack.target import Gpu


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
