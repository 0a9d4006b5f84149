"""Replaces groups by `fusion` nodes: a closed block each, with parameters p0, p1, ... in order of
use.

Equal groups get equal blocks up to names and source lines. So their results are the same objects,
and a backend compiles them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stack.errors import StackError
from stack.ir.builder import param
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node
from stack.ir.traits import in_windows, is_alias, is_contraction
from stack.rewrite.fusion import Grouping
from stack.rewrite.group import Group, bytes_of
from stack.rewrite.log import FormedGroup

NAMED_OPS = 4


def outline(grouping: Grouping) -> Block:
    """Returns the grouped block, in which each group has become a `fusion` node with the group's
    nodes in its body.
    """
    outliner = _Outliner(grouping)
    outliner.make(grouping.block.results)
    results = [outliner.done[r] for r in grouping.block.results]
    return Block(grouping.block.params, results, outliner.names, outliner.locs)


def outlined(grouping: Grouping, group: Group) -> Node:
    """Returns the `fusion` node of one group, which reads nodes of the block that is not grouped.

    A single matmul that needs no fusion node is returned as it is.
    """
    if is_bare(group):
        return group.members[0]
    body = _body(grouping, group)
    return _fusion(group, body, body.inputs)


def is_bare(group: Group) -> bool:
    """True if a group is a single matmul that reads no operand through windows, so that it needs no
    fusion node.
    """
    return group.members == group.dots and not any(map(in_windows, group.dots[0].args))


class _Body(NamedTuple):
    """The body of a group's fusion node, and the values from outside that it reads. `nodes` are the
    nodes of the old block in it, operands first.
    """

    block: Block
    inputs: list[Node]
    nodes: list[Node]


def _body(grouping: Grouping, group: Group) -> _Body:
    nodes, inputs = dict[Node, None](), dict[Node, None]()
    pending: list[tuple[Node, bool]] = [(o, False) for o in reversed(group.outputs)]
    while pending:
        node, ready = pending.pop()
        if node in nodes or node in inputs:
            continue
        if ready:
            nodes[node] = None
            continue
        if not _is_inside(grouping, group, node):
            inputs[node] = None
            continue
        pending.append((node, True))
        if not is_contraction(node):
            pending.extend((a, False) for a in reversed(node.args))
            continue
        for arg in node.args:  # read from memory, by a window view or as they are
            inputs[arg.args[0] if in_windows(arg) else arg] = None
            if in_windows(arg):
                pending.append((arg, False))
    old = grouping.block
    done = {node: param(f"p{i}", node.type) for i, node in enumerate(inputs)}
    params = [*done.values()]
    for node in nodes:
        args = [done[a] for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    names, locs = dict[Node, str](), dict[Node, tuple[str, ...]]()
    for node in nodes:
        new = done[node]
        if node in old.names:
            names.setdefault(new, old.names[node])
        if node in old.locs:
            locs[new] = tuple(dict.fromkeys((*locs.get(new, ()), *old.locs[node])))
    block = Block(params, [done[o] for o in group.outputs], names, locs)
    return _Body(block, [*inputs], [*nodes])


def _is_inside(grouping: Grouping, group: Group, node: Node) -> bool:
    """True if the body of a group's fusion node computes a node, False if it reads it."""
    if node in group.held:
        return True
    if node not in grouping.cheap:
        return False
    if not is_alias(node):
        return True
    # a free view of a value in memory stays outside: the kernel reads the final shape
    behind = grouping.behind_reshape(node)
    return behind in group.held or behind in grouping.cheap


def _fusion(group: Group, body: _Body, args: Sequence[Node]) -> Node:
    attrs = {"kind": group.kind, "name": group_name(group)}
    return Node("fusion", args, attrs, result_type(body.block.type), (body.block,))


def group_name(group: Group) -> str:
    """A name composed of the first ops: `mul_reduce_rsqrt_add`."""
    seen = dict.fromkeys(n.op for n in group.members)
    return "_".join(list(seen)[:NAMED_OPS])


class _Outliner:
    """The new nodes of a grouped block, with names and source lines; `done` maps old to new."""

    def __init__(self, grouping: Grouping) -> None:
        self.g = grouping
        self.old = grouping.block
        self.done: dict[Node, Node] = {p: p for p in self.old.params}
        self.names: dict[Node, str] = {}
        self.locs: dict[Node, tuple[str, ...]] = {}
        self.home: dict[Node, tuple[Group, _Body]] = {}  # the group that gives a value to others
        for group in grouping.all_groups:
            if not is_bare(group):
                home = group, _body(grouping, group)
                for out in group.outputs:
                    self.home.setdefault(out, home)

    def make(self, roots: Sequence[Node]) -> None:
        """Makes the new nodes of `roots` and of all that they need."""
        stack = [(root, False) for root in reversed(roots)]
        waiting: set[Node] = set()
        while stack:
            node, ready = stack.pop()
            if node in self.done:
                continue
            home = self.home.get(node)
            if not ready:
                if node in waiting:
                    name = self.old.names.get(node, node.op)
                    raise StackError(f"fusion made groups that depend on each other, at %{name}")
                waiting.add(node)
                stack.append((node, True))
                needs = node.args if home is None else home[1].inputs
                stack.extend((n, False) for n in reversed(needs))
            elif home is None:
                self._settle(node, node.rebuilt([self.done[a] for a in node.args]))
            else:
                self._fuse(*home)

    def _settle(self, old: Node, new: Node) -> None:
        self.done[old] = new
        if old in self.old.names:
            self.names.setdefault(new, self.old.names[old])
        if old in self.old.locs:
            merged = (*self.locs.get(new, ()), *self.old.locs[old])
            self.locs[new] = tuple(dict.fromkeys(merged))

    def _fuse(self, group: Group, body: _Body) -> None:
        node = _fusion(group, body, [self.done[a] for a in body.inputs])
        lines = self.old.lines_of(body.nodes)
        if lines:
            merged = (*self.locs.get(node, ()), *lines)
            self.locs[node] = tuple(dict.fromkeys(merged))
        for i, out in enumerate(group.outputs):
            if len(group.outputs) == 1:
                self.done[out] = node
                if out in self.old.names:
                    self.names.setdefault(node, self.old.names[out])
            else:
                self._settle(out, Node("item", (node,), {"index": i}, out.type))
        if len(group.outputs) > 1:
            self.names.setdefault(node, group_name(group))
        inside = sum(bytes_of(n) for n in body.nodes if n not in group.outputs and n.shape)
        self.g.log.formed.append(
            FormedGroup(
                self.names.get(node, "fusion"),
                group.kind,
                tuple(n.op for n in body.nodes),
                lines,
                2 * inside,
            )
        )
