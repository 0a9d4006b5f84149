"""microkernel: replace the loops of a matrix product by one `dot` of blocks.

    loop(%m) {(%s < 6, %sums)                 microkernel s    %a = load(%p1, %b, 0) : f32<6x64>
      %v = loop(0.0) {(%c < 64, %acc)                          %x = load(%q, 0, 0) : f32<64x32>
        %x = load(%q, %c, 0) : f32<32>                         %v = dot(%a, %x)
        add(%acc, mul(load(%p1, add(%b, %s), %c), %x))               {rule="m k, k n -> m n"}
      store(%sums, %v, %s, 0)                                  store(%m, %v, 0, 0)

The backend keeps the sums of the `dot` in registers, and loads each vector once for all rows. It
reads both operands in place: see `pack` for panels of columns. Operands are converted to the type
of the sums, unless an `instruction` multiplies them as they are, such as `vdpbf16ps`.

Legal if a loop over the axis only stores sums of products of two blocks, in vectors over the
columns: the axis is that of the rows; see `fission` if the loop does more. A loop over a reduction
axis that computes the sums of one row is replaced too. Operands are inputs or local memory. For an
instruction, both have its type, rows are contiguous along the reduction axis, and it divides the
blocks. CPUs only.

Source: the micro-kernel of BLIS (Van Zee and van de Geijn, TOMS 2015); `tensorize` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.passes.steps.edit import Edit
from stack.passes.steps.loop_products import product_at
from stack.passes.steps.loops import loops_along, why_not_free
from stack.passes.steps.panels import BlockProduct
from stack.passes.steps.step import LoopStep
from stack.passes.tiling.contraction import operand_names
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Microkernel(LoopStep, name="microkernel", only=Cpu):
    """Compute the matrix products in the loops over an axis by a `dot` of blocks.

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
