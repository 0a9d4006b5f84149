"""Loads and stores: addresses, wide pieces where alignment is known, registers by warp and lane."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP, copy_parts

from .expressions import Unprintable
from .values import Value

if TYPE_CHECKING:
    from .printer import Printer


class Access:
    """The memory statements of one kernel."""

    def __init__(self, printer: Printer) -> None:
        self.printer = printer

    # ---- addresses

    def strides(self, type_: TensorType) -> list[int]:
        sizes = [int(s) for s in type_.shape]  # pyright: ignore[reportArgumentType]
        return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def offset(self, memory: TensorType, index: Sequence[Node], element: bool = False) -> str:
        """Row-major offset; 32 bits where the memory has no more elements."""
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
        """Where an element is whose indices are across the threads."""
        swizzle = self.printer.swizzles.get(memory)
        if swizzle is None:
            return self.offset(memory.tensor, index, element=True)
        rows, columns = (int(s) for s in memory.tensor.shape)  # pyright: ignore[reportArgumentType]
        held = ", ".join(self.printer.value(i).element for i in index)
        line = swizzle // memory.dtype.bytes
        return f"swizzled<{rows}, {min(line, columns)}, {memory.dtype.bytes}>({held})"

    def piece(self, memory: TensorType, index: Sequence[Node], count: int) -> int:
        """Bytes that a block of `count` elements can move at once."""
        p = self.printer
        places = zip(index, self.strides(memory), strict=True)
        divisor = math.gcd(count, *(p.integers.divisor(i) * s for i, s in places))
        return min(VECTOR_BYTES, _power_of_two(divisor * memory.dtype.bytes))

    # ---- registers

    def register_count(self, type_: TensorType) -> int:
        """Registers in each thread of memory in local."""
        sizes = [int(s) for s in type_.shape]  # pyright: ignore[reportArgumentType]
        if self.printer.fragments.holds(type_):
            return self.printer.fragments.registers_of(sizes[1:])
        if len(sizes) < 2 or sizes[1] != WARP:
            raise Unprintable(f"{type_}: registers have the axes warp and lane first")
        return math.prod(sizes[2:])

    def register(self, node: Node, index: Sequence[Node]) -> str:
        """Which register of a thread an access starts at."""
        p, memory = self.printer, node.args[0].tensor
        warp, lane = index[0], index[1]
        mine = warp is p.variables.get("warp") and lane is p.variables.get("lane")
        if not mine:
            raise Unprintable(f"{memory}: registers of another thread are out of reach")
        rest = TensorType(memory.dtype, memory.shape[2:], "local")
        return self.offset(rest, index[2:])

    # ---- statements

    def load(self, node: Node) -> Value:
        p, memory = self.printer, node.args[0]
        index, mask, other = access_parts(node)
        if p.fragments.is_tile(node):
            return p.fragments.load(node)
        count = p.count_of(node)
        if memory.tensor.space == "local":
            return self._from_registers(node, index, count)
        name = p.value(memory).text
        scattered = any(i.tensor.rank for i in index)
        if not count or scattered or mask is not None:
            return self._load_each(node, name, index, mask, other, count, scattered)
        made = p.registers(node, count)
        piece = self.piece(memory.tensor, index, count)
        p.put(f"load_block<{piece}>({made.text}, {name} + {self.offset(memory.tensor, index)});")
        return made

    def _load_each(
        self,
        node: Node,
        name: str,
        index: Sequence[Node],
        mask: Node | None,
        other: Node | None,
        count: int,
        scattered: bool,
    ) -> Value:
        p = self.printer
        offset = self.offset(node.args[0].tensor, index, element=scattered)
        at = offset if scattered or not count else f"{offset} + i"
        text = f"{name}[{at}]"
        if mask is not None and other is not None:
            test, fill = p.value(mask), p.value(other)
            text = f"{test.element} ? {text} : {fill.element}"
        if not count:
            return p.declare(node, text)
        made = p.registers(node, count)
        p.put(f"EACH({count}) {made.text}[i] = {text};")
        return made

    def _from_registers(self, node: Node, index: Sequence[Node], count: int) -> Value:
        p = self.printer
        name, start = p.value(node.args[0]).text, self.register(node, index)
        if not count:
            return p.declare(node, f"{name}[{start}]")
        made = p.registers(node, count)
        p.put(f"EACH({count}) {made.text}[i] = {name}[{start} + i];")
        return made

    def store(self, node: Node) -> Value:
        p = self.printer
        memory, value = node.args[:2]
        index, mask, _ = access_parts(node)
        target, held = p.value(memory), p.value(value)
        if p.fragments.is_tile(value):
            return p.fragments.store(node)
        count = p.count_of(value)
        test = f"if ({p.value(mask).element}) " if mask is not None else ""
        if memory.tensor.space == "local":
            at = f"{target.text}[{self.register(node, index)}{' + i' if count else ''}]"
        else:
            scattered = any(i.tensor.rank for i in index)
            offset = self.offset(memory.tensor, index, element=scattered)
            if count and not scattered and mask is None:
                held = p.filled(value, held)
                piece = self.piece(memory.tensor, index, count)
                p.put(f"store_block<{piece}>({target.text} + {offset}, {held.text});")
                return target
            at = f"{target.text}[{offset if scattered or not count else f'{offset} + i'}]"
        each = f"EACH({count}) " if count else ""
        p.put(f"{each}{test}{at} = {held.element};")
        return target

    def async_copy(self, node: Node) -> Value:
        p = self.printer
        target, source = node.args[:2]
        to, at, mask = copy_parts(node)
        size = int(node.attrs["lanes"])
        wanted = size * source.dtype.bytes
        pieces = [self.piece(target.tensor, to, size), self.piece(source.tensor, at, size)]
        if wanted not in (4, 8, 16) or min(pieces) < wanted:
            raise Unprintable(f"an async copy of {wanted} bytes, aligned to {min(pieces)}")
        test = f", {p.value(mask).text}" if mask is not None else ""
        first = f"{p.value(target).text} + {self.offset(target.tensor, to)}"
        second = f"{p.value(source).text} + {self.offset(source.tensor, at)}"
        p.put(f"copy_async<{wanted}>({first}, {second}{test});")
        return p.value(target)


def _power_of_two(size: int) -> int:
    return size & -size if size else VECTOR_BYTES
