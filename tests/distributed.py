"""Kernels in text, as `distribute` leaves them."""

from __future__ import annotations

from stack.ir import Func, Node, parse, verify
from stack.ir.builder import rebuild
from stack.passes.distribute import distribute_kernel
from stack.target import Target


def distributed(text: str, target: Target | None = None) -> Func:
    """Every kernel of a function in vectors of a target; verified."""

    def visit(node: Node, args: tuple[Node, ...], blocks: tuple[object, ...]) -> Node:
        return distribute_kernel(node, target=target) if node.op == "kernel" else node

    made = rebuild(parse(text), visit)
    verify(made)
    return made
