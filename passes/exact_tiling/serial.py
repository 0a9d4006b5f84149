"""Kernels of ops that walk an axis in order: running sums, and updates that may collide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir.axes import Index, parse_rule
from stack.ir.dim import Dim, add, mul
from stack.ir.node import Node
from stack.ir.traits import is_running
from stack.ir.types import F32, F64, DType
from stack.passes.blocking.frame import NamedTile
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.frame import COMBINE, static, wide

Program = Callable[[Sequence[Node]], list[Node]]


class SerialTiler(Tiler):
    """Groups of one scan or one scatter."""

    def kernel(self) -> Node:
        """The kernel node of the group."""
        (result,) = self.body.results
        return self.built(
            self._scan_grid(result) if is_running(result) else self._scatter_steps(result)
        )

    def _scan_grid(self, node: Node) -> list[Node]:
        """Running sums. Along lanes a tile holds the line; along another axis the carried value
        goes in a serial loop. Other axes are apart."""
        along, last = int(node.attrs["axis"]), node.tensor.rank - 1
        index: list[Dim] = []
        for at, size in enumerate(map(static, node.shape)):
            if size == 1 or at == along != last:
                index.append(0)
            elif at == last:
                index.append(self.lane_axis(size, True).place)
            else:
                index.append(self.program_axis("ijklmnopq"[at % 9], size, 1, self.grid).place)
        kind = str(node.attrs["kind"])
        dtype = _running(wide(node.dtype), kind)
        if along == last:
            return self.in_grid(self.grid, self.outputs, self._line(node, tuple(index), dtype))
        step = self.loop_axis("r", static(node.shape[along]))
        index[along] = add(step.extent - 1, mul(step.place, -1))
        index[along] = index[along] if node.attrs["reverse"] else step.place
        place = tuple(index)
        axes = self.sorted([*self.moves_along(place)])
        start = NamedTile(self.spread(self.identity(kind, dtype), axes), tuple(axes))

        def body(var: Node, held: list[NamedTile]) -> list[NamedTile]:
            value = self.cast(self.value(node.args[0], place), dtype)
            total = self.apply(COMBINE[kind], [held[0], value])
            return [total, NamedTile(self.store(held[1].node, total, place))]

        def program(memories: Sequence[Node]) -> list[Node]:
            return [self.along(step, [start, NamedTile(memories[0])], body, "acc")[1].node]

        return self.in_grid(self.grid, self.outputs, program)

    def _line(self, node: Node, place: Index, dtype: DType) -> Program:
        """Stores the running values of a line that a tile holds."""
        value = self.cast(self.value(node.args[0], place), dtype)
        axes = self.sorted([*self.moves_along(place)])
        if axes:
            line = self.spread(value, axes)
            value = NamedTile(self.b.op("scan", [line], {**node.attrs, "axis": 0}), tuple(axes))
        return lambda memories: [self.store(memories[0], value, place)]

    def _scatter_steps(self, node: Node) -> list[Node]:
        """Copy the operand, then apply the updates one after another.

        A program of its own does so for each place of axes that no index names: updates meet only
        along the others, and there in their order. Lanes go along the last of them.
        """
        rule = parse_rule(node.attrs["rule"])
        source, updates = node.args[0], node.args[-1]
        target, *operands, given = ([a.names[0] for a in operand] for operand in rule.inputs)
        sizes = dict(zip((*target, *given), map(static, (*node.shape, *updates.shape))))
        picked = {axis.names[0] for axis in rule.inputs[0] if axis.mark}
        place: dict[str, Dim] = {
            n: self.program_axis("i", sizes[n], 1, self.grid).place
            for n in target[:-1]
            if n not in picked
        }
        rows = [self.loop_axis("r", sizes[n]) for n in target[:-1] if n in picked]
        line = {n: self.axis("t", sizes[n], sizes[n]).place for n in target[-1:]}
        whole = dict(zip((n for n in target[:-1] if n in picked), (a.place for a in rows)))
        at_copy = tuple({**place, **whole, **line}[n] for n in target)
        if target[-1:] == given[-1:] and not any(target[-1] in operand for operand in operands):
            place |= line
        steps = {n: self.loop_axis("r", sizes[n]) for n in given if n not in place}
        place |= {n: axis.place for n, axis in steps.items()}
        guard: NamedTile | None = None
        for name, operand, index in zip(
            (n for n in target if n in picked), operands, node.args[1:-1], strict=True
        ):
            at = self.value(index, tuple(place[n] for n in operand))
            place[name] = self.data_symbol(at, sizes[name])
            if node.attrs.get("drop"):
                guard = self.both(guard, self._inside(at, sizes[name]))
        at_update = tuple(place[n] for n in target)

        def update(memory: Node) -> Node:
            value = self.value(updates, tuple(place[n] for n in given))
            if (kind := str(node.attrs["kind"])) != "set":
                value = self.apply(kind, [self.load(memory, at_update, guard), value])
            return self.store(memory, value, at_update, guard)

        def program(memories: Sequence[Node]) -> list[Node]:
            copied = self._store_in(rows, source, memories[0], at_copy)
            return [self.each([*steps.values()], copied, update)]

        return self.in_grid(self.grid, self.outputs, program)

    def _inside(self, at: NamedTile, size: int) -> NamedTile:
        """Whether an index is one of an axis of so many places."""
        wide = self.cast(at, self.integer)
        low, high = (self.apply(op, [wide, self.int(n)]) for op, n in (("ge", 0), ("lt", size)))
        return self.apply("and", [low, high])


def _running(dtype: DType, kind: str) -> DType:
    """What a running value is kept in: every rounding of it is in all that come after."""
    return F64 if dtype is F32 and kind in ("sum", "prod") else dtype
