"""library: label everything that has no kernel as a library step.

After this pass the program consists of kernels, library steps, free reshapes and control flow. Each
step records why it is left to a library.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir import ops
from stack.ir.builder import block_of, make
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_alias,
    is_fusion,
    is_generated,
    is_item,
    is_kernel,
)
from stack.passes.gpu_products.tile_choice import is_given_to_library
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


@dataclass(frozen=True)
class Library(BlockPass):
    """Wrap every bare op, and every group without a schedule, as a library step."""

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node] = {}
        for node in block.nodes:
            if is_generated(node):
                is_slower = is_given_to_library(node)
                why = "a library is faster" if is_slower else "no schedule for the group"
                attrs = {**node.attrs, "kind": "library", "why": why}
                changed[node] = node.rebuilt(attrs=attrs)
            elif is_item(node):
                # a group has one result or a tuple of more: the item is wrapped with its op
                if len(node.args[0].types) == 1 and not _runs_or_is_free(node.args[0]):
                    changed[node] = wrap(node.args[0])
            elif not _runs_or_is_free(node) and log.spend("library"):
                changed[node] = wrap(node)
        return replace(block, changed)


def _runs_or_is_free(node: Node) -> bool:
    """True if a node needs no library step: it is a group, a kernel, control flow or a framework
    call, each of which runs by itself; or nothing runs for it, as for an input, a constant or a
    free reshape.
    """
    if is_alias(node) or is_fusion(node) or is_kernel(node):
        return True
    return ops.lookup(node.op).kind in ("control", "foreign", "input", "leaf")


def wrap(node: Node) -> Node:
    """Returns one op as a library step."""
    attrs = {"kind": "library", "name": node.op, "why": _reason(node)}
    return make("fusion", node.args, attrs, (block_of(node),))


def _reason(node: Node) -> str:
    if ops.lookup(node.op).kind == "contraction":
        return "a library does it well"
    return "no schedule for the op"
