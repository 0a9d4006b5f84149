"""Ring exchange of gathered values: each rank has one part at a time, and passes it on.

On each part the program computes what it would compute on the whole. Sums over the gathered axis
stay on the rank and are merged step by step. If they depend on each other they are a stream, whose
`correct` merges them. Sums that end in a reduce-scatter travel: each rank adds its share to the
part's sum, and passes it on. So a ring sends the same bytes as the gather and the reduce-scatter,
and a rank never has more than two parts of their results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stack.errors import RuleError
from stack.ir.algebra import COMBINE
from stack.ir.builder import Builder, make, param, remade
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.node import Block, Node, is_inline, topological
from stack.ir.ops import is_whole_view
from stack.ir.stream_op import streamed_axes
from stack.ir.streaming import operand_axes
from stack.ir.traits import (
    choice,
    fold_of,
    is_elementwise,
    is_input,
    is_item,
    is_stream,
    place_of,
)
from stack.mesh.meshes import size_of
from stack.mesh.ops import group_of, is_meeting, is_place
from stack.passes.positions.visibility import hiding_selects
from stack.passes.sharding.retype import mapped
from stack.passes.sharding.strategies.ring_analysis import RingAnalysis
from stack.rewrite.engine import inline_block
from stack.sim.recomputed import cheap_to_recompute


def ringed(func: Func, axis: str) -> Func:
    """Returns a rank's program with ring exchanges in place of gathers, if possible."""
    turns = RingAnalysis(func, axis)
    return _Writer(turns).written() if turns.sources else func


