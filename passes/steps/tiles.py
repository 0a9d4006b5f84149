"""Tiles: the registers that they need, and the bytes that a loop loads for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.algebra import KIND_OF
from stack.ir.node import Block, Node
from stack.ir.traits import choice, is_load, is_memory, is_reduction, multiplies, repeats
from stack.ir.types import TensorType
from stack.passes.steps.loops import is_constant
from stack.passes.tiling.frame import static
from stack.target import Cpu, Gpu, Target


def why_too_large(shape: Sequence[int], value: Node, target: Target | None) -> str:
    """Returns why registers of a target cannot hold a tile of `value`s; "" if they can."""
    if isinstance(target, Gpu) and prod(shape) > target.registers:
        return f"a tile of {prod(shape)} elements, and a program has {target.registers} registers"
    if isinstance(target, Cpu):
        if len(shape) > 1:
            sizes = " x ".join(map(str, shape))
            return f"a tile of {sizes}; vectors of a CPU have one axis: unroll the other one"
        held, most = prod(shape) * max(value.dtype.bytes, 1), target.registers * target.vector_bytes
        if held > most:
            fit = most // max(value.dtype.bytes, 1)
            sizes = f"a vector of {prod(shape)} {value.dtype} has {held} bytes"
            return f"{sizes}, all registers {most}: at most {fit} of them fit"
    return ""


def factors_of(node: Node) -> list[Node]:
    """Returns the tiles that need no registers if `tensorize` replaces a sum by a matmul: the
    products that `node` sums, their broadcast factors and masks. Empty for other nodes.

    Step `tensorize` can replace them by a matrix product, which has no tile of all products.
    """
    if is_reduction(node):
        space = node.args[0] if node.attrs["kind"] == "sum" else None
    else:
        space = next(iter(node.args[1:]), None) if KIND_OF.get(node.op) == "sum" else None
    if space is None:
        return []
    found = [space]
    chosen = choice(space)
    if chosen is not None and is_constant(chosen.no, 0):
        found += [chosen.test, chosen.yes]
        space = chosen.yes
    if not multiplies(space):
        return []
    return [*found, *(a for a in space.args if repeats(a))]


def why_no_registers(kernel: Node, target: Target | None) -> str:
    """Returns why a tile of a kernel does not fit in registers of a GPU; "" if all do."""
    if not isinstance(target, Gpu):
        return ""
    for node in kernel.blocks[0].all_nodes:
        if isinstance(node.type, TensorType) and not is_memory(node):
            why = why_too_large([static(s) for s in node.shape], node, target)
            if why:
                return f"{node.op} has {why}"
    return ""


def loaded_bytes(block: Block) -> int:
    """Returns the bytes of all tiles together that one iteration of a loop loads."""
    loads = [n for n in block.nodes if is_load(n) and n.tensor.rank]
    return sum(prod(map(static, n.shape)) * n.dtype.bytes for n in loads)
