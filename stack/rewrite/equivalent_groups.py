"""Runs a transformation of groups once per equivalence class.

Groups of equal layers differ in operands, names and source lines, and a pass keeps these without
using them. So the transformation runs on a *model* of the first group: its operands are parameters,
and its source lines and the names that the program gives are marks, one for each node. For each
equivalent group, the result is copied with the group's own operands, names and lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stack.errors import StackError
from stack.ir.equivalence import equivalence_key, stand_ins
from stack.ir.node import Block, Node, is_op_name
from stack.ir.traits import is_computed_once

_MARK = re.compile(r"(\d+\.\d+)((?:_\d+)*)")  # and the numbers of duplicate names


class CachedTransform:
    """A transformation of fusion groups that calls `make(group)` once for each class of groups that
    are equal up to names, source lines and operands.

    `make` returns a node, or a chain of nodes, on operands of the group and constants. It may use
    only the types of operands, and whether they are computed once. Names and source lines occur
    only in tables of blocks. `make` runs for each group for which `is_own` is true, such as one
    with steps that a person wrote: they may name values of the group.
    """

    def __init__(
        self, make: Callable[[Node], Node], is_own: Callable[[Node], object] = lambda _: False
    ) -> None:
        self.make, self.is_own = make, is_own
        self.made: dict[tuple[Any, ...], tuple[Node, Node]] = {}

    def __call__(self, group: Node) -> Node:
        """Returns the transformed group; `make` runs only for the first of its equivalent groups.

        If `make` fails, it runs on the group itself, so that the error names its own source lines.
        """
        if self.is_own(group):
            return self.make(group)
        once = tuple(map(is_computed_once, group.args))
        tables = ((tuple(b.locs), tuple(_named(b))) for b in group.blocks)
        key = (equivalence_key(group), once, *tables)
        if key not in self.made:
            model = _model(group)
            try:
                self.made[key] = model, self.make(model)
            except StackError:
                return self.make(group)  # an error names the group's own lines
        return _in_place(group, *self.made[key])


def _model(group: Node) -> Node:
    """The model of a group: parameters replace its operands, and each name and source line is
    replaced by a mark, from which `_in_place` finds the name and line in an equivalent group.
    """
    blocks: list[Block] = []
    for number, block in enumerate(group.blocks):
        marks = {node: f"{number}.{i}" for i, node in enumerate(block.names)}
        lines = {node: (marks[node],) for node in block.locs}
        names = {node: marks[node] for node in _named(block)}
        blocks.append(Block(block.params, block.results, names, lines))
    return group.rebuilt(list(map(_stand_in, group.args, stand_ins(group))), blocks=blocks)


def _named(block: Block) -> list[Node]:
    """Returns the nodes that the program names; the others are named after their op."""
    return [node for node, name in block.names.items() if not is_op_name(node, name)]


def _stand_in(operand: Node, param: Node) -> Node:
    """Returns what stands for an operand in the model of a group: a parameter, or the result of a
    call that runs once, if the operand is one.
    """
    if not is_computed_once(operand):
        return param
    attrs = {"name": str(param.attrs["name"]), "once": True}
    return Node("call", (param,), attrs, operand.type, (Block((param,), (param,)),))


def _in_place(group: Node, model: Node, made: Node) -> Node:
    """Copies `made`, the result for the model, with the operands, names and source lines of an
    equivalent group.
    """
    args = dict(zip(model.args, group.args, strict=True))
    names: dict[str, str] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for marked, own in zip(model.blocks, group.blocks, strict=True):
        names.update({marked.names[node]: own.names[node] for node in _named(own)})
        lines.update({marks[0]: own.locs[node] for node, marks in marked.locs.items()})

    def renamed(block: Block) -> Block:
        own = {
            node: names[mark[1]] + mark[2] if (mark := _MARK.fullmatch(name)) else name
            for node, name in block.names.items()
        }
        locs = {
            node: tuple(line for mark in marks for line in lines[mark])
            for node, marks in block.locs.items()
        }
        return Block(block.params, block.results, own, locs)

    def placed(node: Node) -> Node:
        if node in args:
            return args[node]
        return node.rebuilt([placed(a) for a in node.args], blocks=list(map(renamed, node.blocks)))

    return placed(made)
