"""register_tile: replace a loop over rows of a matrix product by one `dot` of blocks.

    loop(%m) {(%s < 6, %sums)                 register_tile s    %a = load(%p1, %b, 0) : f32<6x64>
      %v = loop(0.0) {(%c < 64, %acc)                            %x = load(%q, 0, 0) : f32<64x32>
        %x = load(%q, %c, 0) : f32<32>                           %v = dot(%a, %x)
        add(%acc, mul(load(%p1, add(%b, %s), %c), %x))                 {rule="m k, k n -> m n"}
      store(%sums, %v, %s, 0)                                    store(%m, %v, 0, 0)

The backend keeps the sums of the `dot` in registers, and loads each vector once for all rows. It
reads operands in place, from inputs or local memory, while `microkernel` packs panels. Only an
`instruction` that multiplies neighbours along the reduction axis, such as `vdpbf16ps`, needs the
vectors packed: one copy for all rows turns 64 x 32 numbers into 32 x 32 pairs.

Legal if each loop over the axis only stores sums of products of two blocks, in vectors. For an
instruction, both operands have its type, rows are contiguous along the reduction axis, and it
divides the blocks. CPUs only.

Source: the register tile of the BLIS micro-kernel (Van Zee and van de Geijn, TOMS 2015).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.builder import constant, make
from stack.ir.node import Node
from stack.ir.types import I32, TensorType
from stack.passes.steps.block_dot import BlockDot, tile_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.loop_products import stored_product
from stack.passes.steps.loops import loops_along, why_not_free
from stack.passes.steps.step import Step
from stack.target import Cpu, Target

PAIRED = "m k pair, k n pair -> m n"


@dataclass(frozen=True)
class RegisterTile(Step, name="register_tile", only=Cpu):
    """Compute the matrix products in the loops over an axis, their rows, by a `dot` of blocks.

    Attributes:
        axis: the axis.
        instruction: the instruction that multiplies short numbers; "" converts them first.
    """

    axis: str
    instruction: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        for loop, _ in loops_along(kernel, self.axis):
            product = stored_product(kernel.blocks[0], loop)
            if product is None:
                yield f"a loop over {self.axis} does more than store sums of products, in vectors"
            elif self.instruction:
                yield self._why_no_instruction(product.dot, target)

    def _why_no_instruction(self, dot: BlockDot, target: Target | None) -> str:
        if not _is_grouped(dot):
            return f"rows along {self.axis} are not contiguous along the reduction axis"
        if not isinstance(target, Cpu):
            return ""
        found = [m for m in target.mmas((*dot.types, dot.dtype.name)) if m.divides(*dot.tile)]
        return dot.why_not_by(self.instruction, found, target)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        packed: dict[Node, Node] = {}

        def change(_: Node, loop: Node) -> Node:
            product = stored_product(kernel.blocks[0], loop)
            assert product is not None
            if not self.instruction:
                return product.stored(product.dot.built(False), loop.args[0])
            vectors = product.dot.operands[1].memory
            if vectors not in packed:
                packed[vectors] = _packed(edit, vectors, product.dot)
            return product.stored(_paired(product.dot, packed[vectors]), loop.args[0])

        return edit.change_loops(self.axis, change)


def _is_grouped(dot: BlockDot) -> bool:
    """True if a matrix instruction can multiply neighbours along the reduction axis of a dot.

    Rows are contiguous along it, and the vectors are all of a memory.
    """
    rows, vectors = dot.operands
    if len(dot.depth) != 1 or dot.row is None:
        return False
    (depth,) = dot.depth
    is_whole = vectors.memory.shape == (dot.sizes[depth], dot.sizes[dot.lane])
    return is_whole and rows.axes[-1].over == (depth,) and len(set(dot.types)) == 1


def _packed(edit: Edit, vectors: Node, dot: BlockDot) -> Node:
    """Builds local memory with the operand of columns, rearranged so that neighbours along the
    reduction axis are adjacent, as matrix instructions read them.
    """
    (depth, lanes), group = map(int, map(str, vectors.shape)), _group(vectors)
    shape = depth // group, lanes, group
    hint = TensorType(vectors.dtype, shape, "local")
    memory = make("alloc", (), {"name": edit.names.own("pairs")}, hint=hint)
    zero = constant(0, dot.depth[0].dtype)
    block = make("load", (vectors, zero, zero), hint=tile_of(vectors.dtype, (depth, lanes)))
    cut = tile_of(vectors.dtype, (depth // group, group, lanes))
    pairs = make("transpose", (make("reshape", (block,), hint=cut),), {"perm": (0, 2, 1)})
    return make("store", (memory, pairs, zero, zero, zero))


def _paired(dot: BlockDot, packed: Node) -> Node:
    """Builds the `dot` of the operand with the rows, in place, and the packed operand with the
    columns.
    """
    count, _, depth = dot.tile
    group = _group(packed)
    shape = count, depth // group, group
    block, _ = dot.loaded(dot.operands[0])
    left = make("reshape", (block,), hint=tile_of(block.dtype, shape))
    zero = constant(0, dot.depth[0].dtype)
    hint = tile_of(packed.dtype, (depth // group, dot.sizes[dot.lane], group))
    right = make("load", (packed, zero, zero, zero), hint=hint)
    return make("dot", (left, right), {"rule": PAIRED}, hint=tile_of(dot.dtype, dot.shape))


def _group(node: Node) -> int:
    """Returns how many neighbours along the reduction axis a matrix instruction multiplies and adds
    up in 32 bits.
    """
    return I32.bits // node.dtype.bits
