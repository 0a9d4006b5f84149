"""Blocks that are still in memory, as strided views.

A `load` of a block with two or more axes prints nothing, and neither do its casts, transposes and
reshapes: they only change the view. The consumer loads the elements it needs. This is correct
because the passes put the consumer right after the load, before any store to the same memory. Some
instructions for short numbers also leave the result of a dot in memory.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

from stack.ir.contraction import product_types, tile_extents
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts, in_windows, is_contraction, is_number
from stack.ir.types import DType
from stack.target import Cpu, Mma

from .access import Accesses
from .elementwise import Unprintable, cast, shaped

VIEWS = ("cast", "fetch", "transpose", "reshape", "unfold")


@dataclass(frozen=True)
class View:
    """A block in memory: its address, shape and strides, and the conversion when it is read."""

    base: str
    dtype: DType  # in memory
    to: DType  # after reading
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    raised: int = 0  # added on reading

    def read(self, p: Accesses, address: str, lanes: int) -> str:
        """Prints a load of `lanes` contiguous elements, converted; 0 lanes load a scalar."""
        t = shaped(self.dtype, lanes)
        align = f"{{alignment = {self.dtype.bytes} : i64}}"
        found = p.do(f"llvm.load {address} {align} : !llvm.ptr -> {t}")
        made = cast(p, found, self.dtype, self.to, lanes)
        if not self.raised:
            return made
        by = p.number(self.raised, self.to, lanes)
        return p.do(f"arith.addi {made}, {by} : {shaped(self.to, lanes)}")


def in_memory(p: Accesses, node: Node) -> bool:
    """True if the value of a node is in memory rather than in registers.

    That holds for loads, for their transposes, casts and reshapes, and for the result of a matmul
    that an instruction stores from tile registers.
    """
    while node.op in VIEWS or is_raised(node):
        node = node.args[0]
    return node.op == "load" or is_stored(node, p.cpu)


def fetched(node: Node) -> list[Node]:
    """Returns the blocks that an operand's `fetch` ops say to prefetch while it is read."""
    found: list[Node] = []
    while node.op in VIEWS or is_raised(node):
        found += node.args[1:] if node.op == "fetch" else ()
        node = node.args[0]
    return found


def is_view(p: Accesses, node: Node) -> bool:
    """True if a node is a tile of two or more axes whose value is still in memory."""
    return node.tensor.rank > 1 and in_memory(p, node)


def view(p: Accesses, node: Node) -> View:
    """Returns the strided view of a block that is in memory; casts and transposes change it."""
    if node.op == "load":
        memory = node.args[0]
        if memory.dtype.kind == "b":
            raise Unprintable("a block of bool")
        base = p.address(memory, access_parts(node)[0], 0)
        dtype = memory.dtype
        return View(base, dtype, dtype, sizes(node), strides(memory)[-node.tensor.rank :])
    if is_contraction(node):
        return in_rows(node, p.sums(node))
    inner = view(p, node.args[0])
    if node.op == "fetch":
        return inner
    if converts(node):
        return replace(inner, to=node.dtype)
    if is_raised(node):
        return replace(inner, raised=inner.raised + int(node.args[1].attrs["value"].array))
    if node.op == "transpose":
        perm = node.attrs["perm"]
        return replace(
            inner,
            shape=tuple(inner.shape[i] for i in perm),
            strides=tuple(inner.strides[i] for i in perm),
        )
    if in_windows(node):
        return replace(inner, shape=sizes(node), strides=_window_strides(inner, node))
    steps = _cut(inner, sizes(node))
    if steps is None:
        raise Unprintable(f"a reshape of {node.args[0].type} to {node.type}")
    return replace(inner, shape=sizes(node), strides=steps)


def in_rows(node: Node, base: str) -> View:
    """Returns the view of a matmul result that is stored in row-major order from an address on."""
    return View(base, node.dtype, node.dtype, sizes(node), strides(node))


