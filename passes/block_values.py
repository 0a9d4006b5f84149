"""Values of a group's nodes at an index, as tiles over the axes that the index moves along.

Each op says by its axis rule where it reads its operands. 16-bit floats are widened on load and
narrowed on store, so that everything between is computed in f32; operands of a dot stay narrow.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, floordiv, mul
from stack.ir.node import Block, Node
from stack.ir.types import I32, I64, DType, TensorType
from stack.passes.affine import affine
from stack.passes.block_frame import Axis, Held, power_of_two
from stack.passes.block_reduce import BlockReduce, unscaled
from stack.passes.tile_frame import CannotTile, static, wide

MAX_CONTRACTED = 256  # of an axis that a dot takes in one step
MIN_DOT = 16  # least extent of a tile in a dot
LOG2E = 1.4426950408889634
COARSE = 2.0**30  # products with log2(e) that are larger are off by too many powers of two


def _inverse(value: Held) -> Held | None:
    """1 / c of a number c in f32."""
    node = value.node
    if node.op != "const" or node.tensor.rank or node.dtype.name != "f32":
        return None
    number = float(node.attrs["value"].array)
    return Held(constant(1.0 / number, node.dtype)) if 1e-30 < abs(number) < 1e30 else None


class BlockValues(BlockReduce):
    """Values of the nodes of `body`; `inputs` are what is loaded from memory."""

    def __init__(self, body: Block, integer: DType = I32) -> None:
        super().__init__(body, integer)
        self.inputs: dict[Node, Node] = {}
        self.known: dict[Node, tuple[Index, Held]] = {}  # values that a loop carries
        self.known_as: dict[Node, Node] = {}  # nodes that are another node where it is computed
        self.step: int = 64  # default block of an axis that a dot walks along

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

    # ---- memory

    def load(self, memory: Node, index: Index, guard: Held | None, raw: bool = False) -> Held:
        """Read a tile: a block where the index runs along the memory, else element by element."""
        axes = self.union([Held(memory, tuple(self.tile_axes(d))) for d in index])
        guard_axes = guard.axes if guard is not None else ()
        if not axes and not guard_axes:
            place = [self.number(d).node for d in index]
            extra = [] if guard is None or not index else [guard.node, constant(0, memory.dtype)]
            made = Held(self.b.load(memory, *place, *extra, type=TensorType(memory.dtype, ())))
            return made if raw else self.widen(made)
        found = self.block_place(memory, index) if guard is None else None
        if found is not None:
            made = self._block_load(memory, *found)
        else:
            made = self._element_load(memory, index, guard)
        return made if raw else self.widen(made)

    def block_place(
        self, memory: Node, index: Index
    ) -> tuple[list[Node], list[str | None], bool] | None:
        """Scalar starts, the axis of each dim, and whether the block may pass the end."""
        starts: list[Node] = []
        along: list[str | None] = []
        clip = False
        for dim, size in zip(index, memory.shape, strict=True):
            names = self.tile_axes(dim)
            if not names:
                starts.append(self.number(dim).node)
                along.append(None)
                continue
            if len(names) > 1 or names[0] in along or names[0] not in self.axes:
                return None
            axis = self.axes[names[0]]
            rest = add(dim, mul(axis.place, -1))
            if self.tile_axes(rest):
                return None
            if not axis.is_covered:
                # past the end of the axis must be past the end of the memory
                if rest != 0 or axis.extent != size:
                    return None
                clip = True
            start = self.apply("add", [self.number(rest), Held(axis.start)]) if rest != 0 else None
            starts.append(axis.start if start is None else start.node)
            along.append(axis.name)
        return starts, along, clip

    def _block_load(
        self, memory: Node, starts: list[Node], along: list[str | None], clip: bool
    ) -> Held:
        first = next(i for i, name in enumerate(along) if name is not None)
        dims = along[first:]
        shape = tuple(self.axes[n].block if n else 1 for n in dims)
        type_ = TensorType(memory.dtype, shape, "tile")
        attrs: dict[str, object] = {"clip": True} if clip else {}
        if self.evict and any(n is None and s.op != "const" for s, n in zip(starts, along)):
            attrs["evict"] = self.evict  # what other programs read too stays anyway
        node = self.b.op("load", [memory, *starts], attrs, hint=type_)
        axes = tuple(n for n in dims if n)
        if len(axes) != len(dims):
            node = self.b.reshape(node, type=TensorType(memory.dtype, self.shape(axes), "tile"))
        return Held(node, axes)

    def _element_load(self, memory: Node, index: Index, guard: Held | None) -> Held:
        places = [self.number(d) for d in index]
        mask = guard
        for name in self.union(places):
            mask = self.both(mask, self.mask(name))
        axes = self.union([*places, *([mask] if mask is not None else [])])
        type_ = TensorType(memory.dtype, self.shape(axes), "tile")
        extra: list[Node] = []
        if mask is not None:
            extra = [self.spread(mask, axes), constant(0, memory.dtype)]
        if not index:
            return Held(self.b.load(memory, type=TensorType(memory.dtype, ())))
        nodes = [self.spread(p, axes) for p in places]
        return Held(self.b.load(memory, *nodes, *extra, type=type_), axes)

    def store(self, memory: Node, value: Held, index: Index) -> Node:
        """Write a value at an index; what lies past the end of an axis is not written."""
        value = self.cast(value, memory.dtype)
        axes = self.union([Held(memory, tuple(self.tile_axes(d))) for d in index])
        if not axes:
            return self.b.store(memory, value.node, *[self.number(d).node for d in index])
        found = self.block_place(memory, index)
        if found is None:
            places = [self.number(d) for d in index]
            mask: Held | None = None
            for name in axes:
                mask = self.both(mask, self.mask(name))
            extra = [] if mask is None else [self.spread(mask, axes)]
            nodes = [self.spread(p, axes) for p in places]
            return self.b.store(memory, self.spread(value, axes), *nodes, *extra)
        starts, along, clip = found
        first = next(i for i, name in enumerate(along) if name is not None)
        dims = along[first:]
        held = [n for n in dims if n]
        node = self.spread(Held(value.node, value.axes), held)
        if len(held) != len(dims):
            shape = tuple(self.axes[n].block if n else 1 for n in dims)
            node = self.b.reshape(node, type=TensorType(memory.dtype, shape, "tile"))
        attrs = {"clip": True} if clip else {}
        return self.b.op("store", [memory, node, *starts], attrs)

    # ---- elementwise and movement

    def widen(self, value: Held) -> Held:
        return self.cast(value, wide(value.dtype))

    def _elementwise(self, node: Node, index: Index, guard: Held | None) -> Held:
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
        is_rounded = value.node.op == "cast" and value.node.args[0].dtype == source
        if wide(source) != source and target != source and not is_rounded:
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
        if test is None:
            return value
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
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        summed = list(rule.reduced)
        if not summed:
            raise CannotTile("nothing is contracted")
        last = summed[-1]
        if any(sizes[n] > 1 for n in summed[:-1]):
            raise CannotTile("a dot over several axes")
        place.update(dict.fromkeys(summed[:-1], 0))
        extent = sizes[last]
        if extent <= MAX_CONTRACTED:
            axis = self.axis("c", extent, max(MIN_DOT, power_of_two(extent)))
            return self.product(node, {**place, last: axis.place}, axis, guard)
        block = min(self.step, max(MIN_DOT, power_of_two(extent)))

        def body(var: Node, carried: list[Held]) -> list[Held]:
            axis = self.axis("c", extent, block, self.b.mul(var, block))
            part = self.product(node, {**place, last: axis.place}, axis, guard)
            return [self.apply("add", [carried[0], part])]

        axes = self.union([Held(node, tuple(self.tile_axes(d))) for d in index])
        zero = Held(constant(0, wide(node.dtype)))
        start = Held(self.spread(zero, axes), axes)
        return self.steps(-(-extent // block), [start], body, "k", names=["sums"])[0]

    def is_read(self, node: Node) -> bool:
        """Whether a value is what memory holds, and so 0 past the ends of axes that it has."""
        while node.op in ("reshape", "transpose", "broadcast", "slice") and node not in self.inputs:
            node = node.args[0]
        return node in self.inputs

    def product(self, node: Node, place: Mapping[str, Dim], axis: Axis, guard: Held | None) -> Held:
        """A dot over one tile of its contracted axis, summed in f32."""
        rule = parse_rule(node.attrs["rule"])
        parts: list[Held] = []
        for operand, arg in zip(rule.inputs, node.args, strict=True):
            index = tuple(place[a.names[0]] for a in operand)
            value = self.operand(arg, index, arg.dtype, guard)
            if not self.is_read(arg) or axis.name not in value.axes:
                value = self.masked(value, "sum", [axis.name])
            parts.append(value)
        left, right = parts
        shared = [n for n in left.axes if n in right.axes]
        if len(left.axes) != 2 or len(right.axes) != 2 or shared != [axis.name]:
            wide_parts = [self.widen(p) for p in parts]
            spread = self.spread_over(self.apply("mul", wide_parts), [axis])
            return self.fold(spread, "sum", [axis.name])
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
        product = self.b.op(
            "dot", [left.node, right.node], {"rule": f"{text} -> {made}"}, hint=hint
        )
        return Held(product, tuple(order))


__all__ = ["BlockValues", "CannotTile"]
