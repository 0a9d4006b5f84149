"""Groups of nodes that one kernel can compute, and the contract of groups with backends.

A group has one loop space: a list of axes, each an id with a size. `axes` maps every value that the
group touches to its index entries in that space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from stack.ir import ops
from stack.ir.dim import INF, Dim, Expr, bounds, product, substitute, symbols
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.traits import is_reduction
from stack.ir.types import TupleType
from stack.rewrite.entries import (
    Entries,
    flat,
)
from stack.rewrite.verdict import Why


def estimate(dim: Dim) -> int:
    """A plausible number for a size: itself, or with symbols at 128 within their bounds."""
    if isinstance(dim, Expr):
        values = {s.name: min(max(128, s.low), s.high) for s in symbols(dim)}
        dim = substitute(dim, values)
    return dim if isinstance(dim, int) else min(bounds(dim)[1], INF)


@cached_by_class
def bytes_of(node: Node) -> int:
    """Estimated bytes of a value."""
    items = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    return sum(estimate(t.bytes) for t in items)


def flops_of(node: Node) -> float:
    """Scalar operations for one element of a value."""
    return ops.lookup(node.op).flops


@dataclass(frozen=True, eq=False)
class Group:
    """Nodes that are computed together. Compared by identity; merging makes a new group.

    Attributes:
        members: the nodes, operands first. Cheap nodes that they read are not members: each group
            recomputes the ones that it needs.
        order: axis ids of the loop space, outermost first.
        sizes: size of each axis.
        axes: entries of members, of cheap nodes in between and of inputs.
        reduced: the axes of the group's reductions; all reductions run over the same axes.
        outputs: members that are needed outside.
        inputs: values from outside.
        dots: the matmuls of which the group is an epilogue.
    """

    members: tuple[Node, ...]
    order: tuple[int, ...]
    sizes: Mapping[int, Dim]
    axes: Mapping[Node, Entries]
    reduced: frozenset[int] = frozenset()
    outputs: tuple[Node, ...] = ()
    inputs: tuple[Node, ...] = ()
    dots: tuple[Node, ...] = ()
    first: int = 0  # positions of the first and the last member in the block
    last: int = 0
    copied: frozenset[Node] = frozenset()  # members that other groups contain too
    rule: str = ""  # the fusion rule that joined it last

    @property
    def kind(self) -> str:
        """ "loop", "reduction" or "gemm"."""
        if self.dots:
            return "gemm"
        return "reduction" if self.reduces else "loop"

    @cached_property
    def reduces(self) -> bool:
        """True if the group contains a reduction."""
        return any(map(is_reduction, self.members))

    @cached_property
    def held(self) -> frozenset[Node]:
        """The members of the group, as a set for fast lookup."""
        return frozenset(self.members)

    @property
    def space(self) -> tuple[Dim, ...]:
        """Sizes of the loop space, outermost first, without axes of size 1."""
        return tuple(self.sizes[i] for i in self.order)

    @property
    def rows(self) -> tuple[Dim, ...]:
        """Sizes of the axes that are not reduced."""
        return tuple(self.sizes[i] for i in self.order if i not in self.reduced)

    @property
    def row(self) -> tuple[Dim, ...]:
        """Sizes of the reduced axes."""
        return tuple(self.sizes[i] for i in self.order if i in self.reduced)

    @cached_property
    def flops(self) -> float:
        """Scalar operations of all elementwise members, for one element of each."""
        return sum(flops_of(n) for n in self.members)

    def reach(self, node: Node) -> list[Node]:
        """Returns the members of the group that a node reads, directly or through nodes that are
        recomputed and whose index is known.
        """
        found: list[Node] = []
        pending = list(node.args)
        seen: set[Node] = set()
        while pending:
            arg = pending.pop()
            if arg in seen:
                continue
            seen.add(arg)
            if arg in self.held:
                found.append(arg)
            elif arg in self.axes:
                pending.extend(arg.args)
        return found

    @cached_property
    def read_inside(self) -> frozenset[Node]:
        """Members that other members read."""
        return frozenset(n for node in self.members for n in self.reach(node))

    @cached_property
    def after_reduction(self) -> frozenset[Node]:
        """Members that depend on a reduction of the group."""
        found: set[Node] = set()
        for node in self.members if self.reduces else ():
            if is_reduction(node) or any(a in found for a in self.reach(node)):
                found.add(node)
        return frozenset(found)


def check_contract(group: Group, limit: float) -> tuple[float, Why | None]:
    """Checks the contract of groups with backends. Returns the operations that the group repeats.

    - every output is the loop space in row-major order, or, in a reduction, the space without the
      reduced axes;
    - every reduction runs over the same axes of the whole space;
    - a second phase (values of the whole space that depend on a reduction) needs the reduced axes
      innermost;
    - a value at a computed index, or with fewer axes than the space, must be cheap to recompute.
    """
    whole = set(group.order)
    rows = tuple(i for i in group.order if i not in group.reduced)
    for out in group.outputs:
        place = flat(group.axes[out])
        if place is None:
            return 0, Why(
                "a value that is needed elsewhere is read at a computed index", out, "axes"
            )
        if place != group.order and not (group.reduced and place == rows):
            return 0, Why(f"the result {out.type} is not the loop space of the group", out, "axes")
    repeated = 0.0
    phase = group.after_reduction
    for node in group.members:
        place = flat(group.axes[node])
        if node in group.dots:
            if place != group.order:
                return 0, Why("the product is read at another index than computed", node, "axes")
            continue
        if is_reduction(node):
            read = flat(group.axes[node.args[0]])
            if read is None or set(read) != whole:
                return 0, Why(
                    "a reduction reads less than the loop space of the group", node, "axes"
                )
            continue
        if place is None:
            if node in phase:
                return 0, Why("a value after a reduction is read at a computed index", node, "axes")
            repeated += flops_of(node)
            continue
        missing = frozenset(whole) - set(place)
        if missing and place and not (group.reduced and missing == group.reduced):
            repeated += flops_of(node)
        elif not missing and node in phase:
            tail = group.order[len(group.order) - len(group.reduced) :]
            if frozenset(tail) != group.reduced:
                return 0, Why(
                    "the reduced axis is not innermost and values after it need it", node, "axes"
                )
    if repeated > limit:
        text = f"{repeated:g} operations would be repeated for every element"
        return repeated, Why(text, kind="limit")
    return repeated, None


def few_rows(group: Group) -> bool:
    """True if a group reduces fewer than 4 rows of more than 65536 elements and then computes whole
    rows from the results: it would run on one core and leave the others idle.
    """
    return (
        estimate(product(group.rows)) < 4
        and estimate(product(group.row)) > 1 << 16
        and any(
            n in group.after_reduction and set(flat(group.axes[n]) or ()) == set(group.order)
            for n in group.members
        )
    )
