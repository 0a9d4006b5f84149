"""accumulate: sum the products of a long reduction axis in blocks, for all tiles of rows at a time.

    loop(...) {(%i < 9, ...)                accumulate k 64    %s = loop(alloc()) {(%block < 8, %s0)
      %a = load(%p0, %i, 0) : f32<6x512>                         loop(%s0) {(%ib < 9, %s1)
      %b = load(%p1, 0, 0) : f32<512x32>                           %a = load(%p0, %ib, %block)
      %d = dot(%a, %b)                                             %b = load(%p1, %block, 0)
      ...                                                          %d = dot(%a, %b)
                                                                   store(%s1, add(load(%s1), %d))
                                                               loop(...) {(%i < 9, ...)
                                                                 %d = load(%s, %i, 0, 0) : f32<6x32>

A block of the panel of columns then fits in the cache, if `pack` copies it. The partial sums of all
tiles of rows are in local memory between blocks. The first block overwrites them. Legal for one
`dot` of blocks in serial loops over tiles of rows, which reads no value that loops carry; N divides
the reduction axis, and local memory holds the sums. CPUs only.

Source: the loop over blocks of the reduction axis (kc) of GotoBLAS (Goto and van de Geijn, TOMS
2008).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import Builder, constant
from stack.ir.node import Block, Node
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import along, axes, extent_of
from stack.passes.steps.panels import BlockProduct, block_products, is_sliced, part
from stack.passes.steps.step import Step
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Accumulate(Step, name="accumulate", only=Cpu):
    """Sum the products along an axis of a `dot` in blocks.

    Attributes:
        depth: the axis, by its name in the rule of the `dot`.
        size: elements of a block.
        into: the axis of the loop over blocks.
    """

    depth: str
    size: int
    into: str = "block"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        found = [*block_products(kernel)]
        if len(found) != 1:
            yield f"{len(found)} matrix products of blocks, not one"
        (product,) = found
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

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        (product,) = block_products(kernel)
        tiles = [loop.blocks[0].params[0] for loop in product.tiles]
        place = [*tiles, *product.corner(product.dot.tensor.rank)]
        total = edit.locate(product.dot, self._sums(edit, product, tiles))
        read = Builder().load(total, *place, type=product.dot.type)
        return edit.mapped(lambda n: read if n is product.dot else None)

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
