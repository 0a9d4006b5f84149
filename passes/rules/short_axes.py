"""Vectorizes over the last two axes together if the last one is shorter than a vector.

Example: a group norm of an image with channels last. The channels of a group fill only a part of a
vector, so most lanes would idle. Operands that have only one of the two axes are broadcast along
the other one, in a kernel of their own. Reductions over the short axis and others reduce the others
first. Then all values have both axes, and `coalesce` merges them. This is done only if the
broadcast arrays are small compared with the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from stack.ir.builder import converted, make, new_params, remade
from stack.ir.control_ops import result_type
from stack.ir.dim import Dim
from stack.ir.node import Block, Node, remade_block, topological
from stack.ir.traits import is_alias, is_elementwise, is_fusion, is_input, is_reduction, spread
from stack.ir.types import TupleType
from stack.passes.tiling.frame import wide
from stack.target import Cpu

Axes = tuple[int, ...]


class _SeparateAxes(Exception):
    """The last two axes cannot be merged: a value has only one of them and is not broadcast."""


def ends_short(shape: Sequence[int], cpu: Cpu) -> bool:
    """True if the last axis of a shape is shorter than a vector of the CPU, and it and the axis
    before it have more than one element.
    """
    return len(shape) > 2 and 1 < shape[-1] < cpu.lanes and shape[-2] > 1


def is_across(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """True if the reduced `axes` include the last axis and others, but not the second to last one,
    so that the last two axes cannot be merged directly.
    """
    last = len(shape) - 1
    return len(axes) > 1 and last in axes and last - 1 not in axes


def with_full_vectors(group: Node, cpu: Cpu) -> Node | None:
    """Rewrites a fusion group so that a short last axis can be merged with the one before; None if
    nothing changes."""
    if not is_fusion(group) or group.attrs["kind"] not in ("loop", "reduction"):
        return None
    body = group.blocks[0]
    sums = [n for n in body.nodes if is_reduction(n)]
    spaces = {n.args[0].shape for n in sums} or {r.shape for r in body.results}
    if len(spaces) > 1 or len({r.attrs["axes"] for r in sums}) > 1:
        return None
    shape = [s for s in next(iter(spaces)) if isinstance(s, int)]
    if len(shape) < len(next(iter(spaces))) or not ends_short(shape, cpu):
        return None
    work = _Group(group, tuple(shape), math.prod(shape) // cpu.lanes)
    try:
        return work.reduced(sums) if sums else work.loop()
    except _SeparateAxes:
        return None


class _Group:
    """Rewrites one fusion group, whose index space of shape `shape` ends in an axis shorter than a
    vector."""

    def __init__(self, group: Node, shape: tuple[int, ...], most: int) -> None:
        self.group = group
        self.body = group.blocks[0]
        self.outside = dict(zip(self.body.params, group.args, strict=True))
        self.shape = shape
        self.most = most  # limit of elements of a broadcast array
        self.done: dict[Node, Node] = {}
        self.stretched: dict[tuple[Node, Axes], Node] = {}  # parameters
        self.added: dict[Node, Node] = {}  # parameter -> its value outside

    def loop(self) -> Node | None:
        """Rewrites an elementwise group: operands that lack one of the last two axes are broadcast
        to both by separate groups. None if there are no such operands.
        """
        results = [self._joined(r) for r in self.body.results]
        return self._group(self.group, results) if self.added else None

    def reduced(self, sums: list[Node]) -> Node | None:
        """Splits the reductions `sums` over the last axis and others into two groups: the first
        reduces all of these axes but the last one, the second reduces the last. None if `is_across`
        is false.
        """
        axes = tuple(int(a) for a in sums[0].attrs["axes"])
        last = len(self.shape) - 1
        if not is_across(self.shape, axes):
            return None
        kept = [s for i, s in enumerate(self.shape) if i not in axes or i == last]
        if math.prod(kept) > self.most:
            raise _SeparateAxes
        rows = [s for i, s in enumerate(self.shape) if i not in axes and s != 1]
        if any([s for s in r.shape if s != 1] != rows for r in self.body.results):
            raise _SeparateAxes
        firsts = [self._part(n, axes) for n in sums]
        first = self._group(self.group, firsts)
        params = new_params("s", [n.type for n in firsts], self.body.params)
        known = {n: _last(n, p) for n, p in zip(sums, params, strict=True)}
        return self._ended(first, params, known)

    def _part(self, node: Node, axes: Axes) -> Node:
        source = self._joined(node.args[0])
        source = converted(source, wide(source.dtype))
        return make("reduce", (source,), {**node.attrs, "axes": axes[:-1]})

    def _ended(self, first: Node, params: list[Node], known: Mapping[Node, Node]) -> Node:
        """Builds the second of two groups: it reduces the results of group `first` over the last
        axis, then computes the epilogue of the reductions."""
        is_one = not isinstance(first.type, TupleType)
        parts = [
            first if is_one else make("item", (first,), {"index": i}) for i in range(len(params))
        ]
        inputs = [n for n in topological(self.body.results, lambda n: n not in known)]
        others = [p for p in self.body.params if p in inputs]
        done = remade(self.body.results, {**known, **{p: p for p in others}})
        block = remade_block(self.body, done, [*params, *others])
        args = [*parts, *(self.outside[p] for p in others)]
        attrs = {"kind": "reduction", "name": f"{self.group.attrs['name']}_end"}
        return Node("fusion", args, attrs, self.group.type, (block,))

    def _group(self, group: Node, results: list[Node]) -> Node:
        """Builds a fusion group like `group` that returns other results, with just the parameters
        that they need.
        """
        known = {**self.outside, **self.added}
        params = [n for n in topological(results) if n in known]
        names = {self.done[n]: name for n, name in self.body.names.items() if n in self.done}
        locs = {self.done[n]: lines for n, lines in self.body.locs.items() if n in self.done}
        block = Block(params, results, names, locs)
        args = [known[p] for p in params]
        return Node("fusion", args, group.attrs, result_type(block.type), (block,))

    def _is_whole(self, node: Node) -> bool:
        """True if a value has as many elements as the index space of the group, and the same last
        two axes.
        """
        return node.shape[-2:] == self.shape[-2:] and node.tensor.size == math.prod(self.shape)

    def _joined(self, root: Node) -> Node:
        """Rewrites a value of the group so that all values it is computed from have both of the
        last two axes, which can then be merged. Raises `_SeparateAxes` if one cannot have both.
        """

        def is_inside(node: Node) -> bool:
            return (is_elementwise(node) or is_alias(node)) and self._is_whole(node)

        for node in topological([root], is_inside):
            if node not in self.done:
                self.done[node] = node.rebuilt([self._read(a) for a in node.args])
        return self._read(root)

    def _read(self, node: Node) -> Node:
        if node in self.done or not node.shape:
            return self.done.get(node, node)
        if not self._is_whole(node):
            raise _SeparateAxes
        if (axes := spread(node)) is not None:
            return self._stretched(node, axes)
        if not is_input(node):
            raise _SeparateAxes
        return node

    def _stretched(self, node: Node, axes: Axes) -> Node:
        source = node.args[0]
        pair = (node.tensor.rank - 2, node.tensor.rank - 1)
        if len({*pair}.intersection(axes)) != 1:
            return node
        both = tuple(sorted({*axes, *pair}))
        key = source, axes
        if key not in self.stretched:
            shape = tuple(node.shape[a] for a in both)
            made = self._outside(source, shape, tuple(both.index(a) for a in axes))
            (self.stretched[key],) = new_params("w", [made.type], (*self.body.params, *self.added))
            self.added[self.stretched[key]] = made
        return make("broadcast", (self.stretched[key],), {"axes": both}, hint=node.type)

    def _outside(self, source: Node, shape: tuple[Dim, ...], axes: Axes) -> Node:
        """Broadcasts `source` to `shape` in a group of its own.

        Raises `_SeparateAxes` if the result has more than `most` elements, or if `source` depends
        on a reduction.
        """
        inner = topological([source])
        type_ = source.tensor.with_shape(shape)
        is_small = isinstance(type_.size, int) and type_.size <= self.most
        if not is_small or any(map(is_reduction, inner)):
            raise _SeparateAxes
        params = [p for p in self.body.params if p in inner]
        block = Block(params, [make("broadcast", (source,), {"axes": axes}, hint=type_)])
        args = [self.outside[p] for p in params]
        return Node("fusion", args, {"kind": "loop", "name": "stretch"}, type_, (block,))


def _last(node: Node, first: Node) -> Node:
    """Completes reduction `node`, whose other axes `first` has reduced: reduces the last axis, and
    converts the result to the type of `node`."""
    attrs = {**node.attrs, "axes": (first.tensor.rank - 1,)}
    return converted(make("reduce", (first,), attrs), node.dtype)
