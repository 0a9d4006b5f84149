"""One fusion group to one kernel: its memory, the node that spans it, where its values sit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.axes import Index
from stack.ir.builder import param
from stack.ir.dim import Dim, substitute, symbol
from stack.ir.node import Node
from stack.ir.traits import arrays_of, is_reduction, op_names
from stack.ir.types import TensorType, TupleType
from stack.passes.blocking.frame import index_type
from stack.passes.blocking.values import BlockValues
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.frame import CannotTile, static

Grid = list[tuple[Node, int]]  # indices of programs, and how many there are
Stored = Sequence[tuple[Node, Index]]  # results and their places


class KernelTiler(BlockValues):
    """What tilers of all targets do; which axes tiles hold is up to each.

    Attributes:
        args: operands of the kernel: those of the group, then tables in it.
        grid: what programs share out.
        outputs: memory of the results.
    """

    def __init__(self, group: Node) -> None:
        body = group.blocks[0]
        sizes = [static(t.size) for n in (*body.params, *body.nodes) for t in types_of(n)]
        super().__init__(body, self.block_policy.integer or index_type(sizes))
        self.group = group
        self.grid: Grid = []
        if 0 in sizes:
            raise CannotTile("an array in it is empty")
        self.check()
        arrays = arrays_of(body)
        self.take(body.params, arrays)
        self.outputs = [self.memory(f"o{i}", t) for i, t in enumerate(types_of(group))]
        self.args = [*group.args, *arrays]

    def check(self) -> None:
        """Raise CannotTile where the group has what no kernel does."""
        for node in (*self.body.params, *self.body.nodes):
            if any(t.dtype.kind == "c" for t in types_of(node)):
                raise CannotTile("it computes with complex numbers")

    # ---- memory

    def take(self, params: Sequence[Node], arrays: Sequence[Node] = ()) -> None:
        """Inputs in memory: parameters, then tables."""
        for i, p in enumerate((*params, *arrays)):
            self.inputs[p] = self.memory(f"p{i}", p.tensor)
            if i in self.group.attrs.get("padded", ()):
                self.padded.add(self.inputs[p])

    def memory(self, hint: str, type_: TensorType) -> Node:
        """Memory that the kernel gets from outside."""
        return param(self.names.own(hint), TensorType(type_.dtype, type_.shape, "global"))

    def built(self, final: Sequence[Node], **hints: object) -> Node:
        """The kernel node, from its outputs after the last store."""
        inputs = dict.fromkeys(self.inputs.values())
        block = self.b.block([*inputs, *self.outputs], final)
        name = str(self.group.attrs.get("name") or "kernel")
        attrs: dict[str, object] = {"name": name, "level": "tile", "ops": self._ops(), **hints}
        return Node("kernel", self.args, attrs, self.group.type, (block,))

    def _ops(self) -> tuple[str, ...]:
        return op_names(self.body.nodes)

    # ---- where values sit

    def _reduces(self) -> list[Node]:
        return [n for n in self.body.nodes if is_reduction(n) and n.attrs["axes"]]

    def _spanning(self) -> list[Node]:
        """Dots whose axes span the group."""
        return []

    def _root(self) -> tuple[Node, Index, dict[Node, Index]]:
        """The node whose axes span the group, a symbol for each axis, and where values sit."""
        candidates = self._spanning() or [n.args[0] for n in self._reduces()]
        candidates = candidates or list(self.body.results)
        most = max(static(n.tensor.size) for n in candidates)
        for root in dict.fromkeys(n for n in candidates if static(n.tensor.size) == most):
            shape = [static(s) for s in root.shape]
            iter_vars = tuple(symbol(f"d{i}", 0, max(s - 1, 0)) for i, s in enumerate(shape))
            places = self._sites(root, iter_vars)
            if all(r in places for r in self.body.results):
                return root, iter_vars, places
        raise CannotTile("its outputs do not share one index space")

    def _sites(self, root: Node, iter_vars: Index) -> dict[Node, Index]:
        """Where values sit, from the symbols of the root."""
        return index_maps_of(self.body, root, iter_vars)

    def sited(self, iter_vars: Index, places: Mapping[Node, Index], found: Sequence[Dim]) -> Stored:
        """The results, and where each sits once the symbols of the root are `found`."""
        values: dict[str, Dim] = {str(m): d for m, d in zip(iter_vars, found, strict=True)}
        return [(r, tuple(substitute(d, values) for d in places[r])) for r in self.body.results]


def types_of(node: Node) -> tuple[TensorType, ...]:
    """Types of all results of a node."""
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)


__all__ = ["Grid", "KernelTiler", "Stored", "types_of"]
