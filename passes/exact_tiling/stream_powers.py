"""Exponentials of a stream as powers of two, which take a CPU fewer instructions.

What is rounded is x log2(e): the error of exp(x) grows with |x|. That is less than the rounding of
a sum where x is a value minus the largest one: the sum is at least 1 then, and exp(x) small. Other
exponentials stay.
"""

from __future__ import annotations

from collections.abc import Set

from stack.ir.builder import constant, make
from stack.ir.node import Block, Node, topological
from stack.ir.types import F32
from stack.passes.tiling.frame import LOG2E
from stack.rewrite.engine import Replacement, replace


def with_powers_of_two(stream: Node) -> Node:
    """The stream with exp2 for each exp of what is relative to a state."""
    states, correct, finish = stream.blocks
    blocks = (
        _rewritten(states, set(states.results)),
        _rewritten(correct, set(correct.params)),
        finish,
    )
    return stream.rebuilt(blocks=blocks)


def _rewritten(block: Block, held: Set[Node]) -> Block:
    powers = {n: Replacement(_power(n)) for n in block.nodes if _is_relative(n, held)}
    return replace(block, powers) if powers else block


def _is_relative(node: Node, held: Set[Node]) -> bool:
    """Whether a node is exp(a - r), r a state."""
    if node.op != "exp" or node.dtype != F32 or node.args[0].op != "sub":
        return False
    return not held.isdisjoint(topological([node.args[0].args[1]]))


def _power(exp: Node) -> Node:
    scaled = make("mul", (exp.args[0], constant(LOG2E, F32)), {})
    return make("exp2", (scaled,), {})
