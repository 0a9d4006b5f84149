"""What it costs to keep a value for the backward pass, and to recompute it there.

Both in bytes of memory traffic. What is kept is read once more, and written too if the forward pass
would not have had it in memory: then an elementwise op would have been fused with its readers. What
is computed again costs its operations, at the target's rate; where a kernel of its own must hold it
(the operand of a product), it is written and read.

A product much larger than its operands, which reductions take in, may never be in memory: a stream
computes it. Keeping it then means to write and read a table; its operations may cost less.
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
from stack.rewrite.streamed import streamed

RATE = 16.0  # scalar operations in the time of one byte: of no target, joint graphs come before it
MAPPED = ("elementwise", "movement")


class Prices:
    """Prices of the values of a joint function.

    Args:
        balance: operations of products in the time of one byte; 0 where a product always goes
            through memory, and is never computed twice.
        is_asked: whether the program wants a value of this name recomputed: it is, at no price.

    Attributes:
        known: values that are made of no data, such as a mask of positions: formulas, to a kernel.
        streamed: products, and what is made of them element by element, that end in reductions.
        asked: what the program wants recomputed, and can be; and what the gradients make of it.
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
        """What it costs to give a value to the backward pass.

        Views are not kept, what they view is; nor is what is known without any data.
        """
        if not isinstance(node.type, TensorType) or ops.is_whole_view(node):
            return INFINITE
        if node in self.known or node in self.asked:
            return INFINITE
        return bytes_of(node) * (1 if self.in_memory(node) else 2)

    def _recompute(self, node: Node) -> int:
        """What it costs to compute a value in the backward pass, where its operands are there."""
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
        """Whether a value is no work: a view, or a formula."""
        return _is_view(node) or node in self.known

    def in_memory(self, node: Node) -> bool:
        """Whether the forward pass has a value in memory, kept or not."""
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
        """Whether the backward pass needs a value in memory."""
        if node in self.streamed:
            return False
        late = [u for u in self._readers(node) if u in self.joint.late]
        return any(reads_memory(u) for u in late) or ops.lookup(node.op).kind == "contraction"

    def _readers(self, node: Node) -> list[Node]:
        """What reads a value, through views of it."""
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
    """Whether what reads a value reads what that is a view of."""
    return ops.is_view(node) or is_item(node)


def _is_unique(node: Node) -> bool:
    """Whether a value could not be recomputed: inputs, and what was drawn at random."""
    return is_input(node) or "effect" in maker(node).attrs
