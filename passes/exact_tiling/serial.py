"""Kernels of ops that walk an axis in order: running sums, and updates that may collide."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import parse_rule
from stack.ir.dim import Dim, add, mul
from stack.ir.node import Node
from stack.ir.traits import is_running
from stack.ir.types import F32, F64, DType
from stack.passes.blocking.frame import NamedTile
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import COMBINE, static, wide


class SerialTiler(Tiler):
    """Groups of one scan or one scatter."""

    def kernel(self) -> Node:
        """The kernel node of the group."""
        (result,) = self.body.results
        return self.built(
            self._scan_grid(result) if is_running(result) else self._scatter_steps(result)
        )

    def _scan_grid(self, node: Node) -> list[Node]:
        """Running sums: the carried value goes along a serial loop, other axes are apart."""
        along = int(node.attrs["axis"])
        index: list[Dim] = []
        last = node.tensor.rank - 1
        for at, size in enumerate(map(static, node.shape)):
            if at == along or size == 1:
                index.append(0)
            elif at == last:
                index.append(self.lane_axis(size, True).place)
            else:
                index.append(self.program_axis("ijklmnopq"[at % 9], size, 1, self.grid).place)
        step = self.loop_axis("r", static(node.shape[along]))
        index[along] = add(step.extent - 1, mul(step.place, -1))
        index[along] = index[along] if node.attrs["reverse"] else step.place
        place, kind = tuple(index), str(node.attrs["kind"])
        dtype = _running(wide(node.dtype), kind)
        axes = self.sorted([*self.moves_along(place)])
        start = NamedTile(self.spread(self.identity(kind, dtype), axes), tuple(axes))

        def body(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            value = self.cast(self.value(node.args[0], place), dtype)
            total = self.apply(COMBINE[kind], [held[0], value])
            return [total, NamedTile(self.store(held[1].node, total, place))]

        def program(memories: Sequence[Node]) -> list[Node]:
            return [self.along(step, [start, NamedTile(memories[0])], body, "acc")[1].node]

        return self.in_grid(self.grid, self.outputs(), program)

    def _scatter_steps(self, node: Node) -> list[Node]:
        """Copy the operand, then apply the updates one after another."""
        rule = parse_rule(node.attrs["rule"])
        source, updates = node.args[0], node.args[-1]
        axes = [self.loop_axis("r", static(d)) for d in source.shape]
        copied = self._store_in(axes, source, self.outputs()[0], tuple(a.place for a in axes))
        names = [a.names[0] for a in rule.inputs[-1]]
        loops = [self.loop_axis("r", static(d)) for d in updates.shape]
        steps = {n: a.place for n, a in zip(names, loops, strict=True)}
        indices = iter(zip(rule.inputs[1:-1], node.args[1:-1], strict=True))
        place: list[Dim] = []
        for axis, size in zip(rule.inputs[0], node.shape, strict=True):
            if axis.mark != "!":
                place.append(steps[axis.names[0]])
                continue
            operand, arg = next(indices)
            at = self.value(arg, tuple(steps[a.names[0]] for a in operand))
            place.append(self.data_symbol(at, static(size)))

        def update(memories: Sequence[Node]) -> list[Node]:
            value = self.value(updates, tuple(steps.values()))
            if node.attrs["kind"] != "set":
                value = self.apply(
                    node.attrs["kind"], [self.load(memories[0], tuple(place), None), value]
                )
            return [self.store(memories[0], value, tuple(place))]

        return self.in_grid([(a.start, a.extent) for a in loops], [copied], update, "serial")


def _running(dtype: DType, kind: str) -> DType:
    """What a running value is kept in: every rounding of it is in all that come after."""
    return F64 if dtype is F32 and kind in ("sum", "prod") else dtype
