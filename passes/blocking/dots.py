"""Arithmetic of kernels for Triton: products of tiles, and rounding as the frameworks' kernels do.

Operands of a dot stay as narrow as they are in memory; it sums in f32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from stack.ir.axes import Index, parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, bounds
from stack.ir.node import Node
from stack.ir.relation import delinearize
from stack.ir.traits import converts, divides, is_exponential, is_number, number, repeats, signs
from stack.ir.types import DType, TensorType
from stack.ir.warp_ops import MATRIX
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.reduce import BlockReduce, unscaled
from stack.passes.blocking.window import slopes_of, start_of
from stack.passes.positions.affine import affine
from stack.passes.tiling.frame import LOG2E, CannotTile, power_of_two, static, wide

MAX_CONTRACTED = 256  # of an axis that a dot takes in one step, on tensor cores
COARSE = 2.0**30  # above it, rounding a * log2(e) is off by many powers of two
EXACT = 1 << 24  # integers up to here are numbers of f32


def _inverse(value: NamedTile) -> NamedTile | None:
    """1 / c of a number c in f32."""
    node = value.node
    if not is_number(node) or node.dtype.name != "f32" or not 1e-30 < abs(number(node)) < 1e30:
        return None
    return NamedTile(constant(1.0 / number(node), node.dtype))


def _placed(dot: Node, index: Index, axis: Axis) -> dict[str, Dim]:
    """The axes of a dot by name: those of its result at an index, the contracted ones in steps.

    Several are walked as one, row by row.
    """
    rule = parse_rule(dot.attrs["rule"])
    place: dict[str, Dim] = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
    sizes = rule.sizes([a.shape for a in dot.args])
    long = [n for n in rule.reduced if sizes[n] != 1] or rule.reduced[-1:]
    shape = tuple(sizes[n] for n in long)
    digits = delinearize(axis.place, shape) if long[1:] else [axis.place]
    return {**place, **dict.fromkeys(rule.reduced, 0), **dict(zip(long, digits, strict=True))}


class BlockDots(BlockReduce):
    """Values of a body with products of tiles."""

    def __init__(self, group: Node) -> None:
        super().__init__(group)
        self.stages = 2  # steps of a loop with products that are loaded ahead
        self.step: int = 64  # default block of an axis that a dot walks along
        self.whole = MAX_CONTRACTED  # of such an axis that it takes in one step

    # ---- elementwise

    def _elementwise(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        if converts(node) and node.dtype.is_float:
            line = affine(node.args[0], index)
            exact = self._real(line, wide(node.dtype)) if line is not None else None
            if exact is not None:
                return self.widen(self.cast(exact, node.dtype))
        return super()._elementwise(node, index, guard)

    def compute(self, node: Node, args: Sequence[NamedTile]) -> NamedTile:
        """An elementwise op of values, with the arithmetic of the frameworks' own GPU kernels."""
        if is_exponential(node):
            return self._power(node.op, args[0])
        if divides(node) and (inverse := _inverse(args[1])) is not None:
            return self.apply("mul", [args[0], inverse])
        return super().compute(node, args)

    def _real(self, line: Dim, dtype: DType) -> NamedTile | None:
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
        made: NamedTile | None = None
        for name in self.sorted(list(slopes)):
            # the same in every tile: computed before the loop
            steps = self.apply("mul", [self.steps_of(name), self.int(slopes[name])])
            steps = self.cast(steps, dtype)
            made = steps if made is None else self.apply("add", [made, steps])
        return self.apply("add", [self.cast(self.number(start), dtype), made]) if made else None

    def _power(self, op: str, value: NamedTile) -> NamedTile:
        """exp(a - b) with b constant along some axes as exp2(a * L - b * L): b * L costs little.

        L is log2(e). a * L is rounded at the size of a, not of a - b: only where values are of 16
        bits, and coarser, that does not show. Where b is so large that other values are far below
        it, 1 does as well: then nothing overflows, and a row that holds one value throughout is 1
        there.
        """
        node = value.node
        if op == "exp2" or node.dtype.name != "f32" or signs(node) != (1, -1) or not value.axes:
            return self.apply(op, [value])
        if not any(x.dtype.is_float and x.dtype.bits <= 16 for x in self.inputs):
            return self.apply(op, [value])
        left, right = node.args
        if not repeats(right):
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
        return NamedTile(self.b.exp2(self.b.sub(scaled, turned)), value.axes)

    # ---- dots

    def operand(self, node: Node, index: Index, dtype: DType, guard: NamedTile | None) -> NamedTile:
        """An operand of a dot in the type that it has in memory."""
        if node in self.inputs and guard is None:
            return self.load(self.inputs[node], index, guard, raw=True)
        value = self.value(node, index, guard)
        if converts(value.node) and value.node.args[0].dtype == dtype:
            return NamedTile(value.node.args[0], value.axes)
        return self.cast(value, dtype)

    def _dot(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        rule = parse_rule(node.attrs["rule"])
        sizes = {n: static(s) for n, s in rule.sizes([a.shape for a in node.args]).items()}
        if not rule.reduced:
            raise CannotTile("nothing is contracted")
        *outer, last = (sizes[name] for name in rule.reduced)
        if last < MATRIX and prod(outer) > 1:
            raise CannotTile(f"a dot over several axes, the last of {last} elements")
        extent = prod(outer) * last
        if extent <= self.whole:
            axis = self.axis("c", extent, max(MATRIX, power_of_two(extent)))
            return self.product(node, _placed(node, index, axis), axis, guard)
        block = min(self.step, max(MATRIX, power_of_two(extent)))
        kept = self.union([NamedTile(node, tuple(self.tile_axes(d))) for d in index])
        # products of lines are summed place by place, and the places after the loop
        lane = "" if self._is_matrix(node, index) else self.axis("lane", block, block).name
        axes = (*kept, lane) if lane else kept

        def body(var: Node, carried: list[NamedTile]) -> list[NamedTile]:
            axis = self.axis("c", extent, block, self.b.mul(var, block))
            place = _placed(node, index, axis)
            if lane:
                made = self._products(self._factors(node, place, axis, guard), axis)
                part = NamedTile(self.spread(made, (*kept, axis.name)), axes)
            else:
                part = self.product(node, place, axis, guard)
            return [self.apply("add", [carried[0], part])]

        zero = NamedTile(constant(0, wide(node.dtype)))
        start = [NamedTile(self.spread(zero, axes), axes)]
        count, ahead = -(-extent // block), self.stages if lane else 0
        (sums,) = self.steps(count, start, body, "k", names=["sums"], ahead=ahead, staged=True)
        return self.fold(sums, "sum", [lane]) if lane else sums

    def _is_matrix(self, dot: Node, index: Index) -> bool:
        """Whether each operand of a dot has one tile axis of its own."""
        rule = parse_rule(dot.attrs["rule"])
        place = {a.names[0]: d for a, d in zip(rule.outputs[0], index, strict=True)}
        own = [
            {t for a in names for t in self.tile_axes(place.get(a.names[0], 0))}
            for names in rule.inputs
        ]
        return all(len(axes) == 1 for axes in own) and own[0] != own[1]

    def is_nothing(self, node: Node) -> bool:
        """Whether a computed value is 0 past the end of the axis that is contracted."""
        return False

    def _factors(
        self, node: Node, place: Mapping[str, Dim], axis: Axis, guard: NamedTile | None
    ) -> list[NamedTile]:
        """The operands of a dot on one tile of its contracted axis, 0 past the end of that."""
        rule = parse_rule(node.attrs["rule"])
        parts: list[NamedTile] = []
        for operand, arg in zip(rule.inputs, node.args, strict=True):
            index = tuple(place[a.names[0]] for a in operand)
            value = self.operand(arg, index, arg.dtype, guard)
            is_zero = self.is_read(arg) and axis.name in value.axes
            if not is_zero and not self.is_nothing(arg):
                value = self.masked(value, "sum", [axis.name])
            parts.append(value)
        return parts

    def _products(self, parts: Sequence[NamedTile], axis: Axis) -> NamedTile:
        """What a dot sums."""
        return self.spread_over(self.apply("mul", [self.widen(p) for p in parts]), [axis])

    def product(
        self, node: Node, place: Mapping[str, Dim], axis: Axis, guard: NamedTile | None
    ) -> NamedTile:
        """A dot over one tile of its contracted axis, summed in f32."""
        left, right = parts = self._factors(node, place, axis, guard)
        shared = [n for n in left.axes if n in right.axes]
        if len(left.axes) != 2 or len(right.axes) != 2 or shared != [axis.name]:
            return self.fold(self._products(parts, axis), "sum", [axis.name])
        rows = next(n for n in left.axes if n != axis.name)
        lanes = next(n for n in right.axes if n != axis.name)
        if min(self.axes[rows].block, self.axes[lanes].block) < MATRIX:
            raise CannotTile(f"a dot of {self.axes[rows].block} rows")
        names = dict(zip((rows, lanes, axis.name), "mnk", strict=True))
        order = self.sorted([rows, lanes])
        text = ", ".join(" ".join(names[n] for n in p.axes) for p in parts)
        made = " ".join(names[n] for n in order)
        hint = TensorType(wide(node.dtype), (), "tile")
        attrs = {**node.attrs, "rule": f"{text} -> {made}"}
        product = self.b.op("dot", [left.node, right.node], attrs, hint=hint)
        return NamedTile(product, tuple(order))


__all__ = ["BlockDots"]
