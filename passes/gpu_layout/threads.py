"""How the threads of a program share the sums of a matmul that no matrix instruction computes."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.node import Node


@dataclass(frozen=True)
class Threads:
    """What step `threads` says about the matmuls of a kernel.

    Attributes:
        rows: rows of sums of a thread; 0 if the step does not say.
        columns: columns of sums of a thread; 0 likewise.
        lanes: `rows` or `columns` if the lanes of a warp are along that axis alone; else "".
        is_direct: whether threads load operands from global memory, not from shared memory.
    """

    rows: int = 0
    columns: int = 0
    lanes: str = ""
    is_direct: bool = False

    @staticmethod
    def of(kernel: Node) -> Threads:
        """What the attributes of a kernel say."""
        rows, columns = kernel.attrs.get("threads", (0, 0))
        lanes, operands = str(kernel.attrs.get("lanes", "")), kernel.attrs.get("operands", "shared")
        return Threads(int(rows), int(columns), lanes, operands == "global")

    @property
    def is_told(self) -> bool:
        """Whether the step says anything: then no matrix instruction is used."""
        return bool(self.rows or self.columns or self.lanes)