@dataclass(frozen=True)
class _Ring:
    """One ring pass: in step t a rank has the part of the rank that is `way * t` after it.

    Attributes:
        sent: the permute of each value that is sent.
    """

    over: Mapping[str, str]
    order: tuple[int, ...]
    ranks: int
    way: int
    sent: dict[Node, Node] = field(default_factory=dict[Node, Node], compare=False)

    def passed(self, x: Node) -> Node:
        """Returns the part that the rank before in the ring has, while the next rank gets `x`. Of
        a view, the smallest value that it shows is sent, once for all its views: keys before they
        are repeated for all heads."""
        least = x
        for shown in _shown(x):
            if int(str(shown.tensor.bytes)) <= int(str(least.tensor.bytes)):
                least = shown
        if least not in self.sent:
            attrs = {"mesh": self.over["mesh"], "order": self.order}
            self.sent[least] = make("permute", (least,), attrs)
        return remade([x], {least: self.sent[least]})[x]

    def part(self, whole: Node, axis: int, turn: int) -> Node:
        """Slices a value that all ranks have whole to the part that this rank works on in step
        `turn`."""
        size = int(str(whole.shape[axis]))
        first = self.way * turn % self.ranks * (size // self.ranks)
        if first:
            parts = [_cut(whole, axis, first, size), _cut(whole, axis, 0, first)]
            whole = make("concat", parts, {"axis": axis})
        return make("shard", (whole,), {**self.over, "axis": axis})


def _shown(x: Node) -> Iterator[Node]:
    """Yields the value that a view shows all of, the value that this one shows, and so on."""
    while is_whole_view(x) and not is_inline(x.args[0]):
        x = x.args[0]
        yield x


def _ring(gather: Node, way: int) -> _Ring:
    mesh, over = group_of(gather.attrs)
    order = {
        rank: group[(i - way) % len(group)]
        for group in mesh.groups(over)
        for i, rank in enumerate(group)
    }
    attrs = {name: str(gather.attrs[name]) for name in ("mesh", "over")}
    return _Ring(attrs, tuple(order[r] for r in range(mesh.ranks)), size_of(over), way)


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    starts, limit = [0] * x.tensor.rank, list(x.shape)
    starts[axis], limit[axis] = start, stop
    attrs = {"start": tuple(starts), "limit": tuple(limit), "step": (1,) * x.tensor.rank}
    return make("slice", (x,), attrs)


@dataclass
class _Writer:
    """Rebuilds the program, one ring end after another.

    Attributes:
        turns: the analysis of the program.
        done: the new node of each node.
        level: the number of ring ends on the path to a node.
        ways: for each gather, its direction at each level.
    """

    turns: RingAnalysis
    done: dict[Node, Node] = field(default_factory=dict[Node, Node])
    level: dict[Node, int] = field(default_factory=dict[Node, int])
    ways: dict[Node, dict[int, int]] = field(default_factory=dict[Node, dict[int, int]])

    def written(self) -> Func:
        """Returns the rank's program with ring exchanges in place of gathers."""
        func = self.turns.func
        self.done.update({p: p for p in func.params})
        for node in func.nodes:
            own = max((self.level.get(a, 0) for a in node.args), default=0)
            self.level[node] = own + (node in self.turns.ends)
            if node in self.turns.ends:
                self._end(node)
            elif not (is_item(node) and node.args[0] in self.turns.ends):
                self.done[node] = node.rebuilt([self.done[a] for a in node.args])
        return Func(func.name, mapped(func.body, self.done), func.level)

    def _end(self, node: Node) -> None:
        ring = self._way(node)
        if self.turns.scatters(node):
            self.done[node] = self._travelling(node, ring)
        elif is_stream(node):
            states = self._merged(node, ring)
            made = inline_block(
                node.blocks[2], [*states, *(self.done[a] for a in node.args)], Builder()
            )
            self.done[node] = made[0]
            items = (n for n in self.turns.func.nodes if is_item(n) and n.args[0] is node)
            self.done.update((item, made[place_of(item)]) for item in items)
        else:
            parts = [RingPart(self, ring, turn).state(node) for turn in range(ring.ranks)]
            total = parts[0]
            for part in parts[1:]:
                total = _combined(node, total, part)
            self.done[node] = total

    def _way(self, node: Node) -> _Ring:
        """Returns the ring for the gathers that `node` consumes, with its direction. If an earlier
        ring passed one of them, this one runs backwards, so no rank keeps a part in between."""
        sources, level = self.turns.ends[node], self.level[node]
        found = [self.ways[s] for s in sources if s in self.ways]
        together = [ways[level] for ways in found if level in ways]
        before = {way for ways in found for way in ways.values()}
        way = together[0] if together else -1 if 1 in before else 1
        for source in sources:
            self.ways.setdefault(source, {}).setdefault(level, way)
        return _ring(next(iter(sources)), way)

    def _merged(self, stream: Node, ring: _Ring) -> list[Node]:
        """Returns the states of a stream, merged part by part."""
        states, correct = stream.blocks[0].results, stream.blocks[1]
        hiding = dict(hiding_selects(stream.blocks[0]))
        held = RingPart(self, ring, 0).states(stream)
        for turn in range(1, ring.ranks):
            part, new = RingPart(self, ring, turn), list[Node]()
            more = part.states(stream)
            for i, state in enumerate(states):
                both = [_corrected(correct, i, old, new) for old in (held, more)]
                new.append(_combined(state, *both))
            seen = part.seen(hiding)
            held = new if seen is None else _chosen(seen, held, new)
        return held

    def _travelling(self, node: Node, ring: _Ring) -> Node:
        """Returns the ring form of a reduce-scatter: the sum for each part travels around the ring,
        every rank adds its share, and the rank that owns the part is last."""
        value, axis = node.args[0], int(node.attrs["axis"])
        shares = [RingPart(self, ring, t).value(value, axis) for t in (*range(1, ring.ranks), 0)]
        total = shares[0]
        for share in shares[1:]:
            total = make("add", (ring.passed(total), share))
        return total


def _combined(state: Node, first: Node, second: Node) -> Node:
    return make(COMBINE[fold_of(state)], (first, second))


def _chosen(seen: Node, old: Sequence[Node], new: Sequence[Node]) -> list[Node]:
    """Returns the states `new` if `seen` is true, else `old`, by a branch.

    Communication stays outside of the branch, since all ranks have to take part in it. Values that
    cost less to recompute than to store, such as a mask of positions, are computed in the branch
    too: its kernels can then skip what the mask hides.
    """
    before = topological([*old, seen])
    known = set(before) - cheap_to_recompute(before)

    def is_inside(node: Node) -> bool:
        return node not in known and not (is_meeting(node) or is_place(node) or is_input(node))

    inside = topological(new, is_inside)
    read = [a for n in inside for a in n.args if a not in inside and not is_inline(a)]
    args = list(dict.fromkeys([*old, *read]))
    given = {a: param(f"p{i}", a.type) for i, a in enumerate(args)}
    numbers = {a: a for n in inside for a in n.args if is_inline(a)}
    made = remade(new, given | numbers)
    params = list(given.values())
    blocks = [Block(params, params[: len(old)]), Block(params, [made[n] for n in new])]
    both = make("cond", (seen, *args), {}, blocks)
    items = [make("item", (both,), {"index": i}) for i in range(len(new))]
    return items if len(new) > 1 else [both]


def _corrected(correct: Block, index: int, old: Sequence[Node], new: Sequence[Node]) -> Node:
    """Returns state `index` of a stream's `old` states, corrected by the stream's block `correct`
    for the `new` values of the states before it."""
    given = [*old, *new, *old[len(new) :]]
    result = correct.results[index]
    return remade([result], dict(zip(correct.params, given, strict=True)))[result]


@dataclass
class RingPart:
    """The program on the part that a rank has in one step."""

    writer: _Writer
    ring: _Ring
    turn: int
    made: dict[tuple[Node, int | None], Node] = field(
        default_factory=dict[tuple[Node, int | None], Node]
    )
    given: dict[Node, Node] = field(default_factory=dict[Node, Node])

    def states(self, stream: Node) -> list[Node]:
        """Returns the states (running values) that a stream would have after this rank's current
        part alone."""
        block = stream.blocks[0]
        self.given = dict(zip(block.params, stream.args, strict=True))
        for state in block.results:
            self.made[state, None] = self.state(state)
        return [self.made[state, None] for state in block.results]

    def seen(self, hiding: Mapping[Node, int]) -> Node | None:
        """Returns a scalar bool: True if a mask leaves any element of this part visible. None if no
        select hides elements. `hiding`: the selects of masks, with the number of the operand for
        visible elements."""
        for (node, _), made in self.made.items():
            chosen = choice(made) if node in hiding else None
            if chosen is not None:
                kind = "or" if hiding[node] == 1 else "and"  # the number of the visible operand
                test = chosen.test
                while is_whole_view(test):
                    test = test.args[0]
                axes = tuple(range(test.tensor.rank))
                found = make("reduce", (test,), {"axes": axes, "kind": kind})
                return found if kind == "or" else make("not", (found,))
        return None

    def state(self, node: Node) -> Node:
        """Returns a reduction over this part alone."""
        args = [self.value(value, axis) for value, axis in streamed_axes(node)]
        return make(node.op, args, node.attrs, hint=node.type)

    def value(self, node: Node, axis: int | None) -> Node:
        """Returns `node` computed for the rank's current part, where its axis `axis` is the
        gathered one; None for `axis` means that it has no such axis."""
        key = (node, axis)
        if key not in self.made:
            self.made[key] = self._value(node, axis)
        return self.made[key]

    def _value(self, node: Node, axis: int | None) -> Node:
        if node in self.given:
            return self.value(self.given[node], axis)
        done = self.writer.done
        if axis is None:
            if node in done or not node.args:
                return done.get(node, node)
            return node.rebuilt([self.value(a, None) for a in node.args])
        turns = self.writer.turns
        if node in turns.sources and node.attrs["axis"] == axis:
            return self._gathered(node)
        is_reached = axis in turns.reached.get(node, {})
        if is_reached or node not in done or is_elementwise(node) or is_whole_view(node):
            made = self._passed(node, axis)
            if made is not None:
                return made
        return self.ring.part(done.get(node, node), axis, self.turn)

    def _gathered(self, gather: Node) -> Node:
        held = self.writer.done[gather.args[0]]
        for _ in range(self.turn):
            held = self.ring.passed(held)
        return held

    def _passed(self, node: Node, axis: int) -> Node | None:
        """Returns `node` on the rank's current part, where its axis `axis` is the gathered one.
        None if its axis rule does not map that axis to axes of the operands."""
        try:
            axes = operand_axes(node, axis) if node.args else None
        except RuleError:
            axes = None
        if axes is None:
            return None
        args = [self.value(a, found) for a, found in zip(node.args, axes, strict=True)]
        size = int(str(node.shape[axis])) // self.ring.ranks
        attrs = dict(node.attrs)
        if node.op == "slice":
            attrs["limit"] = _with(attrs["limit"], axis, size)
        type_ = node.tensor.with_shape(_with(node.shape, axis, size))
        return make(node.op, args, attrs, node.blocks, type_)


def _with(values: Sequence[Dim], place: int, value: Dim) -> tuple[Dim, ...]:
    return (*values[:place], value, *values[place + 1 :])
