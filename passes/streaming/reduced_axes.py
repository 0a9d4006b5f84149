"""Merge the axes of a reduction, because a stream runs along one axis.

A reduction over adjacent axes, such as the mean of an image, is a reduction over their product.
Values of the same elements get the merged axis too, so that they can share a loop with it. Views
connect them with values that need the axes separately. Reduced axes of one element are dropped.

On a GPU, a program loops over a whole row, so a stream that also writes the row leaves most
processors idle if there are few rows. Without the rows, parts of an axis are programs too
(`split_reductions`), and elementwise kernels, which have enough programs, compute the rows from the
states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir import ops
from stack.ir.axes import Operand, Rule
from stack.ir.builder import make, reshaped
from stack.ir.dim import Dim, product
from stack.ir.node import Block, Node
from stack.ir.traits import behind, converts, is_contraction, is_reduction
from stack.ir.warp_ops import WARP
from stack.passes.policies.reduction_loops import reduces_columns, shortest_streamed
from stack.passes.streaming.graph import Graph
from stack.target import Gpu


def merge_reduced_axes(
    block: Block, gpu: Gpu, min_axis: int, spend: Callable[[tuple[str, ...]], bool]
) -> Block:
    """Returns the block with reductions over adjacent axes as reductions over one axis.

    Args:
        block: the block.
        gpu: the target.
        min_axis: the shortest merged axis of rows; columns may be shorter.
        spend: gets the source lines of a reduction, whose axes stay if it returns False.
    """
    refused: set[Node] = set()
    while True:
        found = next(((n, r) for n in block.nodes if n not in refused and (r := _run(n))), None)
        if found is None:
            return block
        node, run = found
        merge = _Merge(block, run)
        is_long = _extent(node) >= shortest_streamed(reduces_columns(node), min_axis, gpu)
        if is_long and merge.reaches(node.args[0]) and spend(block.locs.get(node, ())):
            if leaves_idle(node, gpu):
                merge.leave_rows()
            block = merge.rebuilt()
        else:
            refused.add(node)


@dataclass(frozen=True)
class _Run:
    """Adjacent axes of a value that one axis replaces.

    Attributes:
        start: the number of the first axis.
        count: the number of axes.
        left: the number of axes that replace them; 0 if they have one element.
    """

    start: int
    count: int
    left: int = 1

    def names(self, axes: Operand) -> list[str]:
        """Returns the names of the axes."""
        return [a.names[0] for a in axes[self.start : self.start + self.count]]

    def axes(self, axes: Operand) -> Operand:
        """Returns the axes of an operand after the merge; the first one stands for all."""
        return (*axes[: self.start + self.left], *axes[self.start + self.count :])

    def shape(self, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Returns the shape of a value after the merge."""
        end = self.start + self.count
        merged = [product(list(shape[self.start : end]))][: self.left]
        return (*shape[: self.start], *merged, *shape[end:])

    def at(self, start: int) -> _Run:
        """Returns the same axes of another value, where they begin at `start`."""
        return _Run(start, self.count, self.left)


def _sizes(node: Node) -> list[int]:
    """Returns the extents of the axes of a value; empty if one is a symbol or 0."""
    sizes = [s for s in node.shape if isinstance(s, int)]
    return sizes if len(sizes) == node.tensor.rank and all(sizes) else []


def _extent(reduction: Node) -> int:
    sizes = _sizes(reduction.args[0])
    return prod(sizes[int(a)] for a in reduction.attrs["axes"])


def _run(node: Node) -> _Run | None:
    """Returns the axes to merge next in the operand of a reduction; None for none.

    A reduction to one element has no rows to share out, so its axes stay.
    """
    if not is_reduction(node) or not (sizes := _sizes(node.args[0])):
        return None
    axes = sorted(int(a) for a in node.attrs["axes"])
    real = [a for a in axes if sizes[a] > 1]
    between = [a for a in range(real[0], real[-1] + 1) if a not in axes] if real else []
    is_whole = all(size == 1 for a, size in enumerate(sizes) if a not in axes)
    if len(axes) < 2 or not real or is_whole or any(sizes[a] > 1 for a in between):
        return None
    single = next((a for a in (*axes, *between) if sizes[a] == 1), None)
    return _Run(real[0], len(real)) if single is None else _Run(single, 1, 0)


