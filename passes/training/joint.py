"""A training step as one function: its results come first, then its gradients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from stack.errors import StackError
from stack.ir.func import Func
from stack.ir.node import Node, deps, topological
from stack.ir.ops import lookup
from stack.ir.traits import is_input, mixes, reads_by_data


class Joint:
    """Classifies the values of a joint function by forward and backward pass.

    Args:
        func: the joint function.
        results: number of the leading results that belong to the forward pass.
        tangents: number of the trailing parameters that are incoming gradients.

    Attributes:
        outputs, gradients: the results of the two passes.
        late: values that depend on an incoming gradient: only the backward pass can compute them.
        forward: values that the results of the forward pass depend on.
        needed: values that gradients depend on.
        open: values in `needed` that either pass may compute.
        wanted: values in `open` that are gradients, or that a value in `late` reads.
        users: for each value, the nodes that read it.
    """

    def __init__(self, func: Func, results: int, tangents: int) -> None:
        if not 0 < results <= len(func.results) or not 0 <= tangents <= len(func.params):
            raise StackError(
                f"@{func.name} has {len(func.results)} results and {len(func.params)} parameters:"
                f" not {results} results of a forward pass and {tangents} incoming gradients"
            )
        self.func = func
        self.outputs, self.gradients = func.results[:results], func.results[results:]
        self.tangents = func.params[len(func.params) - tangents :]
        self.forward = frozenset(topological(self.outputs))
        self.late = self._late()
        if not self.late.isdisjoint(self.forward):
            raise StackError(f"a result of the forward pass of @{func.name} reads a gradient")
        needed = topological(self.gradients)
        self.needed = frozenset(needed)
        self.open = [n for n in needed if n not in self.late]
        self.wanted = {d for n in needed if n in self.late for d in deps(n)} | {*self.gradients}
        self.wanted -= self.late
        self.users = _users(topological(func.results))

    def _late(self) -> frozenset[Node]:
        found = set(self.tangents)
        for node in topological(self.func.results):
            if not found.isdisjoint(deps(node)):
                found.add(node)
        return frozenset(found)

    def name(self, node: Node) -> str:
        """Returns `%` and the name of a value, as in the text of the function; its op if it has no
        name."""
        if is_input(node):
            return f"%{node.attrs['name']}"
        return f"%{self.func.body.names.get(node, node.op)}"

    def lines(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Returns the source lines of nodes, without duplicates."""
        locs = self.func.body.locs
        return tuple(dict.fromkeys(line for n in nodes for line in locs.get(n, ())))

    @cached_property
    def barriers(self) -> dict[Node, int]:
        """Returns for each value how many nodes that read operands from memory, such as matmuls and
        scans, have to run one after another before it: the least number of kernels before it."""
        found: dict[Node, int] = {}
        for node in topological(self.func.results):
            before = [found[d] + reads_memory(d) for d in deps(node)]
            found[node] = max(before, default=0)
        return found


def reads_memory(node: Node) -> bool:
    """True if a node reads operands from memory: matmuls, steps, scans, sorts, scatters."""
    return lookup(node.op).kind in ("contraction", "control", "foreign") or mixes(node)


def is_in_memory(node: Node) -> bool:
    """True if a node's result is stored in memory: matmuls, steps, scans, scatters, and gathers.

    A gather counts because a pass may move it before the producer of its operand.
    """
    return reads_memory(node) or reads_by_data(node)


def _users(nodes: Iterable[Node]) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in nodes:
        for dep in dict.fromkeys(deps(node)):
            found.setdefault(dep, []).append(node)
    return found
