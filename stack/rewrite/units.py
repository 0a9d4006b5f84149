"""The units of fusion in a block, and the edges between them.

Every reader recomputes cheap nodes instead of reading them from memory. Each other node is a unit:
a node that a group may contain, or one that a library or the framework computes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stack.ir import ops
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.traits import (
    converts,
    in_windows,
    is_alias,
    is_contraction,
    is_formula,
    is_input,
    is_known,
    is_number,
    is_reduction,
    reads_by_data,
    writes_by_data,
)
from stack.ir.types import TensorType
from stack.rewrite.entries import (
    Entries,
    Entry,
    Space,
    SplitNeeded,
    fresh_axis,
    meet,
    operand_entries,
    put,
)
from stack.rewrite.group import Group, flops_of

GENERATED_FLOPS = 32  # a value computed from iotas and scalars is recomputed below this cost
MAX_CHEAP_CONCAT = 4


class Units:
    """The units of one closed block, and the edges between them.

    Bare ops are matmuls, and ops that no group may contain: they read operands from memory.

    Attributes:
        place: position of every node.
        cheap: nodes that are recomputed, and so are no units.
        roots: cheap nodes that are also units: operands of bare ops, and results.
        units: in program order.
        reads: maps a unit to the units and parameters that it reads, through cheap nodes.
        readers: maps a unit to the units that read it.
        needed: units that the block returns.
    """

    def __init__(
        self, block: Block, grouped: frozenset[str], refused: frozenset[str] = frozenset()
    ) -> None:
        self.block = block
        self.grouped = grouped
        self.refused = refused  # ops that groups must not contain
        self.place = {n: i for i, n in enumerate(block.nodes)}
        self.cheap = self._find_cheap()
        self.roots = self._find_roots()
        self.units = [n for n in block.nodes if n not in self.cheap or n in self.roots]
        self.reads: dict[Node, list[Node]] = {n: self.sources(n) for n in self.units}
        self.readers: dict[Node, list[Node]] = {}
        for node, sources in self.reads.items():
            for source in sources:
                self.readers.setdefault(source, []).append(node)
        self.needed = {self.behind_reshape(r) for r in block.results}

    def _find_cheap(self) -> frozenset[Node]:
        """Returns the nodes that are so cheap that each reader recomputes them instead of reading
        them from memory.
        """
        found: set[Node] = set()
        made: dict[Node, float] = {}  # values without inputs, and their operations
        for node in self.block.nodes:
            if not isinstance(node.type, TensorType) or node.op in self.refused:
                continue
            kind = ops.lookup(node.op).kind
            moves = kind == "movement" and not writes_by_data(node)
            if node.op == "concat":
                moves = len(node.args) <= MAX_CHEAP_CONCAT
            if is_formula(node):
                made[node] = 0
                found.add(node)
            elif is_known(node):
                continue
            elif node.args and all(a in made for a in node.args):
                cost = sum(made[a] for a in node.args) + flops_of(node)
                if (kind == "elementwise" or moves) and cost <= GENERATED_FLOPS:
                    made[node] = cost
                    found.add(node)
            free = node.op in ("cast", "neg", "not", "bitcast") and node.shape
            if moves or (free and not _narrows(node)):
                found.add(node)
        return frozenset(found)

    def is_grouped(self, node: Node) -> bool:
        """True if groups may contain a node; False for ops that run on their own."""
        if not isinstance(node.type, TensorType) or node.op in self.refused:
            return False
        kind = ops.lookup(node.op).kind
        if is_reduction(node):
            return bool(node.attrs["axes"])
        moves = kind == "movement" and not (reads_by_data(node) or writes_by_data(node))
        return kind == "elementwise" or moves or node.op in self.grouped

    def behind_reshape(self, value: Node) -> Node:
        """Skips free reshapes: returns the value that they view."""
        while is_alias(value) and value in self.cheap:
            value = value.args[0]
        return value

    def _find_roots(self) -> frozenset[Node]:
        """Cheap nodes whose values are stored in memory all the same: operands of bare ops (see the
        class), and results of the block.

        A gather among these values is not recomputed elsewhere: it is no longer cheap. Then it is a
        bare op, whose operands are in memory too.
        """
        needed = dict.fromkeys(map(self.behind_reshape, self.block.results))
        for node in reversed(self.block.nodes):
            if node in needed and node in self.cheap and reads_by_data(node):
                self.cheap -= {node}
            if node not in self.cheap and (not self.is_grouped(node) or is_contraction(node)):
                needed.update(dict.fromkeys(self._in_memory(node, a) for a in node.args))
        return frozenset(
            n for n in needed if n in self.cheap and n.op != "size" and not is_number(n)
        )

    def _in_memory(self, node: Node, operand: Node) -> Node:
        """The value that must be in memory so that a bare op can read an operand: the one behind
        free reshapes and, for a matmul, behind a window view.
        """
        if is_contraction(node) and in_windows(operand):
            operand = operand.args[0]
        return self.behind_reshape(operand)

    def sources(self, node: Node) -> list[Node]:
        """The units and parameters that a node reads, directly or through cheap nodes."""
        found: dict[Node, None] = {}
        if not self.is_grouped(node) or is_contraction(node):
            for arg in node.args:
                behind = self._in_memory(node, arg)
                if behind in self.place and (behind not in self.cheap or behind in self.roots):
                    found[behind] = None
            return list(found)
        pending = list(reversed(node.args))
        seen: set[Node] = set()
        while pending:
            arg = pending.pop()
            if arg in seen:
                continue
            seen.add(arg)
            if arg in self.cheap:
                pending.extend(reversed(arg.args))
            elif arg in self.place or is_input(arg):
                found[arg] = None
        return list(found)


def _narrows(node: Node) -> bool:
    """True for a cast to a shorter float: its result, not its operand, should be in memory."""
    if not converts(node) or not (node.dtype.is_float and node.args[0].dtype.is_float):
        return False
    return node.dtype.bits < node.args[0].dtype.bits


def single(units: Units, node: Node) -> Group:
    """Returns a new group with one unit, and the cheap nodes that it reads and recomputes."""
    shape = node.args[0].shape if is_reduction(node) else node.shape
    ids: list[Entry] = [() if s == 1 else (fresh_axis(),) for s in shape]
    space = Space(
        [e[0] for e in ids if e],
        {e[0]: s for e, s in zip(ids, shape) if e},
        {},
        set[int](),
    )
    if is_reduction(node):
        gone: Sequence[int] = node.attrs["axes"]
        space.reduced = {e[0] for i, e in enumerate(ids) if e and i in gone}
    while True:
        try:
            space.axes = _spread(node, ids, units.cheap, space.sizes)
            break
        except SplitNeeded as need:
            new = space.split(need.axis, need.sizes)
            ids = [put(e, need.axis, new) for e in ids]
    return Group(
        (node,),
        tuple(space.order),
        space.sizes,
        space.axes,
        frozenset(space.reduced),
        (node,),
        tuple(units.reads[node]),
        (node,) if is_contraction(node) else (),
        units.place[node],
        units.place[node],
    )


def _spread(
    node: Node, ids: Sequence[Entry], cheap: Collection[Node], sizes: Mapping[int, Dim]
) -> dict[Node, Entries]:
    axes: dict[Node, Entries] = {}
    pending: list[tuple[Node, Entries]] = []
    if is_reduction(node):
        axes[node] = tuple(e for i, e in enumerate(ids) if i not in node.attrs["axes"])
        pending = [(node.args[0], tuple(ids))]
    else:
        axes[node] = tuple(ids)
        if not is_contraction(node):
            pending = list(zip(node.args, operand_entries(node, tuple(ids), sizes)))
    while pending:
        value, entries = pending.pop()
        known = axes.get(value)
        now = entries if known is None else meet(known, entries)
        if now == known:
            continue
        axes[value] = now
        if value.args and value in cheap:
            pending.extend(zip(value.args, operand_entries(value, now, sizes)))
    return axes
