"""Cost model for saving a value for the backward pass, and for recomputing it there.

Both are in bytes of memory traffic. A saved value is read once more. It is written too, if the
forward pass would not have it in memory because an elementwise op fuses with its readers. A
recomputed value costs its operations, at the target's rate. If a kernel needs it in memory (the
operand of a matmul), it is written and read.

A matmul result much larger than its operands, which reductions read, may never be in memory: a
stream computes it. Saving it then means to write and read a table. Its operations may cost less.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from stack.ir import ops
from stack.ir.cost import cost
from stack.ir.node import Node
from stack.ir.traits import (
    is_input,
    is_item,
    is_reduction,
    maker,
)
from stack.ir.types import TensorType
from stack.passes.training.joint import Joint, is_in_memory, reads_memory
from stack.passes.training.min_cut import INFINITE
from stack.rewrite.group import bytes_of, estimate
from stack.rewrite.stream_candidates import streamed

RATE = 16.0  # scalar operations in the time of one byte, for any target: joint graphs precede it
MAPPED = ("elementwise", "movement")


class Prices:
    """Costs of the values of a joint function.

    Args:
        joint: the joint function.
        balance: operations of matmuls in the time of one byte; 0 if a matmul always goes through
            memory, and is never computed twice.
        is_asked: returns True if the program wants the value of this name recomputed: then it is,
            at no cost.

    Attributes:
        known: values without data, such as a mask of positions: formulas, to a kernel.
        streamed: matmuls, and elementwise values of them, that end in reductions.
        asked: values that the program wants recomputed, if they can be; and gradients' values of
            them.
    """

    def __init__(self, joint: Joint, balance: float, is_asked: Callable[[str], bool]) -> None:
        self.joint = joint
        self.balance = balance
        found: set[Node] = set()
        for node in joint.open:
            follows = node not in joint.forward and not found.isdisjoint(node.args)
            if not _is_unique(node) and (follows or is_asked(joint.name(node)[1:])):
                found.add(node)
        self.asked = frozenset(found)
        self.known = self._known()
        self.streamed = streamed(joint.forward, joint.outputs, balance)
        self.keep = cache(self._keep)
        self.recompute = cache(self._recompute)

    def _keep(self, node: Node) -> int:
        """Returns the cost of saving a value for the backward pass.

        Views are not saved, only their sources. Values without data are not saved.
        """
        if not isinstance(node.type, TensorType) or ops.is_whole_view(node):
            return INFINITE
        if node in self.known or node in self.asked:
            return INFINITE
        return bytes_of(node) * (1 if self.in_memory(node) else 2)

    def _recompute(self, node: Node) -> int:
        """Returns the cost of computing a value in the backward pass from available operands."""
        kind = ops.lookup(node.op).kind
        if self.is_free(node) or node in self.asked:
            return 0
        if is_input(node) or kind in ("control", "foreign"):
            return INFINITE
        flops = estimate(cost(node).flops)
        if kind == "contraction":
            if not self.balance:
                return INFINITE
            price = flops / self.balance
        else:
            price = flops / RATE
        if kind == "reduction":
            price += sum(bytes_of(a) for a in node.args)
        elif is_in_memory(node) and node not in self.streamed:
            price += bytes_of(node)
        return 1 + int(price) + (2 * bytes_of(node) if self._is_stored_later(node) else 0)

    def is_free(self, node: Node) -> bool:
        """True if recomputing a value costs nothing: it is a view, or computed from positions and
        constants alone."""
        return _is_view(node) or node in self.known

    def in_memory(self, node: Node) -> bool:
        """True if the forward pass has a value in memory, saved or not."""
        if is_input(node) or node in self.joint.outputs:
            return True
        if node in self.streamed or node not in self.joint.forward:
            return False
        is_product = ops.lookup(node.op).kind == "contraction"
        if is_in_memory(node) and not is_product:
            return True
        users = [u for u in self._readers(node) if u in self.joint.forward]
        if any(reads_memory(u) or (is_product and is_reduction(u)) for u in users):
            return True
        return len({self.joint.barriers[u] for u in users}) > 1

    def _is_stored_later(self, node: Node) -> bool:
        """True if the backward pass, when it recomputes a value, has to write it to memory: it is a
        matmul, or a node that reads operands from memory, such as a matmul, reads it. False if a
        stream computes it."""
        if node in self.streamed:
            return False
        late = [u for u in self._readers(node) if u in self.joint.late]
        return any(reads_memory(u) for u in late) or ops.lookup(node.op).kind == "contraction"

    def _readers(self, node: Node) -> list[Node]:
        """Returns the nodes that read a value, directly or through views."""
        found: list[Node] = []
        pending = [node]
        while pending:
            for user in self.joint.users.get(pending.pop(), ()):
                if _is_view(user):
                    pending.append(user)
                else:
                    found.append(user)
        return found

    def _known(self) -> frozenset[Node]:
        found: set[Node] = set()
        for node in self.joint.open:
            kind = ops.lookup(node.op).kind
            follows = kind in MAPPED and not is_in_memory(node) and found.issuperset(node.args)
            if follows or kind == "leaf":
                found.add(node)
        return frozenset(found)


def _is_view(node: Node) -> bool:
    """True if a node is a view or one of several results: its readers read the memory of its
    operand."""
    return ops.is_view(node) or is_item(node)


def _is_unique(node: Node) -> bool:
    """True if a value cannot be recomputed: inputs, and random draws."""
    return is_input(node) or "effect" in maker(node).attrs
