"""User-defined policies: a pass that writes the list of steps of each group that it schedules."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from stack.ir.node import Block, Node
from stack.ir.traits import is_generated
from stack.passes.policies.lowerings import lowering_of
from stack.passes.steps.primitives import IllegalStep, Step, run_steps
from stack.passes.tiling.frame import CannotTile
from stack.passes.tiling.single_ops import group_of, is_bare
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.schedule import with_schedules
from stack.target import Target, as_cpu


class StepPolicy(BlockPass):
    """A schedule policy as a pass. Add it to stage `scheduled`: `default,+FILE.py:CLASS@scheduled`.

    Derive from it and write `steps`. If a list is not legal for a group, the pass logs a note, and
    the group keeps the compiler's schedule.
    """

    @abstractmethod
    def steps(self, nest: Node, target: Target) -> Sequence[Step]:
        """Returns the loop transformations for the plain loop nest of one group; an empty list
        keeps the compiler's schedule.
        """

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node] = {}
        target = log.target or as_cpu(None)
        for node in block.nodes:
            if not (is_generated(node) or is_bare(node)):
                continue
            name, lines = block.names.get(node, node.op), block.locs.get(node, ())
            group = group_of(node, lines)
            try:
                nest = lowering_of(group, target).nest
                steps = list(self.steps(nest, target))
                run_steps(nest, steps, target)
            except (CannotTile, IllegalStep) as why:
                log.note(f"{name} stays as it is: {why}", lines)
                continue
            text = "; ".join(map(str, steps))
            made = with_schedules(group, [text])
            if steps and made is not node and log.spend("steps", lines, f"%{name}"):
                log.note(f"{name}: {text}", lines)
                changed[node] = made
        return replace(block, changed)
