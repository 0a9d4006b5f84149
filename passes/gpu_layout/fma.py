"""Matmuls by fused multiply-adds of threads, for types without a matrix instruction.

The products of one block of depth are summed separately and then added to the total. So rounding
errors grow with the number of blocks and not with the depth. A. M. Castaldo, R. C. Whaley, A. T.
Chronopoulos, "Reducing floating point error in dot product using the superblock family of
algorithms" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Block, Node
from stack.ir.types import I32, TensorType
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.global_memory import GlobalMemory
from stack.passes.gpu_layout.instruction_layouts import Matmul
from stack.passes.gpu_layout.operands import Operands
from stack.passes.gpu_layout.share import Layout, Point, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory, vector_of
from stack.target.gpu_tuning import GpuLayouts


@dataclass(frozen=True)
class Fma:
    """Builds matmuls from multiply-adds, where each thread computes its own block of sums.

    Attributes:
        is_direct: True if threads load operands from global memory, False from shared memory.
    """

    tiles: ThreadBuilder
    shared: SharedMemory
    memory: GlobalMemory
    operands: Operands
    is_direct: bool
    tuning: GpuLayouts

    def multiply(self, matmul: Matmul, layout: Layout, start: ThreadValue) -> ThreadValue:
        """Builds a matmul, added to `start`, as a loop over the depth (the contracted axis).
        Returns its sums in `layout`.
        """
        b = self.tiles.b
        few = min(self.tuning.unrolled, matmul.depth)
        outer, inner = (self._index(n) for n in (matmul.depth // few, few))
        depth = b.add(b.mul(outer, few), inner)
        operands = [
            self.tiles.broadcast(self._operand(matmul, axis, layout[axis], depth), (axis,), layout)
            for axis in range(2)
        ]
        type_ = self.tiles.type_of(matmul.dtype, layout)
        sums = [Node("var", (), {"name": self.tiles.fresh("part")}, type_) for _ in range(2)]
        block = Block((inner, sums[1]), (b.fma(*(o.node for o in operands), sums[1]),))
        unrolled = b.op("loop", [sums[0]], {"kind": "unroll"}, (block,))
        block = Block((outer, sums[0]), (unrolled,))
        zero = self.tiles.full(0, matmul.dtype, layout)
        part = b.op("loop", [zero.node], {"kind": "serial"}, (block,))
        return ThreadValue(b.add(start.node, part), layout)

    def _index(self, extent: int) -> Node:
        """Creates the index variable of a loop over `extent` elements of the depth."""
        name = self.tiles.fresh("d")
        return Node("var", (), {"name": name, "extent": extent}, TensorType(I32, ()))

    def _operand(self, matmul: Matmul, axis: int, share: Share, depth: Node) -> ThreadValue:
        """Loads the rows (axis 0) or columns (axis 1) that each thread multiplies at index `depth`
        of the contracted axis.
        """
        operand = (matmul.left, matmul.right)[axis]
        is_depth_first = (axis == 1) != matmul.is_transposed[axis]
        if self.is_direct and operand.op == "load":
            read = self._from_global(operand, share, depth, is_depth_first)
        else:
            read = self._from_shared(operand, share, depth, is_depth_first)
        if read.dtype == matmul.dtype:
            return read
        type_ = read.node.tensor.with_dtype(matmul.dtype)
        return ThreadValue(self.tiles.b.cast(read.node, type=type_), (share,))

    def _from_global(
        self, load: Node, share: Share, depth: Node, is_depth_first: bool
    ) -> ThreadValue:
        point = Point(at=depth)
        layout = (point, share) if is_depth_first else (share, point)
        read = self.memory.read(load, layout, axis=int(is_depth_first), vector=1)
        return self.tiles.reshape(read, (share,))

    def _from_shared(
        self, operand: Node, share: Share, depth: Node, is_depth_first: bool
    ) -> ThreadValue:
        staged = self.operands.padded(operand)
        own = self.tiles.along(share)
        point = self.tiles.broadcast(ThreadValue(depth), (), (share,))
        index = [point, own] if is_depth_first else [own, point]
        if staged.row is not None:
            row = self.tiles.broadcast(staged.row, (), (share,))
            index[0] = self.tiles.apply("add", index[0], row)
        vector = vector_of(staged.memory.dtype, share, 4) if is_depth_first else 1
        return self.shared.read(staged.memory, index, (share,), vector)
