"""memory: give every intermediate a place in one arena, reused when its last reader is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.ir.types import TensorType, TupleType
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.run.memory import Lifetime, place

STEPS = ("kernel", "fusion")


@dataclass(frozen=True)
class Memory(Pass):
    """Set `at` on kernels and library steps: a byte offset for each result, -1 for others.

    Attributes:
        made: ops whose library allocates the result, which takes no place then.
    """

    name: ClassVar[str] = "memory"
    made: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        body = _plan(func.body, log, self.made)
        return Func(func.name, body, func.level) if body is not func.body else func


def _plan(block: Block, log: Log, made: Sequence[str]) -> Block:
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if node.op in ("while", "cond"):
            blocks = [_plan(b, log, made) for b in node.blocks]
            if tuple(blocks) != node.blocks:
                new = Node(node.op, node.args, node.attrs, node.type, blocks)
                changed[node] = Replacement(new)
    lives = lifetimes(block, made)
    keys = list(lives)
    offsets, total = place([lives[k] for k in keys])
    where = dict(zip(keys, offsets, strict=True))
    plain = sum(life.size for life in lives.values())
    for node in block.nodes:
        if node.op in STEPS and log.spend("place"):
            at = tuple(where.get((node, i), -1) for i in range(len(_types(node))))
            new = Node(node.op, node.args, {**node.attrs, "at": at}, node.type, node.blocks)
            changed[node] = Replacement(new)
    if lives:
        log.note(f"{len(lives)} intermediates of {plain} bytes share an arena of {total} bytes")
    return replace(block, changed) if changed else block


def lifetimes(block: Block, made: Sequence[str] = ()) -> dict[tuple[Node, int], Lifetime]:
    """For every result of a step that the block does not return: its size, first and last use.

    Reshapes and items are views: what reads them reads the step.
    """
    owner: dict[Node, list[tuple[Node, int]]] = {}
    first: dict[tuple[Node, int], int] = {}
    last: dict[tuple[Node, int], int] = {}
    for step, node in enumerate(block.nodes):
        for arg in node.args:
            for key in owner.get(arg, ()):
                last[key] = step
        if node.op in STEPS and not _is_made(node, made):
            owner[node] = [(node, i) for i in range(len(_types(node)))]
            for key in owner[node]:
                first[key] = last[key] = step
        elif node.op == "item" and node.args[0].op in STEPS:
            owner[node] = [(node.args[0], int(node.attrs["index"]))]
        elif node.op == "reshape":
            owner[node] = owner.get(node.args[0], [])
    returned = {key for r in block.results for key in owner.get(r, ())}
    return {
        key: Lifetime(_bytes(_types(key[0])[key[1]]), first[key], last[key])
        for key in first
        if key not in returned and _bytes(_types(key[0])[key[1]]) >= 0
    }


def _is_made(node: Node, made: Sequence[str]) -> bool:
    """Whether it is a library step of one of these ops alone."""
    if node.attrs.get("kind") != "library":
        return False
    inner = node.blocks[0].nodes
    return len(inner) == 1 and inner[0].op in made


def _types(node: Node) -> tuple[TensorType, ...]:
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)


def _bytes(type_: TensorType) -> int:
    size = type_.bytes
    return size if isinstance(size, int) else -1
