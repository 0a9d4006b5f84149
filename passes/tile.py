"""Fusion groups to kernels at the tile level.

The body of a group is read backwards from its outputs: `value(node, index)` gives the node's value
at an index written in loop symbols, and each op's axis rule says at which index it reads its
operands. One axis, the *tile axis*, is held whole as a tile; the other axes of the output become
grid loops; reduced axes that are not the tile axis become serial loops that carry an accumulator.
16-bit floats are widened on load and narrowed on store, so that sums accumulate in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from stack.ir import ops
from stack.ir.axes import Index, parse_rule
from stack.ir.builder import Builder, constant, param
from stack.ir.dim import Dim, Expr, Quotient, Symbol, add, bounds, mul, product, symbol, symbols
from stack.ir.node import Block, Func, Node
from stack.ir.space import identity
from stack.ir.types import BOOL, F32, I64, DType, TensorType, TupleType
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
BARE = ("argreduce", "dot", "iota", "scan", "scatter")  # and elementwise, movement, reduce
MAX_TILE = 16384
SPLIT_TILE = 4096


class CannotTile(Exception):
    """A group that this pass has no schedule for; says why."""


@dataclass(frozen=True)
class Tile(Pass):
    """Turn every fusion group that is not a library call into a kernel of tiles.

    Attributes:
        refuse: ops that the backend has no code for; their groups stay as they are.
    """

    name: ClassVar[str] = "tile"
    refuse: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        return Func(func.name, self._block(func.body, log), func.level)

    def _block(self, block: Block, log: Log) -> Block:
        """Loop and branch bodies first; the inside of a group is one kernel and is not walked."""
        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            if node.op in ("cond", "while", "call"):
                blocks = [self._block(b, log) for b in node.blocks]
                if tuple(blocks) != node.blocks:
                    new = Node(node.op, node.args, node.attrs, node.type, blocks)
                    changed[node] = Replacement(new)
                continue
            group = alone(node) if _is_bare(node) else node
            if group.op != "fusion" or group.attrs["kind"] == "library":
                continue
            try:
                kernel = self._kernel(group)
            except CannotTile as why:
                log.note(f"{block.names.get(node, node.op)} stays as it is: {why}")
                kernel = self._without_dot(group)
                if kernel is None:
                    continue
            if log.spend("tile", block.locs.get(node, ())):
                changed[node] = Replacement(kernel)
        return replace(block, changed) if changed else block

    def _kernel(self, group: Node) -> Node:
        from stack.passes.tile_gemm import check_worth

        foreign = {n.op for n in group.blocks[0].nodes}.intersection(self.refuse)
        if foreign:
            raise CannotTile(f"no code for {', '.join(sorted(foreign))}")
        for node in group.blocks[0].nodes:
            if node.op == "dot":
                check_worth(node)
        return tile_group(group)

    def _without_dot(self, group: Node) -> Node | None:
        """The kernel of what follows a dot, when the dot is left to a library."""
        if group.attrs["kind"] != "gemm":
            return None
        from stack.passes.tile_gemm import split_dot

        try:
            return self._kernel(split_dot(group)[1])
        except CannotTile:
            return None


def _is_bare(node: Node) -> bool:
    """Whether fusion left an op on its own that a kernel can hold."""
    if node.op in BARE or node.op == "reduce":
        return True
    return ops.lookup(node.op).kind in ("elementwise", "movement") and node.op != "reshape"


def alone(node: Node) -> Node:
    """A group of one op that fusion left bare."""
    b = Builder()
    params = [param(f"p{i}", a.type) for i, a in enumerate(node.args)]
    if node.op == "argreduce":
        result = _first_position(b, node, params[0])
    else:
        result = b.op(node.op, params, node.attrs, hint=node.type)
    attrs = {"kind": "loop", "name": node.op}
    return b.op("fusion", node.args, attrs, (b.block(params, [result]),))


def _first_position(b: Builder, node: Node, x: Node) -> Node:
    """argreduce as two reductions: the value, then the first place that holds it (or a nan)."""
    axis, kind = node.attrs["axis"], node.attrs["kind"]
    best = b.reduce(x, kind=kind, axes=(axis,))
    others = tuple(a for a in range(x.tensor.rank) if a != axis)
    same = b.eq(x, b.broadcast(best, axes=others, type=x.type) if others else best)
    if x.dtype.is_float:
        same = b.or_(same, b.ne(x, x))
    places = b.iota(axis=axis, type=TensorType(I64, x.shape))
    first = b.reduce(b.select(same, places, x.shape[axis]), kind="min", axes=(axis,))
    return first if node.dtype == I64 else b.cast(first, type=node.type)


def tile_group(group: Node) -> Node:
    """The kernel node of one fusion group. Raises CannotTile."""
    if any(n.op == "dot" for n in group.blocks[0].nodes):
        from stack.passes.tile_gemm import tile_gemm

        return tile_gemm(group)
    return Tiler(group).kernel()


def wide(dtype: DType) -> DType:
    """The type that a kernel computes in."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def static(dim: Dim) -> int:
    """A size as a number."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim


class Tiler:
    """Builds one kernel; schedules of other kinds of groups derive from it."""

    def __init__(self, group: Node) -> None:
        self.group = group
        self.body = group.blocks[0]
        self.b = Builder()
        self.nodes: dict[str, Node] = {}  # loop symbol -> its value
        self.tile_symbols: set[str] = set()  # symbols whose value is a tile
        self.tile = 0  # extent of the tile axis; 0 when everything is scalar
        self.memo: dict[tuple[Node, Index, Node | None], Node] = {}
        self.fresh = 0
        for node in (*self.body.params, *self.body.nodes):
            for type_ in _types(node):
                if type_.dtype.kind == "c":
                    raise CannotTile("it computes with complex numbers")
                if static(product(type_.shape)) == 0:
                    raise CannotTile("an array in it is empty")
        arrays = [n for n in self.body.nodes if n.op == "const" and n.tensor.rank]
        self.sources = [*self.body.params, *arrays]
        self.args = [*group.args, *arrays]
        self.inputs = {
            p: self._memory(f"p{i}", p.tensor) for i, p in enumerate(self.sources)
        }

    def _memory(self, name: str, type_: TensorType) -> Node:
        return Node("param", (), {"name": name}, TensorType(type_.dtype, type_.shape, "global"))

    # ---- the frame: which axes there are, and where outputs sit in them

    def kernel(self) -> Node:
        """The kernel node of the group."""
        special = {"scan": self._scan_grid, "scatter": self._scatter_steps}
        (result, *more) = self.body.results
        if not more and result.op in special and set(result.args) <= set(self.body.params):
            return self._finish(special[result.op](result))
        root = self._root()
        index, grid = self._axes(root)
        places = self._places(root, index)
        for result in self.body.results:
            if result not in places:
                raise CannotTile("its outputs do not share one index space")
        names = {name for name, _ in grid}
        outputs = self._outputs()

        def store_all(memories: Sequence[Node]) -> list[Node]:
            return [
                self._store_result(result, memory, places[result], names)
                for result, memory in zip(self.body.results, memories, strict=True)
            ]

        return self._finish(self._in_grid(grid, outputs, store_all))

    def _outputs(self) -> list[Node]:
        return [self._memory(f"o{i}", r.tensor) for i, r in enumerate(self.body.results)]

    def _in_grid(
        self,
        grid: list[tuple[str, int]],
        outputs: Sequence[Node],
        program: Callable[[Sequence[Node]], list[Node]],
        kind: str = "grid",
        tag: str = "",
    ) -> list[Node]:
        """Loops that carry the outputs inwards, around what one position does."""
        carried = [
            [Node("var", (), {"name": f"{_base(o)}_{tag}{d}"}, o.type) for o in outputs]
            for d in range(len(grid))
        ]
        final = program(carried[-1] if grid else outputs)
        for d in reversed(range(len(grid))):
            block = Block((self.nodes[grid[d][0]], *carried[d]), final)
            final = self._loop(kind, carried[d - 1] if d else outputs, block)
        return final

    def _finish(self, final: Sequence[Node]) -> Node:
        block = self.b.block([*self.inputs.values(), *self._outputs()], final)
        attrs = {
            "name": str(self.group.attrs.get("name") or "kernel"),
            "level": "tile",
            "ops": tuple(dict.fromkeys(n.op for n in self.body.nodes if n.op != "const")),
        }
        return Node("kernel", self.args, attrs, self.group.type, (block,))

    # ---- ops that walk an axis in order

    def _scan_grid(self, node: Node) -> list[Node]:
        """Running sums: the carried value goes along a serial loop, other axes are apart."""
        axis, extent = node.attrs["axis"], static(node.shape[node.attrs["axis"]])
        index: list[Dim] = []
        grid: list[tuple[str, int]] = []
        last = node.tensor.rank - 1
        for at, size in enumerate(node.shape):
            if at == axis:
                index.append(0)
            elif at == last:
                index.append(self._tile_axis(static(size), True, grid))
            else:
                index.append(self._variable("ijklmnopq"[at % 9], static(size)))
                grid.append((str(index[-1]), static(size)))
        step = self._serial(extent)
        index[axis] = add(extent - 1, mul(step, -1)) if node.attrs["reverse"] else step
        dtype, kind = wide(node.dtype), node.attrs["kind"]
        start = constant(identity(kind, dtype), dtype)
        start = self._splat(start) if self.tile else start

        def program(memories: Sequence[Node]) -> list[Node]:
            acc = Node("var", (), {"name": "acc"}, start.type)
            held = Node("var", (), {"name": "o0_scan"}, memories[0].type)
            total = self.b.op(COMBINE[kind], [acc, self.value(node.args[0], tuple(index), None)])
            stored = self._store(held, self._narrow(total, node.dtype), tuple(index))
            block = Block((self.nodes[str(step)], acc, held), [total, stored])
            return self._loop("serial", [start, memories[0]], block)[1:]

        return self._in_grid(grid, self._outputs(), program)

    def _scatter_steps(self, node: Node) -> list[Node]:
        """Copy the operand, then apply the updates one after another."""
        rule = parse_rule(node.attrs["rule"])
        source, updates = node.args[0], node.args[-1]
        axes = [self._serial(static(d)) for d in source.shape]
        grid = [(str(a), static(d)) for a, d in zip(axes, source.shape, strict=True)]

        def copy(memories: Sequence[Node]) -> list[Node]:
            value = self._narrow(self.value(source, tuple(axes), None), node.dtype)
            return [self._store(memories[0], value, tuple(axes))]

        copied = self._in_grid(grid, self._outputs(), copy, "serial", "copy")
        names = [a.names[0] for a in rule.inputs[-1]]
        steps = {n: self._serial(static(d)) for n, d in zip(names, updates.shape, strict=True)}
        indices = iter(zip(rule.inputs[1:-1], node.args[1:-1], strict=True))
        place: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.shape, strict=True):
            if axis.mark != "!":
                place.append(steps[axis.names[0]])
                continue
            operand, arg = next(indices)
            at = self.value(arg, tuple(steps[a.names[0]] for a in operand), None)
            place.append(self._data_symbol(self._narrow(at, I64), static(size)))

        def update(memories: Sequence[Node]) -> list[Node]:
            value = self.value(updates, tuple(steps.values()), None)
            if node.attrs["kind"] != "set":
                where = [self.number(d) for d in place]
                old = self.b.load(memories[0], *where, type=TensorType(node.dtype, ()))
                value = self.b.op(node.attrs["kind"], [self._widen(old), value])
            return [self._store(memories[0], self._narrow(value, node.dtype), tuple(place))]

        loops = [(str(s), 0) for s in steps.values()]
        return self._in_grid(loops, copied, update, "serial", "put")

    def _loop(self, kind: str, init: Sequence[Node], block: Block) -> list[Node]:
        node = self.b.op("loop", init, {"kind": kind}, (block,))
        if not isinstance(node.type, TupleType):
            return [node]
        return [self.b.item(node, index=i) for i in range(len(init))]

    def _reduces(self) -> list[Node]:
        return [n for n in self.body.nodes if n.op == "reduce" and n.attrs["axes"]]

    def _root(self) -> Node:
        """The node whose axes span the group: a reduced operand, or the largest output."""
        candidates = [n.args[0] for n in self._reduces()] or list(self.body.results)
        return max(candidates, key=lambda n: static(n.tensor.size))

    def _axes(self, root: Node) -> tuple[Index, list[tuple[str, int]]]:
        """An index for the root in loop symbols, and the grid axes with their extents."""
        shape = [static(d) for d in root.shape]
        reduced = {
            axis for n in self._reduces() if n.args[0] is root for axis in n.attrs["axes"]
        }
        if not shape:
            return (), []
        last = len(shape) - 1
        index: list[Dim] = []
        grid: list[tuple[str, int]] = []
        for axis, extent in enumerate(shape):
            if axis == last:
                index.append(self._tile_axis(extent, last in reduced, grid))
            elif extent == 1:
                index.append(0)
            elif axis in reduced:
                index.append(self._serial(extent))
            else:
                index.append(self._variable("ijklmnopq"[axis % 9], extent))
                grid.append((str(index[-1]), extent))
        return tuple(index), grid

    def _tile_axis(self, extent: int, is_reduced: bool, grid: list[tuple[str, int]]) -> Dim:
        """The tile axis: whole when it is reduced, else cut into grid steps where it is long."""
        size = extent
        if not is_reduced and extent > MAX_TILE:
            size = next((d for d in range(SPLIT_TILE, 255, -1) if extent % d == 0), extent)
        self.tile = size
        iota = self.b.iota(axis=0, type=TensorType(I64, (size,), "tile"))
        self.nodes["t"] = iota
        self.tile_symbols.add("t")
        self.tile_dim = symbol("t", 0, size - 1)
        if size == extent:
            return self.tile_dim
        step = self._variable("s", extent // size)
        grid.append((str(step), extent // size))
        return add(mul(step, size), self.tile_dim)

    def _variable(self, hint: str, extent: int) -> Expr:
        self.fresh += 1
        name = hint if hint not in self.nodes else f"{hint}{self.fresh}"
        var = Node("var", (), {"name": name, "extent": extent}, TensorType(I64, ()))
        self.nodes[name] = var
        return symbol(name, 0, extent - 1)

    def _serial(self, extent: int) -> Expr:
        return self._variable("r", extent)

    def _places(self, root: Node, index: Index) -> dict[Node, Index]:
        """Where nodes sit in the axes of the root: pulled to operands, pushed to users."""
        users: dict[Node, list[Node]] = {}
        for node in self.body.nodes:
            for arg in node.args:
                users.setdefault(arg, []).append(node)
        places = {root: index}
        pending = [root]
        while pending:
            node = pending.pop()
            found: list[tuple[Node, Index]] = []
            if node.op not in ("param", "const", "reduce", "dot", "gather", "concat", "pad"):
                try:
                    found.extend(zip(node.args, ops.pull(node, places[node]), strict=True))
                except Exception as error:
                    raise CannotTile(f"{node.op} has no index map") from error
            for user in users.get(node, ()):
                pushed = _push(user, node, places[node])
                if pushed is not None:
                    found.append((user, pushed))
            for other, place in found:
                if other not in places:
                    places[other] = place
                    pending.append(other)
        self.places = places
        return places

    def _store_result(self, result: Node, memory: Node, index: Index, grid: set[str]) -> Node:
        """Store one output; axes of it that are neither grid nor tile get serial loops."""
        loose = sorted(
            s.name
            for s in {s for d in index for s in symbols(d)}
            if s.name not in grid and s.name not in self.tile_symbols
        )
        return self._store_in(loose, result, memory, index)

    def _store_in(self, loose: list[str], result: Node, memory: Node, index: Index) -> Node:
        if loose:
            var = self.nodes[loose[0]]
            name = f"{memory.attrs['name']}_{loose[0]}"
            carried = Node("var", (), {"name": name}, memory.type)
            stored = self._store_in(loose[1:], result, carried, index)
            return self._loop("serial", [memory], Block((var, carried), [stored]))[0]
        value = self._narrow(self.value(result, index, None), result.dtype)
        return self._store(memory, value, index)

    def _store(self, memory: Node, value: Node, index: Index) -> Node:
        uses_tile = any(self._is_tile(d) for d in index)
        if uses_tile and not value.tensor.rank:
            value = self._splat(value)
        place = self._block_index(index) if uses_tile else [self.number(d) for d in index]
        if place is None:
            place = [self._as_tile(self.number(d)) for d in index]
        return self.b.store(memory, value, *place)

    # ---- indices

    def _is_tile(self, dim: Dim) -> bool:
        return any(s.name in self.tile_symbols for s in symbols(dim))

    def _block_index(self, index: Index) -> list[Node] | None:
        """Scalar indices of a contiguous block along the last axis, or None."""
        if not index or any(self._is_tile(d) for d in index[:-1]):
            return None
        base = add(index[-1], mul(self.tile_dim, -1))
        if self._is_tile(base):
            return None
        return [self.number(d) for d in (*index[:-1], base)]

    def number(self, dim: Dim) -> Node:
        """The value of an index expression: an i64 scalar, or a tile when it moves along it."""
        if isinstance(dim, int):
            return constant(dim, I64)
        total: Node | None = None
        for monomial, coefficient in dim.terms:
            term: Node | None = None
            for atom in monomial:
                factor = self._atom(atom)
                term = factor if term is None else self.b.mul(term, factor)
            if term is None:
                term = constant(coefficient, I64)
            elif coefficient != 1:
                term = self.b.mul(term, coefficient)
            total = term if total is None else self.b.add(total, term)
        return total if total is not None else constant(0, I64)

    def _atom(self, atom: Any) -> Node:
        if isinstance(atom, Symbol):
            return self.nodes[atom.name]
        if isinstance(atom, Quotient):
            # numerators are not negative: div and rem are floor and mod
            make = self.b.div if atom.kind == "//" else self.b.rem
            return make(self.number(atom.num), self.number(atom.den))
        make = self.b.max if atom.kind == "max" else self.b.min
        return make(self.number(atom.a), self.number(atom.b))

    def _splat(self, value: Node) -> Node:
        return self.b.broadcast(
            value, axes=(), type=TensorType(value.dtype, (self.tile,), "tile")
        )

    def _as_tile(self, value: Node) -> Node:
        return value if value.tensor.rank else self._splat(value)

    # ---- values

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
        uses_tile = any(self._is_tile(d) for d in index)
        masked_tile = guard is not None and guard.tensor.rank
        shape: tuple[Dim, ...] = (self.tile,) if uses_tile or masked_tile else ()
        type_ = TensorType(node.dtype, shape, "tile" if shape else "value")
        place = self._block_index(index) if uses_tile else None
        if place is None:
            place = [self.number(d) for d in index]
            if shape:
                place = [self._as_tile(p) for p in place]
        if shape and not index:
            return self._widen(self.b.load(memory, type=TensorType(node.dtype, ())))
        extra = [guard, constant(0, node.dtype)] if guard is not None and index else []
        return self._widen(self.b.load(memory, *place, *extra, type=type_))

    def _widen(self, value: Node) -> Node:
        return self._narrow(value, wide(value.dtype))

    def _narrow(self, value: Node, dtype: DType) -> Node:
        if value.dtype == dtype:
            return value
        return self.b.cast(value, type=value.tensor.with_dtype(dtype))

    def _elementwise(self, node: Node, index: Index, guard: Node | None) -> Node:
        args = [
            self.value(a, index if a.tensor.rank else (), guard) for a in node.args
        ]
        if node.op in ("cast", "bitcast"):
            if node.op == "bitcast":
                args = [self._narrow(args[0], node.args[0].dtype)]
                made = self.b.bitcast(args[0], type=args[0].tensor.with_dtype(node.dtype))
                return self._widen(made)
            return self._cast(args[0], node)
        return self.b.op(node.op, args, node.attrs)

    def _cast(self, value: Node, node: Node) -> Node:
        source, target = node.args[0].dtype, node.dtype
        if target == source or value.dtype == wide(target) == wide(source):
            # a 16-bit value stays wide; narrowing it must still round
            return self._narrow(self._narrow(value, target), wide(target))
        return self._widen(self._narrow(value, target))

    def _const(self, node: Node, index: Index, guard: Node | None) -> Node:
        data = node.attrs["value"]
        return constant(data.array, wide(node.dtype))

    def _iota(self, node: Node, index: Index, guard: Node | None) -> Node:
        return self._narrow(self.number(index[node.attrs["axis"]]), wide(node.dtype))

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
                serial.append(self._serial(static(extent)))
                full.append(serial[-1])
        value = self._accumulate(serial, kind, operand, tuple(full), guard)
        if in_tile:
            value = self.b.reduce(self._as_tile(value), kind=kind, axes=(0,))
        return value

    def _reduces_tile(self, place: Index | None, axis: int, extent: Dim, index: Index) -> bool:
        return (
            place is not None
            and self.tile == extent
            and place[axis] == self.tile_dim
            and not any(self._is_tile(d) for d in index)
        )

    def _accumulate(
        self, serial: list[Expr], kind: str, operand: Node, index: Index, guard: Node | None
    ) -> Node:
        """Fold an operand over serial loops, the first outermost; lanes stay apart."""
        if not serial:
            return self.value(operand, index, guard)
        moves = any(self._is_tile(d) for d in index) or (guard is not None and guard.tensor.rank)
        dtype = wide(operand.dtype)
        shape: tuple[Dim, ...] = (self.tile,) if moves else ()
        type_ = TensorType(dtype, shape, "tile" if moves else "value")
        start = constant(identity(kind, dtype), dtype)
        total: Node = self._splat(start) if moves else start
        names = [f"acc{s}" for s in serial]
        accs = [Node("var", (), {"name": n}, type_) for n in names]
        inner = self.value(operand, index, guard)
        inner = self._as_tile(inner) if moves else inner
        result = self.b.op(COMBINE[kind], [accs[-1], inner])
        for depth in reversed(range(len(serial))):
            init = accs[depth - 1] if depth else total
            block = Block((self.nodes[str(serial[depth])], accs[depth]), [result])
            (result,) = self._loop("serial", [init], block)
        return result

    def _both(self, guard: Node | None, extra: Node | None) -> Node | None:
        if guard is None or extra is None:
            return guard if extra is None else extra
        return self.b.and_(guard, extra)

    def _range_test(self, dim: Dim, low: Dim, high: Dim) -> Node | None:
        """`low <= dim < high`, or None where that holds for certain."""
        least, most = bounds(dim)
        tests: list[Node] = []
        if least < bounds(low)[0]:
            tests.append(self.b.ge(self.number(dim), self.number(low)))
        if most >= bounds(high)[0]:
            tests.append(self.b.lt(self.number(dim), self.number(high)))
        if not tests:
            return None
        return tests[0] if len(tests) == 1 else self.b.and_(tests[0], tests[1])

    def _pad(self, node: Node, index: Index, guard: Node | None) -> Node:
        source, fill = node.args
        test: Node | None = None
        inner: list[Dim] = []
        attrs = zip(node.attrs["low"], node.attrs["interior"], source.shape, index, strict=True)
        for low, gap, size, position in attrs:
            moved = add(position, mul(low, -1))
            test = self._both(test, self._range_test(moved, 0, (static(size) - 1) * (gap + 1) + 1))
            if gap:
                phase = self.b.rem(self.number(moved), gap + 1)
                test = self._both(test, self.b.eq(phase, 0))
                moved = Expr((((Quotient("//", moved, gap + 1),), 1),)) if isinstance(
                    moved, Expr
                ) else moved // (gap + 1)
            inner.append(moved)
        value = self.value(source, tuple(inner), self._both(guard, test))
        if test is None:
            return value
        return self._select(test, value, self.value(fill, (), guard))

    def _select(self, test: Node, yes: Node, no: Node) -> Node:
        return self.b.select(test, yes, no)

    def _concat(self, node: Node, index: Index, guard: Node | None) -> Node:
        axis = node.attrs["axis"]
        position = index[axis]
        start: Dim = 0
        parts: list[tuple[Node | None, Node]] = []
        for arg in node.args:
            end = add(start, arg.shape[axis])
            least, most = bounds(position)
            if least < bounds(end)[0] and most >= bounds(start)[0]:
                test = self._range_test(position, start, end)
                moved = (*index[:axis], add(position, mul(start, -1)), *index[axis + 1 :])
                parts.append((test, self.value(arg, moved, self._both(guard, test))))
            start = end
        result = parts[-1][1]
        for test, value in reversed(parts[:-1]):
            result = value if test is None else self._select(test, value, result)
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
            source.append(self._data_symbol(self._narrow(value, I64), static(size)))
        return self.value(node.args[0], tuple(source), guard)

    def _data_symbol(self, value: Node, size: int) -> Expr:
        """A symbol for an index that comes from data."""
        self.fresh += 1
        name = f"at{self.fresh}"
        self.nodes[name] = value
        if value.tensor.rank:
            self.tile_symbols.add(name)
        return symbol(name, 0, size - 1)


def _types(node: Node) -> tuple[TensorType, ...]:
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)


def _base(memory: Node) -> str:
    """A name for what carries a memory: the output's own."""
    while "name" not in memory.attrs:
        memory = memory.args[memory.attrs["index"] if memory.op == "item" else 0]
    return str(memory.attrs["name"]).split("_")[0]


def _push(user: Node, source: Node, index: Index) -> Index | None:
    """Where a user sits, from where one of its operands sits; None where that is not told."""
    if user.op == "reduce":
        return tuple(d for axis, d in enumerate(index) if axis not in user.attrs["axes"])
    if user.op == "transpose":
        return tuple(index[p] for p in user.attrs["perm"])
    if user.op == "reshape":
        return _push_reshape(user, index)
    if ops.lookup(user.op).kind == "elementwise" and source.tensor.rank == user.tensor.rank:
        return index
    return None


def _push_reshape(user: Node, index: Index) -> Index | None:
    """The index of a reshape's result from its operand's: a reshape read the other way round."""
    back = Node("reshape", (user,), {}, user.args[0].type)
    return ops.pull(back, index)[0]
