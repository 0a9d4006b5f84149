"""Step 3 of the streaming rewrite: build the op `stream` from the normal form.

Additive masks of scores become selects, which show the hidden elements: x + (c ? 0 : v) is c ? x :
v if v is -inf, or so large that no digit of x remains in the sum. A hidden element is the identity:
an infinity there does not become a nan.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stack.ir import ops
from stack.ir.builder import constant, converted, make, param, with_lines
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.traits import (
    choice,
    converts,
    is_formula,
    is_number,
    reads_by_data,
    shows,
    signs,
    splat,
)
from stack.ir.types import BOOL, DType, TensorType
from stack.passes.streaming.action import correct_block
from stack.passes.streaming.graph import keeps_its_value
from stack.passes.streaming.normal_form import NormalForm
from stack.passes.streaming.render import Render, again, in_shape, widened
from stack.passes.streaming.terms import Factor, K, Names, Power, Refusal, State, TermValue
from stack.passes.tiling.frame import wide
from stack.rewrite.engine import replace


class Build:
    """Builds a `stream` node.

    Args:
        normal: the region in normal form.
        finishing: nodes that are computed in the block `finish`, outputs included.
    """

    def __init__(self, normal: NormalForm, finishing: Collection[Node]) -> None:
        self.normal = normal
        self.region = normal.region
        self.finishing = finishing
        self.args: dict[Node, Node] = {}  # values read from memory, and their parameters
        self.seen = {v.node: v for v in self.region.visited}
        self.made: dict[Node, Node] = {}  # new nodes, and the nodes that they replace

    def leaf(self, node: Node, shape: tuple[Dim, ...]) -> Node:
        """Returns the parameter of the stream that holds a value from memory in this shape; adds
        one for a new value."""
        seen = in_shape(node, shape)
        return self.args.setdefault(seen, param(f"p{len(self.args)}", seen.type))

    def build(self, outputs: Sequence[Node]) -> Node:
        """Returns the stream that computes `outputs`. Raises Refusal if a value does not fit after
        all."""
        states: dict[State, Node] = {}
        render = Render(self.normal, self.leaf, states)
        for state in self.normal.states:
            states[state] = self._state(state, render)
            self.made.setdefault(states[state], state.source)
        self.made.update(render.made)
        ends = {s: param(f"s{i}", n.type) for i, (s, n) in enumerate(states.items())}
        render = Render(self.normal, self.leaf, ends, final=True)
        done: dict[Node, Node] = {}
        results: list[Node] = []
        for output in outputs:
            made = self._finished(output, render, done)
            if made.type != output.type:
                made = make("cast", (made,), hint=output.type)
            results.append(made)
            self.made[made] = output
        self.made.update(render.made)
        if not self.args or not states:
            raise Refusal("nothing is read from memory")
        params = list(self.args.values())
        blocks = (
            masks_as_selects(self._block(params, list(states.values()))),
            correct_block(self.normal, {s: n.type for s, n in states.items()}),
            self._block([*ends.values(), *params], results),
        )
        kinds = dict.fromkeys(s.kind for s in self.normal.states if s.kind != "count")
        return with_lines(make("stream", list(self.args), {"name": "_".join(kinds)}, blocks))

    def _block(self, params: Sequence[Node], results: Sequence[Node]) -> Block:
        """Returns a block of the stream. Its nodes take the names and source lines of the nodes of
        the function that they stand for."""
        old = self.region.graph.block
        found = self.made.items()
        names = {new: old.names[node] for new, node in found if node in old.names}
        locs = {new: old.locs[node] for new, node in found if node in old.locs}
        return Block(params, results, names, locs)

    # ---- states

    def _state(self, state: State, render: Render) -> Node:
        dtype = wide(state.source.dtype)
        if state.kind == "dot":
            operand = state.source.args[0].dtype
            spaces = (state.space, state.right_space)
            factors = (state.factors, state.right)
            sides = [self._operand(f, s, operand, render) for f, s in zip(factors, spaces)]
            return render.dot(sides, spaces, state.names, state.source)
        if state.kind == "count":
            value, kind = render.full(constant(1.0, dtype), state.space), "sum"
        elif state.kind == "pick":
            value, kind = self._picked(state, render), "sum"
        elif state.kind == "sum":
            value, kind = render.product(1.0, state.factors, state.space, dtype), "sum"
        else:
            (factor,) = state.factors
            value, kind = render.factor(factor, state.space), state.kind
        if value.dtype.is_float:
            value = converted(value, dtype)
        return make("reduce", (value,), {"kind": kind, "axes": (state.space.index(K),)})

    def _picked(self, state: State, render: Render) -> Node:
        """Returns the summand of a "pick" state, which stands for a gather of one element per row:
        the value where the position equals the row's index, else 0."""
        assert state.index is not None
        own = render.names(state.index)
        index = render.full(render.value(state.index, native=True), own)
        names = tuple(n for n in own if n in state.names)
        kept = render.spread(index, own, names)
        wanted = render.spread(kept, names, state.space)
        line = TensorType(index.dtype, render.shape((K,)))
        here = render.spread(make("iota", (), {"axis": 0}, hint=line), (K,), state.space)
        value = render.product(1.0, state.factors, state.space, wide(state.source.dtype))
        chosen = make("eq", (here, wanted))
        return make("select", (chosen, value, constant(0, value.dtype)))

    def _operand(
        self, factors: Sequence[Factor], space: Names, dtype: DType, render: Render
    ) -> Node:
        """Returns the product of `factors` as an operand of a dot, in the element type `dtype` that
        the dot's operand has in the function."""
        alone = factors[0] if len(factors) == 1 else None
        if isinstance(alone, Power) and alone.power == 1 and self._is_view(alone.value):
            made = render.value(alone.value, native=True)
            if made.dtype == dtype:
                return render.full(render.spread(made, render.names(alone.value), space), space)
        return converted(render.product(1.0, factors, space, wide(dtype)), dtype)

    def _is_view(self, value: TermValue) -> bool:
        """True if a value is read from memory through views and casts only."""
        while self.region.passes(value):
            if not shows(value.node):
                return False
            (value,) = self.region.operand_values(value)
        return True

    def _finished(self, node: Node, render: Render, done: dict[Node, Node]) -> Node:
        """Returns the node of a value after the loop; `done` has those that are known."""
        if node in done:
            return done[node]
        region = self.region
        is_inside = node in self.finishing or shows(node) or region.graph.is_generated(node)
        is_inside = is_inside or (node in self.seen and region.passes(self.seen[node]))
        moved = ops.is_whole_view(node) or is_formula(node) or reads_by_data(node)
        if node in region.members:
            made = in_shape(render.form(node), node.shape)
        elif is_number(node):
            made = render.value(TermValue(node, ()))
        elif node in self.args:  # the loop reads it, though it may be a view of another array
            made = widened(self.args[node])
        elif is_inside and (keeps_its_value(node) or moved):
            made = again(node, [self._finished(a, render, done) for a in node.args])
        elif node in region.dots:
            name = region.graph.name(node)
            raise Refusal(f"{name}, which is as long as the axis, is needed after the pass")
        else:
            made = widened(self.leaf(node, node.shape))
        done[node] = made
        self.made.setdefault(made, node)
        return made


