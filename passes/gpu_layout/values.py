"""Maps values of the tile level to values of threads, in each layout that a use needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stack.ir.node import Block, Node
from stack.passes.gpu_layout.builder import ThreadBuilder
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.layouts import Layouts
from stack.passes.gpu_layout.share import Layout, ThreadValue
from stack.passes.gpu_layout.shared_memory import SharedMemory


@dataclass(frozen=True)
class Values:
    """The values of one kernel that were built so far.

    Attributes:
        block: the block of the kernel at the tile level.
        _built: the value of each node, in the layout that it was built in.
        _tiles: tiles by their layouts: as they were built, recomputed or converted.
    """

    block: Block
    tiles: ThreadBuilder
    shared: SharedMemory
    layouts: Layouts
    _built: dict[Node, ThreadValue] = field(default_factory=dict, init=False)
    _tiles: dict[tuple[Node, Layout], ThreadValue] = field(default_factory=dict, init=False)

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
        """Builds an iota, a broadcast or an elementwise op in a layout."""
        if node.op == "iota":
            return self.tiles.index(layout, int(node.attrs["axis"]), node.dtype)
        args = [self.operand(*o) for o in _operands(node, layout)]
        if node.op == "broadcast":
            return self.tiles.broadcast(args[0], node.attrs["axes"], layout)
        return self.tiles.elementwise(node, args, layout)


def _operands(node: Node, layout: Layout) -> list[tuple[Node, Layout]]:
    """The operands of a node that is computed in a layout, each with its own layout."""
    if node.op == "broadcast":
        axes: Sequence[int] = node.attrs["axes"]
        return [(node.args[0], tuple(layout[a] for a in axes))]
    return [(a, layout) for a in node.args]
