"""inline: replace calls by their bodies. unfuse: the same for fusion groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import Builder
from stack.ir.node import Func, Node
from stack.rewrite.engine import Scope, Simple, inline_block, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


def _rules(target: str) -> tuple[Simple, ...]:
    def single(node: Node, op: Builder, scope: Scope) -> Node | None:
        block = node.blocks[0]
        return inline_block(block, node.args, op)[0] if len(block.results) == 1 else None

    def one_of_many(node: Node, op: Builder, scope: Scope) -> Node | None:
        source = node.args[0]
        if source.op != target:
            return None
        return inline_block(source.blocks[0], source.args, op)[int(node.attrs["index"])]

    return (
        Simple(f"inline_{target}", (target,), single),
        Simple(f"inline_item_of_{target}", ("item",), one_of_many),
    )


def _enter(node: Node) -> bool:
    return True


@dataclass(frozen=True)
class Inline(Pass):
    """Replace every call by its body."""

    name: ClassVar[str] = "inline"

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, _rules("call"), log, enter=_enter)


@dataclass(frozen=True)
class Unfuse(Pass):
    """Replace every fusion group by its body: the meaning of a group is its body."""

    name: ClassVar[str] = "unfuse"

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, _rules("fusion"), log, enter=_enter)
