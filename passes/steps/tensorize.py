"""tensorize: replace sums of products of tiles by matrix products, for matrix instructions.

    %x = broadcast(%a) {axes=[0, 2]} : f32<64x32x16>      tensorize     %y = dot(%a, %b)
    %w = broadcast(%b) {axes=[1, 2]} : f32<64x32x16>                      {rule="m k, n k -> m n"}
    %y = reduce(mul(%x, %w)) {axes=[2], kind="sum"}                       : f32<64x32>

A loop that computes products loads its tiles through shared memory: it becomes `staged`. Operands
keep their type in memory, such as f16. Products are exact, and are accumulated in the type
of the sum. Elements past the end of the reduction axis must be 0: masked loads give 0, and other
operands are masked. Legal if the kernel has a sum of products of two tiles, where each tile has one
axis that the other one lacks, and all axes have at least 16 elements. GPUs only.

Source: `tensorize` of TensorIR (Feng et al., ASPLOS 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.axes import reshape_groups
from stack.ir.builder import constant, make
from stack.ir.contraction import PRECISIONS as ROUNDINGS
from stack.ir.node import Block, Node
from stack.ir.traits import (
    axis_order,
    choice,
    converts,
    is_alias,
    is_contraction,
    is_load,
    is_loop,
    is_memory,
    is_reduction,
    multiplies,
    repeats,
    unconverted,
)
from stack.ir.types import holds_all
from stack.ir.warp_ops import MATRIX
from stack.passes.steps.access import conjuncts, parts_of, positions_from, spread_along
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import limit_of
from stack.passes.steps.loops import is_constant
from stack.passes.steps.step import Step
from stack.passes.tiling.frame import static
from stack.target import Gpu, Target

PRECISIONS = ("", *ROUNDINGS)


@dataclass(frozen=True)
class Tensorize(Step, name="tensorize", only=Gpu):
    """Compute matrix products by matrix instructions.

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
            if is_loop(made) and _sums_products(made.blocks[0]):
                return made.rebuilt(attrs={**made.attrs, "staged": True})
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


def _sums_products(block: Block) -> bool:
    """True if the body of a loop contains a matmul and carries a value, such as its sums."""
    is_carried = not all(map(is_memory, block.params[1:]))
    return is_carried and any(map(is_contraction, block.nodes))


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
