"""Access relations: which elements of operands and results of a node depend on each other.

A node iterates over a domain of named axes. For each value, linear equations relate its dims to
those axes:

    slice  [2:10:3]        dim0 = 3 a + 2                       out0 = a
    split  b (h d)         dim1 = D h + d                       out1 = h, out2 = d
    conv   (one axis)      dim2 = stride s + dilation k - low   out2 = s      (the weight: dim2 = k)
    scan                   dim0 = a - lag                       out0 = a

An operand element and a result element depend on each other if some point of the domain yields
both. `footprint` solves the equations of a result for the axes and substitutes these into the
operands. It takes and returns boxes (`Region`). Solving propagates intervals, so a box may be too
large, but never too small. `pull` is the footprint of one element as index expressions, if it has
that form.

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
Terms = tuple[tuple[Variable, Dim], ...]  # variables with their coefficients, major first


@dataclass(frozen=True)
class Equation:
    """`sum(coefficient * dim) = sum(coefficient * axis) + offset`.

    If `is_exact`, both sides number the same elements, so each side determines the other. Through a
    window, several elements or none may correspond to one.
    """

    dims: Terms
    axes: Terms
    offset: Dim = 0
    is_exact: bool = True

    def solve(self, known: dict[Variable, Range], sizes: Mapping[Variable, Dim]) -> None:
        """Narrows the range of each dim and axis in this equation to the values for which the
        equation has a solution within the ranges of the others. Updates `known`; a variable that it
        lacks starts at 0 to its size.
        """
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
    """The minimum and maximum of `factor * index` for all indices of a range."""
    ends = mul(factor, held.start), mul(factor, held.last)
    return (ends[1], ends[0]) if _is_negative(factor) else ends


def _divided(low: Dim, high: Dim, divisor: Dim) -> Range:
    """Returns the range of the integers i with `low <= i * divisor <= high`."""
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
    """The dependence between elements of operands and results."""

    @abstractmethod
    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        """Returns the region of each operand on which a region of result number `result` may
        depend.
        """

    def pull(self, index: Index, reduced: Mapping[str, Dim]) -> list[Index]:
        """Index of each operand for one element of result 0 and one index of each reduced axis."""
        raise RuleError("no index map describes what it reads")


@dataclass(frozen=True)
class FullRelation(Relation):
    """Every element of every result may depend on every element of every operand."""

    operands: tuple[Shape, ...]

    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        return [whole(shape) for shape in self.operands]


@dataclass(frozen=True)
class Linear(Relation):
    """Linear equations over a domain.

    Attributes:
        sizes: the axes of the domain and their sizes.
        operands: for each operand its shape and its equations.
        results: the same for each result.
    """

    sizes: Mapping[str, Dim]
    operands: tuple[tuple[Shape, Access], ...]
    results: tuple[tuple[Shape, Access], ...]

    def footprint(self, region: Region, result: int = 0) -> list[Region | None]:
        known: dict[Variable, Range] = dict(enumerate(region))
        self._solve(*self.results[result], known)
        axes = {v: r for v, r in known.items() if isinstance(v, str)}
        return [self._dims(*value, axes) for value in self.operands]

    def _dims(self, shape: Shape, access: Access, axes: Mapping[str, Range]) -> Region | None:
        """The region of a value that ranges of the domain access; None if empty."""
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
        """For one element of result 0, the index of the element that it reads of each operand; None
        for an operand of which it does not read exactly one element.
        """
        point = _point(self.results[0][1], index, self.sizes)
        return [
            _index(shape, access, point) if self._is_one(shape, access, point) else None
            for shape, access in self.operands
        ]

    def place(self, operand: int, index: Index) -> Index | None:
        """The index of the element of result 0 that depends on one element of an operand; None if
        not exactly one element does.
        """
        _, access = self.operands[operand]
        if not all(equation.is_exact for equation in access):
            return None
        point = _point(access, index, self.sizes)
        value = self.results[0]
        return _index(*value, point) if self._is_one(*value, point) else None

    def _is_one(self, shape: Shape, access: Access, point: Point) -> bool:
        """True if a point of the domain determines exactly one element of an operand or result,
        which is within its shape for all points.
        """
        return all(
            point.knows(equation) and (equation.is_exact or self._is_inside(equation, shape))
            for equation in access
        )

    def _is_inside(self, equation: Equation, shape: Shape) -> bool:
        """True if the equation of a windowed dim gives an index within the dim at every point of
        the domain.
        """
        ((dim, spread),) = equation.dims
        low = high = equation.offset
        for name, coefficient in equation.axes:
            ends = _scaled(Range(0, self.sizes[str(name)]), coefficient)
            low, high = add(low, ends[0]), add(high, ends[1])
        inside = less_equal(0, low) and less_equal(add(high, 1), shape[int(dim)])
        return spread == 1 and bool(inside)


@dataclass
class Point:
    """The known coordinates of a point of the domain: an index expression for each known axis.

    Attributes:
        totals: known sums of several axes. They are kept besides the axes, so that a dim with the
            same sum needs no division.
    """

    axes: dict[str, Dim]
    totals: dict[Terms, Dim]

    def knows(self, equation: Equation) -> bool:
        """True if all axes of an equation are known."""
        return equation.axes in self.totals or all(n in self.axes for n, _ in equation.axes)


def _point(access: Access, index: Index, sizes: Mapping[str, Dim]) -> Point:
    """The point of the domain that the index of a value's element determines, through the equations
    `access` of the value.
    """
    point = Point({}, {})
    for equation in access:
        total = _total(equation.dims, index)
        point.totals[equation.axes] = total
        found = _digits(total, equation.axes, sizes)
        point.axes.update((str(n), i) for (n, _), i in zip(equation.axes, found, strict=True))
    return point


def _index(shape: Shape, access: Access, point: Point) -> Index:
    """Returns the index of the element that a point of the iteration domain accesses in a value
    with this shape, by the equations `access`.
    """
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
    """Raises RuleError if a point does not determine an operand's dim."""
    if equation.dims and equation.dims[-1][1] != 1:
        raise RuleError("no index map describes what it reads: not every index is read")
    if point.knows(equation):
        return
    missing = [str(name) for name, _ in equation.axes if name not in point.axes]
    if all(name.isidentifier() for name in missing):
        raise RuleError(f"it needs an index for {', '.join(missing)}")
    raise RuleError("no index map describes what it reads")


