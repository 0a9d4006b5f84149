"""The frame of a kernel of tiles: named axes, tiles over them, indices, loops.

A kernel holds tiles of any rank. Each tile dim belongs to a named axis of the kernel, so that two
tiles meet by axis, not by position: `NamedTile` is a value with the names of its dims. An axis is
held in blocks, as its `BlockPolicy` says; the symbol of its name in an index expression is the
element's place on the whole axis.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from stack.ir.axes import Index
from stack.ir.builder import Builder, constant
from stack.ir.dim import (
    Atom,
    Dim,
    Expr,
    Extremum,
    Quotient,
    Symbol,
    add,
    bounds,
    mul,
    symbol,
)
from stack.ir.integers import INT32
from stack.ir.node import Block, Node
from stack.ir.traits import converts, number
from stack.ir.types import I32, I64, DType, TensorType, Type
from stack.passes.blocking.axis import Axis, NamedTile
from stack.passes.steps.tiles import loaded_bytes
from stack.passes.tiling.loops import items
from stack.passes.tiling.names import Names


class BlockFrame:
    """Axes, index arithmetic and loops of one kernel that is being built."""

    def __init__(self, integer: DType = I32) -> None:
        self.b = Builder()
        self.integer = integer
        self.axes: dict[str, Axis] = {}
        self.data: dict[str, NamedTile] = {}  # symbols whose value data gives
        self._symbols: dict[tuple[NamedTile, int], Expr] = {}  # the same, by value and size
        self.waiting = 0  # values of the loop under way that wait for another one
        self.fresh = 0
        self.names = Names()

    # ---- axes

    def unique(self, hint: str) -> str:
        self.fresh += 1
        taken = hint in self.axes or hint in self.data
        return f"{hint}{self.fresh}" if taken else hint

    def axis(
        self,
        hint: str,
        extent: int,
        block: int,
        start: Node | int = 0,
        is_aligned: bool = True,
        overlaps: bool = False,
    ) -> Axis:
        """A new axis. `start` is where its tile begins: at a multiple of the block, or anywhere."""
        first = constant(start, self.integer) if isinstance(start, int) else start
        made = Axis(self.unique(hint), extent, block, first, is_aligned, overlaps)
        self.axes[made.name] = made
        return made

    def program_axis(
        self,
        hint: str,
        extent: int,
        block: int,
        grid: list[tuple[Node, int]],
        backwards: bool = False,
    ) -> Axis:
        """An axis that programs share out, a block each.

        `backwards` gives the first program the last block: late rows of a triangle take longest.
        """
        count = -(-extent // block)
        if count == 1:
            return self.axis(hint, extent, block)
        var = self.variable(f"p_{hint}", count)
        grid.append((var, count))
        number = self.b.sub(constant(count - 1, self.integer), var) if backwards else var
        start = number if block == 1 else self.b.mul(number, block)
        return self.axis(hint, extent, block, start)

    def loop_axis(self, hint: str, extent: int) -> Axis:
        """An axis that a loop goes along, one element at a time: `start` is its index."""
        return self.axis(hint, extent, 1, self.variable(hint, extent))

    def variable(self, hint: str, extent: int) -> Node:
        """The index of a loop."""
        self.fresh += 1
        attrs = {"name": self.names.own(f"{hint}{self.fresh}"), "extent": extent}
        return Node("var", (), attrs, TensorType(self.integer, ()))

    def carried(self, hint: str, type_: Type) -> Node:
        """What a loop carries."""
        return Node("var", (), {"name": self.names.own(hint)}, type_)

    def tile_axes(self, dim: Dim) -> list[str]:
        """Names of the tile axes that an index moves along."""
        found: dict[str, None] = {}
        pending = [dim]
        while pending:
            current = pending.pop()
            terms = current.terms if isinstance(current, Expr) else ()
            for atom in (a for monomial, _ in terms for a in monomial):
                if isinstance(atom, Quotient):
                    # the number of a block is that of all its places
                    pending += [] if self._block_of(atom) else [atom.num, atom.den]
                elif isinstance(atom, Extremum):
                    pending += [atom.a, atom.b]
                elif atom.name not in self.axes:
                    found.update(dict.fromkeys(self.data[atom.name].axes))
                elif self.axes[atom.name].is_tile:
                    found[atom.name] = None
        return self.sorted(found)

    def moves_along(self, index: Index) -> set[str]:
        """Names of the tile axes that any place of an index moves along."""
        return {name for d in index for name in self.tile_axes(d)}

    def _block_of(self, atom: Quotient) -> Axis | None:
        """The axis whose tiles lie each in one block of places that the quotient counts."""
        if atom.kind == "//" and isinstance(atom.den, int):
            for axis in self.axes.values():
                if axis.place == atom.num and axis.is_aligned and atom.den % axis.block == 0:
                    return axis
        return None

    def sorted(self, names: Sequence[str] | dict[str, None]) -> list[str]:
        order = {name: i for i, name in enumerate(self.axes)}
        return sorted(names, key=order.__getitem__)

    def mask(self, name: str) -> NamedTile | None:
        """Which elements of an axis exist; None where all do."""
        axis = self.axes[name]
        if axis.is_covered:
            return None
        return self.apply("lt", [self.number(axis.place), self.int(axis.extent)])

    # ---- values

    def int(self, value: int) -> NamedTile:
        return NamedTile(constant(value, self.integer))

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.axes[name].block for name in axes)

    def spread(self, value: NamedTile, axes: Sequence[str]) -> Node:
        """A value as a tile over exactly these axes; a scalar stays one where there are none."""
        node = value.node
        own = [name for name in axes if name in value.axes]
        if len(own) != len(value.axes):
            raise ValueError(f"a tile over {value.axes} does not fit axes {tuple(axes)}")
        if own != list(value.axes):
            node = self.b.transpose(node, perm=tuple(value.axes.index(name) for name in own))
        if len(own) == len(axes):
            return node
        at = tuple(i for i, name in enumerate(axes) if name in value.axes)
        type_ = TensorType(node.dtype, self.shape(axes), "tile")
        return self.b.broadcast(node, axes=at, type=type_)

    def union(self, values: Sequence[NamedTile]) -> tuple[str, ...]:
        return tuple(self.sorted({name: None for v in values for name in v.axes}))

    def apply(
        self, op: str, args: Sequence[NamedTile], attrs: dict[str, object] | None = None
    ) -> NamedTile:
        """An elementwise op; scalars stay scalars, tiles spread over each other's axes."""
        axes = self.union(args)
        nodes = [self.spread(a, axes) if a.axes else a.node for a in args]
        return NamedTile(self.b.op(op, nodes, attrs), axes)

    def cast(self, value: NamedTile, dtype: DType) -> NamedTile:
        if value.dtype == dtype:
            return value
        node = value.node
        if converts(node) and dtype.is_float and dtype.bits <= 16:
            if node.args[0].dtype == dtype:
                return NamedTile(node.args[0], value.axes)  # what was widened, and is exact
        return NamedTile(self.b.cast(node, type=node.tensor.with_dtype(dtype)), value.axes)

    def both(self, first: NamedTile | None, second: NamedTile | None) -> NamedTile | None:
        if first is None or second is None:
            return second if first is None else first
        return self.apply("and", [first, second])

    def number(self, dim: Dim) -> NamedTile:
        """The value of an index expression."""
        if isinstance(dim, int):
            return self.int(dim)
        terms: list[NamedTile] = []
        for monomial, coefficient in dim.terms:
            term: NamedTile | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self.apply("mul", [term, factor])
            if term is None:
                term = self.int(coefficient)
            elif coefficient != 1:
                term = self.apply("mul", [term, self.int(coefficient)])
            terms.append(term)
        terms.sort(key=lambda t: len(t.axes))  # scalars first: they cost one addition
        total = terms[0]
        for term in terms[1:]:
            total = self.apply("add", [total, term])
        return total

    def _atom(self, atom: Atom) -> NamedTile:
        if isinstance(atom, Symbol):
            return self._symbol(atom.name)
        if isinstance(atom, Quotient):
            return self._quotient(atom)
        return self.apply(atom.kind, [self.number(atom.a), self.number(atom.b)])

    def _symbol(self, name: str) -> NamedTile:
        if name in self.data:
            return self.data[name]
        axis = self.axes[name]
        if not axis.is_tile:
            return NamedTile(axis.start)
        places = self.steps_of(name).node
        if number(axis.start) != 0:
            places = self.b.add(axis.start, places)
            self.b.names.setdefault(places, f"at_{name}")
        return NamedTile(places, (name,))

    def steps_of(self, name: str) -> NamedTile:
        """The places of a tile axis, counted from its start."""
        type_ = TensorType(self.integer, (self.axes[name].block,), "tile")
        steps = self.b.iota(axis=0, type=type_)
        self.b.names.setdefault(steps, f"in_{name}")
        return NamedTile(steps, (name,))

    def _quotient(self, atom: Quotient) -> NamedTile:
        """Floor and mod. `div` and `rem` truncate, so what may be negative is raised first."""
        if axis := self._block_of(atom):
            return self.apply("div", [NamedTile(axis.start), self.number(atom.den)])
        low, _ = bounds(atom.num)
        raised = -(low // atom.den) if low < 0 and isinstance(atom.den, int) else 0
        num, den = self.number(add(atom.num, mul(raised, atom.den))), self.number(atom.den)
        if atom.kind == "%":
            return self.apply("rem", [num, den])
        quotient = self.apply("div", [num, den])
        return self.apply("add", [quotient, self.int(-raised)]) if raised else quotient

    def data_symbol(self, value: NamedTile, size: int) -> Expr:
        """A symbol for an index that comes from data."""
        key = self.cast(value, self.integer), size
        if key not in self._symbols:
            self.fresh += 1
            name = f"data{self.fresh}"
            self.data[name] = key[0]
            self._symbols[key] = symbol(name, 0, max(size - 1, 0))
        return self._symbols[key]

    def range_test(self, dim: Dim, low: Dim, high: Dim) -> NamedTile | None:
        """`low <= dim < high`, or None where that holds for certain."""
        least, most = bounds(dim)
        test: NamedTile | None = None
        if least < bounds(low)[0]:
            test = self.apply("ge", [self.number(dim), self.number(low)])
        if most >= bounds(high)[0]:
            below = self.apply("lt", [self.number(dim), self.number(high)])
            test = self.both(test, below)
        return test

    # ---- loops

    def steps(
        self,
        count: int,
        start: Sequence[NamedTile],
        body: Callable[[Node, list[NamedTile]], list[NamedTile]],
        hint: str = "step",
        limits: tuple[Node, Node] | None = None,
        names: Sequence[str] = (),
        ahead: int = 0,
        var: Node | None = None,
        kind: str = "serial",
        room: int | None = None,
        staged: bool = False,
    ) -> list[NamedTile]:
        """A loop that carries values; `limits` are its first step and its end.

        `ahead` is how many steps are loaded at a time, 0 where that is left to the compiler, or
        where they take more than `room` bytes. `staged`: what it reads goes through shared memory.
        """
        self.fresh += var is not None
        var = var or self.variable(hint, count)
        hints = names or [f"acc_{i}_" for i in range(len(start))]
        carried = [
            self.carried(f"{n}{self.fresh}", s.node.type) for n, s in zip(hints, start, strict=True)
        ]
        held = [NamedTile(c, s.axes) for c, s in zip(carried, start, strict=True)]
        with self.loop_body():
            results = body(var, held)
        block = Block((var, *carried), [r.node for r in results])
        if room is not None and ahead * loaded_bytes(block) > room:
            ahead = 0
        made = self.loop(kind, [s.node for s in start], block, limits, ahead, staged)
        return [NamedTile(node, s.axes) for node, s in zip(made, start, strict=True)]

    @contextmanager
    def loop_body(self) -> Generator[None]:
        """The body of a loop: no value in it is left for one outside to be computed first."""
        waiting, self.waiting = self.waiting, 0
        try:
            yield
        finally:
            self.waiting = waiting

    def loop(
        self,
        kind: str,
        init: Sequence[Node],
        block: Block,
        limits: tuple[Node, Node] | None = None,
        ahead: int = 0,
        staged: bool = False,
    ) -> list[Node]:
        hints = {"ahead": ahead, "staged": staged}
        attrs = {"kind": kind, **{name: hint for name, hint in hints.items() if hint}}
        args = list(init)
        if limits is not None:
            attrs["limited"] = True
            args = [*limits, *args]
        return items(self.b, self.b.op("loop", args, attrs, (block,)))

    def in_grid(
        self,
        grid: list[tuple[Node, int]],
        outputs: Sequence[Node],
        program: Callable[[Sequence[Node]], list[Node]],
        kind: str = "grid",
    ) -> list[Node]:
        """Loops that carry the outputs inwards, around what one program does."""
        carried = [
            [
                self.carried(f"{o.attrs.get('name', f'o{i}')}_{d}", o.type)
                for i, o in enumerate(outputs)
            ]
            for d in range(len(grid))
        ]
        final = program(carried[-1] if grid else outputs)
        for d in reversed(range(len(grid))):
            block = Block((grid[d][0], *carried[d]), final)
            final = self.loop(kind, carried[d - 1] if d else outputs, block)
        return final


def index_type(sizes: Sequence[int]) -> DType:
    """The integers of a kernel: 32 bits unless an array has 2^31 elements or more."""
    return I64 if any(size > INT32[1] for size in sizes) else I32


__all__ = ["Axis", "BlockFrame", "Index", "NamedTile", "index_type"]
