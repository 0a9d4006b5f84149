"""Matmuls by matrix instructions: of single warps, whose operands are in registers, and of four
warps, which read operands from shared memory.

The right operand of four warps is in shared memory, and so is the left one unless it was computed
in registers. The instruction is asynchronous: a wait precedes the first use of its sums.

Types without a matrix instruction are multiplied by fused multiply-adds of threads. The products of
one block of depth are summed separately and then added to the total. So rounding errors grow with
the number of blocks and not with the depth. A. M. Castaldo, R. C. Whaley, A. T. Chronopoulos,
"Reducing floating point error in dot product using the superblock family of algorithms" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.node import Block, Node
from stack.ir.types import I32, TensorType
from stack.ir.warp_ops import GROUP, WARP
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.global_memory import GlobalMemory
from stack.passes.gpu_layout.instruction_layouts import (
    Matmul,
    depth_share,
    right_share,
    warp_digits,
    warpgroup_grid,
)
from stack.passes.gpu_layout.share import Digit, Layout, Point, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import vector_of
from stack.passes.gpu_layout.values import Values
from stack.target.gpu_tuning import GpuLayouts


@dataclass(frozen=True)
class Mma:
    """Builds matmuls of tiles by the matrix instruction of single warps, with operands in
    registers.
    """

    tiles: ThreadBuilder
    values: Values
    _loaded: dict[tuple[Node, Layout], ThreadValue] = field(default_factory=dict, init=False)

    def multiply(self, matmul: Matmul, layout: Layout, start: ThreadValue) -> ThreadValue:
        """Builds a matmul in the given layout of its sums, and adds it to `start`."""
        depth = depth_share(matmul.depth)
        rows, columns = layout[0], right_share(layout[1])
        left = self._operand(matmul.left, (rows, depth), 1, matmul.is_transposed[0])
        right = self._operand(matmul.right, (depth, columns), 0, matmul.is_transposed[1])
        return ThreadValue(self.tiles.b.mma_sync(left.node, right.node, start.node), layout)

    def _operand(self, node: Node, layout: Layout, depth: int, is_transposed: bool) -> ThreadValue:
        """Returns an operand in the layout of the instruction, from shared memory if it can load
        that.

        Args:
            node: the operand.
            layout: of rows and depth, or of depth and columns.
            depth: the number of the depth among these two axes.
            is_transposed: True if the operand has its axes in the other order.
        """
        own = layout[::-1] if is_transposed else layout
        built = self.values.built(node)
        digits = warp_digits(layout[1 - depth])
        if digits is not None and (built is None or built.layout != own):
            matrix = (layout[1 - depth], layout[depth])
            made = self._load_matrix(node, matrix, digits, (depth == 0) != is_transposed)
            return self.tiles.transpose(made, (1 - depth, depth))
        made = self.values.at(node, own)
        return self.tiles.transpose(made, (1, 0)) if is_transposed else made

    def _load_matrix(
        self, node: Node, layout: Layout, digits: list[tuple[Digit, int]], is_column_major: bool
    ) -> ThreadValue:
        """Loads an operand from shared memory, four matrices of 8 x 8 at a time.

        Args:
            node: the operand.
            layout: of rows (or columns), then depth.
            digits: of the warps, in the number of the first row.
            is_column_major: True if memory has the depth first.
        """
        key = (node, layout)
        if key not in self._loaded:
            tiles = self.tiles
            staged = self.values.padded(node)
            row, column = tiles.sum([tiles.full(0), *tiles.terms(digits)]), tiles.full(0)
            if staged.row is not None and is_column_major:
                column = tiles.apply("add", column, staged.row)
            elif staged.row is not None:
                row = tiles.apply("add", row, staged.row)
            args = [staged.memory, row.node, column.node]
            attrs = {"transposed": is_column_major}
            self._loaded[key] = tiles.op("load_matrix", args, node.dtype, layout, attrs)
        return self._loaded[key]


@dataclass(frozen=True)
class Warpgroup:
    """Builds matmuls by the asynchronous instructions of warpgroups (four warps)."""

    tiles: ThreadBuilder
    values: Values

    def multiply(self, matmul: Matmul, layout: Layout, start: ThreadValue) -> ThreadValue:
        """The sums of a matmul, added to `start`; they are complete after `wait`."""
        down, across = warpgroup_grid(matmul.rows, self.tiles.warps)
        row = self._start(Digit(down, WARP * GROUP), matmul.rows // down)
        column = self._start(Digit(across, WARP * GROUP * down), matmul.columns // across)
        is_column_major = [matmul.is_transposed[0], not matmul.is_transposed[1]]
        left = self.values.built(matmul.left)
        own = (layout[0], depth_share(matmul.depth))
        if left is not None and left.layout == own and not is_column_major[0]:
            first = [left.node]
        else:
            first = self._matrix(matmul.left, row, is_column_major[0])
        second = self._matrix(matmul.right, column, is_column_major[1])
        attrs = {"depth": matmul.depth, "transposed": is_column_major}
        args = [start.node, *first, *second]
        return ThreadValue(self.tiles.b.op("warpgroup_mma", args, attrs), layout)

    def wait(self, sums: ThreadValue, pending: int = 0) -> ThreadValue:
        """Returns the sums once all instructions but the newest `pending` ones are complete."""
        made = self.tiles.b.op("warpgroup_wait", [sums.node], {"pending": pending})
        return ThreadValue(made, sums.layout)

    def _start(self, digit: Digit, size: int) -> ThreadValue:
        """Returns the first row or column of the part of a matmul that each warpgroup computes;
        `digit` of the thread number selects the part, `size` is its length.
        """
        if digit.count == 1:
            return self.tiles.full(0)
        return self.tiles.scaled(self.tiles.digit(digit), size)

    def _matrix(self, node: Node, start: ThreadValue, is_column_major: bool) -> list[Node]:
        """Returns an operand in shared memory and the row and column at which the part of a
        warpgroup begins, as arguments of its instruction.
        """
        staged = self.values.swizzled(node)
        zero = self.tiles.full(0)
        row, column = (zero, start) if is_column_major else (start, zero)
        if staged.row is not None:
            row = staged.row if is_column_major else self.tiles.apply("add", row, staged.row)
        return [staged.memory, row.node, column.node]


@dataclass(frozen=True)
class Fma:
    """Builds matmuls from multiply-adds, where each thread computes its own block of sums.

    Attributes:
        is_direct: True if threads load operands from global memory, False from shared memory.
    """

    tiles: ThreadBuilder
    values: Values
    memory: GlobalMemory
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
        staged = self.values.padded(operand)
        own = self.tiles.along(share)
        point = self.tiles.broadcast(ThreadValue(depth), (), (share,))
        index = [point, own] if is_depth_first else [own, point]
        if staged.row is not None:
            row = self.tiles.broadcast(staged.row, (), (share,))
            index[0] = self.tiles.apply("add", index[0], row)
        vector = vector_of(staged.memory.dtype, share, 4) if is_depth_first else 1
        return self.values.shared.read(staged.memory, index, (share,), vector)