def _total(terms: Terms, values: Any) -> Dim:
    """Returns the sum of coefficient times value over `terms`; `values` maps each variable to its
    value.
    """
    if len(terms) == 1 and terms[0][1] == 1:
        return values[terms[0][0]]
    total: Dim = 0
    for variable, coefficient in terms:
        total = add(total, mul(values[variable], coefficient))
    return total


def _digits(total: Dim, terms: Terms, sizes: Any) -> list[Dim]:
    """Splits a row-major number into an index for each variable of `terms`, major one first: the
    inverse of `row_major`.
    """
    if len(terms) == 1:
        return [total]
    out: list[Dim] = []
    for depth, (variable, place) in enumerate(terms):
        part = floordiv(total, place) if place != 0 else 0
        size = sizes[variable]
        out.append(part if depth == 0 or size == 0 else mod(part, size))
    return out


# ---- from an axis rule


@dataclass(frozen=True)
class Window:
    """The read of a dim marked `^` or `~`: `spread * dim = sum(c * axis) + offset`.

    Attributes:
        terms: axes of the domain with their coefficients.
        spread: the step in that sum between neighbours of the dim.
        free: axes that no operand has, with their sizes.
    """

    terms: tuple[tuple[str, Dim], ...]
    offset: Dim = 0
    spread: Dim = 1
    free: tuple[tuple[str, Dim], ...] = ()


Windows = Mapping[tuple[int, int], Window]  # by operand and dim


def axis_sizes(rule: Rule, operands: Sequence[Shape], results: Sequence[Shape]) -> dict[str, Dim]:
    """Sizes of the axes of a rule; a windowed axis takes the size of the result's dim."""
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
    """The relation that an axis rule defines.

    A name is one axis in all operands and results. `k!` is an axis of its own in every operand and
    result: each of its elements depends on all others. Dims of operands marked `^` or `~` are read
    through their window; raises RuleError for a missing window.
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
    """Returns each variable with its stride: the coefficients that combine variables of these sizes
    into one row-major number.
    """
    return tuple((v, product(tuple(sizes[i + 1 :]))) for i, v in enumerate(variables))
