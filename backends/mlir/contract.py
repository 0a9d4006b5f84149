"""Blocks of several rows as MLIR text.

A value with two or more axes is a list of vectors, one for each row of its last axis, unless it is
still in memory (see `views`).
"""

from __future__ import annotations

import math

from stack.ir.axes import parse_rule
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_alias, is_contraction, is_elementwise, spread

from .access import Accesses
from .amx import store_sums
from .copies import copy
from .elementwise import Unprintable, emit
from .micro_kernel import multiply
from .statements import memory_type
from .views import View, each_row, in_rows, is_view, sizes, strides, view


def cost(node: Node) -> float:
    """Returns the number of scalar operations of a dot: two per multiply-add."""
    extents = parse_rule(node.attrs["rule"]).sizes([a.shape for a in node.args])
    return 2.0 * math.prod(s for s in extents.values() if isinstance(s, int))


def block(p: Accesses, node: Node) -> list[str]:
    """Prints the statements of a node of several rows.

    Returns the name of its value, or the names of its rows.
    """
    if node.op == "store":
        return [_store(p, node)]
    if is_view(p, node):
        if is_contraction(node):
            p.deferred[node] = lambda base: store_sums(p, node, in_rows(node, base))
        return []
    if is_contraction(node):
        return multiply(p, node)
    if is_alias(node):
        return _regroup(p, node)
    axes = spread(node)
    if axes == ():
        return [p.value(node.args[0], sizes(node)[-1])] * math.prod(sizes(node)[:-1])
    if axes == (node.tensor.rank - 1,):
        return rows(p, node.args[0]) * math.prod(sizes(node)[:-1])
    if is_elementwise(node):
        return _elementwise(p, node)
    raise Unprintable(f"op {node.op} of {node.type}")


def rows(p: Accesses, node: Node) -> list[str]:
    """Returns one vector per row of a block; loads them here if the block is still in memory."""
    if not is_view(p, node):
        return p.values[node].split("|")
    where = view(p, node)
    return [where.read(p, address, sizes(node)[-1]) for address in each_row(p, where)]


def _regroup(p: Accesses, node: Node) -> list[str]:
    """Returns the rows of a reshape that keeps the last axis: those of its operand.

    Raises Unprintable for other reshapes, and for scalars.
    """
    source = node.args[0]
    if not source.tensor.rank or not node.tensor.rank or sizes(node)[-1] != sizes(source)[-1]:
        raise Unprintable(f"a reshape of {source.type} to {node.type}")
    return rows(p, source)


def _store(p: Accesses, node: Node) -> str:
    memory, value = node.args[:2]
    index, mask, _ = access_parts(node)
    if mask is not None or any(i.tensor.rank for i in index) or value.dtype.kind == "b":
        raise Unprintable("a masked, scattered or bool store of several rows")
    shape = sizes(value)
    made = [] if is_view(p, value) else rows(p, value)
    base = p.address(memory, index, 0)
    target = View(base, memory.dtype, memory.dtype, shape, strides(memory)[-len(shape) :])
    if is_contraction(value) and is_view(p, value) and value.dtype == memory.dtype:
        store_sums(p, value, target)
    elif is_view(p, value):
        copy(p, view(p, value), target)
    else:
        t = memory_type(value.dtype, sizes(value)[-1])
        align = f"{{alignment = {value.dtype.bytes} : i64}}"
        for row, address in zip(made, each_row(p, target)):
            stored = p.to_memory(row, value.dtype, sizes(value)[-1])
            p.put(f"llvm.store {stored}, {address} {align} : {t}, !llvm.ptr")
    return p.values[memory]


def _elementwise(p: Accesses, node: Node) -> list[str]:
    lanes = sizes(node)[-1]
    args = [
        rows(p, a) if a.tensor.rank else [p.value(a, lanes)] * math.prod(sizes(node)[:-1])
        for a in node.args
    ]
    return [emit(p, node, list(parts), lanes) for parts in zip(*args, strict=True)]
