"""Access relations: which elements of the operands and of the results of a node belong together.

A node runs over a domain of named axes. Each value says where it stands at a point of the domain
in linear equations of its dims and those axes:

    slice  [2:10:3]        dim0 = 3 a + 2                       out0 = a
    split  b (h d)         dim1 = D h + d                       out1 = h, out2 = d
    conv   (one axis)      dim2 = stride s + dilation k - low   out2 = s      (the weight: dim2 = k)
    scan                   dim0 = a - lag                       out0 = a

An element of an operand and one of a result belong together where a point of the domain gives
both. So one statement is read in two directions: `push` solves the equations of an operand for
the axes and puts these into the results, `footprint` goes the other way. Both take and give boxes
(`Region`); solving propagates intervals, so an answer may hold more than it has to, never less.
`pull` is the footprint of one element as index expressions, where there are such.

Source: access functions of the polyhedral model (Feautrier, Dataflow analysis of array and scalar
references, 1991).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stack.errors import RuleError
from stack.ir.axes import Axis, Index, Rule
from stack.ir.dim import Dim, add, floordiv, less_equal, mod, mul, product
from stack.ir.region import Range, Region, whole

Shape = tuple[Dim, ...]
Variable = int | str  # a dim of a value, by number, or an axis of the domain, by name
Terms = tuple[tuple[Variable, Dim], ...]  # each with its coefficient, the major one first


@dataclass(frozen=True)
class Equation:
    """`sum(coefficient * dim) = sum(coefficient * axis) + offset`.

    With `is_exact` each side numbers the same elements, so that one gives the other; through a
    window several elements, or none, may belong to one.
    """

    dims: Terms
    axes: Terms
    offset: Dim = 0
    is_exact: bool = True

    def solve(self, known: dict[Variable, Range], sizes: Mapping[Variable, Dim]) -> None:
        """Narrow what is not given: every variable takes what the others leave it."""
        terms = [*self.dims, *((name, mul(c, -1)) for name, c in self.axes)]
        for variable, coefficient in terms:
            low, high = self.offset, self.offset
            for other, factor in terms:
                if other != variable:
                    held = known.get(other) or Range(0, sizes[other])
                    ends = _scaled(held, mul(factor, -1))
                    low, high = add(low, ends[0]), add(high, ends[1])
            held = known.get(variable) or Range(0, sizes[variable])
            known[variable] = held.meet(_divided(low, high, coefficient))


def _scaled(held: Range, factor: Dim) -> tuple[Dim, Dim]:
    """The least and the largest value of `factor * index`."""
    ends = mul(factor, held.start), mul(factor, held.last)
    return (ends[1], ends[0]) if _is_negative(factor) else ends


def _divided(low: Dim, high: Dim, divisor: Dim) -> Range:
    """Whole numbers whose product with the divisor lies between two bounds."""
    if _is_negative(divisor):
        low, high, divisor = mul(high, -1), mul(low, -1), mul(divisor, -1)
    if divisor == 0:
        return Range(0, 0)
    first = floordiv(add(low, add(divisor, -1)), divisor)
    return Range(first, add(floordiv(high, divisor), 1))


def _is_negative(factor: Dim) -> bool:
    return isinstance(factor, int) and factor < 0


Access = tuple[Equation, ...]


class Relation(ABC):
    """What a node reads for what it makes, in both directions."""

    @abstractmethod
    def push(self, operand: int, region: Region) -> list[Region | None]:
        """The part of each result that a part of an operand can reach."""

    @abstractmethod
    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        """The part of each operand that a part of a result may depend on."""

    def pull(self, index: Index, reduced: Mapping[str, Dim]) -> list[Index]:
        """Index of each operand at one element of result 0 and one of each reduced axis."""
        raise RuleError("no index map describes what it reads")


@dataclass(frozen=True)
class Everything(Relation):
    """Every element of every result may depend on every element of every operand."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]

    def push(self, operand: int, region: Region) -> list[Region | None]:
        return [whole(shape) for shape in self.results]

    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        return [whole(shape) for shape in self.operands]


