"""Equal groups once: what a pass makes of one group, it makes of all that are alike.

Groups of equal layers differ in operands, names and source lines, and a pass carries these along
without looking at them. So it is run on a *model* of the first, whose operands are parameters and
whose names and source lines are marks, one for each node. What it makes of the model becomes what
it would make of a group by putting that one's operands, names and lines in their place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stack.errors import StackError
from stack.ir.alike import likeness, stand_ins
from stack.ir.node import Block, Node

_NUMBER = re.compile(r"_\d+$")


class OnceAlike:
    """`make(group)`, asked once for all groups that are alike.

    `make` gives a node, or a chain of them, on operands of the group and constants. It looks at an
    operand's type alone, and names and source lines are in tables of blocks only.
    """

    def __init__(self, make: Callable[[Node], Node]) -> None:
        self.make = make
        self.made: dict[tuple[Any, ...], tuple[Node, Node]] = {}

    def __call__(self, group: Node) -> Node:
        """What `make` gives, and raises, for a group."""
        key = (likeness(group), *(tuple(b.locs) for b in group.blocks))
        if key not in self.made:
            model = _model(group)
            try:
                self.made[key] = model, self.make(model)
            except StackError:
                return self.make(group)  # an error names the group's own lines
        return _in_place(group, *self.made[key])


def _model(group: Node) -> Node:
    """The group on parameters, with marks for names and source lines."""
    blocks: list[Block] = []
    for number, block in enumerate(group.blocks):
        marks = {node: f"{number}.{i}" for i, node in enumerate(block.names)}
        lines = {node: (marks[node],) for node in block.locs}
        blocks.append(Block(block.params, block.results, marks, lines))
    return group.rebuilt(stand_ins(group), blocks=blocks)


def _in_place(group: Node, model: Node, made: Node) -> Node:
    """What was made of the model, for a group that is alike."""
    args = dict(zip(model.args, group.args, strict=True))
    names: dict[str, str] = {}
    lines: dict[str, tuple[str, ...]] = {}
    for marked, own in zip(model.blocks, group.blocks, strict=True):
        names.update({mark: own.names[node] for node, mark in marked.names.items()})
        lines.update({marks[0]: own.locs[node] for node, marks in marked.locs.items()})

    def hint(name: str) -> str:
        name = _NUMBER.sub("", name)  # the block numbers what would have one name
        return names.get(name, name)

    def sources(marks: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(line for mark in marks for line in lines[mark])

    def renamed(block: Block) -> Block:
        names = {node: hint(name) for node, name in block.names.items()}
        locs = {node: sources(marks) for node, marks in block.locs.items()}
        return Block(block.params, block.results, names, locs)

    def placed(node: Node) -> Node:
        if node in args:
            return args[node]
        return node.rebuilt([placed(a) for a in node.args], blocks=list(map(renamed, node.blocks)))

    return placed(made)
