"""Scalars: the value of a group's node at an index of loop variables.

Each op says by its relation where it reads its operands (`ops.pull`), so a value is found by
walking from a result back to memory. A reduction becomes a loop that carries what is summed so
far. 16-bit floats are widened where they are loaded and narrowed where they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import Builder, constant
from stack.ir.contraction import contraction
from stack.ir.dim import (
    Atom,
    Dim,
    Expr,
    Quotient,
    Symbol,
    add,
    bounds,
    floordiv,
    mul,
    symbol,
    symbols,
)
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import converts, is_contraction, is_number, reads_by_data, reinterprets
from stack.ir.types import I64, DType, TensorType, Type
from stack.passes.positions.affine import affine
from stack.passes.tiling.frame import COMBINE, CannotTile, static, wide
from stack.passes.tiling.names import Names

KEPT = "ijklmnopq"  # what axes of results are called
Wanted = tuple[Node, Index, Node | None]  # a node, the place in it, and the guard of that place
Steps = Generator[Wanted, Node, Node]  # asks for values, gives one
Rule = Callable[[Node, Index, Node | None], Steps]


class Scalars:
    """Values of the nodes of a group as scalars of a kernel.

    Args:
        memory: the kernel's memory for each parameter and table of the group.
        integer: the type of loop variables and indices.
        locs: source lines of the group's nodes.
        names: what the program calls them.

    Attributes:
        variables: the scalar that each symbol of an index stands for.
    """

    def __init__(
        self,
        memory: Mapping[Node, Node],
        integer: DType,
        names: Mapping[Node, str],
        locs: Mapping[Node, tuple[str, ...]],
    ) -> None:
        self.b = Builder()
        self.memory = memory
        self.integer = integer
        self.variables: dict[str, Node] = {}
        self.fresh = Names(str(m.attrs["name"]) for m in memory.values())
        self._program = names, locs
        self._known: dict[Wanted, Node] = {}
        self._data: dict[tuple[Node, int], Expr] = {}
        self._shared: dict[tuple[Node, int], Expr] = {}
        self._rules: dict[str, Rule] = {
            "const": self._const,
            "iota": self._iota,
            "pad": self._pad,
            "concat": self._concat,
            "gather": self._gather,
            "reduce": self._reduce,
        }

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

    def share(self, reduction: Node, axis: int, place: Dim) -> None:
        """Let a reduction run along an axis that other loops run along too."""
        if isinstance(place, Expr):
            self._shared[reduction, axis] = place

    def carried(self, hint: str, type_: Type) -> Node:
        """A variable for what a loop carries."""
        return Node("var", (), {"name": self.fresh.own(hint)}, type_)

    def loop(
        self, place: Dim, start: Sequence[Node], held: Sequence[Node], step: Any
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

    # ---- values

    def value(self, node: Node, index: Index, guard: Node | None = None) -> Node:
        """The value of a node at a place, in the type that kernels compute in.

        Args:
            guard: whether the place is needed; memory is not read where it is not.
        """
        first = (node, index, guard)
        pending = [(first, self._steps(*first))] if first not in self._known else []
        found: Node | None = None
        while pending:  # a stack of its own: chains are as long as programs make them
            wanted = self._advance(pending, found)
            found = self._known.get(wanted)
            if found is None:
                pending.append((wanted, self._steps(*wanted)))
        return self._known[first]

    def _advance(self, pending: list[tuple[Wanted, Steps]], found: Node | None) -> Wanted:
        """Go on with the value on top; what it asks for next, or itself where it is done."""
        wanted, steps = pending[-1]
        names, locs = self._program
        lines = next((locs[w[0]] for w, _ in reversed(pending) if w[0] in locs), ())
        before, self.b.loc = self.b.loc, lines
        try:
            return next(steps) if found is None else steps.send(found)
        except StopIteration as done:
            made: Node = done.value
            self._known[wanted] = made
            if wanted[0] in names and made.op not in ("var", "const"):
                self.b.names.setdefault(made, names[wanted[0]])
            pending.pop()
            return wanted
        finally:
            self.b.loc = before

    def _steps(self, node: Node, index: Index, guard: Node | None) -> Steps:
        if node in self.memory:
            return self._load(node, index, guard)
        op = ops.lookup(node.op)
        if is_contraction(node):
            return self._dot(node, index, guard)
        if node.op in self._rules:
            return self._rules[node.op](node, index, guard)
        if op.kind == "elementwise":
            return self._elementwise(node, index, guard)
        if op.kind == "movement" and len(node.args) == 1:
            return self._moved(node, index, guard)
        raise CannotTile(f"no loop nest computes {node.op}")

    def _load(self, node: Node, index: Index, guard: Node | None) -> Steps:
        yield from ()
        return self.element(self.memory[node], index, guard)

    def element(self, memory: Node, index: Index, guard: Node | None = None) -> Node:
        """What memory holds at a place; 0 where the guard does not hold."""
        extra = [] if guard is None else [guard, constant(0, memory.dtype)]
        place = [self.number(d) for d in index]
        made = self.b.load(memory, *place, *extra, type=TensorType(memory.dtype, ()))
        return self.cast(made, wide(made.dtype))

    def _elementwise(self, node: Node, index: Index, guard: Node | None) -> Steps:
        args: list[Node] = []
        for arg in node.args:
            args.append((yield arg, index if arg.tensor.rank else (), guard))
        if reinterprets(node):
            source = self.cast(args[0], node.args[0].dtype)
            made = self.b.bitcast(source, type=source.tensor.with_dtype(node.dtype))
            return self.cast(made, wide(made.dtype))
        if converts(node):
            return self._cast(args[0], node)
        return self.b.op(node.op, args, dict(node.attrs))

    def _cast(self, value: Node, node: Node) -> Node:
        source, target = node.args[0].dtype, node.dtype
        if wide(source) != source and target != source and not _is_rounded(value, source):
            # what is widened is the value that memory holds: others may read it there
            value = self.cast(self.cast(value, source), wide(source))
        return self.cast(self.cast(value, target), wide(target))

    def _moved(self, node: Node, index: Index, guard: Node | None) -> Steps:
        (source,) = ops.pull(node, index)
        return (yield node.args[0], source, guard)

    def _const(self, node: Node, index: Index, guard: Node | None) -> Steps:
        yield from ()
        if node.tensor.rank:
            raise CannotTile("it holds a table that is no input")
        return constant(node.attrs["value"].array, wide(node.dtype))

    def _iota(self, node: Node, index: Index, guard: Node | None) -> Steps:
        yield from ()
        return self.cast(self.number(index[int(node.attrs["axis"])]), wide(node.dtype))

    def _pad(self, node: Node, index: Index, guard: Node | None) -> Steps:
        source, fill = node.args
        test: Node | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self.both(test, self.inside(moved, 0, (static(size) - 1) * (gap + 1) + 1))
            if gap:
                phase = self.b.rem(self.number(moved), self.int(gap + 1))
                test = self.both(test, self.b.eq(phase, self.int(0)))
                moved = floordiv(moved, gap + 1)
            inner.append(moved)
        value = yield source, tuple(inner), self.both(guard, test)
        if test is None or (self._is_read(source) and _is_zero(fill)):
            return value  # of memory nothing but 0 is read where the test does not hold
        filled = yield fill, (), guard
        return self.b.select(test, value, filled)

    def _is_read(self, node: Node) -> bool:
        """Whether a value is what memory holds."""
        while node not in self.memory and ops.is_whole_view(node):
            node = node.args[0]
        return node in self.memory

    def _concat(self, node: Node, index: Index, guard: Node | None) -> Steps:
        axis = int(node.attrs["axis"])
        position = index[axis]
        least, most = bounds(position)
        start: Dim = 0
        result: Node | None = None
        for arg in node.args:
            end = add(start, arg.shape[axis])
            if least < bounds(end)[0] and most >= bounds(start)[0]:
                moved = (*index[:axis], add(position, mul(start, -1)), *index[axis + 1 :])
                test = self.inside(position, start, end)
                part = yield arg, moved, self.both(guard, test)
                past = self.inside(position, start, 1 << 31)
                if result is None or past is None:
                    result = part
                else:
                    result = self.b.select(past, part, result)
            start = end
        if result is None:
            raise CannotTile("a concat of nothing")
        return result

    def _gather(self, node: Node, index: Index, guard: Node | None) -> Steps:
        rule = parse_rule(node.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        indices = iter(zip(rule.inputs[1:], node.args[1:], strict=True))
        source: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.args[0].shape, strict=True):
            if axis.mark != "!":
                source.append(place[axis.names[0]])
                continue
            operand, arg = next(indices)
            at = tuple(place[a.names[0]] for a in operand)
            position = affine(arg, at)
            if position is None:
                found = yield arg, at, guard
                position = self.data_place(self.cast(found, I64), static(size))
            source.append(position)
        return (yield node.args[0], tuple(source), guard)

    # ---- reductions

    def _reduce(self, node: Node, index: Index, guard: Node | None) -> Steps:
        operand, kind = node.args[0], str(node.attrs["kind"])
        axes = [int(a) for a in node.attrs["axes"]]
        kept = iter(index)
        full: list[Dim] = []
        places: list[Dim] = []
        for axis, extent in enumerate(operand.shape):
            if axis in axes:
                place = self._along(node, axis, static(extent), index, guard)
                places.append(place)
                full.append(place)
            else:
                full.append(next(kept))
        value = yield operand, tuple(full), guard
        return self.total(kind, places, value)

    def _along(self, node: Node, axis: int, extent: int, index: Index, guard: Node | None) -> Dim:
        """The axis that a reduction runs along: a shared one, unless that is run along outside."""
        shared = self._shared.get((node, axis))
        if shared is None or (guard is not None and self.variables[str(shared)] in guard.vars):
            return self.axis("r", extent)
        moved = {s.name for d in index for s in symbols(d)}
        outside = {v for name in moved for v in self.variables[name].vars}
        is_free = self.variables[str(shared)] not in outside
        return shared if is_free else self.axis("r", extent)

    def total(self, kind: str, places: Sequence[Dim], value: Node) -> Node:
        """A value reduced along axes, the last of them innermost."""
        real = [p for p in places if isinstance(p, Expr)]
        first = constant(identity(kind, value.dtype), value.dtype)
        held = [self.carried("acc", value.type) for _ in real]
        for depth, place in reversed(list(enumerate(real))):
            is_inner = depth == len(real) - 1
            step = self.b.op(COMBINE[kind], [held[depth], value]) if is_inner else value
            (value,) = self.loop(
                place, [held[depth - 1] if depth else first], [held[depth]], [step]
            )
        return value

    def _dot(self, node: Node, index: Index, guard: Node | None) -> Steps:
        rule = parse_rule(node.attrs["rule"])
        own = [[a.names[0] for a in operand] for operand in rule.inputs]
        at = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        sizes = {n: s for o, arg in zip(own, node.args) for n, s in zip(o, arg.shape)}
        summed = [n for n in dict.fromkeys((*own[0], *own[1])) if n not in at]
        order = [n for n in summed if n in contraction(rule).contracted]
        places = {n: self.axis(n, static(sizes[n])) for n in [*order, *(set(summed) - {*order})]}
        at |= places
        factors: list[Node] = []
        for arg, names in zip(node.args, own, strict=True):
            factor = yield arg, tuple(at[n] for n in names), guard
            factors.append(self.cast(factor, wide(node.dtype)))
        return self.total("sum", list(places.values()), self.b.mul(*factors))


def letter(axis: int) -> str:
    """What the loop along an axis of a result is called."""
    return KEPT[axis] if axis < len(KEPT) else f"i{axis}"


def _is_zero(node: Node) -> bool:
    """Whether it is the 0 that masked loads give, not -0.0."""
    return is_number(node) and not any(node.attrs["value"].array.tobytes())


def _is_rounded(node: Node, dtype: DType) -> bool:
    """Whether it is what a wide type makes of values of a type."""
    while reads_by_data(node):
        node = node.args[0]
    return converts(node) and node.args[0].dtype == dtype


__all__ = ["Scalars", "letter"]
