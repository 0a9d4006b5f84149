"""`stack.jit(f).lower(x)`: the stages of a program for some arguments, as `jax.jit(f).lower(x)`."""

from __future__ import annotations

from dataclasses import dataclass

from stack.calls.graph import CompiledGraph
from stack.explore.explored_run import ExploredRun, explored
from stack.explore.memory import MemoryPeak


@dataclass(frozen=True)
class Lowered:
    """A JAX function, captured and compiled for some arguments, but not run."""

    graph: CompiledGraph

    @property
    def run(self) -> ExploredRun:
        """The record of all stages and kernels."""
        return explored(self.graph.run)

    def as_text(self, stage: str = "") -> str:
        """Returns a stage as text, such as "imported", "fused" or "llvm"; by default the last
        of IR, whose nodes are kernels.
        """
        found = [s.name for s in self.run.records if s.func is not None]
        return self.run[stage or found[-1]].text

    def cost_analysis(self) -> dict[str, float]:
        """Returns the operations and the bytes of all kernels, under JAX's names for them."""
        kernels = self.run.kernels
        return {
            "flops": float(sum(k.flops for k in kernels)),
            "bytes accessed": float(sum(k.bytes for k in kernels)),
        }

    def memory_analysis(self) -> MemoryPeak:
        """Returns the values in memory at the peak, see `Run.memory`."""
        return self.run.memory()

    def compile(self) -> CompiledGraph:
        """Returns the compiled program. It takes the arguments without the static ones."""
        return self.graph
