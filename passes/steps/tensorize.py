"""Matrix products of tiles, for the matrix instructions of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from stack.ir.axes import reshape_groups
from stack.ir.builder import constant, converted, filled, make
from stack.ir.contraction import PRECISIONS as ROUNDINGS
from stack.ir.node import Node
from stack.ir.traits import (
    axis_order,
    choice,
    converts,
    is_alias,
    is_contraction,
    is_load,
    is_loop,
    is_reduction,
    multiplies,
    repeats,
    signs,
    unconverted,
)
from stack.ir.types import BF16, F32, I32, holds_all
from stack.ir.warp_ops import MATRIX
from stack.passes.steps.affine import limit_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import is_constant, stores_only
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import conjuncts, parts_of, positions_from, spread_along
from stack.passes.tiling.frame import static
from stack.target import Gpu, Target

PRECISIONS = ("", *ROUNDINGS)


@dataclass(frozen=True)
class Tensorize(Step, name="tensorize", only=Gpu):
    """Compute matrix products by matrix instructions.

        %x = broadcast(%a) {axes=[0, 2]} : f32<64x32x16>    tensorize     %y = dot(%a, %b)
        %w = broadcast(%b) {axes=[1, 2]} : f32<64x32x16>                    {rule="m k, n k -> m n"}
        %y = reduce(mul(%x, %w)) {axes=[2], kind="sum"}                     : f32<64x32>

    A loop that computes products loads its tiles through shared memory: it becomes `staged`.
    Operands keep their type in memory, such as f16. Products are exact, and are accumulated in the
    type of the sum. Elements past the end of the reduction axis must be 0: masked loads give 0, and
    other operands are masked. Legal if the kernel has a sum of products of two tiles, where each
    tile has one axis that the other one lacks, and all axes have at least 16 elements. GPUs only.

    Source: `tensorize` of TensorIR (Feng et al., ASPLOS 2023).

    Attributes:
        precision: `tf32` rounds f32 operands to TF32; `tf32_rounded` takes operands that are TF32
            values already; "" is exact.
    """

    precision: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.precision not in PRECISIONS:
            yield f"precision {self.precision!r} is not {', '.join(PRECISIONS[1:])}"
        found = [p for p in map(product_of, kernel.blocks[0].all_nodes) if p is not None]
        if not found:
            yield "no matrix product: no sum of products of two tiles, each with its own axis"
        for product in found:
            if min(product.sizes) < MATRIX:
                shape = " x ".join(map(str, product.sizes))
                yield f"a product of {shape}: instructions take {MATRIX} or more along each axis"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        precision = {"precision": self.precision} if self.precision else {}

        def visit(old: Node, made: Node) -> Node:
            if is_loop(made) and any(map(is_contraction, made.blocks[0].nodes)):
                # if it carries a value, such as sums of products, its tiles go through memory
                staged = {} if stores_only(made) else {"staged": True}
                return made.rebuilt(attrs={**made.attrs, **staged})
            found = product_of(made)
            if found is None:
                return made
            values = [edit.locate(old, f.value) for f in found.factors]
            return make("dot", values, {"rule": found.rule, **precision}, hint=old.tensor)

        return edit.everywhere(visit)


class Factor(NamedTuple):
    """An operand of a matrix product.

    Attributes:
        value: the tile, before broadcasts, transposes and conversions to a wider type.
        axes: for each axis of the tile, the axis of the product.
    """

    value: Node
    axes: tuple[int, ...]


class Product(NamedTuple):
    """A sum of products of two tiles that is a matrix product.

    Attributes:
        factors: the operands.
        rule: the axis rule of the `dot`, such as "m k, n k -> m n".
        sizes: the extents of the axes m, n and k.
    """

    factors: tuple[Factor, Factor]
    rule: str
    sizes: tuple[int, int, int]


def product_of(node: Node) -> Product | None:
    """Recognizes a matmul: a sum of products of two broadcast tiles; None for others."""
    if not is_reduction(node) or node.attrs["kind"] != "sum" or node.args[0].tensor.rank != 3:
        return None
    over: tuple[int, ...] = node.attrs["axes"]
    if len(over) != 1:
        return None
    (summed,), space = over, node.args[0]
    tests: list[Node] = []
    chosen = choice(space)
    if chosen is not None and is_constant(chosen.no, 0):
        tests, space = conjuncts(chosen.test), chosen.yes
    if not multiplies(space) or any(_lanes_of(t) != (summed,) for t in tests):
        return None
    factors = _narrow([_factor(a) for a in space.args])
    own = [[a for a in f.axes if a != summed] for f in factors]
    if any(len(f.axes) != 2 or summed not in f.axes for f in factors) or own[0] == own[1]:
        return None
    first, second = (Factor(_zeroed(f, tests, summed), f.axes) for f in factors)
    if own[0] > own[1]:
        first, second, own = second, first, own[::-1]
    names = {own[0][0]: "m", own[1][0]: "n", summed: "k"}
    sides = ", ".join(" ".join(names[a] for a in f.axes) for f in (first, second))
    m, n, k = (static(space.shape[a]) for a in (own[0][0], own[1][0], summed))
    return Product((first, second), f"{sides} -> m n", (m, n, k))


def _factor(value: Node) -> Factor:
    """Returns an operand of a product without its broadcasts and transposes."""
    axes: tuple[int, ...] = tuple(range(value.tensor.rank))
    while True:
        if repeats(value):
            kept: tuple[int, ...] = value.attrs["axes"]
            axes = tuple(axes[a] for a in kept)
        elif (order := axis_order(value)) is not None:
            axes = tuple(axes[order.index(a)] for a in range(len(axes)))
        else:
            return Factor(value, axes)
        (value,) = value.args


def _narrow(factors: Sequence[Factor]) -> Sequence[Factor]:
    """Removes conversions from both operands if they widen the same type."""
    if not all(converts(f.value) for f in factors):
        return factors
    before = [f.value.args[0] for f in factors]
    dtype = before[0].dtype
    if any(b.dtype != dtype for b in before) or not holds_all(factors[0].value.dtype, dtype):
        return factors
    made: list[Factor] = []
    for factor, value in zip(factors, before, strict=True):
        turned = _factor(value)
        made.append(Factor(turned.value, tuple(factor.axes[a] for a in turned.axes)))
    return made


def _lanes_of(test: Node) -> tuple[int, ...]:
    """Returns the axes along which a broadcast condition varies; empty for others."""
    return tuple(test.attrs["axes"]) if repeats(test) else ()


def _zeroed(factor: Factor, tests: Sequence[Node], summed: int) -> Node:
    """Returns an operand of a matmul that is 0 where a condition on the reduction axis `summed` is
    false: masked if loads do not ensure that already.
    """
    value = factor.value
    for test in tests:
        at = factor.axes.index(summed)
        (inside,) = test.args
        if not _is_zero_past(value, inside, at):
            wide = spread_along(inside, (at,), [static(s) for s in value.shape])
            value = make("select", (wide, value, constant(0, value.dtype)))
    return value


def _is_zero_past(value: Node, test: Node, axis: int) -> bool:
    """True if a tile is 0 along `axis` where a test is false: its load ensures that."""
    value = unconverted(value)
    if is_alias(value):
        (source,) = value.args
        for read, made in reshape_groups(source.shape, value.shape):
            if (read.stop - read.start, made.start, made.stop) == (1, axis, axis + 1):
                return _is_zero_past(source, test, read.start)
    if not is_load(value):
        return False
    index, mask, other, tile = parts_of(value)
    if other is not None and not is_constant(other, 0):
        return False
    if any(_lanes_of(p) == (axis,) and p.args[0] is test for p in conjuncts(mask)):
        return True
    at = len(index) - len(tile) + axis
    end = limit_of(test, positions_from(index[at], tile[axis])) if "clip" in value.attrs else None
    return end == value.args[0].shape[at]


UPPER = -(1 << BF16.bits)  # the bits of an f32 that a bf16 has: sign, exponent, 7 of the fraction


@dataclass(frozen=True)
class DotParts(Step, name="dot_parts", only=Gpu):
    """Multiply f32 tiles by tiles of bf16 values in three products of bf16.

        %b = cast(%v) : f32<32x128>     dot_parts     %y = add(add(dot(%a2, %v), dot(%a1, %v)),
        %y = dot(%a, %b)                                       dot(%a0, %v))

    An f32 has 24 significant bits, and a bf16 has 8, with the same range of exponents. So `a` is
    the sum of three bf16 tiles a0, a1 and a2, and all products with `v` are exact, as those in f32
    are. The smallest part is summed first. Without this step a backend splits both operands, in six
    products. Legal if an exact product of the kernel has such operands. GPUs only.

    Source: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
    Computations" (Henry, Tang and Heinecke, ARITH 2019), section III.
    """

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if not any(map(mixes_bf16, kernel.blocks[0].all_nodes)):
            yield "no exact product of an f32 tile and one that is converted from bf16"

    def apply(self, kernel: Node) -> Node:
        sums: dict[Node, list[Node]] = {}  # by the sum of three products, these products

        def visit(_: Node, node: Node) -> Node | None:
            if mixes_bf16(node):
                dots = _products(node)
                made = _added(dots[0], dots[1:])
                sums[made] = dots
                return made
            is_total = signs(node) == (1, 1) and node.args[1] in sums  # it takes one by one
            return _added(node.args[0], sums[node.args[1]]) if is_total else None

        return Edit(kernel).everywhere(visit)


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
