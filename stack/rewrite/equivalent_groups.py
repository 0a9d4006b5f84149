"""Transformations of groups that run once for each equivalence class of groups.

Groups of equal layers differ in operands, names and source lines, and a pass keeps these without
using them. So the transformation runs on a *model* of the first group: its operands are parameters,
and its source lines and the names that the program gives are marks, one for each node. For each
equivalent group, the result is copied with the group's own operands, names and lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.errors import StackError
from stack.ir.equivalence import equivalence_key, stand_ins
from stack.ir.node import Block, Node, is_op_name, topological
from stack.ir.traits import is_computed_once

_MARK = re.compile(r"(\d+\.\d+)((?:_\d+)*)")  # and the numbers of duplicate names


@dataclass
class CachedTransform:
    """A transformation of fusion groups that calls `make(group)` once for each class of groups that
    are equal up to names, source lines and operands.

    `make` returns a node, or a chain of nodes, on operands of the group and constants. It may use
    only the types of operands, and whether they are computed once. Names and source lines occur
    only in tables of blocks. `make` runs for each group for which `is_own` is true, such as one
    with steps that a person wrote: they may name values of the group.
    """

    make: Callable[[Node], Node]
    is_own: Callable[[Node], object] = lambda _: False
    made: dict[tuple[Any, ...], tuple[Node, Node]] = field(
        default_factory=dict[tuple[Any, ...], tuple[Node, Node]]
    )

    def __call__(self, group: Node) -> Node:
        """Returns the transformed group; `make` runs only for the first of its equivalent groups.

        If `make` fails, it runs on the group itself, so that the error names its own source lines.
        """
        if self.is_own(group):
            return self.make(group)
        once = tuple(map(is_computed_once, group.args))
        named = [
            [n for n, name in b.names.items() if not is_op_name(n, name)] for b in group.blocks
        ]
        tables = ((tuple(b.locs), tuple(own)) for b, own in zip(group.blocks, named, strict=True))
        key = (equivalence_key(group), once, *tables)
        if key not in self.made:
            model = _model(group, named)
            try:
                self.made[key] = model, self.make(model)
            except StackError:
                return self.make(group)  # an error names the group's own lines
        return _in_place(group, named, *self.made[key])


def _model(group: Node, named: Sequence[Sequence[Node]]) -> Node:
    """The model of a group: parameters replace its operands, and each name and source line is
    replaced by a mark, from which `_in_place` finds the name and line in an equivalent group.

    `named`: the nodes of each block that the program names; the others are named after their op.
    """
    args = stand_ins(group)
    for i, operand in enumerate(group.args):
        if is_computed_once(operand):  # its model is a result of a call that runs once
            attrs = {"name": str(args[i].attrs["name"]), "once": True}
            body = Block((args[i],), (args[i],))
            args[i] = Node("call", (args[i],), attrs, operand.type, (body,))
    blocks: list[Block] = []
    for number, block in enumerate(group.blocks):
        marks = {node: f"{number}.{i}" for i, node in enumerate(block.names)}
        lines = {node: (marks[node],) for node in block.locs}
        names = {node: marks[node] for node in named[number]}
        blocks.append(Block(block.params, block.results, names, lines))
    return group.rebuilt(args, blocks=blocks)


def _in_place(group: Node, named: Sequence[Sequence[Node]], model: Node, made: Node) -> Node:
    """Copies `made`, the result for the model, with the operands, names and source lines of an
    equivalent group.
    """
    done = dict(zip(model.args, group.args, strict=True))
    names: dict[str, str] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for marked, own, nodes in zip(model.blocks, group.blocks, named, strict=True):
        names.update({marked.names[node]: own.names[node] for node in nodes})
        lines.update({marks[0]: own.locs[node] for node, marks in marked.locs.items()})
    for node in topological([made], known=done):
        blocks: list[Block] = []
        for block in node.blocks:
            own_names = {
                n: names[mark[1]] + mark[2] if (mark := _MARK.fullmatch(name)) else name
                for n, name in block.names.items()
            }
            locs = {
                n: tuple([x for m in marks for x in lines[m]]) for n, marks in block.locs.items()
            }
            blocks.append(Block(block.params, block.results, own_names, locs))
        done[node] = node.rebuilt([done[a] for a in node.args], blocks=blocks)
    return done[made]
