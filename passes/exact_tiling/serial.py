"""Kernels of ops that walk an axis in order: running sums, and updates that may collide."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import parse_rule
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, mul
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.types import F32, F64, I64, DType, TensorType
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import COMBINE, static, wide


class SerialTiler(Tiler):
    """Groups of one scan or one scatter."""

    def kernel(self) -> Node:
        """The kernel node of the group."""
        (result,) = self.body.results
        return self.finish(
            self._scan_grid(result) if result.op == "scan" else self._scatter_steps(result)
        )

    def _scan_grid(self, node: Node) -> list[Node]:
        """Running sums: the carried value goes along a serial loop, other axes are apart."""
        axis = int(node.attrs["axis"])
        extent = static(node.shape[axis])
        index: list[Dim] = []
        grid: list[tuple[str, int]] = []
        last = node.tensor.rank - 1
        for at, size in enumerate(node.shape):
            if at == axis:
                index.append(0)
            elif at == last:
                index.append(self.tile_axis(static(size), True, grid))
            else:
                index.append(self.variable("ijklmnopq"[at % 9], static(size)))
                grid.append((str(index[-1]), static(size)))
        step = self.serial(extent)
        index[axis] = add(extent - 1, mul(step, -1)) if node.attrs["reverse"] else step
        kind = node.attrs["kind"]
        dtype = _running(wide(node.dtype), kind)
        start = constant(identity(kind, dtype), dtype)
        start = self.splat(start) if self.tile else start

        def program(memories: Sequence[Node]) -> list[Node]:
            acc = Node("var", (), {"name": "acc"}, start.type)
            held = Node("var", (), {"name": "o0_scan"}, memories[0].type)
            value = self.narrow(self.value(node.args[0], tuple(index), None), dtype)
            total = self.b.op(COMBINE[kind], [acc, value])
            stored = self.store(held, self.narrow(total, node.dtype), tuple(index))
            block = Block((self.nodes[str(step)], acc, held), [total, stored])
            return self.loop("serial", [start, memories[0]], block)[1:]

        return self.in_grid(grid, self.outputs(), program)

    def _scatter_steps(self, node: Node) -> list[Node]:
        """Copy the operand, then apply the updates one after another."""
        rule = parse_rule(node.attrs["rule"])
        source, updates = node.args[0], node.args[-1]
        axes = [self.serial(static(d)) for d in source.shape]
        grid = [(str(a), static(d)) for a, d in zip(axes, source.shape, strict=True)]

        def copy(memories: Sequence[Node]) -> list[Node]:
            value = self.narrow(self.value(source, tuple(axes), None), node.dtype)
            return [self.store(memories[0], value, tuple(axes))]

        copied = self.in_grid(grid, self.outputs(), copy, "serial", "copy")
        names = [a.names[0] for a in rule.inputs[-1]]
        steps = {n: self.serial(static(d)) for n, d in zip(names, updates.shape, strict=True)}
        indices = iter(zip(rule.inputs[1:-1], node.args[1:-1], strict=True))
        place: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.shape, strict=True):
            if axis.mark != "!":
                place.append(steps[axis.names[0]])
                continue
            operand, arg = next(indices)
            at = self.value(arg, tuple(steps[a.names[0]] for a in operand), None)
            place.append(self.data_symbol(self.narrow(at, I64), static(size)))

        def update(memories: Sequence[Node]) -> list[Node]:
            value = self.value(updates, tuple(steps.values()), None)
            if node.attrs["kind"] != "set":
                where = [self.number(d) for d in place]
                old = self.b.load(memories[0], *where, type=TensorType(node.dtype, ()))
                value = self.b.op(node.attrs["kind"], [self.widen(old), value])
            return [self.store(memories[0], self.narrow(value, node.dtype), tuple(place))]

        loops = [(str(s), 0) for s in steps.values()]
        return self.in_grid(loops, copied, update, "serial", "put")


def _running(dtype: DType, kind: str) -> DType:
    """What a running value is kept in: every rounding of it is in all that come after."""
    return F64 if dtype is F32 and kind in ("sum", "prod") else dtype
