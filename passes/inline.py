"""inline: replace calls by their bodies. unfuse: the same for fusion groups and streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stack.ir.builder import Builder
from stack.ir.func import Func
from stack.ir.node import Node
from stack.ir.streaming import expanded
from stack.ir.traits import maker, place_of
from stack.ir.types import TensorType
from stack.rewrite.engine import Scope, Simple, inline_block, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


def _results(node: Node, op: Builder) -> list[Node]:
    return inline_block(node.blocks[0], node.args, op)


def _stream_results(stream: Node, op: Builder) -> list[Node]:
    """Returns the results of a stream: each state by a loop of its own, then the block `finish`."""
    if "part" in stream.attrs:
        return inline_block(expanded(stream), stream.args, op)
    states = inline_block(stream.blocks[0], stream.args, op)
    return inline_block(stream.blocks[2], [*states, *stream.args], op)


def _rule(target: str, results: Callable[[Node, Builder], list[Node]] = _results) -> Simple:
    """Returns a rule that computes each result of an op by the op's body."""

    def inlined(node: Node, op: Builder, scope: Scope) -> Node | None:
        source = maker(node)
        is_result = source.op == target and isinstance(node.type, TensorType)
        return results(source, op)[place_of(node)] if is_result else None

    return Simple(f"inline_{target}", (target, "item"), inlined)


@dataclass(frozen=True)
class Inline(Pass, needs=("call",)):
    """Replace every call by its body."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, (_rule("call"),), log, enter=lambda _: True)


@dataclass(frozen=True)
class Unfuse(Pass, needs=("fusion", "stream")):
    """Replace every fusion group and stream by its body: the meaning of a group is its body."""

    def run(self, func: Func, log: Log) -> Func:
        rules = (_rule("fusion"), _rule("stream", _stream_results))
        return rewrite(func, rules, log, enter=lambda _: True)
