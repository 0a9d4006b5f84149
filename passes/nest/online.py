"""The loop nest of a stream: one loop over the streamed axis computes all states online.

An iteration takes one element. For each state in order, it rescales the carried value to the new
values of the earlier states, and adds what the element contributes:

    %max, %sum = loop(-inf, 0.0) {online=true} {(%r < 64, %old, %old_1)
      %x = load(%p0, %i, %r)
      %new = max(%old, %x)
      %kept = mul(%old_1, exp(sub(%old, %new)))
      %new_1 = add(%kept, exp(sub(%x, %new)))
      return %new, %new_1 }

Attribute `online` says that this is associative: any iterations may be added at once, as step
`block` does.

Source: online softmax (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stack.ir.axes import Index
from stack.ir.builder import constant, make, remade
from stack.ir.dim import Dim, add, mul, substitute, symbols
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node, topological
from stack.ir.space import identity
from stack.ir.stream_op import streamed_axes, streamed_extent
from stack.ir.traits import fold_of, is_contraction, is_load
from stack.ir.types import TensorType
from stack.passes.nest.scope import letter, looped, names_in
from stack.passes.nest.values import Given, Scalars
from stack.passes.positions.streams import operand_place, stream_index_maps
from stack.passes.tiling.frame import COMBINE, static, wide

STREAMED = "r"  # the name of the streamed axis
Asked = tuple[int, Index, Node | None]  # a state, by its number, an index, and a guard


class Online:
    """Builds the scalar loops of a `stream` op, which computes dependent reductions (its states)
    over one axis, as online softmax does.

    Args:
        stream: the stream.
        values: builds elements of its values from memory.
    """

    def __init__(self, stream: Node, values: Scalars) -> None:
        self.stream, self.values, self.scope = stream, values, values.scope
        self.states = stream.blocks[0].results
        self.extent = static(streamed_extent(stream))
        self.part = min(int(stream.attrs.get("part") or self.extent), self.extent)
        self.first: Dim = 0  # the first element of the part
        self._axis: Dim | None = None

    # ---- the loops around

    def space(self) -> tuple[list[Dim], list[Dim], list[Index]]:
        """Creates the loops over the axes of all results. Raises CannotTile if the results do not
        share one loop space.

        Returns:
            The axes of the loops around all results, those of the loops around some of them, and
            the index of each result.
        """
        where = stream_index_maps(*self.stream.blocks)
        parts: list[Dim] = []
        if "part" in self.stream.attrs:
            parts = [self.scope.axis("p", -(-self.extent // self.part))]
            self.first = mul(parts[0], self.part)
        of_states = names_in(d for place in where.states.values() for d in place)
        known: dict[str, Dim] = {}
        for number, variable in enumerate(where.iter_vars):
            (own,) = symbols(variable)
            # results as long as the streamed axis have that axis itself
            is_long = own.name not in of_states and own.high == self.extent - 1
            if is_long and self._axis is None:
                known[own.name] = self.axis
            else:
                known[own.name] = self.scope.axis(letter(number), static(own.high) + 1)
        places = [tuple(substitute(d, known) for d in place) for place in where.results]
        used = [names_in(place) for place in places]
        kept, inner = list(parts), list[Dim]()
        for name, axis in known.items():
            is_shared = name in of_states and all(str(axis) in names for names in used)
            (kept if is_shared else inner).append(axis)
        return looped(kept), looped(inner), [(*parts, *place) for place in places]

    @property
    def axis(self) -> Dim:
        """The loop axis over the elements of the streamed axis; created at first use."""
        if self._axis is None:
            self._axis = self.scope.axis(STREAMED, self.part)
        return self._axis

    # ---- values

    def elements(self, wanted: Sequence[tuple[Node, Index]]) -> Scalars:
        """Builds the loops over the streamed axis that some results need, each result at an index.

        States that are read in the same outer loops share one loop over the streamed axis.

        Returns:
            The builder of the elements of the results.
        """
        depends: dict[Asked, frozenset[Node]] = {}  # loops around all results that read a state
        for result, index in wanted:
            asked = self._asked(result, index)
            around = frozenset(v for a in asked for v in self.scope.vars_of(*a[1:]))
            depends |= {a: depends.get(a, around) & around for a in asked}
        groups: dict[frozenset[Node], list[Asked]] = {}
        for asked, around in depends.items():
            groups.setdefault(around, []).append(asked)
        known: dict[Asked, Node] = {}
        for around in sorted(groups, key=len):
            made = self._loop(groups[around], around)
            known |= {a: made[a] for a in groups[around]}

        def given(number: int) -> Given:
            return lambda index, guard: known[number, index, guard]

        return self.values.fork({s: given(self.states.index(s)) for s in self.states})

    def _asked(self, result: Node, index: Index) -> list[Asked]:
        """Returns the running values (states) that an element of a result depends on.

        Each comes with the index at which it is read, and the condition of the read, if any.
        """
        found: dict[Asked, None] = {}

        def given(state: Node) -> Given:
            def note(index: Index, guard: Node | None) -> Node:
                found[self.states.index(state), index, guard] = None
                return constant(0, wide(state.dtype))

            return note

        self.values.fork({s: given(s) for s in self.states}).value(result, index)
        return list(found)

    def _loop(self, asked: Sequence[Asked], outside: frozenset[Node]) -> dict[Asked, Node]:
        """Builds a loop over the streamed axis that computes the states `asked`, in the loops over
        the variables `outside`. Returns the final value of each state.
        """
        var = self.scope.variable(self.axis)
        axis = self.scope.axis(STREAMED, self.part) if var in outside else self.axis
        made = _Iteration(self, axis)
        for one in asked:
            made.new(*one)
        order = made.complete()
        olds, steps = [made.olds[one] for one in order], [made.news[one] for one in order]
        starts = [self.identity(one[0]) for one in order]
        if isinstance(axis, int):
            done = remade(steps, dict(zip(olds, starts, strict=True)))
            return {one: done[made.news[one]] for one in order}
        totals = [step.args[0] is old for old, step in zip(olds, steps, strict=True)]
        alone = [step.args[1].vars.isdisjoint(olds) for step in steps]
        is_online = not all(totals) or not all(alone)
        results = self.scope.loop(axis, starts, olds, steps, is_online)
        for one, result in zip(order, results, strict=True):
            self.values.call(self.states[one[0]], result)
        return dict(zip(order, results, strict=True))

    def identity(self, number: int) -> Node:
        """Returns the constant that a state starts from: the identity of its reduction."""
        state = self.states[number]
        return constant(identity(fold_of(state), wide(state.dtype)), wide(state.dtype))


class _Iteration:
    """Builds the body of a loop over the streamed axis: the updates of the states.

    Attributes:
        olds: the variable that carries each state.
        news: each state after the iteration.
        key: the number of the element along the streamed axis.
        test: the condition that the part has this element; None if all parts have it. States do not
            depend on it: those that an element's contribution reads are those that are carried.
    """

    def __init__(self, online: Online, axis: Dim) -> None:
        self.online = online
        self.key = add(online.first, axis)
        self.test = online.scope.inside(self.key, 0, online.extent)
        self.olds: dict[Asked, Node] = {}
        self.news: dict[Asked, Node] = {}
        given: dict[Node, Given] = {}
        params, count = online.stream.blocks[1].params, len(online.states)
        for i, state in enumerate(online.states):
            number = online.states.index(state)  # a state may be there twice
            given[params[i]] = partial(self.old, number)
            given[params[count + i]] = given[state] = partial(self.new, number)
        self.values = online.values.fork(given)

    def old(self, number: int, index: Index, guard: Node | None) -> Node:
        """Returns the variable that carries state `number` at an index."""
        key = number, index, self._guard(guard)
        if key not in self.olds:
            dtype = wide(self.online.states[number].dtype)
            self.olds[key] = self.online.scope.carried("acc", TensorType(dtype, ()))
        return self.olds[key]

    def new(self, number: int, index: Index, guard: Node | None) -> Node:
        """Returns the state after the iteration: rescaled, plus what this element adds."""
        guard = self._guard(guard)
        key = number, index, guard
        if key not in self.news:
            online, state = self.online, self.online.states[number]
            part = self._element(number, index, guard)
            kept = self.values.value(online.stream.blocks[1].results[number], index, guard)
            self.old(*key)
            made = online.scope.b.op(COMBINE[fold_of(state)], [kept, part])
            self.news[key] = self.values.locate(state, made)
        return self.news[key]

    def _element(self, number: int, index: Index, guard: Node | None) -> Node:
        """Computes the contribution of this element to a state that is read under a guard."""
        online, state = self.online, self.online.states[number]
        guard = online.scope.both(guard, self.test)
        found = [
            self.values.value(operand, operand_place(state, index, self.key, side), guard)
            for side, (operand, _) in enumerate(streamed_axes(state))
        ]
        made = self.values.product(state, found) if is_contraction(state) else found[0]
        if self.test is None:
            return made
        made = _loads_unmasked(made, self.test)
        return online.scope.b.select(self.test, made, online.identity(number))

    def _guard(self, guard: Node | None) -> Node | None:
        return None if guard is self.test else guard

    def complete(self) -> list[Asked]:
        """Builds the update of each state whose old value some other update reads but whose new
        value was not built yet. Returns all states of the loop, in the order of the stream.
        """
        while missing := [key for key in self.olds if key not in self.news]:
            self.new(*missing[0])
        return sorted(self.news, key=lambda key: key[0])


def _loads_unmasked(made: Node, test: Node) -> Node:
    """Removes the mask `test` from those loads in the value `made` whose indices do not depend on
    the variables in `test`, since these loads never leave their array.
    """
    known: dict[Node, Node] = {}
    nodes = topological([made])
    inside = (n for node in nodes for b in node.blocks for n in b.all_nodes)
    for load in filter(is_load, (*nodes, *inside)):
        index, mask, _ = access_parts(load)
        if mask is test and all(test.vars.isdisjoint(i.vars) for i in index):
            known[load] = make("load", [load.args[0], *index], load.attrs, hint=load.type)
    return remade([made], known)[made] if known else made
