"""Convert terms back to nodes, in a block of a stream. 16-bit floats are computed in f32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from stack.ir import ops
from stack.ir.axes import LETTERS
from stack.ir.builder import constant, converted, make, reshaped
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.traits import (
    behind,
    converts,
    is_alias,
    is_contraction,
    is_formula,
    is_number,
    reads_by_data,
    splat,
    tests_floats,
)
from stack.ir.types import DType, TensorType
from stack.passes.streaming.graph import read_through
from stack.passes.streaming.normal_form import NormalForm
from stack.passes.streaming.terms import (
    Exp,
    Factor,
    K,
    MaskFactor,
    Names,
    Power,
    Shift,
    Stabilizer,
    State,
    SummandPart,
    Term,
    TermValue,
    TieFactor,
)
from stack.passes.tiling.frame import is_rounded, wide


class Render:
    """Builds nodes in one block.

    Args:
        normal: the region in normal form.
        leaf: returns the node for a value that is read from memory, in a shape.
        states: the node of each state.
        running: True if the states may be those before the first element.
        final: True if infinities have to end as they do in the function.
    """

    def __init__(
        self,
        normal: NormalForm,
        leaf: Callable[[Node, tuple[Dim, ...]], Node],
        states: Mapping[State, Node],
        running: bool = False,
        final: bool = False,
    ) -> None:
        self.normal = normal
        self.region = normal.region
        self.leaf = leaf
        self.states = states
        self.running = running
        self.final = final
        self.made: dict[Node, Node] = {}  # new nodes, and the nodes that they replace
        self._values: dict[tuple[TermValue, bool], Node] = {}

    # ---- shapes

    def shape(self, names: Names) -> tuple[Dim, ...]:
        """Returns the sizes of named axes."""
        return tuple(self.region.sizes[n] for n in names)

    def names(self, value: TermValue) -> Names:
        """Returns the names of the axes that a value has once it is rendered."""
        return self.region.atoms(value.names)

    def spread(self, node: Node, names: Names, target: Names) -> Node:
        """Broadcasts a value with the axes `names` to the axes `target`."""
        extra = [i for i, n in enumerate(names) if n not in target]
        if extra:
            kept = [i for i in range(len(names)) if i not in extra]
            node = in_shape(node, tuple(node.shape[i] for i in kept))
            names = tuple(names[i] for i in kept)
        if names == target or not target:
            return node
        order = sorted(range(len(names)), key=lambda i: target.index(names[i]))
        if order != list(range(len(names))):
            node = make("transpose", (node,), {"perm": tuple(order)})
        axes = tuple(sorted(target.index(n) for n in names))
        if len(axes) == len(target) or not axes:
            return node  # elementwise ops broadcast a scalar themselves
        if all(self.region.sizes[n] == 1 for n in target if n not in names):
            return in_shape(node, self.shape(target))
        type_ = node.tensor.with_shape(self.shape(target))
        return make("broadcast", (node,), {"axes": axes}, hint=type_)

    # ---- values

    def value(self, value: TermValue, native: bool = False) -> Node:
        """Returns the node of a value.

        Args:
            value: a value of the function.
            native: keep the element type, and compute only views: for an operand of a dot.
        """
        key = (value, native)
        if key in self._values:
            return self._values[key]
        node, names = value.node, self.names(value)
        views = read_through(node)
        if node in self.normal.forms and not value.streams:
            made = self.form(node)
        elif is_number(node):
            made = constant(splat(node), node.dtype if native else wide(node.dtype))
        elif not self.region.passes(value) or (native and not views):
            read = self.leaf(node, self.shape(names))
            made = read if native else widened(read)
        elif ops.is_whole_view(node):
            (operand,) = self.region.operand_values(value)
            made = self._moved(value, operand, native)
        elif is_contraction(node):
            operands = self.region.operand_values(value)
            spaces = list(map(self.names, operands))
            sides = [self.full(self.value(v, True), s) for v, s in zip(operands, spaces)]
            made = self.dot(sides, spaces, names, node)
        else:
            operands = self.region.operand_values(value)
            args = [self.value(v, native) for v in operands]
            if is_formula(node) or reads_by_data(node):
                whole = [self.full(a, self.names(v)) for a, v in zip(args, operands)]
                args = [in_shape(w, v.node.shape) for w, v in zip(whole, operands)]
                made = in_shape(again(node, args, native), self.shape(names))
            else:
                if tests_floats(node):
                    args = [rounded(a, v.node.dtype) for a, v in zip(args, operands, strict=True)]
                made = again(node, args, native)
        self._values[key] = made
        self.made.setdefault(made, node)
        return made

    def _moved(self, value: TermValue, operand: TermValue, native: bool) -> Node:
        """Builds the node of `value`, a view, from that of its operand: a broadcast or transpose,
        or a reshape if axes of more than one element appear or vanish."""
        inner, own = self.names(operand), self.names(value)
        made = self.value(operand, native)
        lost = [n for n in inner if n not in own and self.region.sizes[n] != 1]
        fresh = [n for n in own if n not in inner and self.region.sizes[n] != 1]
        if is_alias(value.node) and (lost or fresh):
            return in_shape(made, self.shape(own))
        return self.spread(made, inner, own)

    def dot(self, sides: Sequence[Node], spaces: Sequence[Names], names: Names, like: Node) -> Node:
        """Returns a dot of the nodes `sides` with axes `spaces`, and the result axes `names`. It
        takes attributes from `like`, and accumulates in the widened type of `like`."""
        order = dict.fromkeys(n for space in spaces for n in space if n != K)
        letter = {K: "k", **dict(zip(order, LETTERS.replace("k", "")))}
        left, right, out = (" ".join(letter[n] for n in s) for s in (*spaces, names))
        hint = TensorType(wide(like.dtype), self.shape(names))
        return make("dot", sides, {**like.attrs, "rule": f"{left}, {right} -> {out}"}, hint=hint)

    # ---- terms

    def product(
        self,
        number: float,
        factors: Sequence[Factor],
        space: Names,
        dtype: DType,
        total: Node | None = None,
    ) -> Node:
        """Returns the node of number * factors, broadcast to the axes `space`, times the state
        `total` if there is one. Masks are applied last, as selects, so that a nan in a hidden
        element becomes 0."""
        if total is None:
            factors = sorted(factors, key=lambda f: isinstance(f, Power) and f.power < 0)
        for factor in factors:
            if isinstance(factor, MaskFactor):
                continue
            part = self.factor(factor, space)
            if isinstance(factor, TieFactor):
                part = converted(part, dtype)
            if isinstance(factor, Power) and factor.power < 0:
                total = constant(1.0, dtype) if total is None else total
                total = make("div", (total, part))
            else:
                total = part if total is None else make("mul", (total, part))
        if total is None:
            total = constant(number, dtype)
        elif number == -1:
            total = make("neg", (total,))
        elif number != 1:
            total = make("mul", (total, constant(number, dtype)))
        zero = constant(0, dtype)
        for mask in factors:
            if isinstance(mask, MaskFactor):
                test = self.spread(self.value(mask.value), self.names(mask.value), space)
                chosen = (total, zero) if mask.keep else (zero, total)
                total = make("select", (test, *chosen))
        return self.full(total, space)

    def full(self, node: Node, space: Names) -> Node:
        """Broadcasts a scalar to all axes, for ops that do not accept a scalar."""
        if node.shape or not space:
            return node
        return make(
            "broadcast", (node,), {"axes": ()}, hint=TensorType(node.dtype, self.shape(space))
        )

    def factor(self, factor: Factor, space: Names) -> Node:
        """Returns the node of one factor of a term, such as exp(a - r), broadcast to the axes
        `space`."""
        if isinstance(factor, Power | MaskFactor):
            return self.spread(self.value(factor.value), self.names(factor.value), space)
        if isinstance(factor, TieFactor):
            bound = self.spread(*self.bound(factor.bound), space)
            value = self.spread(self.value(factor.value), self.names(factor.value), space)
            return make("eq", (value, bound))
        inside = self.difference(factor, space)
        return make(factor.op, (inside,)) if isinstance(factor, Exp) else inside

    def difference(self, factor: Exp | Shift, space: Names) -> Node:
        """Returns a - r.

        Each part of r is subtracted from its own part of a, so large parts cancel first.
        """
        anchors = {
            r: self.spread(self.stabilizer(r.stabilizer), self.names(r.stabilizer.value), space)
            for r in factor.r
        }
        values = [f.value for t in factor.a for f in t.factors if isinstance(f, Power)]
        sources = [r.stabilizer.source for r in factor.r] or [v.node for v in values]
        left = list(factor.r)
        total: Node | None = None
        for term in factor.a:
            own = [s for s in left if s.number == term.number and _is_taken_of(s.stabilizer, term)]
            left = [s for s in left if s not in own]
            terms = (*term.factors, *term.rows)
            part = self.product(1.0, terms, space, wide(sources[0].dtype))
            for scaled in own:
                part = make("sub", (part, anchors[scaled]))
            total = self.plus(total, term.number, part)
        for scaled in left:
            total = self.plus(total, -scaled.number, anchors[scaled])
        assert total is not None
        return self.full(total, space)

    def plus(self, total: Node | None, number: float, part: Node) -> Node:
        """Returns the node of total + number * part, with as few ops as possible; `total` is None
        for a sum that begins."""
        if total is not None and number in (1, -1):
            return make("add" if number == 1 else "sub", (total, part))
        if number == -1:
            part = make("neg", (part,))
        elif number != 1:
            part = make("mul", (part, constant(number, part.dtype)))
        return part if total is None else make("add", (total, part))

    def bound(self, stabilizer: Stabilizer) -> tuple[Node, Names]:
        """Returns a running bound without a guard, and the names of its axes."""
        source = self.normal.source_state(stabilizer)
        return self.states[source], source.names

    def stabilizer(self, stabilizer: Stabilizer) -> Node:
        """Returns the value of a stabilizer; finite even if no element so far was finite."""
        if stabilizer.kind == "ratio":
            return self._ratio(stabilizer)
        source = self.normal.source_state(stabilizer)
        made = self.states[source]
        if stabilizer.kind == "mean":
            count = self.states[self.normal.count_for(stabilizer)]
            if self.running:
                count = make("max", (count, constant(1.0, count.dtype)))
            made = make("div", (made, count))
        elif self.normal.is_guarded(stabilizer):
            zero = constant(0.0, made.dtype)
            made = make("select", (self.is_infinite(stabilizer), zero, made))
        return self.spread(made, source.names, self.names(stabilizer.value))

    def _ratio(self, stabilizer: Stabilizer) -> Node:
        """Returns one running sum over another, 0 if the divisor is 0."""
        assert stabilizer.below is not None
        value, below = self.value(stabilizer.value), self.value(stabilizer.below)
        zero = constant(0.0, below.dtype)
        own = self.names(stabilizer.value)
        empty = self.spread(make("eq", (below, zero)), self.names(stabilizer.below), own)
        return make("select", (empty, zero, value))

    def is_infinite(self, stabilizer: Stabilizer) -> Node:
        """Returns a bool node: True where the running max or min of a stabilizer is infinite, so
        that all elements so far were infinite, or one was."""
        source = self.states[self.normal.source_state(stabilizer)]
        return make("eq", (make("abs", (source,)), constant(math.inf, source.dtype)))

    # ---- reductions

    def form(self, node: Node) -> Node:
        """Returns the node that computes the value of a reduction of the function from the states
        (running values) of the stream."""
        names, dtype = self.region.atoms(self.region.members[node]), wide(node.dtype)
        total: Node | None = None
        for part in self.normal.forms[node]:
            state: Node | None = None
            if part.state is not None:
                state = self.spread(self.states[part.state], part.state.names, names)
            made = self.product(1.0, part.rows, names, dtype, state)
            if self.final:
                made = self._as_meant(part, made, names)
            total = self.plus(total, part.number, made)
        return self.full(total if total is not None else constant(0, dtype), names)

    def _as_meant(self, part: SummandPart, value: Node, names: Names) -> Node:
        """Returns `value`, but nan where the function gives nan: there exp(a - r) is nan for an
        infinite r, while the running sum of the stream is not."""
        divisors = [self.normal.forms.get(r.value.node) for r in part.rows]
        inside = {a for form in divisors if form for p in form for a in p.bare}
        for stabilizer in part.bare:
            if not self.normal.is_guarded(stabilizer) or stabilizer in inside:
                continue
            own = self.normal.source_state(stabilizer).names
            test = self.spread(self.is_infinite(stabilizer), own, names)
            value = make("select", (test, constant(math.nan, value.dtype), value))
        return value


def again(node: Node, args: Sequence[Node], native: bool = False) -> Node:
    """Returns a copy of a node on other operands. Its element type is widened as running values
    are, unless `native`; a cast that changes nothing is dropped."""
    type_ = node.tensor if native else node.tensor.with_dtype(wide(node.dtype))
    if ops.lookup(node.op).kind == "elementwise":
        type_ = type_.with_shape(next((a.shape for a in args if a.shape), ()))
    if converts(node) and args[0].type == type_:
        return args[0]
    return make(node.op, args, node.attrs, node.blocks, type_)


def in_shape(node: Node, shape: Sequence[Dim]) -> Node:
    """Returns a value in another shape with as many elements."""
    return reshaped(behind(node), shape)


def _is_taken_of(stabilizer: Stabilizer, term: Term) -> bool:
    """True if the stabilizer is the max, min or mean of exactly the value of the term."""
    factors = (*term.factors, *term.rows)
    alone = factors[0] if len(factors) == 1 else None
    return (
        isinstance(alone, Power)
        and alone.power == 1
        and stabilizer.kind != "ratio"
        and alone.value.node is stabilizer.source.args[0]
    )


def rounded(node: Node, dtype: DType) -> Node:
    """Returns a value with the precision of a 16-bit float, in the type that computations use."""
    if node.dtype != wide(dtype) or is_rounded(node, dtype):
        return node
    return widened(converted(node, dtype))


def widened(node: Node) -> Node:
    """Returns a value in the element type that computations use."""
    return converted(node, wide(node.dtype))
