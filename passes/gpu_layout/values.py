"""Maps values of the tile level to values of threads, in each layout that a use needs.

Operands of matmuls may be in shared memory too: prefetched by a loop, or stored there when needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stack.ir.node import Block, Node
from stack.ir.traits import is_elementwise
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import dims_of_operands, is_tile
from stack.passes.gpu_layout.layouts import Layouts
from stack.passes.gpu_layout.share import Layout, Share, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory, StagedMatrix


@dataclass(frozen=True)
class Values:
    """The values of one kernel that were built so far.

    Attributes:
        block: the block of the kernel at the tile level.
        _built: the value of each node, in the layout that it was built in.
        _tiles: tiles by their layouts: as they were built, recomputed or converted.
        _prefetched: loads that a loop prefetches to shared memory; they are not built again.
        _swizzled: operands of matmuls that were stored in shared memory for warpgroups.
    """

    block: Block
    tiles: ThreadBuilder
    shared: SharedMemory
    layouts: Layouts
    _built: dict[Node, ThreadValue] = field(default_factory=dict, init=False)
    _tiles: dict[tuple[Node, Layout], ThreadValue] = field(default_factory=dict, init=False)
    _prefetched: dict[Node, StagedMatrix] = field(default_factory=dict, init=False)
    _swizzled: dict[Node, StagedMatrix] = field(default_factory=dict, init=False)

    def define(self, node: Node, value: ThreadValue) -> None:
        """Records the value that was built for a node."""
        self._built[node] = self._tiles[node, value.layout] = value

    def built(self, node: Node) -> ThreadValue | None:
        """The value that was built for a node, in its own layout; None if there is none yet."""
        return self._built.get(node)

    def keep_name(self, node: Node, made: Node) -> None:
        """Gives a new node the name and the source lines of an old one."""
        if node in self.block.names:
            self.tiles.b.names.setdefault(made, self.block.names[node])
        if node in self.block.locs:
            self.tiles.b.locs.setdefault(made, self.block.locs[node])

    def memory(self, node: Node) -> Node:
        """Returns the memory that replaces a memory of the tile-level kernel."""
        return self.scalar(node).node

    def scalar(self, node: Node) -> ThreadValue:
        """Returns what was built for a scalar node; the node itself if nothing was."""
        return self._built.get(node) or ThreadValue(node)

    def operand(self, node: Node, layout: Layout) -> ThreadValue:
        """Returns the value of a node in a layout if it is a tile; the number if it is a scalar."""
        return self.at(node, layout) if is_tile(node) else self.scalar(node)

    def in_own_layout(self, node: Node) -> ThreadValue:
        """Returns a tile in the layout that `Layouts` chose for it."""
        return self.at(node, self.layouts.of(node))

    def at(self, node: Node, layout: Layout) -> ThreadValue:
        """Returns a tile in a layout: as it was built, recomputed if it is cheap, or converted."""
        pending = [(node, layout)]
        while pending:  # operands first, with an explicit stack: kernels may be deep
            asked = pending[-1]
            if asked not in self._tiles:
                built = self._built.get(asked[0])
                needed = _operands(*asked) if built is None else []
                if missing := [o for o in needed if is_tile(o[0]) and o not in self._tiles]:
                    pending += reversed(missing)
                    continue
                made = self.shared.converted(built, asked[1]) if built else self.computed(*asked)
                self.keep_name(asked[0], made.node)
                self._tiles[asked] = made
            pending.pop()
        return self._tiles[node, layout]

    def computed(self, node: Node, layout: Layout) -> ThreadValue:
        """Builds an op that moves no element to another thread, in a layout: an iota, an
        elementwise op, or another view of the registers of its operand.
        """
        if node.op == "iota":
            return self.tiles.index(layout, int(node.attrs["axis"]), node.dtype)
        args = [self.operand(*o) for o in _operands(node, layout)]
        if node.op == "broadcast":
            return self.tiles.broadcast(args[0], node.attrs["axes"], layout)
        if node.op == "transpose":
            return self.tiles.transpose(args[0], node.attrs["perm"])
        if is_elementwise(node):
            return self.tiles.elementwise(node, args, layout)
        (value,) = args
        if node.op == "again" and layout:
            return self.tiles.op(node.op, [value.node], node.dtype, layout)
        if value.layout:
            return self.tiles.reshape(value, layout)
        return self.tiles.broadcast(value, (), layout) if layout else value

    # ---- operands of matmuls in shared memory

    def add_prefetched(self, load: Node, staged: StagedMatrix) -> None:
        """Records that a loop prefetches a tile, so that its load is not built again."""
        self._prefetched[load] = staged

    def is_prefetched(self, node: Node) -> bool:
        return node in self._prefetched

    def padded(self, node: Node) -> StagedMatrix:
        """Returns a matmul operand in shared memory with padded rows, for multiply-adds of threads
        and matrix instructions of warps. It is stored anew for each matmul that uses it.
        """
        return self._prefetched.get(node) or self._stored(node)

    def swizzled(self, node: Node) -> StagedMatrix:
        """Returns a matmul operand in shared memory with swizzled rows, as instructions of
        warpgroups read it. It is stored once for all matmuls that use it.
        """
        if node in self._prefetched:
            return self._prefetched[node]
        if node not in self._swizzled:
            self._swizzled[node] = self._stored(node, is_swizzled=True)
        return self._swizzled[node]

    def _stored(self, node: Node, is_swizzled: bool = False) -> StagedMatrix:
        tile = self.built(node) or self.in_own_layout(node)
        return StagedMatrix(self.shared.stored(tile, is_swizzled))


def _operands(node: Node, layout: Layout) -> list[tuple[Node, Layout]]:
    """Returns the operands of a node that is computed in a layout, each with its own layout."""
    found: list[tuple[Node, Layout]] = []
    for arg, dims in zip(node.args, dims_of_operands(node), strict=True):
        own = (layout[dims[i]] if i in dims else Share() for i in range(arg.tensor.rank))
        found.append((arg, tuple(own)))
    return found
