"""Picks the way to split a node over the ranks that sends the fewest bytes.

The cost includes moving each operand to the sharding that the node needs, and the result to the
sharding that is wanted. Among equal ways, the one that splits the work most is chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stack.ir import ops
from stack.ir.cost import cost
from stack.ir.node import Node
from stack.mesh.meshes import Axes, Mesh, MeshAxis, atoms, joined, size_of
from stack.mesh.sharding import Sharding, sharded
from stack.passes.sharding.factors import Factors, Split, alone, factors_of
from stack.passes.sharding.route import route

MOST = 512  # most ways that are compared for one node


class NodeChoice(NamedTuple):
    """A way to compute a node.

    Attributes:
        bytes: bytes that a rank sends.
        split: for each factor, the axes that split it.
        needs: the sharding that each operand must have.
        makes: the sharding of each result.
    """

    bytes: int
    split: Split
    needs: tuple[Sharding, ...]
    makes: tuple[Sharding, ...]


def best_choice(
    mesh: Mesh,
    balance: float,
    node: Node,
    operands: Sequence[Sequence[Sharding]],
    wanted: Sequence[Sharding],
) -> NodeChoice:
    """Returns the cheapest way to compute a node.

    Args:
        mesh: the mesh.
        balance: operations in the time of sending one byte.
        node: the node.
        operands: the shardings of each operand; several if it has copies.
        wanted: the sharding that each result should have.
    """
    versions = tuple(tuple(dict.fromkeys(found)) for found in operands)
    return _best(mesh, balance, alone(node), versions, tuple(wanted))


@lru_cache(maxsize=1 << 14)
def _best(
    mesh: Mesh,
    balance: float,
    node: Node,
    operands: tuple[tuple[Sharding, ...], ...],
    wanted: tuple[Sharding, ...],
) -> NodeChoice:
    return Chooser(mesh, balance, node, operands, wanted).best()


@dataclass(frozen=True)
class Chooser:
    """The ways to compute one node; see `best_choice`."""

    mesh: Mesh
    balance: float
    node: Node
    operands: Sequence[Sequence[Sharding]]
    wanted: Sequence[Sharding]

    def best(self) -> NodeChoice:
        """Returns the cheapest way."""
        found = [c for split in self._splits() for c in self._choices(split)]
        work = int(str(cost(self.node).flops))
        return min(found, key=lambda c: (c.bytes + self._share(c, work), *self._less(c)))

    def _share(self, choice: NodeChoice, work: int) -> int:
        """Estimates the time that one rank computes for a choice, in bytes that it could send in
        that time."""
        ranks = size_of([a for axes in choice.split.values() for a in axes])
        return int(work / ranks / self.balance)

    def _less(self, choice: NodeChoice) -> tuple[int, int]:
        """Returns the sort key of ways to compute a node that send equal bytes: those with the
        fewest partial operands first, of these the one that splits the work among the most ranks.
        """
        is_open = sum(size_of(s.partial) > 1 for s in choice.needs)
        return is_open, -size_of([a for axes in choice.split.values() for a in axes])

    # ---- which factors are split

    def _proposed(self) -> list[Split]:
        """Returns candidate splits of the node's factors by mesh axes: one for the wanted sharding
        of each result, and one for each sharding in which an operand is available."""
        factors = factors_of(self.node)
        found: list[Split] = []
        for dims, wanted in zip(factors.results, self.wanted, strict=True):
            found.append(factors.split_of(dims, wanted.axes))
        for dims, versions in zip(factors.operands, self.operands, strict=True):
            found.extend(factors.split_of(dims, version.axes) for version in versions)
        return [split for split in found if split]

    def _splits(self) -> Iterator[Split]:
        """Yields candidate splits of the node's factors: no split, the proposed ones, and
        combinations that assign each mesh axis to one of the factors proposed for it, or to
        none."""
        yield {}
        proposed = self._proposed()
        yield from proposed
        named = [axis for split in proposed for axes in split.values() for axis in axes]
        is_apart = all(a == b or not a.meets(b) for a in named for b in named)
        options: dict[MeshAxis, dict[str, int]] = {}
        for split in proposed:
            for factor, axes in split.items():
                for place, axis in enumerate(axes if is_apart else atoms(tuple(axes))):
                    options.setdefault(axis, {}).setdefault(factor, place)
        ways = [
            [(axis, f, p) for f, p in found.items()] + [(axis, "", 0)]
            for axis, found in options.items()
        ]
        for way in itertools.islice(itertools.product(*ways), MOST):
            found_: dict[str, list[tuple[int, MeshAxis]]] = {}
            for axis, factor, place in way:
                if factor:
                    found_.setdefault(factor, []).append((place, axis))
            yield {
                factor: joined([axis for _, axis in sorted(axes, key=lambda item: item[0])])
                for factor, axes in found_.items()
            }

    # ---- what a split needs and makes

    def _choices(self, split: Split) -> Iterator[NodeChoice]:
        factors = factors_of(self.node)
        if any(size_of(axes) > factors.sizes[f] for f, axes in split.items()):
            return
        for partial, group in self._partials(split):
            choice = self._choice(factors, split, partial, group)
            if choice is not None:
                yield choice

    def _partials(self, split: Split) -> Iterator[tuple[Axes, tuple[int, ...]]]:
        """Yields pairs of mesh axes and operand numbers: the node may run on partial sums of these
        operands along these axes, since it is linear in them. The first pair is empty: no partial
        sums."""
        yield (), ()
        used = [a for axes in split.values() for a in axes]
        for group in linear_groups(self.node):
            found = {
                version.partial
                for operand in group
                for version in self.operands[operand]
                if version.partial and version.kind == "sum"
            }
            for axes in sorted(found, key=str):
                if not any(a.meets(b) for a in axes for b in used):
                    yield axes, group

    def _choice(
        self, factors: Factors, split: Split, partial: Axes, group: tuple[int, ...]
    ) -> NodeChoice | None:
        needs: list[Sharding] = []
        total = 0
        for number, (dims, versions) in enumerate(
            zip(factors.operands, self.operands, strict=True)
        ):
            axes = factors.axes_of(dims, split)
            if axes is None:
                return None
            try:
                overlaps = factors.overlaps(number, axes)
            except LookupError:
                return None
            need = sharded(self.mesh, axes, partial if number in group else (), overlaps=overlaps)
            needs.append(need)
            type_ = self.node.args[number].tensor
            total += min(route(type_, version, need).bytes for version in versions)
        left = tuple(a for f, axes in split.items() if f in factors.reduced for a in axes)
        if left and partial and factors.kind != "sum":
            return None
        kind = factors.kind if left else "sum"
        makes: list[Sharding] = []
        for dims, type_, wanted in zip(factors.results, self.node.types, self.wanted, strict=True):
            axes = factors.axes_of(dims, split)
            if axes is None:
                return None
            made = sharded(self.mesh, axes, (*left, *partial), kind)
            makes.append(made)
            total += route(type_, made, wanted).bytes
        return NodeChoice(total, split, tuple(needs), tuple(makes))


def linear_groups(node: Node) -> tuple[tuple[int, ...], ...]:
    """Returns groups of operand numbers: a node is linear in the operands of a group together, so
    it may run on their partial sums. Empty for bools, for a division of integers, and for a node
    that changes the element type, which rounds."""
    kinds = {t.dtype for t in (*node.types, *(a.tensor for a in node.args))}
    if len(kinds) != 1:
        return ()
    (dtype,) = kinds
    if dtype.kind == "b" or (dtype.is_integer and node.op == "div"):
        return ()
    return ops.algebra_of(node).linear
