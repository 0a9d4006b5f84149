"""Values of a group's nodes at an index, as tiles over the axes that the index moves along.

Each op says by its axis rule where it reads its operands. 16-bit floats are widened on load and
narrowed on store, so that everything between is computed in f32; operands of a dot stay narrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, bounds, floordiv, mul
from stack.ir.node import Block, Node
from stack.ir.types import I32, I64, DType, TensorType
from stack.passes.blocking.frame import Axis, Held
from stack.passes.blocking.memory import BlockMemory
from stack.passes.blocking.reduce import unscaled
from stack.passes.blocking.window import slopes_of, start_of
from stack.passes.positions.affine import affine
from stack.passes.tiling.frame import CannotTile, power_of_two, static, wide

MAX_CONTRACTED = 256  # of an axis that a dot takes in one step
MIN_DOT = 16  # least extent of a tile in a dot
LOG2E = 1.4426950408889634
EXACT = 1 << 24  # integers up to here are numbers of f32
COARSE = 2.0**30  # products with log2(e) that are larger are off by too many powers of two


def _inverse(value: Held) -> Held | None:
    """1 / c of a number c in f32."""
    node = value.node
    if node.op != "const" or node.tensor.rank or node.dtype.name != "f32":
        return None
    number = float(node.attrs["value"].array)
    return Held(constant(1.0 / number, node.dtype)) if 1e-30 < abs(number) < 1e30 else None


def _is_rounded(node: Node, dtype: DType) -> bool:
    """Whether it is what a wide type makes of values of a type."""
    while node.op == "gather":
        node = node.args[0]
    return node.op == "cast" and node.args[0].dtype == dtype


def _is_zero(node: Node) -> bool:
    """Whether it is the 0 that masked loads give, not -0.0."""
    return node.op == "const" and not any(node.attrs["value"].array.tobytes())


def _placed(dot: Node, index: Index, axis: Axis) -> dict[str, Dim]:
    """The axes of a dot by name: those of its result at an index, the contracted one in steps."""
    rule = parse_rule(dot.attrs["rule"])
    place: dict[str, Dim] = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
    *others, last = rule.reduced
    return {**place, **dict.fromkeys(others, 0), last: axis.place}


class BlockValues(BlockMemory):
    """Values of the nodes of `body`; `inputs` are what is loaded from memory."""

    def __init__(self, body: Block, integer: DType = I32) -> None:
        super().__init__(body, integer)
        self.inputs: dict[Node, Node] = {}
        self.known: dict[Node, tuple[Index, Held]] = {}  # values that a loop carries
        self.known_as: dict[Node, Node] = {}  # nodes that are another node where it is computed
        self.stages = 2  # steps of a loop with products that are loaded ahead
        self.step: int = 64  # default block of an axis that a dot walks along
        self.joined: list[Node] = []  # dots that walk along it together, at one index

    def value(self, node: Node, index: Index, guard: Held | None = None) -> Held:
        """The value of a node at an index, in the type that kernels compute in.

        `guard` says for which elements it is needed; loads do not touch memory elsewhere.
        """
        node = self.known_as.get(node, node)
        key = (node, index, guard)
        if key not in self.memo:
            before = self.b.loc
            self.b.loc = self.locs(node) or before
            made = self._value(node, index, guard)
            if node in self.body.names:
                self.b.names.setdefault(made.node, self.body.names[node])
            self.memo[key] = made
            self.b.loc = before
        return self.memo[key]

    def locs(self, node: Node) -> tuple[str, ...]:
        return self.body.locs.get(node, ())

    def _value(self, node: Node, index: Index, guard: Held | None) -> Held:
        if node in self.known:
            place, held = self.known[node]
            if place != index:
                raise CannotTile(f"{node.op} is read at another index than it is carried at")
            return held
        if node in self.inputs:
            return self.load(self.inputs[node], index, guard)
        kind = ops.lookup(node.op).kind
        if kind == "elementwise":
            return self._elementwise(node, index, guard)
        special = getattr(self, f"_{node.op}", None)
        if special is not None:
            return special(node, index, guard)
        if kind == "movement" and node.op != "scatter":
            (source,) = ops.pull(node, index)
            return self.value(node.args[0], source, guard)
        raise CannotTile(f"no schedule for {node.op}")

    # ---- elementwise and movement

    def _elementwise(self, node: Node, index: Index, guard: Held | None) -> Held:
        if node.op == "cast" and node.dtype.is_float:
            line = affine(node.args[0], index)
            exact = self._real(line, wide(node.dtype)) if line is not None else None
            if exact is not None:
                return self.widen(self.cast(exact, node.dtype))
        args = [self.value(a, index if a.tensor.rank else (), guard) for a in node.args]
        if node.op == "bitcast":
            source = self.cast(args[0], node.args[0].dtype)
            type_ = source.node.tensor.with_dtype(node.dtype)
            return self.widen(Held(self.b.bitcast(source.node, type=type_), source.axes))
        if node.op == "cast":
            return self._cast(args[0], node)
        if node.op == "pow" and not node.dtype.is_float:
            raise CannotTile("it raises integers to powers")
        if node.op in ("exp", "exp2"):
            return self._power(node.op, args[0])
        if node.op == "div" and (inverse := _inverse(args[1])) is not None:
            # as the frameworks' own GPU kernels divide by a number
            return self.apply("mul", [args[0], inverse])
        return self.apply(node.op, args, dict(node.attrs))

    def _real(self, line: Dim, dtype: DType) -> Held | None:
        """A sum of places along several axes as a float: of its start, and of steps from there.

        None where an integer on the way might not be a number of f32.
        """
        slopes = slopes_of(self, line)
        if slopes is None or len(slopes) < 2 or dtype.name not in ("f32", "f64"):
            return None
        start = start_of(self, line, slopes)
        reach = sum(abs(c) * self.axes[name].block for name, c in slopes.items())
        if max(map(abs, bounds(start))) + reach > EXACT:
            return None
        made: Held | None = None
        for name in self.sorted(list(slopes)):
            # the same in every tile: computed before the loop
            steps = self.apply("mul", [self.steps_of(name), self.int(slopes[name])])
            steps = self.cast(steps, dtype)
            made = steps if made is None else self.apply("add", [made, steps])
        return self.apply("add", [self.cast(self.number(start), dtype), made]) if made else None

    def _power(self, op: str, value: Held) -> Held:
        """exp(a - b) with b constant along some axes as exp2(a * L - b * L): b * L costs little.

        L is log2(e). a * L is rounded at the size of a, not of a - b: only where values are of 16
        bits, and coarser, that does not show. Where b is so large that other values are far below
        it, 1 does as well: then nothing overflows, and a row that holds one value throughout is 1
        there.
        """
        node = value.node
        if op == "exp2" or node.dtype.name != "f32" or node.op != "sub" or not value.axes:
            return self.apply(op, [value])
        if not any(x.dtype.is_float and x.dtype.bits <= 16 for x in self.inputs):
            return self.apply(op, [value])
        left, right = node.args
        if right.op != "broadcast":
            return self.apply(op, [value])
        base, scale = unscaled(self.b, left)
        small = right.args[0]
        fine = self.b.lt(self.b.abs(small), constant(COARSE, small.dtype))
        log2e, one = constant(LOG2E, small.dtype), constant(1.0, small.dtype)
        factor = self.b.select(fine, log2e, one)
        at, type_ = right.attrs["axes"], right.type
        turned = self.b.broadcast(self.b.mul(small, factor), axes=at, type=type_)
        by = factor if scale == 1 else self.b.mul(factor, constant(scale, small.dtype))
        scaled = self.b.mul(base, self.b.broadcast(by, axes=at, type=type_))
        return Held(self.b.exp2(self.b.sub(scaled, turned)), value.axes)

    def _cast(self, value: Held, node: Node) -> Held:
        source, target = node.args[0].dtype, node.dtype
        if wide(source) != source and target != source and not _is_rounded(value.node, source):
            # what is widened is the value that memory holds: others may read it there
            value = self.cast(self.cast(value, source), wide(source))
        if target == source or value.dtype == wide(target) == wide(source):
            # a 16-bit value stays wide; narrowing it must still round
            return self.cast(self.cast(value, target), wide(target))
        return self.widen(self.cast(value, target))

    def _const(self, node: Node, index: Index, guard: Held | None) -> Held:
        if node.tensor.rank:
            raise CannotTile("it holds a table")
        return Held(constant(node.attrs["value"].array, wide(node.dtype)))

    def _iota(self, node: Node, index: Index, guard: Held | None) -> Held:
        return self.cast(self.number(index[int(node.attrs["axis"])]), wide(node.dtype))

    def _pad(self, node: Node, index: Index, guard: Held | None) -> Held:
        source, fill = node.args
        test: Held | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self.both(test, self.range_test(moved, 0, (static(size) - 1) * (gap + 1) + 1))
            if gap:
                phase = self.apply("rem", [self.number(moved), self.int(gap + 1)])
                test = self.both(test, self.apply("eq", [phase, self.int(0)]))
                moved = floordiv(moved, gap + 1)
            inner.append(moved)
        value = self.value(source, tuple(inner), self.both(guard, test))
        is_masked = self.is_read(source) and not self.has_windows
        if test is None or (is_masked and _is_zero(fill)):
            return value  # of memory nothing but 0 is read where the test does not hold
        return self.apply("select", [test, value, self.value(fill, (), guard)])

    def _concat(self, node: Node, index: Index, guard: Held | None) -> Held:
        axis = int(node.attrs["axis"])
        start: Dim = 0
        result: Held | None = None
        for arg in node.args:
            end = add(start, arg.shape[axis])
            moved = (*index[:axis], add(index[axis], mul(start, -1)), *index[axis + 1 :])
            test = self.range_test(index[axis], start, end)
            part = self.value(arg, moved, self.both(guard, test))
            past = self.range_test(index[axis], start, 1 << 31)
            if result is None or past is None:
                result = part
            else:
                result = self.apply("select", [past, part, result])
            start = end
        if result is None:
            raise CannotTile("a concat of nothing")
        return result

    def _gather(self, node: Node, index: Index, guard: Held | None) -> Held:
        rule = parse_rule(node.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        indices = iter(zip(rule.inputs[1:], node.args[1:], strict=True))
        source: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.args[0].shape, strict=True):
            if axis.mark != "!":
                source.append(place[axis.names[0]])
                continue
            operand, arg = next(indices)
            position = affine(arg, tuple(place[a.names[0]] for a in operand))
            if position is not None:
                source.append(position)
                continue
            value = self.value(arg, tuple(place[a.names[0]] for a in operand), guard)
            source.append(self.data_symbol(self.cast(value, I64), static(size)))
        return self.value(node.args[0], tuple(source), guard)

    # ---- dots

    def operand(self, node: Node, index: Index, dtype: DType, guard: Held | None) -> Held:
        """An operand of a dot in the type that it has in memory."""
        if node in self.inputs and guard is None:
            return self.load(self.inputs[node], index, guard, raw=True)
        value = self.value(node, index, guard)
        if value.node.op == "cast" and value.node.args[0].dtype == dtype:
            return Held(value.node.args[0], value.axes)
        return self.cast(value, dtype)

    def _dot(self, node: Node, index: Index, guard: Held | None) -> Held:
        rule = parse_rule(node.attrs["rule"])
        sizes = {n: static(s) for n, s in rule.sizes([a.shape for a in node.args]).items()}
        summed = list(rule.reduced)
        if not summed:
            raise CannotTile("nothing is contracted")
        if any(sizes[n] > 1 for n in summed[:-1]):
            raise CannotTile("a dot over several axes")
        extent = sizes[summed[-1]]
        if extent <= MAX_CONTRACTED:
            axis = self.axis("c", extent, max(MIN_DOT, power_of_two(extent)))
            return self.product(node, _placed(node, index, axis), axis, guard)
        block = min(self.step, max(MIN_DOT, power_of_two(extent)))
        nodes = self.joined if node in self.joined else [node]
        kept = self.union([Held(node, tuple(self.tile_axes(d))) for d in index])
        # products of lines are summed place by place, and the places after the loop
        lane = "" if self._is_matrix(node, index) else self.axis("lane", block, block).name
        axes = (*kept, lane) if lane else kept

        def part(n: Node, axis: Axis) -> Held:
            place = _placed(n, index, axis)
            if not lane:
                return self.product(n, place, axis, guard)
            made = self._products(self._factors(n, place, axis, guard), axis)
            return Held(self.spread(made, (*kept, axis.name)), axes)

        def body(var: Node, carried: list[Held]) -> list[Held]:
            axis = self.axis("c", extent, block, self.b.mul(var, block))
            parts = [part(n, axis) for n in nodes]
            return [self.apply("add", [old, part]) for old, part in zip(carried, parts)]

        zero = Held(constant(0, wide(node.dtype)))
        start = [Held(self.spread(zero, axes), axes)] * len(nodes)
        names = [f"sums{i or ''}_" for i in range(len(nodes))] if nodes[1:] else ["sums"]
        count, ahead = -(-extent // block), self.stages if lane else 0
        sums = self.steps(count, start, body, "k", names=names, ahead=ahead)
        for n, made in zip(nodes, sums, strict=True):
            self.memo[n, index, guard] = self.fold(made, "sum", [lane]) if lane else made
        return self.memo[node, index, guard]

    def _is_matrix(self, dot: Node, index: Index) -> bool:
        """Whether each operand of a dot has one tile axis of its own."""
        rule = parse_rule(dot.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        own = [
            {t for a in names for t in self.tile_axes(place.get(a.names[0], 0))}
            for names in rule.inputs
        ]
        return all(len(axes) == 1 for axes in own) and own[0] != own[1]

    def is_read(self, node: Node) -> bool:
        """Whether a value is what memory holds, and so 0 past the ends of axes that it has."""
        while node.op in ("reshape", "transpose", "broadcast", "slice") and node not in self.inputs:
            node = node.args[0]
        return node in self.inputs

    def is_nothing(self, node: Node) -> bool:
        """Whether a computed value is 0 past the end of the axis that is contracted."""
        return False

    def _factors(
        self, node: Node, place: Mapping[str, Dim], axis: Axis, guard: Held | None
    ) -> list[Held]:
        """The operands of a dot on one tile of its contracted axis, 0 past the end of that."""
        rule = parse_rule(node.attrs["rule"])
        parts: list[Held] = []
        for operand, arg in zip(rule.inputs, node.args, strict=True):
            index = tuple(place[a.names[0]] for a in operand)
            value = self.operand(arg, index, arg.dtype, guard)
            is_zero = self.is_read(arg) and axis.name in value.axes
            if not is_zero and not self.is_nothing(arg):
                value = self.masked(value, "sum", [axis.name])
            parts.append(value)
        return parts

    def _products(self, parts: Sequence[Held], axis: Axis) -> Held:
        """What a dot sums."""
        return self.spread_over(self.apply("mul", [self.widen(p) for p in parts]), [axis])

    def product(self, node: Node, place: Mapping[str, Dim], axis: Axis, guard: Held | None) -> Held:
        """A dot over one tile of its contracted axis, summed in f32."""
        left, right = parts = self._factors(node, place, axis, guard)
        shared = [n for n in left.axes if n in right.axes]
        if len(left.axes) != 2 or len(right.axes) != 2 or shared != [axis.name]:
            return self.fold(self._products(parts, axis), "sum", [axis.name])
        rows = next(n for n in left.axes if n != axis.name)
        lanes = next(n for n in right.axes if n != axis.name)
        if min(self.axes[rows].block, self.axes[lanes].block) < MIN_DOT:
            raise CannotTile(f"a dot of {self.axes[rows].block} rows")
        names = dict(zip((rows, lanes, axis.name), "mnk", strict=True))
        order = self.sorted([rows, lanes])
        text = ", ".join(" ".join(names[n] for n in p.axes) for p in parts)
        made = " ".join(names[n] for n in order)
        dtype = wide(node.dtype)
        if dtype.name != "f32" or left.dtype.name == "f64":
            raise CannotTile(f"no tile product of {left.dtype} in {dtype}")
        hint = TensorType(dtype, (), "tile")
        attrs = {**node.attrs, "rule": f"{text} -> {made}"}
        product = self.b.op("dot", [left.node, right.node], attrs, hint=hint)
        return Held(product, tuple(order))


__all__ = ["BlockValues", "CannotTile"]
