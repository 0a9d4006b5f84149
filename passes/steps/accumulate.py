"""Matrix products of blocks and the cache: sums in blocks of a reduction axis, and prefetching."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import Builder, constant
from stack.ir.node import Block, Node
from stack.ir.traits import behind, is_load, is_store, unconverted
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import along, axes, extent_of, is_serial, why_no_memory
from stack.passes.steps.panels import (
    PAIR,
    BlockProduct,
    ProductStep,
    block_products,
    is_sliced,
    names_of_memory,
    part,
    slice_of,
    why_not_one,
)
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Accumulate(ProductStep, name="accumulate", only=Cpu):
    """Sum the products along an axis of a `dot` in blocks.

        loop(...) {(%i < 9, ...)              accumulate k 64  %s = loop(alloc()) {(%block < 8, %s0)
          %a = load(%p0, %i, 0) : f32<6x512>                     loop(%s0) {(%ib < 9, %s1)
          %b = load(%p1, 0, 0) : f32<512x32>                       %a = load(%p0, %ib, %block)
          %d = dot(%a, %b)                                         %b = load(%p1, %block, 0)
          ...                                                      %d = dot(%a, %b)
                                                                   store(%s1, add(load(%s1), %d))
                                                               loop(...) {(%i < 9, ...)
                                                                 %d = load(%s, %i, 0, 0) : f32<6x32>

    A block of the panel of columns then fits in the cache, if `pack` copies it. The partial sums of
    all tiles of rows are in local memory between blocks. The first block overwrites them. Legal for
    one `dot` of blocks in serial loops over tiles of rows, which reads no value that loops carry; N
    divides the reduction axis, and local memory holds the sums. CPUs only.

    Source: the loop over blocks of the reduction axis (kc) of GotoBLAS (Goto and van de Geijn, TOMS
    2008).

    Attributes:
        depth: the axis, by its name in the rule of the `dot`.
        size: elements of a block.
        into: the axis of the loop over blocks.
    """

    depth: str
    size: int
    into: str = "block"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_one(kernel)
        (product,) = block_products(kernel)
        if self.depth not in product.contracted:
            known = ", ".join(product.contracted)
            yield f"the product does not reduce {self.depth!r}; its reduction axes are: {known}"
        extent = product.sizes[self.depth]
        if self.size < 1 or extent % self.size:
            yield f"blocks of {self.size} do not divide the {extent} elements along {self.depth}"
        if self.into in axes(kernel):
            yield f"axis {self.into} exists already"
        carried = [p for loop in product.around for p in loop.blocks[0].params[1:]]
        if not product.dot.vars.isdisjoint(carried):
            yield "an operand depends on a value that a loop carries"
        if not all(map(is_sliced, product.dot.args)):
            yield "an operand is no block of memory"
        size = prod(map(extent_of, product.tiles)) * static(product.dot.tensor.bytes)
        if size > LARGEST_LOCAL:
            yield f"{size} bytes of sums; local memory has at most {LARGEST_LOCAL}"

    def change(self, edit: Edit, product: BlockProduct) -> Node:
        tiles = [loop.blocks[0].params[0] for loop in product.tiles]
        place = [*tiles, *product.corner(product.dot.tensor.rank)]
        total = edit.locate(product.dot, self._sums(edit, product, tiles))
        return Builder().load(total, *place, type=product.dot.type)

    def _sums(self, edit: Edit, product: BlockProduct, tiles: list[Node]) -> Node:
        """Builds the loop over blocks. Returns local memory with the sums of all tiles of rows."""
        b, dot, own = Builder(), product.dot, edit.names.own
        block = along(self.into, product.sizes[self.depth] // self.size, product.start)
        inner = [along(own(f"{v.attrs['name']}b"), int(v.attrs["extent"]), v) for v in tiles]
        (moved,) = edit.values([product.rows], dict(zip(tiles, inner, strict=True)))
        start = b.mul(block, self.size)
        rows = part(b, moved, product.row_names.index(self.depth), start, self.size)
        panel = part(b, product.panel, product.panel_names.index(self.depth), start, self.size)
        made = product.rebuilt(rows, panel)
        shape = *(int(v.attrs["extent"]) for v in inner), *dot.shape
        memory = b.alloc(name=own("partial"), type=TensorType(dot.dtype, shape, "local"))
        held = [Node("var", (), {"name": own("partial")}, memory.type) for _ in (block, *inner)]
        place = [*inner, *product.corner(dot.tensor.rank)]
        total = b.add(b.load(held[-1], *place, type=dot.type), made)
        # the first block overwrites the sums: a store of zeros would be hoisted out of the loops
        total = b.select(b.eq(block, constant(0, block.dtype)), made, total)
        result = b.store(held[-1], edit.locate(dot, total), *place)
        outer = [memory, *held[:-1]]
        for variable, before, inside in reversed([*zip((block, *inner), outer, held)]):
            body = Block((variable, inside), (result,))
            result = b.op("loop", [before], {"kind": "serial"}, (body,))
        return result


@dataclass(frozen=True)
class Prefetch(ProductStep, name="prefetch", only=Cpu):
    """Prefetch the next block of an operand of a matrix product.

      loop(...) {(%j < 4, ...)              prefetch p1  loop(...) {(%j < 4, ...)
        %b = load(%p1, 0, %j) : f32<64x32>                 %b = load(%p1, 0, %j) : f32<64x32>
        loop(...) {(%i < 8, ...)                           loop(...) {(%i < 8, ...)
          dot(load(%p0, %i, 0), %b)                          %n = load(%p1, 8 * %i, min(%j + 1, 3))
                                                             dot(load(%p0, %i, 0), fetch(%b, %n))

    The first read of a panel of columns waits for memory, while the bus is idle when tiles of rows
    use the panel before it. So each of these tiles prefetches a slice of the next panel, or of the
    next block of the panel. For the memory of the rows, each tile prefetches the next one
    (`ahead`).

    Legal for a memory from which one `dot` of blocks in loops over tiles of rows reads an operand,
    not through windows. Either the innermost loop moves along its rows, or loops around the tiles
    of rows select the panel. CPUs only.

    Source: software prefetching (Mowry, Lam and Gupta, ASPLOS 1992).

    Attributes:
        memory: an input of the kernel.
    """

    memory: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_memory(kernel, self.memory)
        yield why_not_one(kernel)
        (product,) = block_products(kernel)
        if not product.tiles:
            yield "the product is in no serial loop over tiles of rows"
        name = names_of_memory(kernel)
        if name(_source(product.rows)) == self.memory:
            if not _moves_rows(product):
                yield f"the innermost loop does not move along rows of {self.memory}"
        elif name(_source(product.panel)) != self.memory:
            yield f"the product reads no block of {self.memory}"
        elif not is_load(_source(product.panel)):
            yield f"columns of {self.memory} are read through windows"
        elif not product.indices:
            yield f"no loop selects a panel of {self.memory}"

    def change(self, edit: Edit, product: BlockProduct) -> Node:
        if names_of_memory(edit.kernel)(_source(product.rows)) == self.memory:
            attrs = {**product.dot.attrs, "ahead": static(product.dot.shape[0])}
            return product.dot.rebuilt(attrs=attrs)
        later = _next(edit, _source(product.panel), product.around)
        tiles = [loop.blocks[0].params[0] for loop in product.tiles]
        b = Builder()
        panel = b.fetch(product.panel, slice_of(b, later, tiles))
        return product.rebuilt(product.rows, panel)


def _moves_rows(product: BlockProduct) -> bool:
    """True if the innermost loop around a product moves along the axis of its rows."""
    load = _source(product.rows)
    if len(result_names(product.dot)) < 2 or not is_load(load):
        return False
    names = [n for n in product.row_names if n != PAIR]
    where = load.args[names.index(result_names(product.dot)[0]) - len(names)]
    return product.tiles[-1].blocks[0].params[0] in where.vars


def _source(block: Node) -> Node:
    """Returns the block of memory that an operand of a product is, or is packed from."""
    node = behind(unconverted(block))
    if is_load(node) and is_store(node.args[0]):
        node = node.args[0].args[1]
        while not is_load(node):
            node = node.args[0]
    return node


def _next(edit: Edit, load: Node, around: tuple[Node, ...]) -> Node:
    """Builds the load of the next iteration of the innermost loop that selects a block. After the
    last one, a serial loop starts again in the next iteration of the loop around it.
    """
    b, known, carry = Builder(), dict[Node, Node](), constant(1, load.args[1].dtype)
    for loop in reversed(around):
        var = loop.blocks[0].params[0]
        if var not in load.vars:
            continue
        last = int(var.attrs["extent"]) - 1
        later = b.add(var, carry)
        if not is_serial(loop):
            known[var] = b.min(later, last)
            break
        is_past = b.eq(later, last + 1)
        zero = constant(0, var.dtype)
        known[var] = b.select(is_past, zero, later)
        carry = b.select(is_past, constant(1, var.dtype), zero)
    return edit.values([load], known)[0]