@dataclass(frozen=True)
class Linear(Relation):
    """Equations over a domain.

    Attributes:
        sizes: the axes of the domain and their sizes.
        operands: for each operand its shape, and where it stands.
        results: the same for each result.
    """

    sizes: Mapping[str, Dim]
    operands: tuple[tuple[Shape, Access], ...]
    results: tuple[tuple[Shape, Access], ...]

    def push(self, operand: int, region: Region) -> list[Region | None]:
        axes = self._axes(*self.operands[operand], region)
        return [self._dims(*value, axes) for value in self.results]

    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        axes = self._axes(*self.results[result], region)
        return [self._dims(*value, axes) for value in self.operands]

    def _axes(self, shape: Shape, access: Access, region: Region) -> dict[str, Range]:
        """What a part of a value leaves of the axes that it names."""
        known: dict[Variable, Range] = dict(enumerate(region))
        self._solve(shape, access, known)
        return {v: r for v, r in known.items() if isinstance(v, str)}

    def _dims(self, shape: Shape, access: Access, axes: Mapping[str, Range]) -> Region | None:
        """The part of a value that a part of the domain reads or makes; None for nothing."""
        known: dict[Variable, Range] = {**axes}
        self._solve(shape, access, known)
        region = tuple(known.get(d) or Range(0, size) for d, size in enumerate(shape))
        return None if any(r.is_empty for r in (*known.values(), *region)) else region

    def _solve(self, shape: Shape, access: Access, known: dict[Variable, Range]) -> None:
        sizes: dict[Variable, Dim] = {**self.sizes, **dict(enumerate(shape))}
        for equation in access:
            equation.solve(known, sizes)

    def pull(self, index: Index, reduced: Mapping[str, Dim]) -> list[Index]:
        point = _point(self.results[0][1], index, self.sizes)
        point.axes.update(reduced)
        for _, access in self.operands:
            for equation in access:
                _check_known(equation, point)
        return [_index(*value, point) for value in self.operands]

    def reads(self, index: Index) -> list[Index | None]:
        """Index of each operand at one element of result 0; None where that is not one element."""
        point = _point(self.results[0][1], index, self.sizes)
        return [
            _index(shape, access, point) if self._is_one(shape, access, point) else None
            for shape, access in self.operands
        ]

    def place(self, operand: int, index: Index) -> Index | None:
        """Index of result 0 that one element of an operand goes to; None where it is not one."""
        _, access = self.operands[operand]
        if not all(equation.is_exact for equation in access):
            return None
        point = _point(access, index, self.sizes)
        value = self.results[0]
        return _index(*value, point) if self._is_one(*value, point) else None

    def _is_one(self, shape: Shape, access: Access, point: Point) -> bool:
        """Whether a point of some axes names one element, which is inside for all points."""
        return all(
            point.knows(equation) and (equation.is_exact or self._is_inside(equation, shape))
            for equation in access
        )

    def _is_inside(self, equation: Equation, shape: Shape) -> bool:
        """Whether a window stays in its dim wherever it is."""
        ((dim, spread),) = equation.dims
        low = high = equation.offset
        for name, coefficient in equation.axes:
            ends = _scaled(Range(0, self.sizes[str(name)]), coefficient)
            low, high = add(low, ends[0]), add(high, ends[1])
        inside = less_equal(0, low) and less_equal(add(high, 1), shape[int(dim)])
        return spread == 1 and bool(inside)


@dataclass
class Point:
    """Some axes of a domain as index expressions.

    Attributes:
        totals: numbers that several axes make, as they were found: not to be taken apart again.
    """

    axes: dict[str, Dim]
    totals: dict[Terms, Dim]

    def knows(self, equation: Equation) -> bool:
        """Whether all axes of an equation are known."""
        return equation.axes in self.totals or all(n in self.axes for n, _ in equation.axes)


def _point(access: Access, index: Index, sizes: Mapping[str, Dim]) -> Point:
    """The axes that an element of a value gives."""
    point = Point({}, {})
    for equation in access:
        total = _total(equation.dims, index)
        point.totals[equation.axes] = total
        found = _digits(total, equation.axes, sizes)
        point.axes.update((str(n), i) for (n, _), i in zip(equation.axes, found, strict=True))
    return point


def _index(shape: Shape, access: Access, point: Point) -> Index:
    """The element of a value at a point."""
    place: dict[Variable, Dim] = {}
    for equation in access:
        total = point.totals.get(equation.axes)
        if total is None:
            total = _total(equation.axes, point.axes)
        if equation.offset != 0:
            total = add(total, equation.offset)
        found = _digits(total, equation.dims, shape)
        place.update((d, i) for (d, _), i in zip(equation.dims, found, strict=True))
    return tuple([place[d] for d in range(len(shape))])


