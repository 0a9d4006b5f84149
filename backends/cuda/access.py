"""Prints addresses, and loads and stores of scalars that are equal in all threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.types import TensorType

from .values import CudaValue

if TYPE_CHECKING:
    from .printer import Printer


class Access:
    """Prints the memory statements of one kernel."""

    def __init__(self, printer: Printer) -> None:
        self.printer = printer

    # ---- addresses

    def strides(self, type_: TensorType) -> list[int]:
        sizes = [int(s) for s in type_.shape]  # pyright: ignore[reportArgumentType]
        return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def offset(self, memory: TensorType, index: Sequence[Node], element: bool = False) -> str:
        """Row-major offset; a 32-bit expression if the memory has fewer than 2^31 elements."""
        p = self.printer
        size = memory.size
        is_small = isinstance(size, int) and size < 2**31
        terms: list[str] = []
        fixed = 0
        for axis, stride in zip(index, self.strides(memory), strict=True):
            known = p.integers.range(axis)
            if known is not None and known[0] == known[1]:
                fixed += known[0] * stride
                continue
            value = p.value(axis)
            text = value.element if element else value.text
            if is_small and not p.integers.is_small(axis):
                text = f"int({text})"
            elif not is_small:
                text = f"(long long){text}"
            terms.append(text if stride == 1 else f"{text} * {stride}")
        if fixed or not terms:
            terms.append(str(fixed))
        return " + ".join(terms)

    def place(self, memory: Node, index: Sequence[Node]) -> str:
        """Returns the text of the offset of an element whose indices differ between threads.

        In memory with swizzled rows it is a call of the device function `swizzled`.
        """
        swizzle = self.printer.swizzles.get(memory)
        if swizzle is None:
            return self.offset(memory.tensor, index, element=True)
        rows, columns = (int(s) for s in memory.tensor.shape)  # pyright: ignore[reportArgumentType]
        held = ", ".join(self.printer.value(i).element for i in index)
        line = swizzle // memory.dtype.bytes
        return f"swizzled<{rows}, {min(line, columns)}, {memory.dtype.bytes}>({held})"

    # ---- statements

    def load(self, node: Node) -> CudaValue:
        """Declares a scalar with an element of memory whose address is equal in every thread."""
        p, memory = self.printer, node.args[0]
        index, mask, other = access_parts(node)
        text = f"{p.value(memory).text}[{self.offset(memory.tensor, index)}]"
        if mask is not None and other is not None:
            text = f"{p.value(mask).text} ? {text} : {p.value(other).text}"
        return p.declare(node, text)

    def store(self, node: Node) -> CudaValue:
        """Prints the store of one number; every thread writes the same value to the same address.

        Returns the memory that was written to.
        """
        p, (memory, value) = self.printer, node.args[:2]
        index, mask, _ = access_parts(node)
        target = p.value(memory)
        test = f"if ({p.value(mask).text}) " if mask is not None else ""
        at = f"{target.text}[{self.offset(memory.tensor, index)}]"
        p.put(f"{test}{at} = {p.value(value).text};")
        return target
