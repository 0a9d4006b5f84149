"""The frame of a tile kernel: loop symbols and their values, loops, index arithmetic.

Indices are expressions over loop symbols. A symbol stands for a loop variable, for the tile axis
(its value is then a tile, and so is all that is made of it), or for an index that data gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.algebra import COMBINE as COMBINE
from stack.ir.axes import Index
from stack.ir.builder import Builder, constant
from stack.ir.dim import Atom, Dim, Expr, Quotient, Symbol, add, bounds, mul, symbol, symbols
from stack.ir.node import Block, Node
from stack.ir.types import F32, I64, DType, TensorType, TupleType


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(0, (size - 1).bit_length())


class CannotTile(Exception):
    """A group that this pass has no schedule for; says why."""


def wide(dtype: DType) -> DType:
    """The type that a kernel computes in."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def static(dim: Dim) -> int:
    """A size as a number."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim


class Frame:
    """Loops and indices of one kernel that is being built."""

    def __init__(self) -> None:
        self.b = Builder()
        self.nodes: dict[str, Node] = {}  # loop symbol -> its value
        self.tile_symbols: set[str] = set()  # symbols whose value is a tile
        self.tile = 0  # extent of the tile axis; 0 when everything is scalar
        self.tile_dim: Expr = symbol("t", 0, 0)
        self.fresh = 0

    def memory(self, name: str, type_: TensorType) -> Node:
        return Node("param", (), {"name": name}, TensorType(type_.dtype, type_.shape, "global"))

    def variable(self, hint: str, extent: int) -> Expr:
        self.fresh += 1
        name = hint if hint not in self.nodes else f"{hint}{self.fresh}"
        var = Node("var", (), {"name": name, "extent": extent}, TensorType(I64, ()))
        self.nodes[name] = var
        return symbol(name, 0, extent - 1)

    def serial(self, extent: int) -> Expr:
        return self.variable("r", extent)

    def loop(self, kind: str, init: Sequence[Node], block: Block) -> list[Node]:
        node = self.b.op("loop", init, {"kind": kind}, (block,))
        if not isinstance(node.type, TupleType):
            return [node]
        return [self.b.item(node, index=i) for i in range(len(init))]

    def in_grid(
        self,
        grid: list[tuple[str, int]],
        outputs: Sequence[Node],
        program: Callable[[Sequence[Node]], list[Node]],
        kind: str = "grid",
        tag: str = "",
    ) -> list[Node]:
        """Loops that carry the outputs inwards, around what one position does."""
        carried = [
            [Node("var", (), {"name": f"{_base(o)}_{tag}{d}"}, o.type) for o in outputs]
            for d in range(len(grid))
        ]
        final = program(carried[-1] if grid else outputs)
        for d in reversed(range(len(grid))):
            block = Block((self.nodes[grid[d][0]], *carried[d]), final)
            final = self.loop(kind, carried[d - 1] if d else outputs, block)
        return final

    def is_tile(self, dim: Dim) -> bool:
        return any(s.name in self.tile_symbols for s in symbols(dim))

    def block_index(self, index: Index) -> list[Node] | None:
        """Scalar indices of a contiguous block along the last axis, or None."""
        if not index or any(self.is_tile(d) for d in index[:-1]):
            return None
        base = add(index[-1], mul(self.tile_dim, -1))
        if self.is_tile(base):
            return None
        return [self.number(d) for d in (*index[:-1], base)]

    def number(self, dim: Dim) -> Node:
        """The value of an index expression: an i64 scalar, or a tile when it moves along it."""
        if isinstance(dim, int):
            return constant(dim, I64)
        total: Node | None = None
        for monomial, coefficient in dim.terms:
            term: Node | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self.b.mul(term, factor)
            if term is None:
                term = constant(coefficient, I64)
            elif coefficient != 1:
                term = self.b.mul(term, coefficient)
            total = term if total is None else self.b.add(total, term)
        return total if total is not None else constant(0, I64)

    def _atom(self, atom: Atom) -> Node:
        if isinstance(atom, Symbol):
            return self.nodes[atom.name]
        if isinstance(atom, Quotient):
            return self._quotient(atom)
        make = self.b.max if atom.kind == "max" else self.b.min
        return make(self.number(atom.a), self.number(atom.b))

    def _quotient(self, atom: Quotient) -> Node:
        """Floor and mod. `div` and `rem` truncate, so what may be negative is raised first."""
        low, _ = bounds(atom.num)
        raised = -(low // atom.den) if low < 0 and isinstance(atom.den, int) else 0
        num, den = self.number(add(atom.num, mul(raised, atom.den))), self.number(atom.den)
        if atom.kind == "%":
            return self.b.rem(num, den)
        return self.b.add(self.b.div(num, den), -raised) if raised else self.b.div(num, den)

    def splat(self, value: Node) -> Node:
        return self.b.broadcast(value, axes=(), type=TensorType(value.dtype, (self.tile,), "tile"))

    def as_tile(self, value: Node) -> Node:
        return value if value.tensor.rank else self.splat(value)

    def data_symbol(self, value: Node, size: int) -> Expr:
        """A symbol for an index that comes from data."""
        self.fresh += 1
        name = f"at{self.fresh}"
        self.nodes[name] = value
        if value.tensor.rank:
            self.tile_symbols.add(name)
        return symbol(name, 0, size - 1)

    def both(self, guard: Node | None, extra: Node | None) -> Node | None:
        if guard is None or extra is None:
            return guard if extra is None else extra
        return self.b.and_(guard, extra)

    def range_test(self, dim: Dim, low: Dim, high: Dim) -> Node | None:
        """`low <= dim < high`, or None where that holds for certain."""
        least, most = bounds(dim)
        tests: list[Node] = []
        if least < bounds(low)[0]:
            tests.append(self.b.ge(self.number(dim), self.number(low)))
        if most >= bounds(high)[0]:
            tests.append(self.b.lt(self.number(dim), self.number(high)))
        if not tests:
            return None
        return tests[0] if len(tests) == 1 else self.b.and_(tests[0], tests[1])


def _base(memory: Node) -> str:
    """A name for what carries a memory: the output's own."""
    while "name" not in memory.attrs:
        memory = memory.args[memory.attrs["index"] if memory.op == "item" else 0]
    return str(memory.attrs["name"]).split("_")[0]
