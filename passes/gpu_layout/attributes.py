"""The attributes of a tile-level kernel that say how threads compute it."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.target import Gpu


class CannotDistribute(Exception):
    """A kernel that cannot be distributed over threads; the message is the reason."""


@dataclass(frozen=True)
class Attributes:
    """Attributes of a kernel for its thread blocks; steps such as `pipeline` and `threads` set
    them.

    Attributes:
        warps: warps of a thread block.
        stages: iterations whose operands are in shared memory at the same time.
        rows: rows of accumulators per thread; 0 if the kernel does not set them.
        columns: columns of accumulators per thread; 0 if the kernel does not set them.
        lanes: `rows` or `columns` if the lanes of a warp are along that axis alone; else "".
        is_direct: True if threads load matmul operands from global memory, not from shared memory.
    """

    warps: int
    stages: int = 2
    rows: int = 0
    columns: int = 0
    lanes: str = ""
    is_direct: bool = False

    @staticmethod
    def of(kernel: Node, gpu: Gpu) -> Attributes:
        """Reads the attributes of a kernel. Raises CannotDistribute."""
        if "warps" not in kernel.attrs:
            raise CannotDistribute("it is not a kernel of blocks")
        warps, stages = int(kernel.attrs["warps"]), int(kernel.attrs.get("stages", 2))
        if WARP * warps > gpu.threads:
            raise CannotDistribute(f"{warps} warps are more than {gpu.threads} threads")
        rows, columns = kernel.attrs.get("threads", (0, 0))
        lanes, operands = str(kernel.attrs.get("lanes", "")), kernel.attrs.get("operands", "shared")
        return Attributes(warps, stages, int(rows), int(columns), lanes, operands == "global")

    @property
    def wants_fma(self) -> bool:
        """True if step `threads` was applied: then no matrix instruction is used."""
        return bool(self.rows or self.columns or self.lanes)
