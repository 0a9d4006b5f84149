"""launch: set the number of warps of a program, and of stages of a matmul's loads.

    kernel(...) {...}        launch 4 stages=3        kernel(...) {stages=3, warps=4}

Legal if the number of warps is a power of two, and the target allows that many threads in a
program. GPUs only.

Source: `num_warps` and `num_stages` of Triton.
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
    """Set the launch configuration of a kernel.

    Attributes:
        warps: warps of a program.
        stages: stages of the software pipeline that loads the operands of a matmul.
        programs: the number of persistent programs; 0 for one program per iteration of the grid.
    """

    name: ClassVar[str] = "launch"
    USUAL: ClassVar[int] = 4  # warps: one for each scheduler of a multiprocessor
    warps: int
    stages: int = 2
    programs: int = 0

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        why = why_no_gpu(self, target)
        if why:
            return why
        if self.warps < 1 or self.warps & (self.warps - 1):
            return f"{self.warps} warps: the number is not a power of two"
        if self.stages < 1:
            return f"stages={self.stages}: at least 1"
        if isinstance(target, Gpu) and self.warps * WARP > target.threads:
            return f"{self.warps * WARP} threads, and a program has at most {target.threads}"
        return ""

    def apply(self, kernel: Node) -> Node:
        held: dict[str, object] = {"warps": self.warps, "stages": self.stages}
        if self.programs:
            held["programs"] = self.programs
        return kernel.rebuilt(attrs={**kernel.attrs, **held})
