"""tile: lower fusion groups, streams and bare ops to kernels of tiles, for a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder
from stack.ir.func import Func
from stack.ir.lines import with_lines
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_generated, is_stream
from stack.ir.types import BF16, F16
from stack.passes.control import BlockPass
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.step_lowering import written
from stack.passes.retreat import without_kernel
from stack.passes.rules.updates import with_producer
from stack.passes.tiling.contraction import split_dot
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import alone, is_bare
from stack.rewrite.check import WIDER
from stack.rewrite.engine import Replacement, Scope, Simple, replace, rewrite
from stack.rewrite.equivalent_groups import CachedTransform
from stack.rewrite.log import Log
from stack.rewrite.verdict import Why
from stack.target import Target, as_cpu


@dataclass(frozen=True)
class Tile(BlockPass):
    """Lower every stream, and every fusion group that is not a library call, to a kernel of tiles.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    refuse: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        joined = Simple("with_producer", ("scatter",), self._with_producer)
        return super().run(rewrite(func, (joined,), log), log)

    def _with_producer(self, node: Node, op: Builder, scope: Scope) -> Node | Why | None:
        group = with_producer(node, scope)
        if group is None:
            return None
        try:
            self._kernel(group, scope.log)
        except CannotTile as why:
            return Why(str(why))
        return group

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node | Replacement] = {}
        kernel_of = CachedTransform(lambda group: self._kernel(group, log), written)
        for node in block.nodes:
            group = alone(node, block.locs.get(node, ())) if is_bare(node) else node
            if not (is_generated(group) or is_stream(group)):
                continue
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            try:
                kernel = kernel_of(group)
            except CannotTile as why:
                kernel = None if written(group) else self._without_dot(group, log)
                if kernel is None:
                    changed |= without_kernel(node, why, block, log, self, False)
                    continue
                log.note(f"{name} stays as it is: {why}", lines)
            if log.spend("tile", lines, f"%{name}"):
                note_width(group, log)
                made = dict.fromkeys(set(kernel.args) - set(group.args), "panels")
                changed[node] = Replacement(kernel, names=made)
        return replace(block, changed)

    def _kernel(self, group: Node, log: Log) -> Node:
        check_code(group, self.refuse)
        return with_lines(tile_group(group, log.cpu))

    def _without_dot(self, group: Node, log: Log) -> Node | None:
        """Returns the kernel of the ops that follow a group's dot, while the dot itself is left to
        a library. None if the group is not a matmul with an epilogue, or if these ops cannot be
        tiled."""
        if group.attrs.get("kind") != "gemm":
            return None
        try:
            return self._kernel(split_dot(group)[1], log)
        except CannotTile:
            return None


def tile_group(group: Node, target: Target | None = None) -> Node:
    """Lowers a fusion group or a stream to its CPU kernel. Raises CannotTile if it has none."""
    return lowering_of(group, as_cpu(target)).kernel()


def note_width(group: Node, log: Log) -> None:
    """Records in the log that a kernel keeps 16-bit floats in f32 between its ops, if the group has
    any."""
    if any(t.dtype in (F16, BF16) for _, n in walk(group.blocks[0]) for t in n.types):
        log.allow(WIDER)


def check_code(group: Node, refuse: Sequence[str]) -> None:
    """Raises CannotTile if a group contains an op of `refuse`: the backend has no code for it."""
    foreign = {n.op for b in group.blocks for n in b.nodes}.intersection(refuse)
    if foreign:
        raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
