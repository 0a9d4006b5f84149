"""Blocks of several rows as MLIR text: above all the micro-kernel of a dot.

A value with two or more axes is a list of vectors, one for each row of its last axis, unless it
is still in memory (see `views`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from stack.ir.axes import parse_rule
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_alias, is_contraction, is_elementwise, is_loop, moved, spread
from stack.ir.types import TupleType

from .access import memory_type
from .elementwise import Unprintable, emit, shaped
from .views import View, at, copy, each_row, in_memory, is_view, sizes, step, strides, view

if TYPE_CHECKING:
    from .printer import Printer

BLOCK = 256  # products that are added up one after another
LONG = 2 * BLOCK


def is_block(node: Node) -> bool:
    """Whether a statement is about values with several rows."""
    if isinstance(node.type, TupleType) or is_loop(node) or node.op == "alloc":
        return False
    value = (moved(node) or node).tensor
    is_tile = value.space == "tile" and value.rank > 1
    return is_contraction(node) or is_alias(node) or is_tile


def cost(node: Node) -> float:
    """Scalar operations of a dot."""
    extents = parse_rule(node.attrs["rule"]).sizes([a.shape for a in node.args])
    return 2.0 * math.prod(s for s in extents.values() if isinstance(s, int))


def block(p: Printer, node: Node) -> str:
    """Write the statements of such a node; returns its rows."""
    hint, p.hint = p.hint, ""
    made = _block(p, node)
    p.hint = hint
    return made if isinstance(made, str) else "|".join(made)


def _block(p: Printer, node: Node) -> str | list[str]:
    if is_contraction(node):
        return _dot(p, node)
    if node.op == "store":
        return _store(p, node)
    if is_view(node):
        return ""
    if is_alias(node):
        return _regroup(p, node)
    if spread(node) == ():
        return [p.on_lanes(node.args[0], _lanes(node))] * _count(node)
    if is_elementwise(node):
        return _elementwise(p, node)
    raise Unprintable(f"no statement for {node.op} of {node.type}")


def rows(p: Printer, node: Node) -> list[str]:
    """The rows of a block, loaded now where it is still in memory."""
    if not is_view(node):
        return p.values[node].split("|")
    where = view(p, node)
    return [where.read(p, address, _lanes(node)) for address in each_row(p, where)]


def _lanes(node: Node) -> int:
    return sizes(node)[-1]


def _count(node: Node) -> int:
    return math.prod(sizes(node)[:-1])


def _regroup(p: Printer, node: Node) -> list[str]:
    """Other axes before the last one: the same rows."""
    source = node.args[0]
    if not source.tensor.rank or not node.tensor.rank or _lanes(node) != _lanes(source):
        raise Unprintable(f"a reshape of {source.type} to {node.type}")
    return rows(p, source)


def _store(p: Printer, node: Node) -> str:
    memory, value = node.args[:2]
    index, mask, _ = access_parts(node)
    if mask is not None or any(i.tensor.rank for i in index) or value.dtype.kind == "b":
        raise Unprintable("a masked, scattered or bool store of several rows")
    shape = sizes(value)
    made = [] if is_view(value) else rows(p, value)
    base = p.address(memory, index, 0)
    target = View(base, memory.dtype, memory.dtype, shape, strides(memory)[-len(shape) :])
    if is_view(value):
        copy(p, view(p, value), target)
    else:
        t = memory_type(value.dtype, _lanes(value))
        align = f"{{alignment = {value.dtype.bytes} : i64}}"
        for row, address in zip(made, each_row(p, target)):
            stored = p.to_memory(row, value.dtype, _lanes(value))
            p.put(f"llvm.store {stored}, {address} {align} : {t}, !llvm.ptr")
    return p.values[memory]


def _elementwise(p: Printer, node: Node) -> list[str]:
    lanes = _lanes(node)
    args = [
        rows(p, a) if a.tensor.rank else [p.on_lanes(a, lanes)] * _count(node) for a in node.args
    ]
    return [emit(p, node, list(parts), lanes) for parts in zip(*args, strict=True)]


# ---- the micro-kernel


class _Kernel:
    """Sums in registers, one vector for each row, over a loop for each contracted axis.

    A long axis is summed in blocks that start from zero: rounding grows with their number.
    """

    def __init__(self, p: Printer, node: Node) -> None:
        self.p = p
        rule = parse_rule(node.attrs["rule"])
        output = [a.names[0] for a in rule.outputs[0]]
        names = [[a.names[0] for a in o] for o in rule.inputs]
        shared = set(names[0]).intersection(names[1]).difference(output)
        right = 1 if output[-1] in names[1] else 0
        if not all(map(in_memory, node.args)):
            raise Unprintable("an operand of a dot that is not in memory")
        self.a = view(p, node.args[1 - right])
        self.b = view(p, node.args[right])
        self.a_stride = dict(zip(names[1 - right], self.a.strides, strict=True))
        self.b_stride = dict(zip(names[right], self.b.strides, strict=True))
        extents = dict(zip(names[1 - right], self.a.shape)) | dict(zip(names[right], self.b.shape))
        if self.b_stride[output[-1]] != 1:
            raise Unprintable("a dot whose lanes are apart in memory")
        self.lanes = extents[output[-1]]
        self.type = shaped(node.dtype, self.lanes)
        self.axes = [(n, extents[n]) for n in names[right] if n in shared and extents[n] > 1]
        offsets = [0]
        if len(output) == 2:
            offsets = [self.a_stride[output[0]] * r for r in range(extents[output[0]])]
        lefts = [at(p, self.a.base, offset, self.a.dtype) for offset in offsets]
        self.zero = p.number(0.0, node.dtype, self.lanes)
        self.result = self.sum(0, lefts, self.b.base, [self.zero] * len(lefts))

    def sum(self, depth: int, lefts: list[str], right: str, sums: list[str]) -> list[str]:
        """Sums over the axes from `depth` on, at the given addresses."""
        p = self.p
        if depth == len(self.axes):
            line = self.b.read(p, right, self.lanes)
            return [self._multiply(left, line, total) for left, total in zip(lefts, sums)]
        name, extent = self.axes[depth]

        def add(k: str, totals: list[str]) -> list[str]:
            inner = [step(p, left, k, self.a_stride[name], self.a.dtype) for left in lefts]
            below = step(p, right, k, self.b_stride[name], self.b.dtype)
            return self.sum(depth + 1, inner, below, totals)

        zero, one, end = (p.constant(f"{n} : i64") for n in (0, 1, extent))
        if extent < LONG:
            return self.loop(zero, end, one, sums, add)
        length = p.constant(f"{BLOCK} : i64")

        def add_block(first: str, totals: list[str]) -> list[str]:
            past = p.do(f"arith.addi {first}, {length} : i64")
            last = p.do(f"arith.minsi {past}, {end} : i64") if extent % BLOCK else past
            block = self.loop(first, last, one, [self.zero] * len(sums), add)
            pairs = zip(totals, block, strict=True)
            return [p.do(f"arith.addf {a}, {b} : {self.type}") for a, b in pairs]

        return self.loop(zero, end, length, sums, add_block)

    def loop(
        self,
        first: str,
        last: str,
        by: str,
        sums: list[str],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:
        """A loop that carries the sums."""
        p = self.p
        p.count += 1
        k, result = f"%k_{p.count}", f"%sum{p.count}"
        carried = [f"%part{p.count}_{i}" for i in range(len(sums))]
        inits = ", ".join(f"{c} = {s}" for c, s in zip(carried, sums, strict=True))
        types = ", ".join([self.type] * len(sums))
        p.put(
            f"{result}:{len(sums)} = scf.for {k} = {first} to {last} step {by}"
            f" iter_args({inits}) -> ({types}) : i64 {{"
        )
        p.depth += 1
        made = body(k, carried)
        p.put(f"scf.yield {', '.join(made)} : {types}")
        p.depth -= 1
        p.put("}")
        return [f"{result}#{i}" for i in range(len(sums))]

    def _multiply(self, left: str, line: str, total: str) -> str:
        p = self.p
        scalar = self.a.read(p, left, 0)
        many = p.do(f"vector.broadcast {scalar} : {shaped(self.a.to, 0)} to {self.type}")
        return p.do(f"math.fma {many}, {line}, {total} : {self.type}")


def _dot(p: Printer, node: Node) -> list[str]:
    return _Kernel(p, node).result
