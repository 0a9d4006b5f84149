"""The factors of a node: the axes of its domain that mesh axes may split, from its relation.

The access relation of a node says which dims of operands and results are one axis of its domain. A
mesh axis that splits one of them splits all. A dim may consist of several axes, as in a reshape or
a grouped convolution. It is then written in factors, the major one first:

    dot     "m k, k n -> m n"       x[m, k]  w[k, n]  y[m, n]      k is reduced: y is partial
    reshape 8, 6 -> 8, 2, 3         x[a, (b c)]       y[a, b, c]   splitting b splits x's dim
    sort    "a b! -> a b!"          b is fixed: every rank needs all of it
    conv    "n c h^, o c k -> n o h"    h is read through a window: parts of it overlap

(Shardy's op sharding rules express the same; here there are no rules per op.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise
from math import prod
from typing import cast

from stack.ir import ops, param
from stack.ir.axes import parse_rule
from stack.ir.equivalence import cached_by_class
from stack.ir.node import Node
from stack.ir.relation import Access, Equation, Linear, Shape, related
from stack.ir.traits import is_operator, is_reduction, reads_by_data, writes_by_data
from stack.ir.types import Type, unsharded
from stack.mesh.meshes import Axes, MeshAxis, size_of
from stack.mesh.overlap import Overlap
from stack.passes.sharding.windows import ShardWindow, window_of

Dims = tuple[tuple[str, ...], ...]  # of a value: for each dim its factors, the major one first
Split = dict[str, Axes]  # for factors, the mesh axes that split them


@dataclass(frozen=True, eq=False)
class Factors:
    """The domain of a node as far as it can be split.

    Attributes:
        sizes: elements of each factor.
        operands, results: the dims of each value.
        fixed: factors that every rank needs whole.
        reduced: factors that no result has; splitting them leaves partial results.
        windows: for dims of operands, the window by which they are read along their factor.
        kind: the reduction that combines partial results.
    """

    sizes: Mapping[str, int]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    fixed: frozenset[str]
    reduced: frozenset[str]
    windows: Mapping[tuple[int, int], ShardWindow] = field(
        default_factory=dict[tuple[int, int], ShardWindow]
    )
    kind: str = "sum"
    known: dict[tuple[Dims, tuple[Axes, ...]], Split] = field(
        default_factory=dict[tuple[Dims, tuple[Axes, ...]], Split], compare=False, repr=False
    )

    @cached_property
    def values(self) -> tuple[Dims, ...]:
        """Returns operands, then results."""
        return (*self.operands, *self.results)

    def split_of(self, dims: Dims, axes: tuple[Axes, ...]) -> Split:
        """Returns the factors that a value's axes split; axes that split nothing are left out.

        A factor that shares its dim must be split evenly, and completely before the next one is.
        """
        found = self.known.get((dims, axes))
        if found is None:
            found = self.known[dims, axes] = self._split(dims, axes)
        return found

    def _split(self, dims: Dims, axes: tuple[Axes, ...]) -> Split:
        found: Split = {}
        for factors, given in zip(dims, axes, strict=True):
            rest = list(given)
            for number, factor in enumerate(factors):
                is_last = number == len(factors) - 1
                taken, left = self._taken(factor, rest, len(factors) > 1)
                if factor in self.fixed:
                    taken = []
                if taken:
                    found[factor] = tuple(taken)
                if size_of(taken) != self.sizes[factor] or is_last:
                    break
                rest = left
        return found

    def _taken(
        self, factor: str, axes: Sequence[MeshAxis], is_shared: bool
    ) -> tuple[list[MeshAxis], list[MeshAxis]]:
        """Returns the mesh axes that fit into a factor, and those that are left for the next factor
        of the dim. If factors share the dim (`is_shared`), axes must divide the factor, and an axis
        may be split in two for that."""
        size, taken, rest = self.sizes[factor], list[MeshAxis](), list(axes)
        if not is_shared:
            while rest and size_of([*taken, rest[0]]) <= size:
                taken.append(rest.pop(0))
            return taken, rest
        while rest:
            room = size // size_of(taken)
            axis = rest[0]
            if room % axis.size == 0:
                taken.append(rest.pop(0))
                continue
            if room > 1 and axis.size % room == 0:
                major, minor = axis.split(room)
                taken.append(major)
                rest[0] = minor
            break
        return taken, rest

    def axes_of(self, dims: Dims, split: Split) -> tuple[Axes, ...] | None:
        """Returns the mesh axes of each dim of a value, from those that split the factors
        (`split`). None if no sharding expresses that: a minor factor of a dim is split although a
        major one is not split completely, or unevenly."""
        found: list[Axes] = []
        for factors in dims:
            axes: list[MeshAxis] = []
            is_full = True
            for factor in factors:
                own = split.get(factor, ())
                if own and not is_full:
                    return None
                if len(factors) > 1 and self.sizes[factor] % size_of(own):
                    return None
                is_full = is_full and self.sizes[factor] == size_of(own)
                axes.extend(own)
            found.append(tuple(axes))
        return tuple(found)

    def overlaps(self, operand: int, axes: tuple[Axes, ...]) -> tuple[Overlap | None, ...]:
        """Returns for each dim of an operand the overlapping parts that the node reads.

        Raises LookupError if the parts of different ranks would not have one form.
        """
        found = [self.windows.get((operand, dim)) for dim in range(len(axes))]
        if not any(found):
            return ()
        made = tuple(
            window.overlap(own) if window and own else None
            for window, own in zip(found, axes, strict=True)
        )
        return made if any(made) else ()


def factors_of(node: Node) -> Factors:
    """Returns the factors of a node; equal nodes share them. Sizes must be numbers."""
    return _factors(alone(node))


@cached_by_class
def alone(node: Node) -> Node:
    """Returns a copy of a node that is equal for all equal nodes, wherever they are: its operands
    are new parameters, and types have no shardings."""
    holders = [_holder(i, a.type) for i, a in enumerate(node.args)]
    return Node(node.op, holders, node.attrs, unsharded(node.type), node.blocks)


@lru_cache(maxsize=1 << 12)
def _holder(number: int, type_: Type) -> Node:
    return param(f"x{number}", unsharded(type_))


@lru_cache(maxsize=1 << 14)
def _factors(node: Node) -> Factors:
    shapes = [a.shape for a in node.args], [t.shape for t in node.types]
    relation = _of_operator(node) if is_operator(node) else ops.relation_of(node)
    if node.op == "reshard":
        relation = ops.relation_of(Node("neg", node.args, {}, node.tensor))
    if not isinstance(relation, Linear):
        return _unrelated(*shapes)
    finder = _Finder(relation, _whole(node, relation), _is_cut(node))
    operands = tuple(
        finder.dims(s, access, f"{i}", i) for i, (s, access) in enumerate(relation.operands)
    )
    results = tuple(
        finder.dims(s, access, f"r{i}") for i, (s, access) in enumerate(relation.results)
    )
    fixed = finder.fixed | _repeated((*operands, *results))
    fixed |= {name for name, size in finder.sizes.items() if size < 2}
    kind = _kind(node)
    loose = _names(operands) - _names(results) - fixed
    return Factors(
        finder.sizes,
        operands,
        results,
        frozenset(fixed if kind else fixed | loose),
        frozenset(loose if kind else ()),
        {at: window for at, window in finder.windows.items() if window.factor not in fixed},
        kind or "sum",
    )


def _of_operator(node: Node) -> Linear:
    """Returns the relation that the rule of an operator defines. Marked dims, also those carried
    in order, are needed whole."""
    rule = parse_rule(node.attrs["rule"].replace("~", "!"))
    return related(rule, [a.shape for a in node.args], [t.shape for t in node.types], {})


def _kind(node: Node) -> str:
    """Returns the reduction of a node; empty if it does not reduce."""
    if is_reduction(node):
        return str(node.attrs["kind"])
    if _looks_up(node) or _adds_at(node):
        return "sum"
    return "sum" if ops.lookup(node.op).kind == "contraction" else ""


def _looks_up(node: Node) -> bool:
    """True for a gather of integers or floats whose indexed axis may be split: each element is on
    one rank, the other ranks read 0, and the sum over ranks is the element."""
    return reads_by_data(node) and node.dtype.kind in "fiu"


def _adds_at(node: Node) -> bool:
    """True for a scatter that adds: ranks may each add a part of the updates, and one of them the
    operand that they are added to."""
    return writes_by_data(node) and node.attrs["kind"] == "add" and node.dtype.kind in "fiu"


def _is_cut(node: Node) -> bool:
    """True if an op with windows, such as a convolution or a slice, can run on a rank's part of the
    dim that they read."""
    return bool(ops.lookup(node.op).beyond)


def _whole(node: Node, relation: Linear) -> set[str]:
    """Returns the axes of a node's domain that mesh axes must not split: those that its rule marks.

    Axes that are read through windows may be split, and all axes of a gather for which `_looks_up`
    is true. The indexed axes of a scatter may be split too: a rank drops the updates of others.
    """
    if _looks_up(node) or writes_by_data(node):
        return set()
    rule = ops.rule_of(node)
    sides = (*rule.inputs, *rule.outputs) if rule is not None else ()
    kept = "^" if _is_cut(node) else ""
    marked = (axis for side in sides for axis in side if axis.mark and axis.mark != kept)
    named = {name for axis in marked for name in axis.names}
    return {n for n in relation.sizes if n in named or n.endswith("!")}


def _names(values: Iterable[Dims]) -> set[str]:
    return {name for dims in values for factors in dims for name in factors}


def _repeated(values: Iterable[Dims]) -> set[str]:
    """Returns factors that occur twice in one value: its diagonal is read."""
    found: set[str] = set()
    for dims in values:
        names = [name for factors in dims for name in factors]
        found.update(name for name in names if names.count(name) > 1)
    return found


def _unrelated(operands: Sequence[Shape], results: Sequence[Shape]) -> Factors:
    """Returns factors for a node without a known relation between its dims: each dim is a factor of
    its own that must not be split."""
    sizes: dict[str, int] = {}

    def dims(shape: Shape, value: str) -> Dims:
        own = [f"{value}.{d}" for d in range(len(shape))]
        sizes.update(zip(own, (int(cast("int", n)) for n in shape)))
        return tuple((name,) for name in own)

    read = tuple(dims(s, f"{i}") for i, s in enumerate(operands))
    made = tuple(dims(s, f"r{i}") for i, s in enumerate(results))
    return Factors(sizes, read, made, frozenset(sizes), frozenset())


class _Finder:
    """Reads factors off the equations of a relation."""

    def __init__(self, relation: Linear, fixed: set[str], is_cut: bool) -> None:
        self.sizes: dict[str, int] = {n: int(cast("int", s)) for n, s in relation.sizes.items()}
        self.fixed = fixed
        self.flat = self._flattened(relation)
        self.is_cut = is_cut  # True if the node can run on parts that windows read
        self.windows: dict[tuple[int, int], ShardWindow] = {}

    def _flattened(self, relation: Linear) -> dict[str, tuple[str, ...]]:
        """Splits axes that several dims form together into factors at the borders of these dims."""
        borders: dict[str, set[int]] = {}
        for _, access in (*relation.operands, *relation.results):
            for equation in access:
                if equation.is_exact and len(equation.axes) == 1:
                    name = str(equation.axes[0][0])
                    found = borders.setdefault(name, {1, self.sizes[name]})
                    found.update(int(cast("int", place)) for _, place in equation.dims)
        made: dict[str, tuple[str, ...]] = {}
        for name, found in borders.items():
            places = sorted(found, reverse=True)
            if len(places) < 3:
                continue
            if 0 in places or any(a % b for a, b in pairwise(places)):
                self.fixed.add(name)
                continue
            parts = [a // b for a, b in pairwise(places)]
            made[name] = tuple(f"{name}.{i}" for i in range(len(parts)))
            self.sizes.update(zip(made[name], parts))
        return made

    def dims(self, shape: Shape, access: Access, value: str, operand: int = -1) -> Dims:
        """Returns the factors of each dim of a value."""
        found: dict[int, tuple[str, ...]] = {}
        for equation in access:
            names = [str(name) for name, _ in equation.axes]
            dims = [int(dim) for dim, _ in equation.dims]
            if not equation.is_exact:
                window = self._window(equation, shape)
                self.fixed.update(n for n in names if window is None or n != window.factor)
                if window is not None:
                    self.windows[operand, dims[0]] = window
                    found[dims[0]] = (window.factor,)
                    continue
            elif len(dims) == 1 and not (len(names) == 1 and names[0] in self.flat):
                found[dims[0]] = tuple(names)
                continue
            elif len(names) == 1 and names[0] in self.flat:
                found.update(self._shared(dims, shape, list(self.flat[names[0]])))
                continue
            elif len(dims) > 1 and len(names) == 1 and names[0] not in self.fixed:
                # all but one have size 1
                (real,) = [d for d in dims if shape[d] != 1][:1] or [dims[0]]
                found.update((d, (names[0],) if d == real else ()) for d in dims)
                continue
            for dim in dims:
                own = f"{value}.{dim}"
                self.sizes[own] = int(cast("int", shape[dim]))
                self.fixed.add(own)
                found[dim] = (own,)
        return tuple(found[d] for d in range(len(shape)))

    def _window(self, equation: Equation, shape: Shape) -> ShardWindow | None:
        if not self.is_cut or 0 in self.sizes.values():  # an empty domain has no window
            return None
        extent = int(cast("int", shape[int(equation.dims[0][0])]))
        found = window_of(equation, self.sizes, extent)
        return None if found is None or found.factor in self.flat else found

    def _shared(
        self, dims: Sequence[int], shape: Shape, factors: list[str]
    ) -> dict[int, tuple[str, ...]]:
        """Assigns the factors of one flat axis to the dims that form it, in order: each dim takes
        as many as multiply to its size."""
        found: dict[int, tuple[str, ...]] = {}
        for dim in dims:
            own: list[str] = []
            while prod(self.sizes[f] for f in own) < int(cast("int", shape[dim])):
                own.append(factors.pop(0))
            found[dim] = tuple(own)
        return found
