"""Counts the instructions and bytes of a matmul on a CPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """Instructions and bytes of a matmul on a CPU.

    Attributes:
        multiplies: multiply-add instructions.
        loads: loads of their operands into registers.
        packed: bytes of packed panels that are written; 0 if operands are read in place.
        panels: bytes of the right operand that tiles read.
    """

    multiplies: int
    loads: int
    packed: int
    panels: int

    def __str__(self) -> str:
        packed = f"{self.packed} bytes packed" if self.packed else "nothing packed"
        return (
            f"{self.multiplies} multiplications and {self.loads} loads of vectors or tiles,"
            f" {packed}, {self.panels} bytes of panels read"
        )
