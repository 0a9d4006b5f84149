"""blocks: fusion groups, streams and ops left bare become kernels of blocks, for GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.passes.blocking.apart import set_apart
from stack.passes.blocking.beside import BesideTiler
from stack.passes.blocking.joined import parts_of
from stack.passes.blocking.scan import ScanTiler
from stack.passes.blocking.tile_choice import is_given_to_library
from stack.passes.blocking.tiler import BlockTiler
from stack.passes.blocking.walk import WalkTiler, space_of
from stack.passes.control import changed_bodies
from stack.passes.retreat import instead, smaller
from stack.passes.tile import alone, is_bare
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Gpu

LEFT = ("scatter",)  # walked in order: a library does them


@dataclass(frozen=True)
class Blocks(Pass):
    """Turn every fusion group and stream into a kernel at the tile level.

    Attributes:
        rows: extent of a tile along the rows of a product; 0 lets the tiler choose.
        lanes: extent of a tile along its columns; 0 likewise.
        step: extent of a tile along the contracted or streamed axis; 0 likewise.
        warps: of a kernel with a product; 0 lets the tiler choose.
        stages: steps of its loops that are loaded ahead; 0 likewise.
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    name: ClassVar[str] = "blocks"
    rows: int = 0
    lanes: int = 0
    step: int = 0
    warps: int = 0
    stages: int = 0
    refuse: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self._block(func.body, log), func.level)

    def _block(self, block: Block, log: Log) -> Block:
        """Loop and branch bodies first; the inside of a group is one kernel and is not walked."""
        block = set_apart(block)
        changed = changed_bodies(block, lambda b: self._block(b, log))
        for node in block.nodes:
            if node.op in LEFT or not (is_bare(node) or node.op in ("fusion", "stream")):
                continue
            if node.op == "fusion":
                if node.attrs["kind"] == "library" or is_given_to_library(node):
                    continue
            try:
                kernel = self._kernel(node, log.gpu)
            except CannotTile as why:
                name, lines = block.names.get(node, node.op), block.locs.get(node, ())
                parts = smaller(node, log.target, True) if node.blocks else None
                if parts is not None and log.spend("parts", lines):
                    log.note(f"{name} becomes smaller groups: {why}", lines)
                    changed |= instead(node, self._block(parts.body, log), block)
                    continue
                log.note(f"{name} stays as it is: {why}", lines)
                continue
            if log.spend("blocks", block.locs.get(node, ())):
                changed[node] = Replacement(kernel)
        return replace(block, changed) if changed else block

    def _kernel(self, node: Node, gpu: Gpu) -> Node:
        group = alone(node) if is_bare(node) else node
        foreign = {n.op for b in group.blocks for n in b.nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        if group.op == "stream":
            from stack.passes.blocking.stream import StreamTiler

            return self._hinted(StreamTiler(group, *self._asked, target=gpu).kernel())
        if any(n.op == "scan" for n in group.blocks[0].nodes):
            return ScanTiler(group, target=gpu).kernel()
        if space_of(group.blocks[0]) is not None:
            return WalkTiler(group, target=gpu).kernel()
        tiler = BesideTiler if parts_of(group.blocks[0]) else BlockTiler
        return self._hinted(tiler(group, *self._asked, target=gpu).kernel())

    @property
    def _asked(self) -> tuple[int, int, int]:
        return self.rows, self.lanes, self.step

    def _hinted(self, kernel: Node) -> Node:
        """A kernel with the warps and stages that were asked for."""
        if "dot" not in kernel.attrs["ops"] or not (self.warps or self.stages):
            return kernel
        asked = {"warps": self.warps, "stages": self.stages}
        attrs = {**kernel.attrs, **{k: v for k, v in asked.items() if v}}
        return Node(kernel.op, kernel.args, attrs, kernel.type, kernel.blocks)
