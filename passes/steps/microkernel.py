"""Matrix products in loops: vectors over the columns, to which loops add products.

One `dot` of two blocks of memory computes the same as a loop over rows that only stores such sums,
and one loop or several over reduction axes. A block has all elements that a load reads in
these loops: p0[8 i.0 + i.1, k] for i.1 < 8 and k < 64 is load(%p0, mul(%i.0, 8), 0) : f32<8x64>. An
index that adds a row or a column to a tap, as convolutions have, reads it through windows
(`unfold`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.builder import converted, make, reshaped
from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import (
    converts,
    is_load,
    is_loop,
    is_memory,
    is_store,
    multiplies,
    repeats,
    unconverted,
)
from stack.ir.types import holds_all
from stack.passes.steps.affine import AffineIndex, place_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.guard import summand
from stack.passes.steps.loops import is_constant, is_serial, loops_along, why_not_free
from stack.passes.steps.panels import BlockProduct, read_by
from stack.passes.steps.step import LoopStep
from stack.passes.steps.tiles import positions, tile_type
from stack.passes.tiling.contraction import operand_names
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Microkernel(LoopStep, name="microkernel", only=Cpu):
    """Compute the matrix products in the loops over an axis by a `dot` of blocks.

        loop(%m) {(%s < 6, %sums)                 microkernel s    %a = load(%p1, %b, 0) : f32<6x64>
          %v = loop(0.0) {(%c < 64, %acc)                          %x = load(%q, 0, 0) : f32<64x32>
            %x = load(%q, %c, 0) : f32<32>                         %v = dot(%a, %x)
            add(%acc, mul(load(%p1, add(%b, %s), %c), %x))               {rule="m k, k n -> m n"}
          store(%sums, %v, %s, 0)                                  store(%m, %v, 0, 0)

    The backend keeps the sums of the `dot` in registers, and loads each vector once for all rows.
    It reads both operands in place: see `pack` for panels of columns. Operands are converted to the
    type of the sums, unless an `instruction` multiplies them as they are, such as `vdpbf16ps`.

    Legal if a loop over the axis only stores sums of products of two blocks, in vectors over the
    columns: the axis is that of the rows; see `fission` if the loop does more. A loop over a
    reduction axis that computes the sums of one row is replaced too. Operands are inputs or local
    memory. For an instruction, both have its type, rows are contiguous along the reduction axis,
    and it divides the blocks. CPUs only.

    Source: the micro-kernel of BLIS (Van Zee and van de Geijn, TOMS 2015); `tensorize` of TensorIR.

    Attributes:
        axis: the axis: the rows of the products, or a reduction axis.
        instruction: the instruction that multiplies short numbers; "" converts them first.
    """

    instruction: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        found = [product_at(kernel.blocks[0], loop) for loop in loops]
        if not any(found):
            yield f"no loop over {self.axis} only stores sums of products, in vectors"
        for product in found if self.instruction else ():
            yield self._why_no_instruction(product.blocks, target) if product is not None else ""

    def _why_no_instruction(self, product: BlockProduct, target: Target | None) -> str:
        if operand_names(product.dot, 0)[-1] not in product.depth:
            return "rows are not contiguous along the reduction axis"
        if not isinstance(target, Cpu):
            return ""
        known = target.mmas(product.types)
        if any(m.name == self.instruction and m.divides(*product.tile) for m in known):
            return ""
        shape, types = " x ".join(map(str, product.tile)), " and ".join(product.types[:2])
        return f"{target.name} has no {self.instruction} for {shape} products of {types}"

    def change(self, edit: Edit, loop: Node) -> Node:
        product = product_at(edit.block, loop)
        return product.replaced(bool(self.instruction)) if product is not None else loop


@dataclass(frozen=True)
class LoopProduct:
    """A matmul that loops of a kernel compute, and the `dot` of blocks that can replace them.

    Attributes:
        loop: the loop that a `dot` replaces: over rows that are stored, or over a reduction axis.
        blocks: the product. Its operands are converted to the type of the sums.
        places: the index of the store in the loop over rows; none without that loop.
    """

    loop: Node
    blocks: BlockProduct
    places: tuple[ReadAxis, ...] = ()

    def replaced(self, is_narrow: bool) -> Node:
        """Builds the replacement of the loop: the `dot`, or the memory after it is stored there.

        `is_narrow`: whether an instruction multiplies operands as they are in memory.
        """
        made = self.blocks.dot
        if is_narrow:
            made = made.rebuilt([unconverted(a) for a in made.args])
        if not self.places:
            return made
        start = self.loop.args[0]
        rows, lanes = map(static, made.shape)
        first = next(i for i, place in enumerate(self.places) if place.over)
        shape = (rows, *[1] * (len(self.places) - first - 2), lanes)
        made = converted(reshaped(made, shape), start.dtype)
        return make("store", (start, made, *(place.start for place in self.places)))


def product_at(whole: Block, loop: Node) -> LoopProduct | None:
    """Recognizes the matmul that a loop computes: over rows that are stored, or over a reduction
    axis. The operand that has the rows comes first.

    Operands are inputs of the kernel with the body `whole`, or local memory. None if the loop does
    something else.
    """
    if not is_serial(loop):
        return None
    found = _stored_product(loop.blocks[0])
    dot, places = found or (_dot(loop, None), ())
    if dot is None:
        return None
    inputs = whole.params[: -len(whole.results)]
    memories = [read_by(operand).args[0] for operand in dot.args]
    if any(m not in inputs and m.tensor.space != "local" for m in memories):
        return None
    return LoopProduct(loop, BlockProduct(dot), places)


@once_in
def _stored_product(block: Block) -> tuple[Node, tuple[ReadAxis, ...]] | None:
    """Recognizes the body of a loop over rows that only stores the results of one inner loop.
    Returns the `dot` that computes them, and the index of the store; None for other loops.
    """
    var, *held = block.params
    if len(held) != 1 or not is_store(block.results[0]):
        return None
    (store,) = block.results
    index, mask, _ = access_parts(store)
    sums = unconverted(store.args[1])
    if [n for n in block.nodes if is_loop(n)] != [sums] or store.args[0] is not held[0]:
        return None
    if mask is not None or any(place.tensor.rank for place in index):
        return None
    places = [axis_along(place, [var]) for place in index]
    known = tuple(p for p in places if p is not None and p.is_contiguous)
    moved = [i for i, place in enumerate(known) if place.over]
    is_block = len(known) == len(places) and len(moved) == 1 and moved[0] < len(known) - 1
    dot = _dot(sums, var) if is_block else None
    return None if dot is None else (dot, known)


def _dot(loop: Node, row: Node | None) -> Node | None:
    """Builds the `dot` of blocks whose products a loop over a reduction axis adds up; None if the
    loop computes something else. `row`: the variable of the loop over rows around it, if there is
    one. The operand with the rows comes first.
    """
    depth, product = _summed(loop)
    if product is None:
        return None
    (lanes,) = map(static, product.shape)
    lane = positions(depth[0].dtype, lanes)
    result = {lane: "n"} if row is None else {row: "m", lane: "n"}
    names = {**result, **{v: f"k{i or ''}" for i, v in enumerate(depth)}}
    first, second = (_read(factor, names, depth, lane) for factor in product.args)
    if first is None or second is None:
        return None
    if row in second.over:
        first, second = second, first
    both = first.over & second.over
    if both - {lane} != {*depth} or first.over | second.over != {*names}:
        return None
    if lane in both and not (row in first.over and lane in first.axes[-1].over):
        return None  # a product for each lane: lanes of the operand with the rows are contiguous
    if lane not in both and row in first.over and lane in first.over:
        return None  # no axis of its own: the other operand is a number for each step of the sum
    sizes = {v: lanes if v is lane else static(v.attrs["extent"]) for v in names}
    blocks: list[Node] = []
    sides: list[str] = []
    for read, unit in ((first, "a"), (second, "b")):
        block, over = read.loaded(sizes)
        blocks.append(converted(block, product.dtype))
        own = [names[v] if v is not None else f"{unit}{i}" for i, v in enumerate(over)]
        sides.append(" ".join(own))
    rule = f"{', '.join(sides)} -> {' '.join(result.values())}"
    hint = tile_type(product.dtype, [sizes[v] for v in result])
    return make("dot", blocks, {"rule": rule}, hint=hint)


def _summed(loop: Node) -> tuple[list[Node], Node | None]:
    """Returns the variables of nested reduction loops, and the product that they add to a vector of
    sums from 0 on. None in place of the product if the loops do something else."""
    depth: list[Node] = []
    while True:
        block = loop.blocks[0]
        var, *held = block.params
        if not is_serial(loop) or len(held) != 1 or is_memory(held[0]):
            return depth, None
        if not depth and not is_constant(starts_of(loop)[0], 0):
            return depth, None
        depth.append(var)
        (result,) = block.results
        if not is_loop(result) or tuple(starts_of(result)) != tuple(held):
            break
        loop = result
    part = summand(held[0], result) if result.op == "add" else None
    is_product = part is not None and multiplies(part) and part.tensor.rank == 1
    return depth, part if is_product else None


def _read(
    factor: Node,
    variables: Collection[Node],
    depth: Collection[Node],
    lane: Node,
) -> BlockRead | None:
    """Returns the block of memory that a factor of a product is loaded from, over all values of the
    loop variables; None if it is not such a load.
    """
    value = factor
    while repeats(value) or (converts(value) and holds_all(value.dtype, value.args[0].dtype)):
        (value,) = value.args
    if not is_load(value):
        return None
    index, mask, _ = access_parts(value)
    if mask is not None or not index:
        return None
    if value.tensor.rank and not any(place.tensor.rank for place in index):
        index = [*index[:-1], make("add", (index[-1], lane))]  # a contiguous vector
    axes = [axis_along(place, variables, depth) for place in index]
    known = tuple(axis for axis in axes if axis is not None)
    is_block = len(known) == len(axes) and any(axis.over for axis in known)
    return BlockRead(value.args[0], known) if is_block else None


class ReadAxis(NamedTuple):
    """The elements read along one axis of memory. Contiguous elements count as windows of one tap.

    Attributes:
        start: the index of the first element.
        over: the variables over which further elements are read: those of places and taps.
        place: the variable over windows: rows or columns; None for one window.
        tap: the variable in a window; None for one element.
        stride: elements from one window to the next.
        dilation: elements from one tap to the next.
        is_contiguous: whether all elements are one run of memory.
    """

    start: Node
    over: tuple[Node, ...]
    place: Node | None
    tap: Node | None = None
    stride: int = 1
    dilation: int = 1
    is_contiguous: bool = True


@dataclass(frozen=True)
class BlockRead:
    """A block that loops read from a memory: which elements along each of its axes."""

    memory: Node
    axes: tuple[ReadAxis, ...]

    @property
    def over(self) -> set[Node]:
        """The loop variables and lanes that select the elements which are read."""
        return {v for axis in self.axes for v in axis.over}

    def loaded(self, sizes: Mapping[Node, int]) -> tuple[Node, list[Node | None]]:
        """Builds the load of the block, and the variable of each of its axes; None for an axis of
        one element. `sizes`: the extent of each variable.
        """

        def size(var: Node | None) -> int:
            return 1 if var is None else sizes[var]

        def span(axis: ReadAxis) -> int:
            """Returns how many elements all windows along an axis cover together."""
            taps = (size(axis.tap) - 1) * axis.dilation
            return (size(axis.place) - 1) * axis.stride + taps + 1

        axes = self.axes
        windows = [i for i, axis in enumerate(axes) if not axis.is_contiguous]
        first = min([*windows, *(i for i, axis in enumerate(axes) if axis.over)])
        hint = tile_type(self.memory.dtype, [span(axis) for axis in axes[first:]])
        block = make("load", (self.memory, *(axis.start for axis in axes)), hint=hint)
        places = [axis.place for axis in axes[first:]]
        if not windows:
            return block, places
        begin, end = windows[0] - first, windows[-1] + 1 - first
        found = axes[windows[0] : windows[-1] + 1]
        attrs = {
            "axis": begin,
            "window": tuple(size(axis.tap) for axis in found),
            "stride": tuple(axis.stride for axis in found),
            "dilation": tuple(axis.dilation for axis in found),
        }
        over = [*places[:end], *(axis.tap for axis in found), *places[end:]]
        return make("unfold", (block,), attrs), over


def axis_along(
    index: Node, variables: Collection[Node], depth: Collection[Node] = ()
) -> ReadAxis | None:
    """Returns which elements of one axis of memory an index reads over all values of the variables;
    None if they are neither contiguous nor windows.

    Args:
        index: the index: affine in the variables.
        variables: the variables.
        depth: those of the reduction: they go over the taps of windows.
    """
    found = place_of(index)
    if found is None:
        return None
    factors = {v: c for v, c in found.terms.items() if v in variables}
    rest = AffineIndex({v: c for v, c in found.terms.items() if v not in variables}, found.more)
    if any(not node.vars.isdisjoint(variables) for node in rest.terms):
        return None
    taps = [v for v in factors if v in depth]
    places = [v for v in factors if v not in depth]
    if len(taps) > 1 or len(places) > 1 or any(c < 1 for c in factors.values()):
        return None
    start, over = rest.node(index.dtype), tuple(factors)
    around = [*rest.terms.values()]  # the steps of loops outside
    is_contiguous = list(factors.values()) in ([], [1])
    if is_contiguous and not any(step < int(t.attrs["extent"]) for t in taps for step in around):
        return ReadAxis(start, over, next(iter(over), None))  # windows do not overlap
    place, tap = next(iter(places), None), next(iter(taps), None)
    # of one window, the stride is that of a loop outside
    stride = factors[place] if place is not None else around[0] if len(around) == 1 else 1
    dilation = factors[tap] if tap is not None else 1
    return ReadAxis(start, over, place, tap, max(stride, 1), dilation, is_contiguous=False)
