"""tiles: which tile each product on a GPU takes, written on its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.passes.block_stream import stream_tiles
from stack.passes.control import changed_bodies
from stack.passes.tile import alone
from stack.passes.tile_choice import product_of, ranked, seconds
from stack.passes.tile_frame import CannotTile
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Tiles(Pass):
    """Write `tiles`, best first by the model of `tile_choice`, on groups with a product.

    `blocks` takes the first. Measuring the others is up to whoever has the device.

    Attributes:
        most: how many to name.
    """

    name: ClassVar[str] = "tiles"
    most: int = 1

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self._block(func.body, log), func.level)

    def _block(self, block: Block, log: Log) -> Block:
        changed = changed_bodies(block, lambda b: self._block(b, log))
        for node in block.nodes:
            found = self._tiles(node, block.names.get(node, node.op), log)
            if found and log.spend("tiles", block.locs.get(node, ())):
                group = alone(node) if node.op == "dot" else node
                attrs = {**group.attrs, "tiles": tuple(found)}
                changed[node] = Replacement(
                    Node(group.op, group.args, attrs, group.type, group.blocks)
                )
        return replace(block, changed) if changed else block

    def _tiles(self, node: Node, name: str, log: Log) -> list[str]:
        if node.op == "stream":
            return [str(tile) for tile in stream_tiles(node)[: self.most]]
        if node.op == "dot":
            node = alone(node)
        if node.op != "fusion" or node.attrs["kind"] == "library":
            return []
        body = node.blocks[0]
        dots = [n for n in body.nodes if n.op == "dot"]
        if len(dots) != 1:
            return []
        dot = dots[0]
        try:
            product = product_of(body, dot)
        except CannotTile:
            return []  # `blocks` says why
        dtype = dot.args[0].dtype
        best = ranked(product, dtype)[: max(self.most, 2)]
        expected = [f"{tile}: {seconds(tile, product, dtype) * 1e6:.1f} us" for tile in best]
        log.note(f"{name} {dot.attrs['rule']}: the model expects {'; '.join(expected)}")
        return [str(tile) for tile in best[: self.most]]
