"""Prints loops that all threads of a block execute uniformly."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stack.ir.kernel_ops import loop_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_memory
from stack.ir.types import TupleType

from .expressions import Unprintable, c_type
from .shared import AccessedMemory, touched
from .values import CudaValue

if TYPE_CHECKING:
    from .printer import Printer


class Loops:
    """Prints the loops of one kernel."""

    def __init__(self, printer: Printer) -> None:
        self.p = printer

    def print(self, node: Node) -> None:
        """Print the statements of a loop."""
        p, kind = self.p, node.attrs["kind"]
        if kind in ("serial", "unroll", "vector", "branch"):
            self._repeat(node)
        else:
            raise Unprintable(f"a {kind} loop inside a kernel")
        if not isinstance(node.type, TupleType):
            p.values[node] = p.parts[node][0]

    def _repeat(self, node: Node) -> None:
        """Print a loop that all threads execute uniformly."""
        p, block, kind = self.p, node.blocks[0], str(node.attrs["kind"])
        index, *carried = block.params
        limits, start = loop_parts(node.args, node.attrs)
        moved: list[tuple[Node, Node]] = []
        for held, init, out in zip(carried, start, block.results, strict=True):
            if is_memory(held):
                p.values[held] = p.values[init]
            else:
                p.values[held] = self._variable(held, init)
                moved.append((held, out))
        if not (body := self._touched(block)).meets(body):
            p.wait(node)  # once before the loop, instead of in each iteration
        first, end = [p.value(v).text for v in limits] or ["0", str(extent_of(node))]
        name = p.fresh(str(index.attrs["name"]))
        p.values[index] = CudaValue(name)
        p.since.add(body)  # an iteration follows the accesses of the previous one
        if kind == "branch":
            p.values[index] = CudaValue("0")
            p.put(f"if ({end} > {first}) {{")
        else:
            if kind != "serial":
                p.put("#pragma unroll")
            p.put(f"for (int {name} = {first}; {name} < {end}; ++{name}) {{")
        p.depth += 1
        p.under_way = math.inf
        for inner in block.nodes:
            p.statement(inner)
        self._advance(moved)
        p.depth -= 1
        p.put("}")
        if any(n.op == "warpgroup_wait" and n.attrs["pending"] for n in block.nodes):
            p.put("groups_wait<0>();")
        copied = {p.roots[n.args[0]] for n in block.nodes if n.op == "async_copy"}
        if copied:  # the last copies, which no iteration waited for
            p.put("copies_wait<0>();")
            p.since.arrived |= copied
            p.under_way = 0
        p.parts[node] = [p.values[held] for held in carried]

    def _touched(self, block: Block) -> AccessedMemory:
        """Returns the memory that the statements of a block read and write."""
        found = AccessedMemory()
        for node in block.nodes:
            found.add(touched(node, self.p.roots))
        return found

    def _variable(self, held: Node, init: Node) -> CudaValue:
        """Declares the C++ variable of the loop-carried value `held`, initialized to `init`."""
        p = self.p
        count = p.count_of(held)
        name = p.fresh(str(held.attrs["name"]))
        start = p.value(init)
        if not count:
            p.put(f"{p.c_type(held)} {name} = {start.text};")
            return CudaValue(name)
        p.put(f"alignas(16) {c_type(held.dtype)} {name}[{count}];")
        p.put(f"EACH({count}) {name}[i] = {start.element};")
        return CudaValue(name, count)

    def _advance(self, moved: Sequence[tuple[Node, Node]]) -> None:
        """Prints assignments of an iteration's results to the loop-carried variables.

        All results are read before any variable is overwritten.
        """
        p = self.p
        carried = {p.values[held].text for held, _ in moved}
        new: list[tuple[CudaValue, CudaValue]] = []
        for held, out in moved:
            value = p.value(out)
            if value == p.values[held]:
                continue
            if not carried.isdisjoint(
                re.findall(r"\w+", value.element)
            ):  # reads a carried value, which may be overwritten before
                value = self._saved(out, value)
            new.append((p.values[held], value))
        for held, value in new:
            if held.count:
                p.put(f"EACH({held.count}) {held.text}[i] = {value.element};")
            else:
                p.put(f"{held.text} = {value.text};")

    def _saved(self, node: Node, value: CudaValue) -> CudaValue:
        """Copies a loop-carried value to new registers, before the loop variable is overwritten."""
        p = self.p
        if not value.count:
            return p.declare(node, value.text)
        made = p.registers(node, value.count)
        p.put(f"EACH({value.count}) {made.text}[i] = {value.element};")
        return made


def extent_of(loop: Node) -> int:
    """Returns the trip count of a loop node with a constant extent."""
    return int(loop.blocks[0].params[0].attrs["extent"])
