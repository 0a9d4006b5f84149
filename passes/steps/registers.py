"""Tiles and the registers of a target."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.node import Block, Node
from stack.ir.traits import choice, is_reduction, is_store, multiplies
from stack.ir.types import DType, TensorType
from stack.passes.steps.loops import is_memory
from stack.passes.tiling.frame import static
from stack.target import Cpu, Gpu, Target


def why_too_large(shape: Sequence[int], dtype: DType, target: Target | None) -> str:
    """Why a tile does not fit in the registers of a target; "" if it fits."""
    if isinstance(target, Gpu) and prod(shape) > target.registers:
        return f"a tile of {prod(shape)} elements, and a program has {target.registers} registers"
    if isinstance(target, Cpu):
        if len(shape) > 1:
            sizes = " x ".join(map(str, shape))
            return f"a tile of {sizes}; vectors of a CPU have one axis: unroll the other one"
        held, most = prod(shape) * max(dtype.bytes, 1), target.registers * target.vector_bytes
        if held > most:
            return f"a vector of {held} bytes, and all vector registers have {most}"
    return ""


def factors_of_sums(block: Block) -> set[Node]:
    """The products that are only summed, and what is computed for them alone, in a loop.

    They need no registers once `tensorize` replaces the sums of these products by matrix products.
    """
    nodes = block.all_nodes
    users: dict[Node, set[Node]] = {}
    for inner in (block, *(b for node in nodes for b in node.blocks)):
        for result in inner.results:
            users.setdefault(result, set()).add(result)  # a value that leaves the loop is kept
    for node in nodes:
        for arg in node.args:
            users.setdefault(arg, set()).add(node)
    found: set[Node] = set()
    for node in reversed(nodes):
        uses = users.get(node, set())
        is_product = multiplies(node) or choice(node) is not None
        if (is_product and all(_sums(user) for user in uses)) or (
            node.op == "broadcast" and uses <= found
        ):
            found.add(node)
    return found


def _sums(user: Node) -> bool:
    return is_reduction(user) and user.attrs["kind"] == "sum"


def why_not_held(kernel: Node, target: Target) -> str:
    """Why a tile of a finished kernel does not fit in the registers of its target; "" if all do."""
    for node in kernel.blocks[0].all_nodes:
        tile = node.args[1] if is_store(node) else node
        if isinstance(tile.type, TensorType) and tile.tensor.rank and not is_memory(tile):
            why = why_too_large(list(map(static, tile.shape)), tile.dtype, target)
            if why:
                return why
    return ""


__all__ = ["factors_of_sums", "why_not_held", "why_too_large"]
