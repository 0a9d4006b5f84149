"""microkernel: replace the loops of a matrix product by one `dot` of blocks, on packed panels.

    loop(%o0) {(%i < 8, %o)                     microkernel     %a = load(%p0, 0, 0) : f32<8x64>
      %s = loop(0.0) {(%k < 64, %acc)                           %b = load(%p1, 0, 0) : f32<64x32>
        %x = load(%p1, %k, 0) : f32<32>                         %c = dot(%a, %b)
        add(%acc, mul(load(%p0, %i, %k), %x))                          {rule="m k, k n -> m n"}
      store(%o, %s, %i, 0)                                      store(%o0, %c, 0, 0)

A macro step: pass `distribute` packs the panels of the operand with the columns, and cuts a long
reduction axis so that a panel fits in the cache; the backend keeps the sums of the `dot` in
registers. Operands are converted to the type of the sums, unless an `instruction` multiplies them
as they are, such as `vdpbf16ps`.

Legal if the kernel is one loop nest with one sum of products of two inputs, in vectors over the
columns, and all loops around it are bound to cores. A loop over rows that only stores the sums is
replaced too: see `fission` if it does more. The instruction must divide the blocks. CPUs only.

Source: the micro-kernel of BLIS (Van Zee and van de Geijn, TOMS 2015); `tensorize` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.traits import nest_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.loop_products import products_in
from stack.passes.steps.loops import axis_of
from stack.passes.steps.step import Step
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Microkernel(Step, name="microkernel", only=Cpu):
    """Compute a matrix product by a `dot` of blocks.

    Attributes:
        instruction: the instruction that multiplies short numbers; "" converts them first.
    """

    instruction: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        found = products_in(kernel)
        if len(found) != 1:
            count = f"{len(found)} matrix products" if found else "no matrix product"
            yield f"{count}: one loop adds products of two inputs to vectors of sums"
        (product,) = found
        free = next((loop for loop in product.around if loop.attrs["kind"] != "parallel"), None)
        if free is not None:
            outer, inner = axis_of(free), axis_of(product.loop)
            yield f"the loop over {inner} is inside of the loop over {outer}, which is not bound"
        if tuple(nest_of(kernel.blocks[0], "parallel")[0]) != product.around:
            yield f"the loop over {axis_of(product.loop)} is in one of several loop nests"
        if self.instruction:
            dot = product.dot
            if isinstance(target, Cpu):
                found = target.mma((*dot.types, dot.dtype.name), *dot.tile)
                yield dot.why_not_by(self.instruction, [found], target)

    def apply(self, kernel: Node) -> Node:
        (product,) = products_in(kernel)

        def replaced(node: Node) -> Node | None:
            is_product = node is product.loop
            return product.replaced(node.args[0], bool(self.instruction)) if is_product else None

        return Edit(kernel).mapped(replaced)
