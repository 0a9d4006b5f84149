"""inline: replace calls by their bodies. unfuse: the same for fusion groups and streams."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import Builder
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.streaming import expanded
from stack.ir.traits import is_stream, place_of
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


def _stream_results(stream: Node, op: Builder) -> list[Node]:
    """Returns the results of a stream: each state by a loop of its own, then the block `finish`."""
    if "part" in stream.attrs:
        return inline_block(expanded(stream), stream.args, op)
    states = inline_block(stream.blocks[0], stream.args, op)
    return inline_block(stream.blocks[2], [*states, *stream.args], op)


def _stream(node: Node, op: Builder, scope: Scope) -> Node | None:
    return _stream_results(node, op)[0] if len(node.blocks[2].results) == 1 else None


def _item_of_stream(node: Node, op: Builder, scope: Scope) -> Node | None:
    source = node.args[0]
    return _stream_results(source, op)[place_of(node)] if is_stream(source) else None


_STREAM_RULES = (
    Simple("inline_stream", ("stream",), _stream),
    Simple("inline_item_of_stream", ("item",), _item_of_stream),
)


def _enter(node: Node) -> bool:
    return True


@dataclass(frozen=True)
class Inline(Pass):
    """Replace every call by its body."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, _rules("call"), log, enter=_enter)


@dataclass(frozen=True)
class Unfuse(Pass):
    """Replace every fusion group and stream by its body: the meaning of a group is its body."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, (*_rules("fusion"), *_STREAM_RULES), log, enter=_enter)
