"""What a product makes a CPU do, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counts:
    """What a product makes the CPU do: instructions, and bytes.

    Attributes:
        multiplies: instructions that multiply and add.
        loads: those that bring their operands to registers.
        packed: bytes of panels that are written, 0 where operands are read in place.
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
