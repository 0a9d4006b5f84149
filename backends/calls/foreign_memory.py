"""The memory of values inside a custom call of XLA: operands, results, scratch or fixed addresses.

A place is the number of an array and an offset in bytes. Array 0 is at address 0, so that its
offsets are addresses; then come operands and results, the last of which is scratch memory. Values
keep the offsets that pass `memory` chose, counted from the lowest one of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from stack.ir.memory import reused
from stack.ir.node import Node
from stack.ir.traits import is_kernel
from stack.run.foreign import Value, value_of

from ..runtime.plan import ALIGNMENT

Place = tuple[int, int]


def bytes_of(value: Value) -> int:
    """Returns the size of a value."""
    node, item = value
    return int(node.types[item].bytes)  # pyright: ignore[reportArgumentType]


class ForeignMemory:
    """Assigns a place to each value of a call.

    XLA never sees a value that a kernel updates in place: the new value has its memory if the call
    made the old one. Else it has memory of its own, and the caller copies the old value there.
    `updates` lets XLA use one buffer for both, which makes the copy unnecessary.

    Args:
        nodes, given, wanted: as for `ForeignSteps.call`.
        constant: returns the address of a constant's data.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        given: Sequence[Value],
        wanted: Sequence[Value],
        constant: Callable[[Node], int],
    ) -> None:
        self.constant = constant
        self.operands = {value: number for number, value in enumerate(given)}
        self.results = {value: number for number, value in enumerate(wanted)}
        self.updates: dict[int, int] = {}
        self.places: dict[Value, Place] = {v: (1 + i, 0) for v, i in self.operands.items()}
        self.last = 1 + len(given) + len(wanted)  # the number of the scratch memory
        self.firsts = _firsts(nodes, self.operands)
        # the result that a value becomes, maybe after updates
        self.becomes = {self.firsts.get(v, v): v for v in wanted}
        found = ((v, at) for node in nodes for v, at in arena_offsets(node))
        offsets = {v: at for v, at in found if v not in self.becomes}
        base = min(offsets.values(), default=0)
        # If the body of a loop is one call with as many results as the loop, XLA takes the operands
        # of the call for its results, and moves it out of the loop. Scratch is one result more.
        least = 1 if len(wanted) > 1 else 0
        self.scratch = max((at - base + bytes_of(v) for v, at in offsets.items()), default=least)
        self.places |= {v: (self.last, at - base) for v, at in offsets.items()}

    def place(self, node: Node) -> Place:
        """Returns the place of a node's value."""
        return self.of(value_of(node))

    def of(self, value: Value) -> Place:
        """Returns the place of a value; chooses one that has none yet."""
        first = self.firsts.get(value, value)
        if first not in self.places:
            node, _ = first
            if first in self.becomes:
                self.places[first] = self.result(self.becomes[first])
            elif node.op == "const":
                self.places[first] = 0, self.constant(node)
            else:
                self.places[first] = self.new(bytes_of(first))
        return self.places[first]

    def result(self, value: Value) -> Place:
        """Returns the memory of a result of the call."""
        return 1 + len(self.operands) + self.results[value], 0

    def new(self, size: int) -> Place:
        """Returns further scratch memory."""
        start = -(-self.scratch // ALIGNMENT) * ALIGNMENT
        self.scratch = start + size
        return self.last, start

    def overwrite(self, operand: Value, value: Value) -> None:
        """Lets a value that the call returns have the memory of an operand."""
        number = self.operands.get(operand)
        result = self.becomes.get(self.firsts.get(value, value))
        if number is not None and result is not None and number not in self.updates:
            if self.results[result] not in self.updates.values():
                self.updates[number] = self.results[result]


def _firsts(nodes: Sequence[Node], operands: Container[Value]) -> dict[Value, Value]:
    """Returns, for each value that a kernel writes over another, the first value in that memory."""
    found: dict[Value, Value] = {}
    for node in nodes:
        for result, number in reused(node).items():
            old = value_of(node.args[number])
            is_own = old not in operands and old[0].op != "const"
            found[node, result] = found.get(old, old) if is_own else (node, result)
    return found


def arena_offsets(node: Node) -> list[tuple[Value, int]]:
    """Returns the values of a kernel that have an offset in the arena."""
    if not is_kernel(node) or "updates" in node.attrs:
        return []
    places = node.attrs.get("at") or ()
    return [((node, item), at) for item, at in enumerate(places) if at >= 0]