class _Merge:
    """The merge of a run of axes in all values that are connected by ops that keep it in order.

    Args:
        block: the block.
        run: the run of the first value.
    """

    def __init__(self, block: Block, run: _Run) -> None:
        self.block, self.run = block, run
        self.users = Graph(block).users
        self.runs: dict[Node, _Run] = {}  # of each value that has the axes

    def reaches(self, first: Node) -> bool:
        """Finds the values that have the axes of `first`. False if one has them twice."""
        pending = [(first, self.run)]
        while pending:
            value, run = pending.pop()
            if value in self.runs:
                if self.runs[value] != run:
                    return False
                continue
            self.runs[value] = run
            for node in (value, *self.users.get(value, ())):
                places = self._places(node)
                if places is not None:
                    found = zip((*node.args, node), places, strict=True)
                    pending += [(v, self.run.at(p)) for v, p in found if p is not None]
        return True

    def leave_rows(self) -> None:
        """Leaves out values from which no reduction is computed."""
        for node in self.block.nodes[::-1]:
            read = any(map(self._is_changed, self.users.get(node, ())))
            if not (read or is_reduction(node)):
                self.runs.pop(node, None)

    def _is_changed(self, node: Node) -> bool:
        """True if an op is rebuilt with the merged axes."""
        places = self._places(node)
        return places is not None and (places[-1] is None or node in self.runs)

    def _places(self, node: Node) -> list[int | None] | None:
        """Returns where the axes begin in each operand of an op, and in its result; None in values
        without them. None instead of a list if the op cannot be rebuilt with one axis for all."""
        rule = ops.rule_of(node)
        if rule is None or not rule.is_plain or is_contraction(node) or node.blocks:
            return None
        sides = list(zip((*rule.inputs, *rule.outputs), (*node.args, node), strict=True))
        known = next(((self.runs[v], axes) for axes, v in sides if v in self.runs), None)
        if known is None:
            return None
        run, axes = known
        names = run.names(axes)
        places: list[int | None] = []
        for axes, _ in sides:
            own = [a.names[0] for a in axes]
            start = own.index(names[0]) if names[0] in own else None
            held = own[start : start + len(names)] if start is not None else []
            if held != names and not set(names).isdisjoint(own):
                return None
            places.append(start)
        return places if ops.restated(node, self._rule(rule, places)) is not None else None

    def _rule(self, rule: Rule, places: Sequence[int | None]) -> Rule:
        *inputs, made = (
            axes if start is None else self.run.at(start).axes(axes)
            for axes, start in zip((*rule.inputs, *rule.outputs), places, strict=True)
        )
        return Rule(tuple(inputs), (made,))

    def rebuilt(self) -> Block:
        """Returns the block with the merged axes."""
        done: dict[Node, Node] = {p: p for p in self.block.params}
        merged: dict[Node, Node] = {}
        for node in self.block.nodes:
            places = self._places(node)
            if places is None or not self._is_changed(node):
                done[node] = node.rebuilt([done[a] for a in node.args])
                continue
            args = list(map(done.__getitem__, node.args))
            for i, (arg, place) in enumerate(zip(node.args, places[:-1], strict=True)):
                if place is not None:
                    if arg not in merged:
                        merged[arg] = _view(done[arg], self.runs[arg].shape(arg.shape))
                    args[i] = merged[arg]
            rule = ops.rule_of(node)
            assert rule is not None, "it has places"
            attrs = ops.restated(node, self._rule(rule, places))
            assert attrs is not None, "a reduction, a view or an elementwise op"
            if places[-1] is None:
                done[node] = Node(node.op, args, attrs, node.type)
                continue
            type_ = node.tensor.with_shape(self.runs[node].shape(node.shape))
            merged[node] = Node(node.op, args, attrs, type_)
            done[node] = reshaped(merged[node], node.shape)
        names = {m[n]: s for m in (done, merged) for n, s in self.block.names.items() if n in m}
        locs = {m[n]: s for m in (done, merged) for n, s in self.block.locs.items() if n in m}
        return Block(self.block.params, [done[r] for r in self.block.results], names, locs)


def _view(value: Node, shape: tuple[Dim, ...]) -> Node:
    """Returns a value in another shape. Conversions are repeated, so that a view of the converted
    array, which may be narrower, is read from memory."""
    value = behind(value)
    if converts(value):
        inner = _view(value.args[0], shape)
        return make(value.op, (inner,), value.attrs, hint=value.tensor.with_shape(shape))
    return reshaped(value, shape)


def leaves_idle(sink: Node, gpu: Gpu) -> bool:
    """True if a stream without matmuls that reads its rows, and writes as many, takes longer than a
    stream for the states and a kernel for the rows.

    Args:
        sink: the last reduction of the stream.
        gpu: the target.
    """
    rows, source = sink.tensor.size, sink.args[0].tensor
    if not isinstance(rows, int) or not isinstance(source.bytes, int) or not rows:
        return False
    programs = -(-rows // WARP) if reduces_columns(sink) else rows
    idle = max(1.0, gpu.processors / programs)
    second = gpu.launch * (1 + gpu.parts.launches)  # it waits for the states and their parts
    moved = source.bytes / gpu.memory_rate
    return 2 * moved * idle > 3 * moved + second
