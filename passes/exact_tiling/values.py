"""Values of a group's nodes at an index: how each op reads its operands inside of a kernel.

16-bit floats are widened on load and narrowed on store, so that sums accumulate in f32.
"""

from __future__ import annotations

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, Expr, Quotient, add, bounds, mod, mul
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.types import I64, DType, TensorType
from stack.passes.tiling.frame import COMBINE, CannotTile, Frame, static, wide


class Values(Frame):
    """Values of the nodes of `body`; `inputs` are what is loaded from memory."""

    def __init__(self, body: Block) -> None:
        super().__init__()
        self.body = body
        self.inputs: dict[Node, Node] = {}
        self.places: dict[Node, Index] = {}
        self.memo: dict[tuple[Node, Index, Node | None], Node] = {}

    def value(self, node: Node, index: Index, guard: Node | None) -> Node:
        """The value of a node at an index, in the type that kernels compute in.

        `guard` says for which lanes the value is needed; loads do not touch memory elsewhere.
        """
        key = (node, index, guard)
        if key not in self.memo:
            before = self.b.loc
            self.b.loc = self.body.locs.get(node, before)
            made = self._value(node, index, guard)
            if node in self.body.names:
                self.b.names.setdefault(made, self.body.names[node])
            self.memo[key] = made
            self.b.loc = before
        return self.memo[key]

    def _value(self, node: Node, index: Index, guard: Node | None) -> Node:
        if node in self.inputs:
            return self._load(node, index, guard)
        kind = ops.lookup(node.op).kind
        if kind == "elementwise":
            return self._elementwise(node, index, guard)
        special = getattr(self, f"_{node.op}", None)
        if special is not None:
            return special(node, index, guard)
        if kind == "movement" and node.op not in ("scatter",):
            (source,) = ops.pull(node, index)
            return self.value(node.args[0], source, guard)
        raise CannotTile(f"no schedule for {node.op}")

    def _load(self, node: Node, index: Index, guard: Node | None) -> Node:
        memory = self.inputs[node]
        uses_tile = any(self.is_tile(d) for d in index)
        masked_tile = guard is not None and guard.tensor.rank
        shape: tuple[Dim, ...] = (self.tile,) if uses_tile or masked_tile else ()
        type_ = TensorType(node.dtype, shape, "tile" if shape else "value")
        place = self.block_index(index) if uses_tile else None
        if place is None:
            place = [self.number(d) for d in index]
            if shape:
                place = [self.as_tile(p) for p in place]
        if shape and not index:
            return self.widen(self.b.load(memory, type=TensorType(node.dtype, ())))
        extra = [guard, constant(0, node.dtype)] if guard is not None and index else []
        return self.widen(self.b.load(memory, *place, *extra, type=type_))

    def widen(self, value: Node) -> Node:
        return self.narrow(value, wide(value.dtype))

    def narrow(self, value: Node, dtype: DType) -> Node:
        if value.dtype == dtype:
            return value
        return self.b.cast(value, type=value.tensor.with_dtype(dtype))

    def _elementwise(self, node: Node, index: Index, guard: Node | None) -> Node:
        args = [self.value(a, index if a.tensor.rank else (), guard) for a in node.args]
        if node.op in ("cast", "bitcast"):
            if node.op == "bitcast":
                args = [self.narrow(args[0], node.args[0].dtype)]
                made = self.b.bitcast(args[0], type=args[0].tensor.with_dtype(node.dtype))
                return self.widen(made)
            return self._cast(args[0], node)
        return self.b.op(node.op, args, node.attrs)

    def _cast(self, value: Node, node: Node) -> Node:
        source, target = node.args[0].dtype, node.dtype
        is_rounded = value.op == "cast" and value.args[0].dtype == source
        if wide(source) != source and target != source and not is_rounded:
            # what is widened is the value that memory holds: others may read it there
            value = self.narrow(self.narrow(value, source), wide(source))
        if target == source or value.dtype == wide(target) == wide(source):
            # a 16-bit value stays wide; narrowing it must still round
            return self.narrow(self.narrow(value, target), wide(target))
        return self.widen(self.narrow(value, target))

    def _const(self, node: Node, index: Index, guard: Node | None) -> Node:
        data = node.attrs["value"]
        return constant(data.array, wide(node.dtype))

    def _iota(self, node: Node, index: Index, guard: Node | None) -> Node:
        return self.narrow(self.number(index[int(node.attrs["axis"])]), wide(node.dtype))

    def _reduce(self, node: Node, index: Index, guard: Node | None) -> Node:
        """Reduce along the tile where its axis is the tile axis, else in serial loops."""
        operand, axes, kind = node.args[0], node.attrs["axes"], node.attrs["kind"]
        if not axes:
            return self.value(operand, index, guard)
        place = self.places.get(operand)
        in_tile = False
        serial: list[Expr] = []
        full: list[Dim] = []
        kept = iter(index)
        for axis, extent in enumerate(operand.shape):
            if axis not in axes:
                full.append(next(kept))
            elif self._reduces_tile(place, axis, extent, index):
                full.append(self.tile_dim)
                in_tile = True
            else:
                serial.append(self.serial(static(extent)))
                full.append(serial[-1])
        if in_tile and guard is not None and guard.tensor.rank:
            # the lanes of what is read are others than those that need the result
            guard = self.b.reduce(guard, kind="or", axes=(0,))
        value = self._accumulate(serial, kind, operand, tuple(full), guard)
        if in_tile:
            value = self.b.reduce(self.as_tile(value), kind=kind, axes=(0,))
        return value

    def _reduces_tile(self, place: Index | None, axis: int, extent: Dim, index: Index) -> bool:
        return (
            place is not None
            and self.tile == extent
            and place[axis] == self.tile_dim
            and not any(self.is_tile(d) for d in index)
        )

    def _accumulate(
        self, serial: list[Expr], kind: str, operand: Node, index: Index, guard: Node | None
    ) -> Node:
        """Fold an operand over serial loops, the first outermost; lanes stay apart."""
        if not serial:
            return self.value(operand, index, guard)
        moves = any(self.is_tile(d) for d in index) or (guard is not None and guard.tensor.rank)
        dtype = wide(operand.dtype)
        shape: tuple[Dim, ...] = (self.tile,) if moves else ()
        type_ = TensorType(dtype, shape, "tile" if moves else "value")
        start = constant(identity(kind, dtype), dtype)
        total: Node = self.splat(start) if moves else start
        names = [f"acc{s}" for s in serial]
        accs = [Node("var", (), {"name": n}, type_) for n in names]
        inner = self.value(operand, index, guard)
        inner = self.as_tile(inner) if moves else inner
        # each loop of a sum of floats has an accumulator of its own
        anew = kind == "sum" and dtype.is_float
        result = self.b.op(COMBINE[kind], [accs[-1], inner])
        for depth in reversed(range(len(serial))):
            init = accs[depth - 1] if depth and not anew else total
            block = Block((self.nodes[str(serial[depth])], accs[depth]), [result])
            (result,) = self.loop("serial", [init], block)
            if depth and anew:
                result = self.b.add(accs[depth - 1], result)
        return result

    def _pad(self, node: Node, index: Index, guard: Node | None) -> Node:
        source, fill = node.args
        test: Node | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self.both(test, self.range_test(moved, 0, (static(size) - 1) * (gap + 1) + 1))
            if gap:
                phase = self.b.rem(self.number(moved), gap + 1)
                test = self.both(test, self.b.eq(phase, 0))
                moved = (
                    Expr((((Quotient("//", moved, gap + 1),), 1),))
                    if isinstance(moved, Expr)
                    else moved // (gap + 1)
                )
            inner.append(moved)
        value = self.value(source, tuple(inner), self.both(guard, test))
        if test is None:
            return value
        return self.b.select(test, value, self.value(fill, (), guard))

    def _concat(self, node: Node, index: Index, guard: Node | None) -> Node:
        axis = int(node.attrs["axis"])
        position = index[axis]
        turned = rotation(node)
        if turned is not None and not self.is_tile(position):
            place = mod(add(position, turned[1]), node.shape[axis])
            return self.value(turned[0], (*index[:axis], place, *index[axis + 1 :]), guard)
        start: Dim = 0
        parts: list[tuple[Node | None, Node]] = []
        for arg in node.args:
            end = add(start, arg.shape[axis])
            least, most = bounds(position)
            if least < bounds(end)[0] and most >= bounds(start)[0]:
                test = self.range_test(position, start, end)
                moved = (*index[:axis], add(position, mul(start, -1)), *index[axis + 1 :])
                parts.append((test, self.value(arg, moved, self.both(guard, test))))
            start = end
        result = parts[-1][1]
        for test, value in reversed(parts[:-1]):
            result = value if test is None else self.b.select(test, value, result)
        return result

    def _gather(self, node: Node, index: Index, guard: Node | None) -> Node:
        rule = parse_rule(node.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        indices = iter(zip(rule.inputs[1:], node.args[1:], strict=True))
        source: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.args[0].shape, strict=True):
            if axis.mark != "!":
                source.append(place[axis.names[0]])
                continue
            operand, arg = next(indices)
            value = self.value(arg, tuple(place[a.names[0]] for a in operand), guard)
            source.append(self.data_symbol(self.narrow(value, I64), static(size)))
        return self.value(node.args[0], tuple(source), guard)


def rotation(node: Node) -> tuple[Node, int] | None:
    """What a concat of two slices of one value rotates along its axis, and by how much."""
    axis = int(node.attrs["axis"])
    if len(node.args) != 2 or any(a.op != "slice" for a in node.args):
        return None
    last, first = node.args
    source = last.args[0]
    shift = last.attrs["start"][axis]
    whole = source.shape
    if first.args[0] is not source or node.shape != whole or not isinstance(shift, int):
        return None
    split = (*whole[:axis], shift, *whole[axis + 1 :])
    nothing, ones = (0,) * len(whole), (1,) * len(whole)
    start = (*nothing[:axis], shift, *nothing[axis + 1 :])
    if last.attrs != {"start": start, "limit": whole, "step": ones}:
        return None
    return (
        (source, shift) if first.attrs == {"start": nothing, "limit": split, "step": ones} else None
    )
