"""roll: replace many equal consecutive steps by a loop.

Tracing unrolls a Python loop into one copy of its body per iteration. Compiling hundreds of copies
takes hundreds of times as long, and makes nothing faster.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.rolling.loop import rolled
from stack.passes.rolling.steps import find_steps
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Roll(Pass):
    """Make loops of steps that repeat with a period, on moving slices and on carried values.

    Attributes:
        least: fewest steps for a loop; shorter runs stay unrolled, since neighbours fuse.
    """

    least: int = 64

    def idle(self, func: Func) -> str:
        count = len(func.nodes)
        return f"{count} ops, fewer than {self.least}" if count < self.least else ""

    def run(self, func: Func, log: Log) -> Func:
        block = func.body
        while (steps := find_steps(block, self.least)) is not None:
            inside = steps.order[steps.first : steps.end]
            lines = dict.fromkeys(x for n in inside for x in block.locs.get(n, ()))
            if not log.spend("roll", tuple(lines)):
                break
            block = replace(block, rolled(block, steps))
            log.note(f"{steps.count} steps of {steps.period} ops each are a loop", tuple(lines))
        return Func(func.name, block, func.level)
