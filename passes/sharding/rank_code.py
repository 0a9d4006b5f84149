"""Build the code of one rank for a node: the same op on its shards.

If parts do not divide evenly, arrays are padded. The padding is never read, with two exceptions. A
node that reduces along the dim reads it masked by the neutral element, and a node that uses it as
indices reads 0. Parts that a window reads begin and end where the rank's window does, and are 0
outside of the dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stack.ir import Builder, Node, ops
from stack.ir.array_space import identity
from stack.ir.conv_op import as_stored
from stack.ir.traits import is_operator, is_reduction, reads_by_data, writes_by_data
from stack.ir.types import I64, TensorType, TupleType, Type
from stack.mesh.meshes import Axes, Mesh, axes_text, joined, size_of
from stack.mesh.sharding import Sharding, is_padded
from stack.passes.sharding.factors import Factors, Split, factors_of
from stack.wings import part


def local_type(type_: TensorType) -> TensorType:
    """Returns the type of a rank's shard of a value."""
    if type_.sharding is None:
        return type_
    return TensorType(type_.dtype, type_.sharding.local_shape(type_.shape))


def local_types(type_: Type) -> Type:
    """Returns the type, or the tuple of types, of a rank's shards of a node's results."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(local_type, type_.items)))
    return local_type(type_)


class RankNode:
    """One node on the shards of one rank."""

    def __init__(self, b: Builder, mesh: Mesh, node: Node) -> None:
        self.b, self.mesh, self.node = b, mesh, node
        self.factors: Factors = factors_of(node)
        self.split: Split = {}
        types = (*(a.tensor for a in node.args), *node.types)
        for dims, type_ in zip(self.factors.values, types, strict=True):
            if type_.sharding is not None:
                self.split.update(self.factors.split_of(dims, type_.sharding.axes))

    def made(self, args: Sequence[Node]) -> Node:
        """Returns the node that computes a rank's shard of the result from `args`, the rank's
        shards of the operands."""
        node = self.node
        args = [self._operand(i, arg) for i, arg in enumerate(args)]
        if is_operator(node):
            return part("ops", "operator-again")(self.b, node, args)
        if ops.lookup(node.op).beyond == "operand":
            args[0] = self._surrounded(args[0], args[-1])
        placed, held = self._looked_up(args)
        attrs = self._attrs(placed)
        if writes_by_data(node):
            if placed != args:
                attrs["drop"] = True
            placed[0] = self._added_once(placed[0])
        new = Node(node.op, placed, attrs, local_types(node.type), node.blocks)
        self.b.note(new)
        if node.op == "iota":
            new = self._counted(new)
        return new if held is None else self.b.select(held, new, self.b.const(0, new.dtype))

    def _looked_up(self, args: Sequence[Node]) -> tuple[list[Node], Node | None]:
        """Converts the indices of a gather or scatter to indices into this rank's shard.

        Indices of a scatter that are on another rank are out of range. For a gather, also returns a
        mask, False for results whose element is on another rank; None if no indexed dim is split.
        """
        node, found, inside = self.node, list(args), None
        writes = writes_by_data(node)
        rule = ops.rule_of(node) if writes or reads_by_data(node) else None
        indexed = [i for i, a in enumerate(rule.inputs[0]) if a.mark == "!"] if rule else []
        for number, dim in enumerate(indexed, start=1):
            sharding = node.args[0].tensor.sharding
            axes = sharding.axes[dim] if sharding is not None else ()
            if not axes or rule is None:
                continue
            index, size = args[number], node.args[0].shape[dim]
            start = self.b.part_start(size=size, **self._over(axes))
            if index.dtype != I64:
                index = self.b.cast(index, type=TensorType(I64, index.shape))
            at = self.b.sub(index, start)
            if writes:
                found[number] = at
                continue
            ends = self.b.ge(at, 0), self.b.lt(at, self.b.const(args[0].shape[dim], I64))
            here = self.b.op("and", list(ends))
            found[number] = self.b.select(here, at, self.b.const(0, I64))
            names = [a.names[0] for a in rule.outputs[0]]
            frame = TensorType(here.dtype, local_type(node.tensor).shape)
            places = [names.index(a.names[0]) for a in rule.inputs[number]]
            order = tuple(sorted(range(len(places)), key=places.__getitem__))
            here = self.b.transpose(here, perm=order)
            here = self.b.broadcast(here, axes=tuple(sorted(places)), type=frame)
            inside = here if inside is None else self.b.op("and", [inside, here])
        return found, inside

    def _added_once(self, x: Node) -> Node:
        """Returns what updates are added to: 0 but on the first of the ranks that have parts of the
        updates."""
        for factor in self.factors.reduced:
            axes = self.split.get(factor, ())
            if axes:
                start = self.b.part_start(size=self.factors.sizes[factor], **self._over(axes))
                x = self.b.select(self.b.eq(start, 0), x, self.b.const(0, x.dtype))
        return x

    def _operand(self, number: int, x: Node) -> Node:
        """Returns shard `x` of operand `number`; padding of uneven shards is overwritten by the
        neutral element if the node reduces over it, and by 0 in indices, or integers of an
        operator, which may be indices."""
        node = self.node
        type_ = node.args[number].tensor
        if type_.sharding is None:
            return x
        dims = self.factors.operands[number]
        for dim, (factors, axes) in enumerate(zip(dims, type_.sharding.axes, strict=True)):
            if not axes or not is_padded(type_.shape[dim], axes) or type_.sharding.overlaps:
                continue
            if any(factor in self.factors.reduced for factor in factors):
                x = self._masked(x, dim, type_.sharding, type_, self._neutral())
            elif number in positions(node) or (is_operator(node) and type_.dtype.is_integer):
                x = self._masked(x, dim, type_.sharding, type_, 0)
        return x

    def _neutral(self) -> Any:
        node = self.node
        return identity(node.attrs["kind"], node.dtype) if is_reduction(node) else 0

    def _masked(self, x: Node, dim: int, sharding: Sharding, type_: TensorType, value: Any) -> Node:
        size = type_.shape[dim]
        held = self.b.part_held(size=size, **self._over(sharding.axes[dim]))
        place = self.b.iota(axis=dim, type=TensorType(I64, x.shape))
        return self.b.select(self.b.lt(place, held), x, self.b.const(value, x.dtype))

    def _surrounded(self, x: Node, value: Node) -> Node:
        """Returns operand `x`, whose parts overlap, with `value` in the elements of a part that are
        outside of the whole dim."""
        type_, sharding = self.node.args[0].tensor, self.node.args[0].tensor.sharding
        overlaps = enumerate(sharding.overlaps if sharding is not None else ())
        for dim, overlap in overlaps:
            if overlap is None or sharding is None:
                continue
            axes, index = sharding.axes[dim], TensorType(I64, x.shape)
            size = size_of(axes) * overlap.step
            start = self.b.part_start(size=size, **self._over(axes))
            place = self.b.add(self.b.iota(axis=dim, type=index), start)
            for test, end in (("ge", 0), ("lt", int(str(type_.shape[dim])))):
                inside = self.b.op(test, [place, self.b.const(end - overlap.start, I64)])
                x = self.b.select(inside, x, value)
        return x

    def _over(self, axes: Axes) -> dict[str, str]:
        return {"mesh": self.mesh.sizes_text, "over": axes_text(axes)}

    # ---- attributes with sizes or positions

    def _attrs(self, args: Sequence[Node]) -> dict[str, Any]:
        attrs = dict(self.node.attrs)
        if self.node.op == "slice":
            whole, part = self.node.args[0].shape, args[0].shape
            ends = zip(attrs["limit"], whole, part, strict=True)
            attrs["limit"] = tuple(end if n == own else own for end, n, own in ends)
        for (_, dim), window in self.factors.windows.items():
            if self.split.get(window.factor):
                self._cut(attrs, dim, args[0], window.margins(self.split[window.factor]))
        if self.node.op == "conv":
            attrs["groups"] //= size_of(self.split.get("g", ()))
        return attrs

    def _cut(self, attrs: dict[str, Any], dim: int, x: Node, margins: tuple[int, int]) -> None:
        """Changes the attributes of a node, such as a slice or a pad, along one dim: it then reads
        all of shard `x`, with `margins` of padding around it."""
        at = dim
        if self.node.op == "conv":
            at = as_stored(range(x.tensor.rank), attrs)[dim] - 2
        ends = {"start": 0, "limit": x.shape[dim], "low": margins[0], "high": margins[1]}
        for name in ends.keys() & attrs.keys():
            attrs[name] = (*attrs[name][:at], ends[name], *attrs[name][at + 1 :])

    def _counted(self, new: Node) -> Node:
        """Adds the start of the rank's part to an iota along a split dim, so that it counts
        positions in the whole dim."""
        at = int(self.node.attrs["axis"])
        sharding = self.node.tensor.sharding
        axes = joined(sharding.axes[at]) if sharding is not None else ()
        if not axes:
            return new
        start = self.b.part_start(size=self.node.shape[at], **self._over(axes))
        if new.dtype != I64:
            start = self.b.cast(start, type=TensorType(new.dtype, ()))
        return self.b.add(new, start)


def positions(node: Node) -> range:
    """Returns the numbers of the operands of a gather or scatter that are indices; empty for other
    nodes."""
    last = {"gather": 0, "scatter": 1}.get(node.op)
    return range(0) if last is None else range(1, len(node.args) - last)
