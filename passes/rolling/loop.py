"""Build the loop that replaces equal steps.

Its state is the step number, values that all steps read, carried values, and values that are read
outside. The latter are the value of the last step, or an array with one row per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stack.ir.axes import Axis, Rule, plain
from stack.ir.builder import Builder, constant, make, param, sliced
from stack.ir.node import Block, Node
from stack.ir.traits import is_alias, is_constant
from stack.ir.types import I32, TensorType
from stack.passes.rolling.steps import Steps
from stack.rewrite.engine import Replacement


def rolled(block: Block, steps: Steps) -> dict[Node, Replacement]:
    """Builds a loop for the repeated steps. Returns replacements by its results for those values of
    the steps that the rest of the block uses."""
    return _Loop(block, steps).replacements()


@dataclass
class _State:
    """A value that the loop carries: `start` before the loop, `inside` its parameter in the body,
    `after` its value at the end of an iteration."""

    start: Node
    inside: Node
    after: Node | None = None


@dataclass
class _Loop:
    block: Block
    steps: Steps
    index: dict[Node, int] = field(init=False)
    state: list[_State] = field(init=False)
    fixed: dict[Node, Node] = field(default_factory=dict[Node, Node])
    carried: dict[int, _State] = field(default_factory=dict[int, _State])
    body: list[Node] = field(default_factory=list[Node])
    b: Builder = field(default_factory=Builder)

    def __post_init__(self) -> None:
        self.index = {n: i for i, n in enumerate(self.steps.order)}
        self.state = []
        self.iteration = self._enter("step", constant(0, I32))
        self.iteration.after = self.b.add(self.iteration.inside, 1)

    def _enter(self, name: str, start: Node) -> _State:
        made = _State(start, param(f"{name}.{len(self.state)}", start.type))
        self.state.append(made)
        return made

    # ---- the body: the first step, on values of the state

    def _fixed(self, node: Node) -> Node:
        if is_constant(node):
            return node
        if node not in self.fixed:
            state = self._enter("fixed", node)
            state.after = self.fixed[node] = state.inside
        return self.fixed[node]

    def _at(self, place: int) -> Node:
        """Returns the node that the loop body reads for the node at a position of `steps.order`.

        Within the first step, it is the copy in the body. Before it, the value is carried from the
        previous iteration: the first request adds a parameter for it to the loop's state.
        """
        if place >= self.steps.first:
            return self.body[place - self.steps.first]
        if place not in self.carried:
            self.carried[place] = self._enter("carry", self.steps.order[place])
        return self.carried[place].inside

    def _make_body(self) -> None:
        steps = self.steps
        for node, change in zip(steps.order[steps.first :], steps.changes):
            args = [
                self._at(self.index[arg]) if moves else self._fixed(arg)
                for arg, moves in zip(node.args, change.moves)
            ]
            if change.by:
                made = self._moving_slice(node, args[0], change.by)
            else:
                made = node.rebuilt(args)
            self.body.append(made)
            self.b.names.setdefault(made, self.block.names.get(node, node.op))
            if node in self.block.locs:
                self.b.locs[made] = self.block.locs[node]
        pending = list(self.carried)
        while pending:  # a value from two steps before is carried twice
            place = pending.pop()
            known = len(self.carried)
            self.carried[place].after = self._at(place + steps.period)
            pending += list(self.carried)[known:]

    def _moving_slice(self, node: Node, x: Node, by: Sequence[int]) -> Node:
        """Returns a slice that starts `by` further in each step: a gather along the moving axes."""
        b = self.b
        whole: list[Axis] = []
        indices: list[Node] = []
        index_axes: list[tuple[Axis, ...]] = []
        kept: list[str] = []
        start, limit, step = (list(node.attrs[k]) for k in ("start", "limit", "step"))
        for axis, shift in enumerate(by):
            name = f"w{axis}"
            if not shift:
                whole.append(Axis((name,)))
                kept.append(name)
                continue
            place = b.add(b.mul(self.iteration.inside, shift), start[axis])
            own: tuple[Axis, ...] = ()
            if node.shape[axis] != 1:
                type_ = TensorType(I32, (node.shape[axis],))
                offset = b.mul(b.iota(axis=0, type=type_), step[axis])
                place = b.add(offset, b.broadcast(place, axes=(), type=type_))
                own = plain([name])
                kept.append(name)
            whole.append(Axis((f"x{axis}",), "!"))
            indices.append(place)
            index_axes.append(own)
            start[axis], limit[axis], step[axis] = 0, x.shape[axis], 1
        cut = b.slice(x, start=tuple(start), limit=tuple(limit), step=tuple(step))
        rule = Rule((tuple(whole), *index_axes), (plain(kept),))
        read = b.op("gather", (cut, *indices), {"rule": str(rule)})
        return b.reshape(read, type=node.tensor)

    # ---- values read from outside

    def _seen(self) -> dict[int, dict[int, Node]]:
        """Returns the nodes of unrolled steps that the rest of the block reads or returns: for each
        position within a step, the node of each step by its number."""
        steps = self.steps
        inside = set(steps.order[steps.first : steps.end])
        used = [r for r in self.block.results if r in inside]
        for node in self.block.nodes:
            if node not in inside:
                used.extend(a for a in node.args if a in inside)
        seen: dict[int, dict[int, Node]] = {}
        for node in used:
            iteration, place = divmod(self.index[node] - steps.first, steps.period)
            seen.setdefault(place, {})[iteration] = node
        return seen

    def replacements(self) -> dict[Node, Replacement]:
        steps = self.steps
        self._make_body()
        seen = self._seen()
        shown: dict[int, _State] = {}
        for place, nodes in seen.items():
            value = self.body[place]
            carried = self.carried.get(steps.first + place - steps.period)
            if set(nodes) == {steps.count - 1}:
                shown[place] = carried or self._enter("last", _zeros(value.tensor))
                shown[place].after = value
            else:
                shown[place] = self._rows(value)
        test = Block(
            [s.inside for s in self.state], [self.b.lt(self.iteration.inside, steps.count)]
        )
        after = [s.after for s in self.state if s.after is not None]
        body = self.b.block([s.inside for s in self.state], after)
        loop = make("while", [s.start for s in self.state], blocks=(test, body))
        items = {
            place: make("item", (loop,), {"index": self.state.index(state)})
            for place, state in shown.items()
        }
        inner = tuple(steps.order[steps.first : steps.end])
        found: dict[Node, Replacement] = {}
        for place, nodes in seen.items():
            for iteration, node in nodes.items():
                item = items[place]
                new = item if item.type == node.type else _row(item, iteration, node.tensor)
                found[node] = Replacement(new, inner if not found else ())
        return found | self._joined(seen, items)

    def _rows(self, value: Node) -> _State:
        """Adds an array to the values that the loop carries: each iteration writes `value` to its
        row of the array."""
        type_ = value.tensor.with_shape((self.steps.count, *value.shape))
        state = self._enter("rows", _zeros(type_))
        names = [f"w{axis}" for axis in range(value.tensor.rank)]
        whole = (Axis(("x",), "!"), *plain(names))
        rule = Rule((whole, (), plain(names)), (whole,))
        state.after = self.b.op(
            "scatter",
            (state.inside, self.iteration.inside, value),
            {"rule": str(rule), "kind": "set"},
        )
        return state

    # ---- concats of rows

    def _joined(
        self, seen: dict[int, dict[int, Node]], items: dict[int, Node]
    ) -> dict[Node, Replacement]:
        """Replaces concats whose operands are one value from consecutive unrolled steps: the loop's
        array of that value, one row per step, is transposed and reshaped instead."""
        place_of = {n: (place, t) for place, nodes in seen.items() for t, n in nodes.items()}
        found: dict[Node, Replacement] = {}
        for node in self.block.nodes:
            if node.op != "concat":
                continue
            parts: list[Node] = []
            args = list(node.args)
            while args:
                length = _length_of_run(args, place_of)
                if length > 1:
                    parts.append(_together(args[:length], node.attrs["axis"], place_of, items))
                else:
                    parts.append(args[0])
                del args[:length]
            if len(parts) < len(node.args):
                new = make("concat", parts, node.attrs) if len(parts) > 1 else parts[0]
                found[node] = Replacement(new)
        return found


def _zeros(type_: TensorType) -> Node:
    zero = constant(0, type_.dtype)
    return make("broadcast", (zero,), {"axes": ()}, hint=type_) if type_.rank else zero


def _row(rows: Node, iteration: int, type_: TensorType) -> Node:
    rest = (0,) * type_.rank
    row = sliced(rows, (iteration, *rest), (iteration + 1, *type_.shape))
    return make("reshape", (row,), hint=type_)


Places = dict[Node, tuple[int, int]]


def _place(node: Node, place_of: Places) -> tuple[int, int] | None:
    """Returns for an operand, or for what it reshapes, its position in a step and the number of the
    step. None for a value that is not of a step."""
    if node not in place_of and is_alias(node):
        node = node.args[0]
    return place_of.get(node)


def _length_of_run(args: Sequence[Node], place_of: Places) -> int:
    """Returns how many leading operands are copies of one value from consecutive unrolled steps.

    Copies have the same position in each step. The steps may go up or down. At least 1.
    """
    places = [_place(a, place_of) for a in args[:2]]
    first, second = places[0], places[-1]
    if first is None or second is None or abs(second[1] - first[1]) != 1:
        return 1
    way = second[1] - first[1]
    length = 1
    while length < len(args) and args[length].type == args[0].type:
        if _place(args[length], place_of) != (first[0], first[1] + length * way):
            break
        length += 1
    return length


def _together(args: Sequence[Node], axis: int, place_of: Places, items: dict[int, Node]) -> Node:
    """Returns what a concat of one value from consecutive steps is: rows of the loop's array,
    reversed if steps go down, with the axis of rows merged into the concatenated axis."""
    first, last = (_place(a, place_of) for a in (args[0], args[-1]))
    assert first is not None and last is not None
    rows, part = items[first[0]], args[0].tensor
    low, high = min(first[1], last[1]), max(first[1], last[1]) + 1
    rest = rows.shape[1:]
    rows = sliced(rows, (low, *(0 for _ in rest)), (high, *rest))
    if last < first:
        rows = make("reverse", (rows,), {"axes": (0,)})
    rows = make("reshape", (rows,), hint=part.with_shape((high - low, *part.shape)))
    perm = [*range(1, axis + 1), 0, *range(axis + 1, part.rank + 1)]
    rows = make("transpose", (rows,), {"perm": tuple(perm)})
    shape = list(part.shape)
    shape[axis] = (high - low) * shape[axis]
    return make("reshape", (rows,), hint=part.with_shape(tuple(shape)))