def _window_strides(block: View, node: Node) -> tuple[int, ...]:
    """Returns the strides of the windows (`unfold`) of a block, in elements.

    For each windowed axis there is one from window to window, then one from tap to tap.
    """
    first, count = node.attrs["axis"], len(node.attrs["window"])
    own = block.strides[first : first + count]
    places, taps = (
        [stride * by for stride, by in zip(own, node.attrs[name], strict=True)]
        for name in ("stride", "dilation")
    )
    return (*block.strides[:first], *places, *taps, *block.strides[first + count :])


def _cut(block: View, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the strides of a view of the block with another shape; None if there is none.

    Each axis of the shape must be a part of one axis of the block, or all of it.
    """
    left = [(s, t) for s, t in zip(block.shape, block.strides) if s > 1]
    made: list[int] = []
    for size in reversed(shape):
        if size == 1:
            made.append(0)
            continue
        whole, stride = left.pop() if left else (1, 0)
        if whole % size:
            return None
        if whole > size:
            left.append((whole // size, stride * size))
        made.append(stride)
    return None if left else tuple(reversed(made))


def sizes(node: Node) -> tuple[int, ...]:
    """Returns the shape of a block or of memory, whose sizes are all numbers."""
    return tuple(s for s in node.shape if isinstance(s, int))


def strides(memory: Node) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    shape = sizes(memory)
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def at(p: Accesses, base: str, offset: int, dtype: DType) -> str:
    """The address of an element `offset` further on."""
    if not offset:
        return base
    kind = shaped(dtype)
    return p.do(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, {kind}")


def step(p: Accesses, base: str, index: str, stride: int, dtype: DType) -> str:
    """The address `index` strides further on."""
    if stride != 1:
        index = p.do(f"arith.muli {index}, {p.constant(f'{stride} : i64')} : i64")
    kind = shaped(dtype)
    return p.do(f"llvm.getelementptr {base}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")


def each_row(p: Accesses, block: View) -> list[str]:
    """The address of every row of a block whose last axis is contiguous."""
    if block.strides[-1] != 1 and block.shape[-1] != 1:
        raise Unprintable("a row whose elements are strided in memory")
    places = product(*map(range, block.shape[:-1]))  # in row-major order
    offsets = [sum(i * s for i, s in zip(place, block.strides)) for place in places]
    return [at(p, block.base, offset, block.dtype) for offset in offsets]


@contextmanager
def loop(p: Accesses, size: int) -> Generator[str]:
    """Prints a loop over [0, size) around the statements that are printed inside; yields its index.

    It has no loop-carried values.
    """
    p.count += 1
    k = f"%k_{p.count}"
    zero, one = p.constant("0 : i64"), p.constant("1 : i64")
    p.put(f"scf.for {k} = {zero} to {p.constant(f'{size} : i64')} step {one} : i64 {{")
    p.depth += 1
    yield k
    p.depth -= 1
    p.put("}")


# ---- which dots an instruction stores


def mma_of(dot: Node, cpu: Cpu) -> Mma | None:
    """The instruction of a dot; one that works on vectors if neighbours are not contiguous."""
    found = tile_extents(dot)
    *_, sums = types = product_types(dot)
    if found is None or found.group == 1:
        return next((m for m in cpu.mmas(types) if m.rows == 1), None)
    left, right = (_unraised(a).dtype.name for a in dot.args)
    mma = cpu.mma((left, right, sums), found.rows, found.columns, found.depth)
    return mma if mma is not None and mma.group == found.group else None


def is_raised(node: Node) -> bool:
    """True if a node adds a constant number to a block of integers."""
    is_sum = node.op == "add" and node.dtype.is_integer and node.tensor.rank > 1
    return is_sum and is_number(node.args[1])


def _unraised(operand: Node) -> Node:
    """Returns the operand of a dot before it is cast and constants are added to it."""
    while is_raised(operand) or converts(operand):
        operand = operand.args[0]
    return operand


def is_stored(node: Node, cpu: Cpu) -> bool:
    """True for a dot whose result an instruction stores from tile registers."""
    if not is_contraction(node):
        return False
    mma = mma_of(node, cpu)
    return mma is not None and mma.rows > 1