def _check_known(equation: Equation, point: Point) -> None:
    """Raise RuleError where an operand's dim is no expression of a point."""
    if equation.dims and equation.dims[-1][1] != 1:
        raise RuleError("no index map describes what it reads: not every place is read")
    if point.knows(equation):
        return
    missing = [str(name) for name, _ in equation.axes if name not in point.axes]
    if all(name.isidentifier() for name in missing):
        raise RuleError(f"it needs an index for {', '.join(missing)}")
    raise RuleError("no index map describes what it reads")


def _total(terms: Terms, values: Any) -> Dim:
    """The sum of terms whose values stand under their variables."""
    if len(terms) == 1 and terms[0][1] == 1:
        return values[terms[0][0]]
    total: Dim = 0
    for variable, coefficient in terms:
        total = add(total, mul(values[variable], coefficient))
    return total


def _digits(total: Dim, terms: Terms, sizes: Any) -> list[Dim]:
    """The mixed-radix digits of a number, the major one first."""
    if len(terms) == 1:
        return [total]
    out: list[Dim] = []
    for depth, (variable, place) in enumerate(terms):
        part = floordiv(total, place) if place != 0 else 0
        size = sizes[variable]
        out.append(part if depth == 0 or size == 0 else mod(part, size))
    return out


def delinearize(offset: Dim, shape: Shape) -> Index:
    """Index of a row-major offset."""
    return tuple(_digits(offset, row_major(range(len(shape)), shape), shape))


# ---- from an axis rule


@dataclass(frozen=True)
class Window:
    """How a dim that its rule marks `^` or `~` is read: `spread * dim = sum(c * axis) + offset`.

    Attributes:
        terms: axes of the domain with their coefficients.
        spread: distance of neighbours of the dim in that sum.
        free: axes that no operand has, with their sizes.
    """

    terms: tuple[tuple[str, Dim], ...]
    offset: Dim = 0
    spread: Dim = 1
    free: tuple[tuple[str, Dim], ...] = ()


Windows = Mapping[tuple[int, int], Window]  # by operand and dim


def axis_sizes(rule: Rule, operands: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Dim]:
    """Sizes of the axes of a rule; a windowed axis has the size of the result's."""
    sides = (*rule.inputs, *rule.outputs)
    kept = [
        [(axis, size) for axis, size in zip(side, shape, strict=True) if axis.mark != "^"]
        for side, shape in zip(sides, (*operands, *results), strict=True)
    ]
    plain = Rule(tuple(tuple(axis for axis, _ in side) for side in kept), ())
    return plain.sizes([tuple(size for _, size in side) for side in kept])


def related(
    rule: Rule, operands: Sequence[Shape], results: Sequence[Shape], windows: Windows
) -> Linear:
    """The relation that an axis rule states.

    A name stands for one axis wherever it is. `k!` is an axis of its own in every operand and
    result: each element of it goes with all others. Dims of operands marked `^` or `~` are read
    through their window; a missing one is a RuleError.
    """
    sizes = axis_sizes(rule, operands, results)
    for window in windows.values():
        sizes.update(window.free)

    def access(side: tuple[Axis, ...], shape: Shape, value: int, is_read: bool) -> Access:
        found: list[Equation] = []
        for dim, (axis, size) in enumerate(zip(side, shape, strict=True)):
            if axis.mark == "!":
                own = f"{value}.{dim}!" if is_read else f"{value}.{dim}!!"
                sizes[own] = size
                found.append(Equation(((dim, 1),), ((own, 1),)))
            elif axis.mark and is_read:
                window = windows.get((value, dim))
                if window is None:
                    raise RuleError(f"operand {value} of '{rule}' has no window for {axis}")
                dims = ((dim, window.spread),)
                found.append(Equation(dims, window.terms, window.offset, is_exact=False))
            else:
                found.append(
                    Equation(
                        ((dim, 1),), row_major(axis.names, tuple(sizes[n] for n in axis.names))
                    )
                )
        return tuple(found)

    read = [access(o, s, i, True) for i, (o, s) in enumerate(zip(rule.inputs, operands))]
    made = [access(o, s, i, False) for i, (o, s) in enumerate(zip(rule.outputs, results))]
    return Linear(
        sizes,
        tuple(zip(operands, read, strict=True)),
        tuple(zip(results, made, strict=True)),
    )


def row_major(variables: Sequence[Variable], sizes: Sequence[Dim]) -> Terms:
    """Variables of these sizes with the coefficients that make one row-major number of them."""
    return tuple((v, product(tuple(sizes[i + 1 :]))) for i, v in enumerate(variables))
