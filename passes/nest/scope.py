"""The scope of a nest: loop variables, integers of index expressions, loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stack.ir.builder import Builder, constant
from stack.ir.dim import Atom, Dim, Expr, Quotient, Symbol, add, bounds, mul, symbol
from stack.ir.node import Block, Node
from stack.ir.traits import converts
from stack.ir.types import DType, TensorType, Type
from stack.passes.tiling.names import Names

KEPT = "ijklmnopq"  # what axes of results are called


class Scope:
    """What the values of one kernel are made with.

    Args:
        integer: the type of loop variables and indices.
        taken: names of the kernel's memory.

    Attributes:
        b: makes the nodes.
        variables: the scalar that each symbol of an index stands for.
    """

    def __init__(self, integer: DType, taken: Iterable[str]) -> None:
        self.b = Builder()
        self.integer = integer
        self.variables: dict[str, Node] = {}
        self.fresh = Names(taken)
        self._data: dict[tuple[Node, int], Expr] = {}

    # ---- loop variables

    def axis(self, hint: str, extent: int) -> Dim:
        """The place along a new axis, whose loop has the variable of this name; 0 for one place."""
        if extent == 1:
            return 0
        name = self.fresh.own(hint)
        attrs = {"name": name, "extent": extent}
        self.variables[name] = Node("var", (), attrs, TensorType(self.integer, ()))
        return symbol(name, 0, extent - 1)

    def variable(self, place: Dim) -> Node | None:
        """The loop variable of an axis; None for the place of an axis of one element."""
        return None if isinstance(place, int) else self.variables[str(place)]

    def carried(self, hint: str, type_: Type) -> Node:
        """A variable for what a loop carries."""
        return Node("var", (), {"name": self.fresh.own(hint)}, type_)

    def loop(
        self, place: Dim, start: Sequence[Node], held: Sequence[Node], step: Sequence[Node]
    ) -> list[Node]:
        """What a serial loop along an axis leaves.

        Args:
            place: along the axis; without a loop where that is one place.
            start: what it carries at first.
            held: the variables that stand for it inside.
            step: the values after a turn.
        """
        var = self.variable(place)
        if var is None:
            raise ValueError("an axis of one element has no loop")
        node = self.b.op("loop", start, {"kind": "serial"}, (Block((var, *held), step),))
        return [node] if len(start) == 1 else [self.b.item(node, index=i) for i in range(len(held))]

    # ---- index arithmetic

    def int(self, value: int) -> Node:
        return constant(value, self.integer)

    def number(self, dim: Dim) -> Node:
        """The scalar of an index expression."""
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
        # `div` and `rem` truncate, so what may be negative is raised first
        low, _ = bounds(atom.num)
        raised = -(low // atom.den) if low < 0 and isinstance(atom.den, int) else 0
        num, den = self.number(add(atom.num, mul(raised, atom.den))), self.number(atom.den)
        if atom.kind == "%":
            return self.b.rem(num, den)
        quotient = self.b.div(num, den)
        return self.b.sub(quotient, self.int(raised)) if raised else quotient

    def data_place(self, value: Node, size: int) -> Expr:
        """A place that data gives, along an axis of a size."""
        key = self.cast(value, self.integer), size
        if key not in self._data:
            name = self.fresh.own("at")
            self.variables[name] = key[0]
            self._data[key] = symbol(name, 0, max(size - 1, 0))
        return self._data[key]

    def inside(self, place: Dim, low: Dim, high: Dim) -> Node | None:
        """`low <= place < high`; None where that always holds."""
        least, most = bounds(place)
        test: Node | None = None
        if least < bounds(low)[0]:
            test = self.b.ge(self.number(place), self.number(low))
        if most >= bounds(high)[0]:
            test = self.both(test, self.b.lt(self.number(place), self.number(high)))
        return test

    def both(self, first: Node | None, second: Node | None) -> Node | None:
        if first is None or second is None:
            return second if first is None else first
        return self.b.and_(first, second)

    def cast(self, value: Node, dtype: DType) -> Node:
        if value.dtype == dtype:
            return value
        if converts(value) and dtype.is_float and dtype.bits <= 16 and value.args[0].dtype == dtype:
            return value.args[0]  # what was widened, and is exact
        return self.b.cast(value, type=value.tensor.with_dtype(dtype))


def letter(axis: int) -> str:
    """What the loop along an axis of a result is called."""
    return KEPT[axis] if axis < len(KEPT) else f"i{axis}"
