"""Analyze which gathered values of a rank's program can be consumed part by part.

A gathered dim passes through nodes that preserve it. It ends at a reduction, a stream or a
reduce-scatter along it. If all readers of a gathered value end so, no rank needs the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stack.errors import RuleError
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.stream_op import streamed_axes
from stack.ir.streaming import Tiled, operand_axes
from stack.ir.traits import fold_of, is_stream
from stack.mesh.meshes import axes_text
from stack.mesh.ops import group_of

Sources = frozenset[Node]  # gathers


@dataclass
class RingAnalysis:
    """The ring analysis of a rank's program.

    Attributes:
        func: the program.
        axis: the mesh axis along which values were gathered.
        sources: gathers that no node needs whole.
        ends: for each node that ends a gathered dim, the gathers that it reads, in order.
        reached: for each node, its gathered dims and the gathers that they come from.
    """

    func: Func
    axis: str
    sources: set[Node] = field(default_factory=set[Node])
    ends: dict[Node, Sources] = field(default_factory=dict[Node, Sources])
    reached: dict[Node, dict[int, Sources]] = field(default_factory=dict[Node, dict[int, Sources]])

    def __post_init__(self) -> None:
        self.sources = {n for n in self.func.nodes if self.gathers(n)}
        while escaped := self._walk():
            self.sources -= escaped

    def gathers(self, node: Node) -> bool:
        """True if a node gathers along the mesh axis."""
        return node.op == "all_gather" and axes_text(group_of(node.attrs)[1]) == self.axis

    def scatters(self, node: Node) -> bool:
        """True if a node reduce-scatters a sum along the mesh axis."""
        is_sum = node.op == "reduce_scatter" and node.attrs["kind"] == "sum"
        return is_sum and axes_text(group_of(node.attrs)[1]) == self.axis

    def _walk(self) -> set[Node]:
        """Follows gathered dims forward from the gathers in `sources`; fills `reached` and `ends`.
        Returns those gathers that some node or result needs whole."""
        self.ends.clear()
        self.reached = {n: {n.attrs["axis"]: frozenset({n})} for n in self.sources}
        escaped: set[Node] = set()
        for node in self.func.nodes:
            for number, arg in enumerate(node.args):
                for dim, sources in self.reached.get(arg, {}).items():
                    if self._step(node, number, dim, sources):
                        continue
                    escaped |= sources
        for result in self.func.results:
            escaped |= {n for found in self.reached.get(result, {}).values() for n in found}
        return escaped & self.sources

    def _step(self, node: Node, number: int, dim: int, sources: Sources) -> bool:
        """Records that a node reads the gathered dim `dim` of an operand. False if the node needs
        the whole of it, rather than one rank's part at a time."""
        if self._end(node, number) == dim:
            self.ends[node] = self.ends.get(node, frozenset[Node]()) | sources
            return True
        if node in self.sources or node.blocks or len(node.types) > 1:
            return False
        for to in range(node.tensor.rank):
            axes = _operand_axes(node, to)
            if axes is None or axes[number] != dim:
                continue
            if any(axis is None and a in self.reached for a, axis in zip(node.args, axes)):
                return False  # another gathered value would be needed whole for each part
            own = self.reached.setdefault(node, {})
            own[to] = own.get(to, frozenset[Node]()) | sources
            return True
        return False

    def _end(self, node: Node, number: int) -> int | None:
        """Returns the dim of operand `number` over which a node sums or streams, so that parts can
        be merged; None if there is none."""
        if self.scatters(node):
            return int(node.attrs["axis"])
        if is_stream(node):
            params = node.blocks[0].params
            seen = {axis for p, axis in Tiled(node, 0, 1).views if p is params[number]}
            return seen.pop() if len(seen) == 1 else None
        axes = reduced_axes(node)
        return axes[number] if axes else None


def reduced_axes(node: Node) -> Sequence[int]:
    """Returns for each operand of a reduction the axis that is reduced; empty for other nodes."""
    if not fold_of(node):
        return ()
    try:
        return [axis for _, axis in streamed_axes(node)]
    except RuleError:
        return ()


def _operand_axes(node: Node, axis: int) -> list[int | None] | None:
    try:
        return operand_axes(node, axis)
    except RuleError:
        return None
