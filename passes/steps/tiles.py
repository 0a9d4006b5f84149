"""Tiles: the loads and stores that move them, and the registers that they need."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from stack.ir.algebra import KIND_OF
from stack.ir.builder import make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import (
    axis_order,
    choice,
    is_load,
    is_memory,
    is_reduction,
    multiplies,
    repeats,
)
from stack.ir.types import DType, TensorType
from stack.passes.steps.affine import start_along
from stack.passes.steps.loops import is_constant
from stack.passes.tiling.frame import static
from stack.target import Cpu, Gpu, Target


def tile_type(dtype: DType, shape: Sequence[int]) -> TensorType:
    """Returns the type of a tile of this element type and shape."""
    return TensorType(dtype, tuple(shape), "tile")


def positions(dtype: DType, count: int) -> Node:
    """Builds a tile of one axis with the numbers 0, 1, ... up to `count` - 1."""
    return make("iota", (), {"axis": 0}, hint=tile_type(dtype, (count,)))


def positions_from(first: Node, count: int) -> Node:
    """Builds a tile of one axis with `count` consecutive integers from the scalar `first` on."""
    steps = positions(first.dtype, count)
    return steps if is_constant(first, 0) else make("add", (first, steps))


def spread_along(value: Node, axes: Sequence[int], shape: Sequence[int]) -> Node:
    """Broadcasts a value whose axes become `axes` of a tile; merges two broadcasts into one."""
    if repeats(value):
        axes = [axes[int(a)] for a in value.attrs["axes"]]
        (value,) = value.args
    hint = tile_type(value.dtype, shape)
    return make("broadcast", (value,), {"axes": tuple(axes)}, hint=hint)


def reshaped(value: Node, shape: tuple[int, ...]) -> Node:
    """Builds the reshape of a tile to `shape`. A reshape of a reshape becomes one, and axes of one
    element are dropped before a transpose, not after it.
    """
    if value.shape == shape:
        return value
    if value.op == "reshape":
        return reshaped(value.args[0], shape)
    order = axis_order(value)
    if order is not None and shape == tuple(s for s in value.shape if s != 1):
        (before,) = value.args
        kept = [axis for axis, size in enumerate(before.shape) if size != 1]
        made = reshaped(before, tuple(static(before.shape[axis]) for axis in kept))
        perm = tuple(kept.index(axis) for axis in order if axis in kept)
        return make("transpose", (made,), {"perm": perm}) if perm != (*range(len(perm)),) else made
    return make("reshape", (value,), hint=tile_type(value.dtype, shape))


def is_gathered(load: Node, var: Node) -> bool:
    """True if a load varies with a loop variable, but not by unit stride along the last axis."""
    index = access_parts(load)[0]
    moved = [k for k, place in enumerate(index) if var in place.vars]
    is_run = moved == [len(index) - 1] and start_along(index[-1], var) is not None
    return bool(moved) and not is_run


def is_transposed(load: Node, var: Node) -> bool:
    """True if a load moves along one axis with a variable, and by 1 along the last with another."""
    index = access_parts(load)[0]
    moved = [k for k, place in enumerate(index) if var in place.vars]
    if len(moved) != 1 or moved[0] == len(index) - 1:
        return False
    return any(start_along(index[-1], other) is not None for other in index[-1].vars)


def conjuncts(mask: Node | None) -> list[Node]:
    """Splits a mask into the conditions that `and` nodes combine; empty for None."""
    if mask is None:
        return []
    return [p for a in mask.args for p in conjuncts(a)] if mask.op == "and" else [mask]


def conjunction(conditions: Sequence[Node]) -> Node | None:
    """Builds the `and` of some conditions, the first two first; None if there are none."""
    return reduce(lambda a, b: make("and", (a, b)), conditions) if conditions else None


def parts_of(node: Node) -> tuple[list[Node], Node | None, Node | None, tuple[int, ...]]:
    """Returns the operands of a load or a store: its indices, its mask and the value of masked
    lanes (None without a mask), and the shape of its tile.
    """
    tile = node.tensor if is_load(node) else node.args[1].tensor
    return (*access_parts(node), tuple(map(static, tile.shape)))


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
