"""dot_parts: multiply f32 tiles by tiles of bf16 values with instructions for bf16.

    %b = cast(%v) : f32<32x128>     dot_parts     %y = add(add(dot(%a2, %v), dot(%a1, %v)),
    %y = dot(%a, %b)                                       dot(%a0, %v))

An f32 has 24 significant bits, and a bf16 has 8, with the same range of exponents. So `a` is the
sum of three bf16 tiles a0, a1 and a2, and all products with `v` are exact, as those in f32 are. The
smallest part is summed first. Without this step a backend splits both operands, in six products.
Legal if an exact product of the kernel has such operands. GPUs only.

Source: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations"
(Henry, Tang and Heinecke, ARITH 2019), section III.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from stack.ir.builder import constant, converted, filled, make
from stack.ir.node import Node
from stack.ir.traits import converts, is_contraction, signs
from stack.ir.types import BF16, F32, I32
from stack.passes.steps.edit import Edit
from stack.passes.steps.step import Step
from stack.target import Gpu, Target

UPPER = -(1 << BF16.bits)  # the bits of an f32 that a bf16 has: sign, exponent, 7 of the fraction


@dataclass(frozen=True)
class DotParts(Step, name="dot_parts", only=Gpu):
    """Multiply f32 tiles by tiles of bf16 values in three products of bf16."""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if not any(map(mixes_bf16, kernel.blocks[0].all_nodes)):
            yield "no exact product of an f32 tile and one that is converted from bf16"

    def apply(self, kernel: Node) -> Node:
        sums: dict[Node, list[Node]] = {}  # by the sum of three products, these products

        def replaced(node: Node) -> Node | None:
            if mixes_bf16(node):
                dots = _products(node)
                made = _added(dots[0], dots[1:])
                sums[made] = dots
                return made
            is_total = signs(node) == (1, 1) and node.args[1] in sums  # it takes one by one
            return _added(node.args[0], sums[node.args[1]]) if is_total else None

        return Edit(kernel).mapped(replaced)


def _products(dot: Node) -> list[Node]:
    """Returns three products whose sum is a product of an f32 tile and a widened one."""
    left, right = dot.args
    if _is_widened(left):
        pairs = [(left.args[0], part) for part in _parts(right)]
    else:
        pairs = [(part, right.args[0]) for part in _parts(left)]
    return [make("dot", pair, dot.attrs, hint=dot.type) for pair in pairs]


def _added(total: Node, terms: Sequence[Node]) -> Node:
    return reduce(lambda total, term: make("add", (total, term)), terms, total)


def mixes_bf16(node: Node) -> bool:
    """True for an exact matrix product of f32 tiles, one of which is converted from bf16."""
    if not is_contraction(node) or "precision" in node.attrs:
        return False
    return node.args[0].dtype == F32 and sum(map(_is_widened, node.args)) == 1


def _is_widened(value: Node) -> bool:
    return converts(value) and value.args[0].dtype == BF16


def _parts(value: Node) -> list[Node]:
    """Returns three bf16 tiles whose sum is an f32 tile, the smallest first. An infinite element is
    the sum of itself and zeros.
    """
    large = _leading(value)
    is_done = make("eq", (value, large))  # also for infinities, where the difference is nan
    left = make("select", (is_done, filled(constant(0, F32), value), make("sub", (value, large))))
    middle = _leading(left)
    parts = make("sub", (left, middle)), middle, large
    return [converted(part, BF16) for part in parts]


def _leading(tile: Node) -> Node:
    """Returns the elements of an f32 tile, cut off after the bits that a bf16 has."""
    bits = make("bitcast", (tile,), hint=tile.tensor.with_dtype(I32))
    return make(
        "bitcast", (make("and", (bits, filled(constant(UPPER, I32), bits))),), hint=tile.tensor
    )
