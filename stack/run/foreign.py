"""Programs as custom calls of XLA: the interface between backends and the JAX frontend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import behind, is_item, maker, place_of

# a value of a block: the node that makes it, and the number among the node's results
Value = tuple[Node, int]


@dataclass(frozen=True)
class ForeignCall:
    """Consecutive steps of a program as one custom call of XLA's foreign function interface.

    Attributes:
        handler: the address of the function that XLA calls.
        plan: the call's only attribute, which tells the handler what to run.
        scratch: bytes of memory that the steps use, passed as the last result; 0 for none.
        updates: the number of the result in the memory of an operand, by the operand's number.
        keep: objects that the handler needs while XLA may call it.
    """

    handler: int
    plan: int
    scratch: int
    updates: Mapping[int, int]
    keep: object


class ForeignSteps(Protocol):
    """A lowered program whose generated kernels XLA can call.

    The program takes and returns arrays as `Executable.run` does, but on the device `platform` of
    XLA. Library groups, calls of a framework and other control flow are left to the caller.
    """

    @property
    def func(self) -> Func: ...

    @property
    def platform(self) -> str: ...

    def takes(self, node: Node) -> bool:
        """True if a node of a block can be a step of a call: a kernel, or a loop of kernels."""
        ...

    def call(
        self, nodes: Sequence[Node], given: Sequence[Value], wanted: Sequence[Value]
    ) -> ForeignCall:
        """Returns a call of consecutive nodes of a block.

        Args:
            nodes: nodes that `takes` accepts.
            given: the values that they read and do not make: the operands of the call.
            wanted: those of their values that are read elsewhere: its results.
        """
        ...


def value_of(node: Node) -> Value:
    """Returns the value whose memory a node has; aliases have that of their operand."""
    found = behind(node)
    return maker(found), place_of(found)


def values_read(block: Block) -> set[Value]:
    """Returns the values that steps of a block read, and its results."""
    steps = (n for n in block.nodes if not is_item(n))
    return {value_of(a) for args in (block.results, *(n.args for n in steps)) for a in args}
