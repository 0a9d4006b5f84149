"""tiles: which tile each product on a GPU takes, written on its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.ir.traits import contractions
from stack.passes.blocking.apart import APART
from stack.passes.blocking.beside import products_beside
from stack.passes.blocking.joined import products_of
from stack.passes.blocking.stream import stream_tiles
from stack.passes.blocking.tile_choice import (
    LIBRARY,
    LIBRARY_GAIN,
    apart_seconds,
    beside_of,
    best_seconds,
    is_lone,
    library_seconds,
    product_of,
    ranked,
    seconds,
)
from stack.passes.control import changed_bodies
from stack.passes.tile import group_of
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Tiles(Pass):
    """Write `tiles`, best first by the model of `blocking.tile_choice`, on groups with a product.

    `blocks` takes the first. Measuring the others is up to whoever has the device. A product with
    nothing around it may be a library's too: "library" then stands among its tiles, first where
    the model is sure that it is faster. So does "apart" for products of one left operand that a
    group joins, or puts side by side: a kernel for each.

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
                group = group_of(node) or node
                attrs = {**group.attrs, "tiles": tuple(found)}
                changed[node] = Replacement(
                    Node(group.op, group.args, attrs, group.type, group.blocks)
                )
        return replace(block, changed) if changed else block

    def named(self, node: Node, target: Target | None) -> list[str]:
        """The tiles of one group, best first."""
        return self._tiles(node, "", Log(target=target))

    def _tiles(self, node: Node, name: str, log: Log) -> list[str]:
        if node.op == "stream":
            return [str(tile) for tile in stream_tiles(node, log.gpu)[: self.most]]
        group = group_of(node)
        dots = contractions(group.blocks[0].nodes) if group is not None else []
        if group is None or not dots:
            return []
        body = group.blocks[0]
        dot, dtype, gpu = dots[0], dots[0].args[0].dtype, log.gpu
        try:
            beside = products_beside(body)
            product = beside_of(beside) if beside else product_of(body, products_of(body))
        except CannotTile:
            return []  # `blocks` says why
        expected = {str(t): seconds(t, product, dtype, gpu) for t in ranked(product, dtype, gpu)}
        if is_lone(body, dot):
            expected[LIBRARY] = library_seconds(product, dtype, gpu)
        if beside:
            expected[APART] = sum(best_seconds(p, dtype, gpu) for p in beside)
        elif len(dots) > 1:
            expected[APART] = apart_seconds(product, dtype, gpu)
        margin = {LIBRARY: 1 / LIBRARY_GAIN}
        best = sorted(expected, key=lambda t: expected[t] * margin.get(t, 1))
        shown = dict.fromkeys([*best[: max(self.most, 2)], *expected.keys() & {APART}])
        told = [f"{t}: {expected[t] * 1e6:.1f} us" for t in shown]
        log.note(f"{name} {dot.attrs['rule']}: the model expects {'; '.join(told)} ({_reach(gpu)})")
        return best[: self.most]


def _reach(gpu: Gpu) -> str:
    """The numbers that the model goes by, in words."""
    return (
        f"{gpu.processors} processors, {gpu.bf16_rate / 1e12:.0f} Tflop/s,"
        f" {gpu.memory_rate / 1e12:.3g} TB/s, {gpu.shared_bytes >> 10} KiB shared"
    )
