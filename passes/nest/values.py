"""Scalars: the element of a node at an index of loop variables, as a scalar of the nest.

The access relation of an op gives the index at which it reads each operand (`ops.pull`). So an
element is computed from the result back to memory. A reduction becomes a loop with an accumulator.
16-bit floats are converted to 32 bits after a load, and back before a store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.contraction import contraction
from stack.ir.dim import Dim, Expr, add, bounds, floordiv, mul, symbols
from stack.ir.node import Block, Node, is_op_name, topological
from stack.ir.space import identity
from stack.ir.traits import (
    behind,
    converts,
    is_contraction,
    is_number,
    is_positions,
    reinterprets,
    tests_floats,
)
from stack.ir.types import I64, DType, TensorType
from stack.passes.nest.scope import Scope
from stack.passes.positions.index_maps import affine
from stack.passes.tiling.frame import COMBINE, CannotTile, is_rounded, static, wide

Wanted = tuple[Node, Index, Node | None]  # a node, an index, and the guard of the element
Steps = Generator[Wanted, Node, Node]  # yields the elements that it needs, returns its own
Rule = Callable[[Node, Index, Node | None], Steps]
Given = Callable[[Index, Node | None], Node]  # the element of a value at an index, with a guard


class Scalars:
    """Builds the scalar nodes of a loop nest: each computes one element of a node of the fusion
    group, at an index of loop variables.

    Args:
        scope: builds the nodes.
        memory: the kernel's parameter for each parameter and constant table of the group.
        block: the group's own block, with the names and source lines of its nodes in the program.
        base: builds elements that do not depend on given values.
        given: the values that are built elsewhere.
    """

    def __init__(
        self,
        scope: Scope,
        memory: Mapping[Node, Node],
        block: Block,
        base: Scalars | None = None,
        given: Mapping[Node, Given] | None = None,
    ) -> None:
        self.scope = scope
        self.memory = memory
        self._base = base
        self._given = given or {}
        self._is_free: dict[Node, bool] = {}  # of what is given
        self._block = block
        self._stored = {behind(result) for result in block.results}
        self._known: dict[Wanted, Node] = {}
        self._shared: dict[tuple[Node, int], Expr] = {}
        self._contracted: dict[tuple[Node, int], Expr] = {}
        self._rules: dict[str, Rule] = {
            "pad": self._pad,
            "concat": self._concat,
            "gather": self._gather,
            "reduce": self._reduce,
        }

    def share(self, reduction: Node, axis: int, place: Dim) -> None:
        """Makes a reduction over `axis` run over a loop axis that other results have too."""
        if isinstance(place, Expr):
            self._shared[reduction, axis] = place

    def fork(self, given: Mapping[Node, Given]) -> Scalars:
        """Returns a builder in the same kernel in which functions build the elements of the nodes
        in `given`; this builder still builds all that does not depend on them.
        """
        return Scalars(self.scope, self.memory, self._block, self, given)

    # ---- values

    def value(self, node: Node, index: Index, guard: Node | None = None) -> Node:
        """Builds the scalar that is the element of a node at an index, in the type in which kernels
        compute.

        Args:
            node: the node.
            index: the index.
            guard: the condition under which the element is needed; loads are masked by it.
        """
        first = (node, index, guard)
        pending = [(first, self._steps(*first))] if first not in self._known else []
        found: Node | None = None
        while pending:  # no recursion: chains may be long
            wanted = self._advance(pending, found)
            found = self._known.get(wanted)
            if found is None:
                pending.append((wanted, self._steps(*wanted)))
        return self._known[first]

    def _advance(self, pending: list[tuple[Wanted, Steps]], found: Node | None) -> Wanted:
        """Resumes the generator that builds the last element in `pending`, with `found`, the
        operand it waits for. Returns the operand it needs next; the element itself once it is
        built.
        """
        wanted, steps = pending[-1]
        locs = self._block.locs
        outside = self.scope.b.loc
        lines = next((locs[w[0]] for w, _ in reversed(pending) if w[0] in locs), outside)
        before, self.scope.b.loc = self.scope.b.loc, lines
        try:
            return next(steps) if found is None else steps.send(found)
        except StopIteration as done:
            made: Node = done.value
            self._known[wanted] = made
            if wanted[0] not in self._given and made.op not in ("var", "const"):
                self.call(wanted[0], made)
            pending.pop()
            return wanted
        finally:
            self.scope.b.loc = before

    def call(self, node: Node, made: Node) -> None:
        """Gives `made`, a scalar of the loop nest, the name that `node` of the fusion group has."""
        if node in self._block.names:
            name = self._block.names[node]
            self.scope.b.names.setdefault(made, node.op if is_op_name(node, name) else name)

    def locate(self, node: Node, made: Node) -> Node:
        """Gives `made` the source lines of `node` of the fusion group. Returns `made`."""
        if node in self._block.locs:
            self.scope.b.locs.setdefault(made, self._block.locs[node])
        return made

    def _steps(self, node: Node, index: Index, guard: Node | None) -> Steps:
        """Builds one element; yields the elements that it needs."""
        if node in self._given:
            return self._given[node](index, guard)
        if self._base is not None and self._is_free_of_given(node):
            return self._base.value(node, index, guard)
        if node in self.memory:
            return self.element(self.memory[node], index, guard)
        if is_number(node):
            return constant(node.attrs["value"].array, wide(node.dtype))
        if is_positions(node):
            place = self.scope.number(index[int(node.attrs["axis"])])
            return self.scope.cast(place, wide(node.dtype))
        kind = ops.lookup(node.op).kind
        if is_contraction(node):
            return (yield from self._dot(node, index, guard))
        if node.op in self._rules:
            return (yield from self._rules[node.op](node, index, guard))
        if kind == "elementwise":
            return (yield from self._elementwise(node, index, guard))
        if kind == "movement" and len(node.args) == 1:
            (source,) = ops.pull(node, index)
            return (yield node.args[0], source, guard)
        raise CannotTile(f"no loop nest computes {node.op}")

    def _is_free_of_given(self, node: Node) -> bool:
        """True if the builder that this one was forked from can build a node."""
        free = self._is_free
        for n in topological([node], known=free):
            free[n] = n not in self._given and all(free[a] for a in n.args)
        return free[node]

    def element(self, memory: Node, index: Index, guard: Node | None = None) -> Node:
        """Loads the element of memory at an index; gives 0 if the guard is false."""
        extra = [] if guard is None else [guard, constant(0, memory.dtype)]
        place = [self.scope.number(d) for d in index]
        made = self.scope.b.load(memory, *place, *extra, type=TensorType(memory.dtype, ()))
        return self.scope.cast(made, wide(made.dtype))

    def stored(
        self, memory: Node, value: Node, index: Iterable[Dim], guard: Node | None = None
    ) -> Node:
        """Stores a value at an index if the guard is true. Returns the memory after it."""
        extra = [] if guard is None else [guard]
        place = [self.scope.number(d) for d in index]
        return self.scope.b.store(memory, self.scope.cast(value, memory.dtype), *place, *extra)

    def _elementwise(self, node: Node, index: Index, guard: Node | None) -> Steps:
        args: list[Node] = []
        for arg in node.args:
            args.append((yield arg, index if arg.tensor.rank else (), guard))
        if reinterprets(node):
            source = self.scope.cast(args[0], node.args[0].dtype)
            made = self.scope.b.bitcast(source, type=source.tensor.with_dtype(node.dtype))
            return self.scope.cast(made, wide(made.dtype))
        if converts(node):
            # a 16-bit float stays as precise as registers hold it if its f32 value is wanted,
            # unless other kernels read it from memory: all have to see one value
            (value,), source, target = args, node.args[0].dtype, node.dtype
            widens = target.is_float and target.bits > source.bits
            if target != source and not (widens and behind(node.args[0]) not in self._stored):
                value = self._rounded(value, source)
            return self.scope.cast(self.scope.cast(value, target), wide(target))
        if tests_floats(node):
            # another kernel may read the value that it is compared with from memory
            args = [self._rounded(v, a.dtype) for v, a in zip(args, node.args, strict=True)]
        return self.scope.b.op(node.op, args, dict(node.attrs))

    def _rounded(self, value: Node, dtype: DType) -> Node:
        """Rounds a value to a narrow float type. Returns it in the type of computations."""
        if is_rounded(value, dtype):
            return value
        return self.scope.cast(self.scope.cast(value, dtype), wide(dtype))

    def _pad(self, node: Node, index: Index, guard: Node | None) -> Steps:
        source, fill = node.args
        test: Node | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self.scope.both(
                test, self.scope.inside(moved, 0, (static(size) - 1) * (gap + 1) + 1)
            )
            if gap:
                phase = self.scope.b.rem(self.scope.number(moved), self.scope.int(gap + 1))
                test = self.scope.both(test, self.scope.b.eq(phase, self.scope.int(0)))
                moved = floordiv(moved, gap + 1)
            inner.append(moved)
        value = yield source, tuple(inner), self.scope.both(guard, test)
        while source not in self.memory and ops.is_whole_view(source):
            (source,) = source.args
        is_zero = is_number(fill) and not any(fill.attrs["value"].array.tobytes())  # no -0.0
        if test is None or (source in self.memory and is_zero):
            return value  # the masked load gives 0 if the test is false
        filled = yield fill, (), guard
        return self.scope.b.select(test, value, filled)

    def _is_reduced_before(self, node: Node, index: Index, axis: int) -> bool:
        """True if an operand of a concatenation is one reduced element, and no other loop of the
        result is inside of the loop over the joined axis. The element is then computed once, before
        that loop, and not under a guard in each iteration.
        """
        created = list(self.scope.variables)
        first = min((created.index(s.name) for s in symbols(index[axis])), default=len(created))
        other = {s.name for d in (*index[:axis], *index[axis + 1 :]) for s in symbols(d)}
        if node.shape[axis] != 1 or first == len(created) or other.intersection(created[first:]):
            return False
        made = topological([node], known=self.memory)
        return any(n.op == "reduce" or is_contraction(n) for n in made)

    def _concat(self, node: Node, index: Index, guard: Node | None) -> Steps:
        axis = int(node.attrs["axis"])
        position = index[axis]
        least, most = bounds(position)
        start: Dim = 0
        result: Node | None = None
        for arg in node.args:
            end = add(start, arg.shape[axis])
            if least < bounds(end)[0] and most >= bounds(start)[0]:
                place, test = add(position, mul(start, -1)), self.scope.inside(position, start, end)
                if self._is_reduced_before(arg, index, axis):
                    place, test = 0, None
                moved = (*index[:axis], place, *index[axis + 1 :])
                part = yield arg, moved, self.scope.both(guard, test)
                past = self.scope.inside(position, start, 1 << 31)
                if result is None or past is None:
                    result = part
                else:
                    result = self.scope.b.select(past, part, result)
            start = end
        if result is None:
            raise CannotTile("a concat without operands")
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
                position = self.scope.data_place(self.scope.cast(found, I64), static(size))
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
                known = self._known_axis([self._shared.get((node, axis))], index, guard)
                place = self.scope.axis("r", static(extent)) if known is None else known
                places.append(place)
                full.append(place)
            else:
                full.append(next(kept))
        value = yield operand, tuple(full), guard
        return self.total(kind, places, value)

    def _known_axis(
        self, known: Iterable[Expr | None], index: Index, guard: Node | None
    ) -> Expr | None:
        """Returns the first of some loop axes over which the element at `index` can be reduced;
        None if there is none.

        The element must not be computed inside of that loop: its index, or the guard under which
        it is needed, would use the loop's variable.
        """
        variables, outside = self.scope.variables, self.scope.vars_of(index, guard)
        return next((a for a in known if a is not None and variables[str(a)] not in outside), None)

    def total(self, kind: str, places: Sequence[Dim], value: Node) -> Node:
        """Builds loops that reduce a scalar over some axes, the last one innermost."""
        real = [p for p in places if isinstance(p, Expr)]
        first = constant(identity(kind, value.dtype), value.dtype)
        held = [self.scope.carried("acc", value.type) for _ in real]
        for depth, place in reversed(list(enumerate(real))):
            is_inner = depth == len(real) - 1
            step = self.scope.b.op(COMBINE[kind], [held[depth], value]) if is_inner else value
            (value,) = self.scope.loop(
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
        # a matmul has a reduction loop even if there is one element to reduce
        looped = [n for n in order if sizes[n] != 1] or order[-1:]
        places: dict[str, Dim] = {}
        for name in [*order, *(set(summed) - {*order})]:
            sides = [(a, names.index(name)) for a, names in zip(node.args, own) if name in names]
            # the loops of matmuls that contract the same operand can be fused, and load it once
            place: Dim | None = self._known_axis(map(self._contracted.get, sides), index, guard)
            if place is None:
                place = self.scope.axis(name, static(sizes[name]), name in looped)
                if isinstance(place, Expr):
                    self._contracted.update(dict.fromkeys(sides, place))
            places[name] = place
        at |= places
        factors: list[Node] = []
        for arg, names in zip(node.args, own, strict=True):
            factors.append((yield arg, tuple(at[n] for n in names), guard))
        return self.total("sum", list(places.values()), self.product(node, factors))

    def product(self, node: Node, factors: Sequence[Node]) -> Node:
        """Builds the product of `factors`, an element of each operand of a contraction."""
        rounded = [  # as matrix instructions do
            self.scope.cast(self._rounded(factor, arg.dtype), wide(node.dtype))
            for factor, arg in zip(factors, node.args, strict=True)
        ]
        return self.scope.b.mul(*rounded)