ABSORBS = -(2.0**120)  # half a digit of it exceeds 2 ** 95, in 32-bit floats
Mask = tuple[Node | bool, float | None]  # condition under which it is 0, and its value elsewhere


def masks_as_selects(block: Block) -> Block:
    """Returns the block with additive masks as selects."""
    changed: dict[Node, Node] = {}
    for node in block.nodes:
        if signs(node) != (1, 1) or node.dtype.bits > 32:
            continue
        for value, other in (node.args, node.args[::-1]):
            mask = _mask(other)
            if mask is None or mask[1] is None or isinstance(mask[0], bool):
                continue
            fill = constant(mask[1], node.dtype)
            changed[node] = make("select", (mask[0], value, fill), hint=node.type)
            break
    return replace(block, changed)


def _mask(node: Node) -> Mask | None:
    """Returns a value that is 0 or one other number, with its condition; None for other values."""
    number = splat(node)
    if isinstance(number, int | float):
        if number == 0:
            return True, None
        return (False, float(number)) if number < ABSORBS else None
    if converts(node) and node.dtype.is_float:
        return _mask(node.args[0])
    if ops.is_whole_view(node):
        found = _mask(node.args[0])
        if found is None or isinstance(found[0], bool):
            return found
        return make(node.op, (found[0],), node.attrs, hint=node.tensor.with_dtype(BOOL)), found[1]
    chosen = choice(node)
    if chosen is None:
        return None
    yes, no = _mask(chosen.yes), _mask(chosen.no)
    fills = {m[1] for m in (yes, no) if m is not None} - {None}
    if yes is None or no is None or len(fills) != 1:
        return None
    if yes[0] is no[0]:
        return yes[0], fills.pop()
    branches = (
        _both("and", chosen.test, yes[0]),
        _both("and", make("not", (chosen.test,)), no[0]),
    )
    return _both("or", *branches), fills.pop()


def _both(op: str, a: Node | bool, b: Node | bool) -> Node | bool:
    """Builds `a and b` or `a or b`, as `op` says.

    If one is a known bool, returns the other one or the known result.
    """
    decides = op == "or"
    if isinstance(a, bool) or isinstance(b, bool):
        known, other = (a, b) if isinstance(a, bool) else (b, a)
        return decides if known is decides else other
    return make(op, (a, b))
