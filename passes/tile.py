"""tile: lower fusion groups, streams and bare ops to kernels of tiles, for a CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from stack.ir.builder import Builder, with_lines
from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.traits import is_generated, is_stream
from stack.ir.types import BF16, F16
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.step_lowering import written
from stack.passes.retreat import without_kernel
from stack.passes.rules.updates import with_producer
from stack.passes.tiling.contraction import split_dot
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of
from stack.rewrite.check import WIDER
from stack.rewrite.engine import Replacement, Scope, Simple, replace, rewrite
from stack.rewrite.equivalent_groups import CachedTransform
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.rewrite.verdict import Why
from stack.target import Target

Replacements = dict[Node, Node | Replacement]


@dataclass(frozen=True)
class Tile(BlockPass):
    """Lower every stream, and every fusion group that is not a library call, to a kernel of tiles.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    target_of: ClassVar[Callable[[Log], Target]] = attrgetter("cpu")
    others: ClassVar[Sequence[Callable[[Node], bool]]] = ()  # tests of nodes that stay
    refuse: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        joined = Simple("with_producer", ("scatter",), self._with_producer)
        return super().run(rewrite(func, (joined,), log), log)

    def _with_producer(self, node: Node, op: Builder, scope: Scope) -> Node | Why | None:
        group = with_producer(node, scope)
        if group is None:
            return None
        try:
            self.kernel(group, scope.log)
        except CannotTile as why:
            return Why(str(why))
        return group

    def change(self, block: Block, log: Log) -> Block:
        changed: Replacements = {}
        kernel_of = CachedTransform(lambda group: self.kernel(group, log), written)
        for node in block.nodes:
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            group = group_of(node, lines)
            is_group = is_generated(group) or is_stream(group)
            if not is_group or any(test(node) for test in self.others):
                continue
            try:
                kernel = kernel_of(group)
            except CannotTile as why:
                changed |= self.fallback(node, group, block, log, why)
                continue
            if log.spend(self.name, lines, f"%{name}"):
                changed[node] = _taken(group, kernel, log)
        return replace(block, changed)

    def kernel(self, group: Node, log: Log) -> Node:
        """Lowers a group to its kernel. Raises CannotTile if it has none."""
        foreign = {n.op for b in group.blocks for n in b.nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        return with_lines(lowering_of(group, self.target_of(log)).kernel())

    def fallback(
        self, node: Node, group: Node, block: Block, log: Log, why: CannotTile
    ) -> Replacements:
        """Returns what replaces a group that has no kernel because of `why`. A matmul with an
        epilogue becomes a library call and a kernel for the ops that follow it; another group
        becomes smaller ones. Raises UsageError if a user wrote its steps.
        """
        kernel: Node | None = None
        if group.attrs.get("kind") == "gemm" and not written(group):
            with suppress(CannotTile):
                kernel = self.kernel(split_dot(group)[1], log)
        if kernel is None:
            return without_kernel(node, why, block, log, self, False)
        name, lines = block.names.get(node, node.op), block.locs.get(node, ())
        log.note(f"{name} stays as it is: {why}", lines)
        return {node: _taken(group, kernel, log)} if log.spend(self.name, lines, f"%{name}") else {}


def _taken(group: Node, kernel: Node, log: Log) -> Replacement:
    """Returns the replacement of a group by its kernel, and records in the log that the kernel
    keeps 16-bit floats in f32 between its ops, if the group has any.
    """
    if any(t.dtype in (F16, BF16) for _, n in walk(group.blocks[0]) for t in n.types):
        log.allow(WIDER)
    if log.on_kernel is not None:
        log.on_kernel(kernel)
    return Replacement(kernel, names=dict.fromkeys(set(kernel.args) - set(group.args), "panels"))
