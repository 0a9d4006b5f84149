"""memory: give every intermediate a place in one arena, reused when its last reader is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.node import Block, Func, Node
from stack.ir.types import TensorType, TupleType
from stack.passes.updates import in_place, updatable
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.run.memory import Lifetime, place

STEPS = ("kernel", "fusion")


@dataclass(frozen=True)
class Memory(Pass):
    """Set `at` on kernels and library steps: a byte offset for each result, -1 for outputs.

    Attributes:
        update: whether a kernel that copies an operand first, such as a scatter, takes its memory
            instead where nothing else needs it; results of loops are then updated in place.
    """

    name: ClassVar[str] = "memory"
    update: bool = False

    def run(self, func: Func, log: Log) -> Func:
        body = _update(func.body, log, False) if self.update else func.body
        body = _plan(body, log)
        return Func(func.name, body, func.level) if body is not func.body else func


def _update(block: Block, log: Log, carried: bool) -> Block:
    """Kernels in place, in loops and branches too; a loop's body may update what it carries."""
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if node.op in ("while", "cond"):
            body = node.blocks[1] if node.op == "while" else None
            blocks = [_update(b, log, b is body) for b in node.blocks]
            if tuple(blocks) != node.blocks:
                changed[node] = Replacement(Node(node.op, node.args, node.attrs, node.type, blocks))
    for node in updatable(block, STEPS, carried):
        if log.spend("update", block.locs.get(node, ())):
            changed[node] = Replacement(in_place(node))
    return replace(block, changed) if changed else block


def _plan(block: Block, log: Log) -> Block:
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if node.op in ("while", "cond"):
            blocks = [_plan(b, log) for b in node.blocks]
            if tuple(blocks) != node.blocks:
                new = Node(node.op, node.args, node.attrs, node.type, blocks)
                changed[node] = Replacement(new)
    lives = lifetimes(block)
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


def lifetimes(block: Block) -> dict[tuple[Node, int], Lifetime]:
    """For every result of a step that the block does not return: its size, first and last use.

    Reshapes, items and updates are views: what reads them reads the step.
    """
    owner: dict[Node, list[tuple[Node, int]]] = {}
    first: dict[tuple[Node, int], int] = {}
    last: dict[tuple[Node, int], int] = {}
    for step, node in enumerate(block.nodes):
        for arg in node.args:
            for key in owner.get(arg, ()):
                last[key] = step
        if "updates" in node.attrs:
            owner[node] = owner.get(node.args[int(node.attrs["updates"])], [])
        elif node.op in STEPS:
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


def _types(node: Node) -> tuple[TensorType, ...]:
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)


def _bytes(type_: TensorType) -> int:
    size = type_.bytes
    return size if isinstance(size, int) else -1
