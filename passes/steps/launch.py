"""launch: with how many warps a program runs, and how many stages its loads of products have.

    kernel(...) {...}        launch 4 stages=3        kernel(...) {stages=3, warps=4}

Legal for a power of two of warps, of which a program of the target has as many threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.steps.step import Step, why_no_gpu
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Launch(Step):
    """Say how a kernel is started.

    Attributes:
        warps: of a program.
        stages: of a product's loads that are in flight.
        programs: that share out all the work; 0 for one each.
    """

    name: ClassVar[str] = "launch"
    USUAL: ClassVar[int] = 4  # warps: one for each scheduler of a processor
    warps: int
    stages: int = 2
    programs: int = 0

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_gpu(self, target)
        if why:
            return why
        if self.warps < 1 or self.warps & (self.warps - 1):
            return f"{self.warps} warps are no power of two"
        if self.stages < 1:
            return f"stages={self.stages}: one or more"
        if isinstance(target, Gpu) and self.warps * WARP > target.threads:
            return f"{self.warps * WARP} threads, and a program has {target.threads} at most"
        return ""

    def apply(self, kernel: Node) -> Node:
        held: dict[str, object] = {"warps": self.warps, "stages": self.stages}
        if self.programs:
            held["programs"] = self.programs
        return kernel.rebuilt(attrs={**kernel.attrs, **held})
