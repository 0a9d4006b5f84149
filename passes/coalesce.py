"""coalesce: merge neighbouring axes that no op of a group or stream treats separately.

A linear layer over a batch of sequences is one matmul over all their rows. With one merged axis,
tiles run across sequences, and no tile is cut off at the end of each. Views around the group are
free.

An axis whose positions are values stays as it is.

An axis that a window cuts or pads takes in the axis behind it, and the window's lengths grow by
that factor. Rows of an image with three channels are then padded in vectors.

On a CPU, groups that end in an axis shorter than a vector are changed first, so that this axis can
be merged; see `rules.short_axes`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import Operand, Rule, reshape_groups
from stack.ir.builder import make, reshaped
from stack.ir.dim import Dim, mul, product
from stack.ir.func import Func
from stack.ir.node import Block, Node, remade_block
from stack.ir.relation import Window, Windows
from stack.ir.traits import (
    is_alias,
    is_contraction,
    is_elementwise,
    is_generated,
    is_input,
    is_number,
    is_positions,
    is_stream,
    items_of,
)
from stack.ir.types import TensorType, TupleType
from stack.passes.rules.movement import reshape_of_reshape
from stack.passes.rules.short_axes import with_full_vectors
from stack.passes.tiling.single_ops import alone, is_bare
from stack.rewrite.engine import Replacement, replace, rewrite
from stack.rewrite.log import Lines, Log
from stack.rewrite.passes import BlockPass
from stack.target import Cpu


@dataclass(frozen=True)
class Coalesce(BlockPass):
    """Merge axes that are adjacent wherever they appear, in fusion groups, bare dots and streams.

    Batch axes of a stream are not merged: its programs share them out as they are.
    """

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(super().run(func, log), (reshape_of_reshape,), log)

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node | Replacement] = {}
        for node in block.nodes if isinstance(log.target, Cpu) else ():
            made = with_full_vectors(node, log.cpu)
            if made is not None and log.spend("fill_vectors", block.locs.get(node, ())):
                changed[node] = made
        block, changed = replace(block, changed), {}
        for node in block.nodes:
            group = _group(node, block.locs.get(node, ()))
            if group is None:
                continue
            axes = _Axes(group)
            merged = axes.merged()
            if not merged or not log.spend("coalesce", block.locs.get(node, ())):
                continue
            made = axes.coalesced(group, merged)
            names = {made: block.names[node]} if node in block.names else {}
            if not isinstance(node.type, TupleType):
                changed[node] = Replacement(reshaped(made, node.shape), names=names)
                continue
            for item in items_of(node, block.nodes):
                new = make("item", (made,), {"index": item.attrs["index"]})
                changed[item] = Replacement(reshaped(new, item.shape), names=names)
        return replace(block, changed)


def _group(node: Node, lines: Lines) -> Node | None:
    """Returns a group or stream itself, and a contraction or a reduction, such as `argreduce`,
    wrapped in a group of its own; None for other nodes.
    """
    if is_generated(node) or is_stream(node):
        return node
    is_reduced = is_bare(node) and ops.lookup(node.op).kind == "reduction" and _is_plain(node)
    return alone(node, lines) if is_reduced or is_contraction(node) else None


def _is_plain(node: Node) -> bool:
    rule = ops.rule_of(node)
    return rule is not None and rule.is_plain


class _Axes:
    """Union-find over the dims of all values of a group or stream: one set per axis, by number."""

    def __init__(self, group: Node) -> None:
        self.group = group
        self.parents: list[int] = []
        self.dims: dict[Node, list[int]] = {}
        self.kept: set[int] = set()  # dims of axes that are never merged
        self.read: set[int] = set()  # dims that windows read: no axis takes them
        self.sides: list[tuple[int, int]] = []  # read dim, and dim of the result
        self.named: list[list[int]] = []  # of each op, a dim of every axis that its rule names
        self.is_known = True  # True if all values are arrays
        for node in (n for block in group.blocks for n in (*block.params, *block.nodes)):
            if not isinstance(node.type, TensorType):
                self.is_known = False
                return
            if node in self.dims:
                continue
            first = len(self.parents)
            self.dims[node] = list(range(first, first + len(node.shape)))
            self.parents.extend(self.dims[node])
            self._bind(node)
        if is_stream(group):
            self._bind_stream()

    def _bind_stream(self) -> None:
        """Unites the axes of a stream that are one axis in several of its blocks: those of each
        state in all blocks, and those of each operand in the loop's block and the block
        `finish`."""
        states, correct, finish = self.group.blocks
        count = len(states.results)
        for i, state in enumerate(states.results):
            places = (correct.params[i], correct.params[count + i], correct.results[i])
            for other in (*places, finish.params[i]):
                self._join(self.dims[state], self.dims[other])
        for first, last in zip(states.params, finish.params[count:], strict=True):
            self._join(self.dims[first], self.dims[last])

    def _bind(self, node: Node) -> None:
        """Unites the dims to which the axis rule of an op gives the same name."""
        if is_input(node) or is_number(node):
            return
        if is_positions(node):
            self.kept.add(self.dims[node][int(node.attrs["axis"])])
            self.named.append(self.dims[node])
            return
        if is_alias(node):
            self._bind_view(node)
            return
        if is_elementwise(node):
            for value in node.args:
                if value.tensor.rank:
                    self._join(self.dims[node], self.dims[value])
            self.named.append(self.dims[node])
            return
        rule, windows = ops.rule_of(node), ops.lookup(node.op).windows
        is_stated = rule is not None and ops.restated(node, rule) is not None
        if rule is None or not is_stated or not (rule.is_plain or windows):
            self.kept.update(d for value in (node, *node.args) for d in self.dims[value])
            return
        named: dict[str, int] = {}
        for name, dim in zip(_names(rule.outputs[0]), self.dims[node], strict=True):
            self._join([named.setdefault(name, dim)], [dim])
        found: Windows = windows(node) if windows else {}
        for number, (operand, value) in enumerate(zip(rule.inputs, node.args, strict=True)):
            for place, (axis, dim) in enumerate(zip(operand, self.dims[value], strict=True)):
                window = found.get((number, place))
                if window is not None:
                    self._bind_window(window, dim, named, is_whole=not axis.mark)
                else:
                    self._join([named.setdefault(axis.names[0], dim)], [dim])
        self.named.append(list(named.values()))
        if is_stream(self.group) and is_contraction(node):
            left, right, made = (set(_names(o)) for o in (*rule.inputs, *rule.outputs))
            self.kept.update(named[name] for name in left & right & made)

    def _bind_window(
        self, window: Window, dim: int, named: Mapping[str, int], is_whole: bool
    ) -> None:
        """Relates a dim of an operand that is read through a window, such as an image, to the
        result's dims that the window slides along. Unless the window has a single term of stride 1,
        the dim is not merged with others."""
        made = [named[name] for name, _ in window.terms]
        if [by for _, by in window.terms] != [1] or window.spread != 1 or window.free:
            self.kept.update((dim, *made))
        if is_whole:
            self._join(made, [dim])
        else:
            self.read.update((dim, *made))
            self.sides.extend((dim, m) for m in made)

    def _bind_view(self, node: Node) -> None:
        """Unites the axes of a view with those of its source.

        Axes that the view splits or merges are not coalesced.
        """
        source = node.args[0]
        for read, made in reshape_groups(source.shape, node.shape):
            old, new = self.dims[source][read], self.dims[node][made]
            if len(old) == len(new) == 1:
                self._join(old, new)
            elif old and new:
                self.kept.update((*old, *new))

    def _join(self, first: Sequence[int], second: Sequence[int]) -> None:
        for a, b in zip(first, second, strict=True):
            self.parents[self._axis(a)] = self._axis(b)

    def _axis(self, dim: int) -> int:
        """Returns the number of a dim's axis: the root in the union-find."""
        while self.parents[dim] != dim:
            dim = self.parents[dim]
        return dim

    def _sides(self) -> list[int]:
        """Returns for each dim the root of its axis in the union-find. Here a dim that a window
        reads and the result's dim that the window slides along count as one axis."""
        sides = [self._axis(dim) for dim in range(len(self.parents))]
        for read, made in self.sides:
            old, new = sides[read], sides[made]
            sides = [new if side == old else side for side in sides]
        return sides

    def merged(self) -> set[int]:
        """Returns the axes that are merged into the axis before them, on both sides of windows."""
        if not self.is_known:
            return set()
        sides = self._sides()
        kept, read = {sides[d] for d in self.kept}, {self._axis(d) for d in self.read}
        before: dict[int, set[int]] = {}
        after: dict[int, set[int]] = {}
        for dims in (*self.named, *self.dims.values()):
            axes = [self._axis(d) for d in dims]
            # an axis that occurs twice in one value, as the rows of x x^T, stays as it is
            kept.update(
                sides[d] for d, axis in zip(dims, axes, strict=True) if axes.count(axis) > 1
            )
        for dims in self.dims.values():
            axes = [self._axis(d) for d in dims]
            for axis, left, right in zip(axes, [-1, *axes], [*axes[1:], -1], strict=False):
                before.setdefault(axis, set()).add(left if left < 0 else sides[left])
                after.setdefault(sides[axis], set()).add(right)
        return {
            axis
            for axis, found in before.items()
            for left in found
            if left >= 0 and len(found) == 1 and after[left] == {axis}
            if axis not in read and kept.isdisjoint((sides[axis], left))
        }

    def coalesced(self, group: Node, merged: Collection[int]) -> Node:
        """Returns the group with one axis for each run of merged ones."""
        kept = {
            node: [i for i, dim in enumerate(dims) if self._axis(dim) not in merged]
            for node, dims in self.dims.items()
        }
        done: dict[Node, Node] = {}
        for node in self.dims:
            shape = _shape(node.shape, kept[node])
            type_ = node.tensor.with_shape(shape)
            args = [done[a] for a in node.args]
            done[node] = Node(node.op, args, self._attrs(node, kept), type_)
        blocks = [remade_block(block, done) for block in group.blocks]
        args = [reshaped(a, p.shape) for a, p in zip(group.args, blocks[0].params, strict=True)]
        parts = group.types[0].shape[:1] if "part" in group.attrs else ()
        types = tuple(r.tensor.with_shape((*parts, *r.tensor.shape)) for r in blocks[-1].results)
        type_ = TupleType(types) if isinstance(group.type, TupleType) else types[0]
        return Node(group.op, args, group.attrs, type_, blocks)

    def _attrs(self, node: Node, kept: dict[Node, list[int]]) -> dict[str, object]:
        """Returns the attributes of a node, such as axis numbers and window lengths, converted to
        the axes that remain after coalescing."""
        if is_positions(node):
            return {**node.attrs, "axis": kept[node].index(int(node.attrs["axis"]))}
        rule = None if is_elementwise(node) or is_alias(node) else ops.rule_of(node)
        if rule is None or all(len(kept[v]) == v.tensor.rank for v in (node, *node.args)):
            return dict(node.attrs)
        *inputs, made = (
            tuple(operand[i] for i in kept[value])
            for operand, value in zip((*rule.inputs, *rule.outputs), (*node.args, node))
        )
        attrs = ops.restated(node, Rule(tuple(inputs), (made,)))
        assert attrs is not None, "asked when it was bound"
        op = ops.lookup(node.op)
        if op.windows is not None:  # lengths count the elements of all merged axes
            inner = [1 if i in kept[node] else n for i, n in enumerate(node.shape)]
            behind = _shape(inner, kept[node])
            for name, (kind, _) in op.signature.items():
                if kind == "dims":
                    attrs[name] = tuple(map(mul, attrs[name], behind))
        return attrs


def _names(operand: Operand) -> list[str]:
    return [axis.names[0] for axis in operand]


def _shape(shape: Sequence[Dim], kept: Sequence[int]) -> tuple[Dim, ...]:
    """Returns the sizes of the axes that are left, multiplied by those merged into each."""
    ends = [*kept[1:], len(shape)]
    return tuple(product(list(shape[i:end])) for i, end in zip(kept, ends, strict=False))
