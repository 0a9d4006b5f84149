"""Dims of a program's values that are a sequence, and whether its order matters to no node.

A program commutes with a permutation of a sequence if each node does: elementwise ops and views
along it, sums and matmuls over it, lookups at it. Comparisons of positions do, if the positions are
permuted too. So the program may be computed in another order of its tokens: only its leaves and
results along the sequence change. A scan, a sort, a slice or a convolution along it does not.

Dims are followed in both directions, since what meets a permuted value has to be permuted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import NamedTuple

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.ops import rule_of
from stack.ir.traits import (
    finds_position,
    is_item,
    is_operator,
    maker,
    place_of,
    reads_by_data,
    writes_by_data,
)
from stack.ir.types import TensorType
from stack.passes.sharding.factors import Dims, Factors, factors_of


class Part(NamedTuple):
    """A dim that has a sequence as its middle axis: `outer` times the sequence times `inner`."""

    outer: int = 1
    inner: int = 1


Parts = dict[int, Part]  # by dim


class SequenceDims:
    """Finds the dims along a sequence, starting from those of some values.

    Attributes:
        size: the elements of the sequence.
        found: for each value along the sequence, its dims.

    Raises UsageError if the order of the sequence matters to a node, which it names.
    """

    def __init__(self, func: Func, starts: Mapping[Node, int]) -> None:
        sizes = {int(str(node.shape[dim])) for node, dim in starts.items()}
        if len(sizes) > 1:
            raise UsageError(f"inputs have sequences of different lengths: {sorted(sizes)}")
        (self.size,) = sizes
        self.func = func
        self.found: dict[Node, Parts] = {node: {dim: Part()} for node, dim in starts.items()}
        nodes = [n for n in func.nodes if n.args and not is_item(n)]
        results = {n: [n] if isinstance(n.type, TensorType) else [] for n in nodes}
        for item in filter(is_item, func.nodes):
            results.setdefault(maker(item), []).append(item)
        while any([self._follow(n, results[n]) for n in (*nodes, *reversed(nodes))]):
            pass

    def _follow(self, node: Node, items: Sequence[Node]) -> bool:
        """Marks the dims of a node's operands and results that are one axis with a marked one.
        Returns whether there are new ones."""
        values = (*node.args, *items)
        if not any(v in self.found for v in values):
            return False
        factors = self._factors(node)
        dims = [*factors.operands, *(factors.results[place_of(i)] for i in items)]
        marked: dict[str, Part] = {}
        for value, names in zip(values, dims, strict=True):
            for dim, part in self.found.get(value, {}).items():
                name, own = self._factor(node, factors, names[dim], part)
                if marked.setdefault(name, own) != own:
                    raise self._error(node, "reads a sequence in two ways")
        self._check(node, factors, marked)
        is_new = False
        for value, names in zip(values, dims, strict=True):
            for dim, part in self._parts(factors, names, marked).items():
                own = self.found.setdefault(value, {})
                is_new |= dim not in own
                own[dim] = part
        return is_new

    def _factors(self, node: Node) -> Factors:
        if node.blocks and not is_operator(node):
            raise self._error(node, "has blocks, through which no axis is followed; decompose it")
        return factors_of(node)

    def _factor(
        self, node: Node, factors: Factors, names: tuple[str, ...], part: Part
    ) -> tuple[str, Part]:
        """Returns the factor of a dim that has its sequence, and the part of the factor."""
        sizes = [factors.sizes[n] for n in names]
        for i, name in enumerate(names):
            before, after = prod(sizes[:i]), prod(sizes[i + 1 :])
            if part.outer % before == 0 and part.inner % after == 0:
                own = Part(part.outer // before, part.inner // after)
                if own.outer * self.size * own.inner == sizes[i]:
                    return name, own
        raise self._error(node, "divides the sequence")

    def _parts(self, factors: Factors, dims: Dims, marked: Mapping[str, Part]) -> Parts:
        """Returns the dims of a value that have a marked factor."""
        found: Parts = {}
        for dim, names in enumerate(dims):
            sizes = [factors.sizes[n] for n in names]
            for i, name in enumerate(names):
                if name in marked:
                    outer, inner = marked[name]
                    found[dim] = Part(prod(sizes[:i]) * outer, inner * prod(sizes[i + 1 :]))
        return found

    def _check(self, node: Node, factors: Factors, marked: Mapping[str, Part]) -> None:
        """Raises UsageError if a node does not commute with permutations along marked factors."""
        if not marked.keys().isdisjoint(_ordered(node, factors)):
            raise self._error(node, "depends on the order of the sequence")

    def _error(self, node: Node, why: str) -> UsageError:
        name = self.func.body.names.get(node, node.op)
        return UsageError(f"%{name} = {node.op}: {node.type} {why}; keep the sequence in order")


def _ordered(node: Node, factors: Factors) -> Iterable[str]:
    """Yields the factors along which the order of elements matters to a node."""
    yield from factors.fixed
    for window in factors.windows.values():
        is_whole = window.low == window.high == 0 and window.size == window.extent
        if not (is_whole and window.stride == window.spread):
            yield window.factor
    if finds_position(node):
        yield from factors.reduced
    if reads_by_data(node) or writes_by_data(node):  # data says at which positions
        rule = rule_of(node)
        sides = (*rule.inputs, *rule.outputs) if rule is not None else ()
        yield from (name for side in sides for axis in side if axis.mark for name in axis.names)
        yield from (name for name in factors.sizes if name.endswith("!"))
