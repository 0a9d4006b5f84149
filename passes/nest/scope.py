"""The scope of a loop nest: builds its loops, loop variables and index arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.ir.builder import Builder, constant
from stack.ir.dim import Atom, Dim, Expr, Quotient, Symbol, add, bounds, mul, symbol, symbols
from stack.ir.node import Block, Node
from stack.ir.traits import converts
from stack.ir.types import DType, TensorType, Type
from stack.passes.tiling.frame import Names

KEPT = "ijklmnopq"  # names of the axes of results


class Scope:
    """Builds the nodes of one kernel, and keeps track of its loop variables and of the names in
    use.

    Args:
        integer: the type of loop variables and indices.
        taken: names that are in use: those of the kernel's parameters.

    Attributes:
        b: the builder of nodes.
        integer: the type of loop variables and indices.
        variables: the scalar node of each symbol of an index.
        fresh: generates names.
    """

    def __init__(self, integer: DType, taken: Iterable[str]) -> None:
        self.b = Builder()
        self.integer = integer
        self.variables: dict[str, Node] = {}
        self.fresh = Names(taken)
        self._data: dict[tuple[Node, int], Expr] = {}

    # ---- loop variables

    def axis(self, hint: str, extent: int, has_loop: bool = False) -> Dim:
        """Creates an axis and its loop variable. Returns its symbol.

        An axis of extent 1 has no loop, unless it `has_loop`: its index is 0.
        """
        if extent == 1 and not has_loop:
            return 0
        name = self.fresh.own(hint)
        attrs = {"name": name, "extent": extent}
        self.variables[name] = Node("var", (), attrs, TensorType(self.integer, ()))
        return symbol(name, 0, extent - 1)

    def variable(self, place: Dim) -> Node | None:
        """Returns the loop variable node of an axis; None for an axis of extent 1."""
        return None if isinstance(place, int) else self.variables[str(place)]

    def vars_of(self, index: Iterable[Dim], guard: Node | None) -> frozenset[Node]:
        """Returns the loop variables on which an index and the condition of its use depend."""
        found = frozenset(v for name in names_in(index) for v in self.variables[name].vars)
        return found if guard is None else found | guard.vars

    def carried(self, hint: str, type_: Type) -> Node:
        """Creates a variable for a loop-carried value."""
        return Node("var", (), {"name": self.fresh.own(hint)}, type_)

    def loop(
        self,
        place: Dim,
        start: Sequence[Node],
        held: Sequence[Node],
        step: Sequence[Node],
        is_online: bool = False,
    ) -> list[Node]:
        """Builds a serial loop over an axis. Returns its results.

        Args:
            place: the symbol of the axis.
            start: the initial values that the loop carries.
            held: the variables of these values in the body.
            step: the values at the end of an iteration.
            is_online: whether iterations rescale the carried values.
        """
        var = self.variable(place)
        assert var is not None, "an axis of one element has no loop"
        attrs = {"kind": "serial", **({"online": True} if is_online else {})}
        node = self.b.op("loop", start, attrs, (Block((var, *held), step),))
        return [node] if len(start) == 1 else [self.b.item(node, index=i) for i in range(len(held))]

    # ---- index arithmetic

    def int(self, value: int) -> Node:
        """A constant index."""
        return constant(value, self.integer)

    def number(self, dim: Dim) -> Node:
        """Builds the scalar node that computes an index expression from loop variables."""
        if isinstance(dim, int):
            return self.int(dim)
        total: Node | None = None
        for monomial, coefficient in dim.terms:
            term: Node | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self.b.mul(term, factor)
            if term is None:
                term = self.int(coefficient)
            elif coefficient != 1:
                term = self.b.mul(term, self.int(coefficient))
            total = term if total is None else self.b.add(total, term)
        assert total is not None
        return total

    def _atom(self, atom: Atom) -> Node:
        if isinstance(atom, Symbol):
            return self.variables[atom.name]
        if not isinstance(atom, Quotient):
            return self.b.op(atom.kind, [self.number(atom.a), self.number(atom.b)])
        # `div` and `rem` truncate: add a multiple of the divisor if the numerator may be negative
        low, _ = bounds(atom.num)
        raised = -(low // atom.den) if low < 0 and isinstance(atom.den, int) else 0
        num, den = self.number(add(atom.num, mul(raised, atom.den))), self.number(atom.den)
        if atom.kind == "%":
            return self.b.rem(num, den)
        quotient = self.b.div(num, den)
        return self.b.sub(quotient, self.int(raised)) if raised else quotient

    def data_place(self, value: Node, size: int) -> Expr:
        """Returns a symbol for the integer `value`, which is data, as an index along an axis of
        `size` elements. Equal values share one symbol."""
        key = self.cast(value, self.integer), size
        if key not in self._data:
            name = self.fresh.own("at")
            self.variables[name] = key[0]
            self._data[key] = symbol(name, 0, max(size - 1, 0))
        return self._data[key]

    def inside(self, place: Dim, low: Dim, high: Dim) -> Node | None:
        """Builds the condition `low <= place < high`; None if it is always true."""
        least, most = bounds(place)
        test: Node | None = None
        if least < bounds(low)[0]:
            test = self.b.ge(self.number(place), self.number(low))
        if most >= bounds(high)[0]:
            test = self.both(test, self.b.lt(self.number(place), self.number(high)))
        return test

    def both(self, first: Node | None, second: Node | None) -> Node | None:
        """Builds the conjunction of two conditions; None is always true."""
        if first is None or second is None or first is second:
            return second if first is None else first
        return self.b.and_(first, second)

    def cast(self, value: Node, dtype: DType) -> Node:
        """Converts a value to a type."""
        if value.dtype == dtype:
            return value
        if converts(value) and dtype.is_float and dtype.bits <= 16 and value.args[0].dtype == dtype:
            return value.args[0]  # the value was widened, which is exact
        return self.b.cast(value, type=value.tensor.with_dtype(dtype))


def looped(axes: Iterable[Dim]) -> list[Dim]:
    """Returns the axes that have a loop: symbols, not the number of an axis of extent 1."""
    return [d for d in axes if isinstance(d, Expr)]


def letter(axis: int) -> str:
    """Returns the name of the loop over axis number `axis` of a result: i, j, k and so on."""
    return KEPT[axis] if axis < len(KEPT) else f"i{axis}"


def names_in(index: Iterable[Dim]) -> set[str]:
    """Returns the names of the axes that occur in the expressions of an index."""
    return {s.name for d in index for s in symbols(d)}
