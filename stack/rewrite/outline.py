"""Replaces groups by `fusion` nodes: a closed block each, with parameters p0, p1, ... in order of
use.

Equal groups get equal blocks up to names and source lines. So their results are the same objects,
and a backend compiles them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    return _Outliner(grouping).block()


def outlined(grouping: Grouping, group: Group) -> Node:
    """Returns the `fusion` node of one group, which reads nodes of the block that is not grouped.

    A single matmul that needs no fusion node is returned as it is.
    """
    if is_bare(group):
        return group.members[0]
    body = _Body(grouping, group)
    return _fusion(group, body.block(grouping.block), body.inputs)


def is_bare(group: Group) -> bool:
    """True if a group is a single matmul that reads no operand through windows, so that it needs no
    fusion node.
    """
    return group.members == group.dots and not any(map(in_windows, group.dots[0].args))


def _fusion(group: Group, block: Block, args: Sequence[Node]) -> Node:
    attrs = {"kind": group.kind, "name": group_name(group)}
    return Node("fusion", args, attrs, result_type(block.type), (block,))


class _Outliner:
    def __init__(self, grouping: Grouping) -> None:
        self.g = grouping
        self.old = grouping.block
        self.done: dict[Node, Node] = {p: p for p in self.old.params}
        self.names: dict[Node, str] = {}
        self.locs: dict[Node, tuple[str, ...]] = {}
        self.bodies: dict[Group, _Body] = {}
        self.home: dict[Node, Group] = {}
        for group in grouping.all_groups:
            for out in group.outputs:
                self.home.setdefault(out, group)

    def block(self) -> Block:
        for result in self.old.results:
            self._make(result)
        results = [self.done[r] for r in self.old.results]
        return Block(self.old.params, results, self.names, self.locs)

    def _body(self, group: Group) -> _Body:
        if group not in self.bodies:
            self.bodies[group] = _Body(self.g, group)
        return self.bodies[group]

    def _needs(self, node: Node) -> Iterable[Node]:
        group = self.home.get(node)
        return node.args if group is None or is_bare(group) else self._body(group).inputs

    def _make(self, root: Node) -> None:
        stack = [(root, False)]
        waiting: set[Node] = set()
        while stack:
            node, ready = stack.pop()
            if node in self.done:
                continue
            if not ready:
                if node in waiting:
                    name = self.old.names.get(node, node.op)
                    raise StackError(f"fusion made groups that depend on each other, at %{name}")
                waiting.add(node)
                stack.append((node, True))
                stack.extend((n, False) for n in reversed(list(self._needs(node))))
                continue
            group = self.home.get(node)
            if group is None or is_bare(group):
                args = [self.done[a] for a in node.args]
                new = node.rebuilt(args)
                self._settle(node, new)
            else:
                self._fuse(group)

    def _settle(self, old: Node, new: Node) -> None:
        self.done[old] = new
        if old in self.old.names:
            self.names.setdefault(new, self.old.names[old])
        if old in self.old.locs:
            merged = (*self.locs.get(new, ()), *self.old.locs[old])
            self.locs[new] = tuple(dict.fromkeys(merged))

    def _fuse(self, group: Group) -> None:
        body = self._body(group)
        node = _fusion(group, body.block(self.old), [self.done[a] for a in body.inputs])
        lines = self.g.lines(body.nodes)
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


def group_name(group: Group) -> str:
    """A name composed of the first ops: `mul_reduce_rsqrt_add`."""
    seen = dict.fromkeys(n.op for n in group.members)
    return "_".join(list(seen)[:NAMED_OPS])


class _Body:
    """Collects the nodes in the body of a group's fusion node, operands first, and the values from
    outside that they read.
    """

    def __init__(self, grouping: Grouping, group: Group) -> None:
        self.g = grouping
        self.group = group
        self.nodes: list[Node] = []
        self.inputs: list[Node] = []
        self._walk()

    def _walk(self) -> None:
        state: set[Node] = set()
        outside: set[Node] = set()
        stack: list[tuple[Node, bool]] = [(o, False) for o in reversed(self.group.outputs)]
        while stack:
            node, ready = stack.pop()
            if node in state or node in outside:
                continue
            if ready:
                state.add(node)
                self.nodes.append(node)
                continue
            if not self._is_inside(node):
                outside.add(node)
                self.inputs.append(node)
                continue
            stack.append((node, True))
            if is_contraction(node):
                for arg in node.args:
                    source = arg.args[0] if in_windows(arg) else arg
                    if source not in outside:
                        outside.add(source)
                        self.inputs.append(source)
                    if arg is not source:
                        stack.append((arg, False))
                continue
            stack.extend((a, False) for a in reversed(node.args))

    def _is_inside(self, node: Node) -> bool:
        if node in self.group.held:
            return True
        if node not in self.g.cheap:
            return False
        if not is_alias(node):
            return True
        # a free view of a value in memory stays outside: the kernel reads the final shape
        behind = self.g.behind_reshape(node)
        return behind in self.group.held or behind in self.g.cheap

    def block(self, old: Block) -> Block:
        params = [param(f"p{i}", n.type) for i, n in enumerate(self.inputs)]
        done = dict(zip(self.inputs, params))
        names: dict[Node, str] = {}
        locs: dict[Node, tuple[str, ...]] = {}
        for node in self.nodes:
            new = Node(node.op, [done[a] for a in node.args], node.attrs, node.type, node.blocks)
            done[node] = new
            if node in old.names:
                names.setdefault(new, old.names[node])
            if node in old.locs:
                locs[new] = tuple(dict.fromkeys((*locs.get(new, ()), *old.locs[node])))
        return Block(params, [done[o] for o in self.group.outputs], names, locs)
