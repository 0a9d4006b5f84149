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
    is_input,
    is_item,
    is_kernel,
    is_known,
)
from stack.ir.types import TupleType
from stack.passes.control import BlockPass
from stack.passes.gpu_products.tile_choice import is_given_to_library
from stack.rewrite.engine import replace
from stack.rewrite.log import Log


@dataclass(frozen=True)
class Library(BlockPass):
    """Wrap every bare op, and every group without a schedule, as a library step."""

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node] = {}
        for node in block.nodes:
            if is_generated(node):
                attrs = {**node.attrs, "kind": "library", "why": _why_group(node)}
                changed[node] = node.rebuilt(attrs=attrs)
            elif _is_lone_item(node):
                changed[node] = wrap(node.args[0])
            elif not (_is_free(node) or _is_step(node)) and log.spend("library"):
                changed[node] = wrap(node)
        return replace(block, changed)


def _why_group(group: Node) -> str:
    """Returns the reason why a group is left to a library: the library is faster, or no schedule
    exists."""
    return "a library is faster" if is_given_to_library(group) else "no schedule for the group"


def _is_free(node: Node) -> bool:
    """True if a node needs no library step because nothing runs for it: a free reshape, an input, a
    leaf such as a constant, or one of several results of an op."""
    return is_alias(node) or is_input(node) or is_known(node) or is_item(node)


def _is_step(node: Node) -> bool:
    """True if a node needs no library step: it is a group, a kernel, control flow or a framework
    call, each of which runs by itself."""
    is_made = is_fusion(node) or is_kernel(node)
    return is_made or ops.lookup(node.op).kind in ("control", "foreign")


def _is_lone_item(node: Node) -> bool:
    """True for the item of a tuple of one result.

    A group has one result or a tuple of more, so the item is wrapped together with its op.
    """
    if not is_item(node) or _is_step(node.args[0]):
        return False
    source = node.args[0].type
    return isinstance(source, TupleType) and len(source.items) == 1


def wrap(node: Node) -> Node:
    """Returns one op as a library step."""
    attrs = {"kind": "library", "name": node.op, "why": _reason(node)}
    return make("fusion", node.args, attrs, (block_of(node),))


def _reason(node: Node) -> str:
    if ops.lookup(node.op).kind == "contraction":
        return "a library does it well"
    return "no schedule for the op"
