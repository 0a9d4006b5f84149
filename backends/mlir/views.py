"""Blocks that are still in memory, and copies of them: how panels get packed.

A `load` of a block with two or more axes writes nothing, and neither do the casts, transposes and
reshapes of it: they only say how to walk the memory. Whoever reads the block loads what it needs.
That is sound because the passes put the reader right after the load, before anything stores to
the same memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts, in_windows, is_contraction
from stack.ir.types import I32, DType

from .access import memory_type
from .elementwise import Unprintable, cast, element, shaped
from .mma import is_raised, is_stored

if TYPE_CHECKING:
    from .printer import Printer

LANES, COLUMNS = 16, 4  # a transpose takes 16 rows of 4 elements at a time
WORD = 4  # bytes of neighbours that an instruction multiplies at once
VIEWS = ("cast", "transpose", "reshape", "unfold")


@dataclass(frozen=True)
class View:
    """Where the elements of a block lie."""

    base: str
    dtype: DType  # in memory
    to: DType  # what reading converts to
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    raised: int = 0  # what reading adds

    def read(self, p: Printer, address: str, lanes: int) -> str:
        """`lanes` elements that are next to each other; 0 is a scalar."""
        t = shaped(self.dtype, lanes)
        align = f"{{alignment = {self.dtype.bytes} : i64}}"
        found = p.do(f"llvm.load {address} {align} : !llvm.ptr -> {t}")
        made = cast(p, found, self.dtype, self.to, lanes)
        if not self.raised:
            return made
        by = p.number(self.raised, self.to, lanes)
        return p.do(f"arith.addi {made}, {by} : {shaped(self.to, lanes)}")


def in_memory(p: Printer, node: Node) -> bool:
    """Whether a value is in memory, possibly under another order of axes.

    Sums of an instruction with registers of its own are: it stores them.
    """
    while node.op in VIEWS or is_raised(node):
        node = node.args[0]
    return node.op == "load" or is_stored(node, p.cpu)


def is_view(p: Printer, node: Node) -> bool:
    """Whether a block with several rows is in memory."""
    return node.tensor.rank > 1 and in_memory(p, node)


def view(p: Printer, node: Node) -> View:
    """How to walk a block."""
    if node.op == "load":
        memory = node.args[0]
        if memory.dtype.kind == "b":
            raise Unprintable("a block of bool")
        base = p.address(memory, access_parts(node)[0], 0)
        dtype = memory.dtype
        return View(base, dtype, dtype, sizes(node), strides(memory)[-node.tensor.rank :])
    if is_contraction(node):
        return p.sums(node)
    inner = view(p, node.args[0])
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


def _window_strides(block: View, node: Node) -> tuple[int, ...]:
    """Elements between neighbouring windows, and between the taps of one."""
    first, count = node.attrs["axis"], len(node.attrs["window"])
    own = block.strides[first : first + count]
    places, taps = (
        [stride * by for stride, by in zip(own, node.attrs[name], strict=True)]
        for name in ("stride", "dilation")
    )
    return (*block.strides[:first], *places, *taps, *block.strides[first + count :])


def _cut(block: View, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under a shape whose axes are parts of the block's, if they are."""
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
    """The shape of a block or of memory."""
    return tuple(s for s in node.shape if isinstance(s, int))


def strides(memory: Node) -> tuple[int, ...]:
    """Elements between neighbours along each axis."""
    shape = sizes(memory)
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def at(p: Printer, base: str, offset: int, dtype: DType) -> str:
    """The address of an element further on."""
    if not offset:
        return base
    kind = element(dtype)
    return p.do(f"llvm.getelementptr {base}[{offset}] : (!llvm.ptr) -> !llvm.ptr, {kind}")


def step(p: Printer, base: str, index: str, stride: int, dtype: DType) -> str:
    """The address `index` steps further on."""
    if stride != 1:
        index = p.do(f"arith.muli {index}, {p.constant(f'{stride} : i64')} : i64")
    kind = element(dtype)
    return p.do(f"llvm.getelementptr {base}[{index}] : (!llvm.ptr, i64) -> !llvm.ptr, {kind}")


def places(shape: Sequence[int]) -> list[list[int]]:
    """All indices of a small block."""
    found: list[list[int]] = [[]]
    for size in shape:
        found = [[*place, i] for place in found for i in range(size)]
    return found


def each_row(p: Printer, block: View) -> list[str]:
    """The address of every row of a block whose last axis is one run of memory."""
    if block.strides[-1] != 1 and block.shape[-1] != 1:
        raise Unprintable("a row whose elements are apart in memory")
    offsets = [
        sum(i * s for i, s in zip(place, block.strides)) for place in places(block.shape[:-1])
    ]
    return [at(p, block.base, offset, block.dtype) for offset in offsets]


# ---- copies


def copy(p: Printer, source: View, target: View) -> None:
    """Store a block in loops over its axes."""
    if pairs := _as_words(source, target):
        return copy(p, *pairs)
    axes = _coalesced(source, target)
    lanes = axes[-1]
    close = [axis for axis in axes[:-1] if axis[1] == 1 and axis[0] >= COLUMNS]
    if lanes[1] == lanes[2] == 1:
        _rows(p, source, target, axes)
    elif source.to.bytes * lanes[0] == WORD and axes[-2:-1] and _is_line(axes[-2], lanes):
        _zipped(p, source, target, axes)
    elif close and lanes[0] >= LANES and source.to.bytes == 4 and lanes[2] == 1:
        column = close[-1]
        _squares(p, source, target, [a for a in axes[:-1] if a is not column], column, lanes)
    else:
        _nest(p, source, target, axes, lambda a, b: _write(p, target, source.read(p, a, 0), b, 0))


Axis = tuple[int, int, int]  # size, stride in the source, stride in the target
Body = Callable[[str, str], None]


def _coalesced(source: View, target: View) -> list[Axis]:
    """The axes of a copy; neighbours that are one run of steps on both sides are one."""
    made: list[Axis] = []
    for size, a, b in zip(source.shape, source.strides, target.strides):
        if size == 1:
            continue
        if made and made[-1][1:] == (size * a, size * b):
            size *= made.pop()[0]
        made.append((size, a, b))
    return made or [(1, 1, 1)]


def _write(p: Printer, target: View, value: str, address: str, lanes: int) -> None:
    align = f"{{alignment = {target.dtype.bytes} : i64}}"
    value = p.to_memory(value, target.dtype, lanes)
    p.put(f"llvm.store {value}, {address} {align} : {memory_type(target.dtype, lanes)}, !llvm.ptr")


def _nest(p: Printer, source: View, target: View, axes: Sequence[Axis], body: Body) -> None:
    """Loops over axes; `body` gets the addresses on both sides."""

    def go(depth: int, a: str, b: str) -> None:
        if depth == len(axes):
            body(a, b)
            return
        size, first, second = axes[depth]

        def inner(k: str) -> None:
            go(
                depth + 1,
                step(p, a, k, first, source.dtype),
                step(p, b, k, second, target.dtype),
            )

        loop(p, size, inner)

    go(0, source.base, target.base)


def loop(p: Printer, size: int, body: Callable[[str], None]) -> None:
    """A loop without results."""
    p.count += 1
    k = f"%k_{p.count}"
    zero, one = p.constant("0 : i64"), p.constant("1 : i64")
    p.put(f"scf.for {k} = {zero} to {p.constant(f'{size} : i64')} step {one} : i64 {{")
    p.depth += 1
    body(k)
    p.depth -= 1
    p.put("}")


def _begin(p: Printer, k: str, width: int, size: int) -> str:
    """Where step `k` of `width` begins; the last one starts early rather than ends late."""
    begin = p.do(f"arith.muli {k}, {p.constant(f'{width} : i64')} : i64")
    if size % width:
        begin = p.do(f"arith.minsi {begin}, {p.constant(f'{size - width} : i64')} : i64")
    return begin


def _rows(p: Printer, source: View, target: View, axes: Sequence[Axis]) -> None:
    """Lanes are together on both sides: whole rows."""
    *outer, (lanes, _, _) = axes

    def row(a: str, b: str) -> None:
        _write(p, target, source.read(p, a, lanes), b, lanes)

    _nest(p, source, target, outer, row)


def _is_line(axis: Axis, inner: Axis) -> bool:
    """Whether an axis is a run of the source, with whole words of the target between its steps."""
    return axis[1:] == (1, inner[0]) and inner[2] == 1 and axis[0] % 2 == 0


def _as_words(source: View, target: View) -> tuple[View, View] | None:
    """Both sides with words of short elements that are together on both as one element."""
    views, count = (source, target), WORD // source.to.bytes
    if count == 1 or source.dtype != source.to or target.dtype != source.to or source.raised:
        return None
    if any(v.shape[-1] != count or v.strides[-1] != 1 for v in views):
        return None
    if any(t % count for v in views for t in v.strides[:-1]):
        return None
    first, second = (
        View(v.base, I32, I32, v.shape[:-1], tuple(t // count for t in v.strides[:-1]))
        for v in views
    )
    return first, second


def _zipped(p: Printer, source: View, target: View, axes: Sequence[Axis]) -> None:
    """Some rows of the source to one, whose elements take turns."""
    *outer, (lanes, _, _), (count, apart, _) = axes

    def row(a: str, b: str) -> None:
        rows = [source.read(p, at(p, a, i * apart, source.dtype), lanes) for i in range(count)]
        _write(p, target, zipped(p, rows, source.to, lanes), b, count * lanes)

    _nest(p, source, target, outer, row)


def zipped(p: Printer, rows: list[str], dtype: DType, lanes: int) -> str:
    """Vectors of so many lanes as one, whose elements take turns."""
    picks = [place for i in range(lanes) for place in (i, lanes + i)]
    t, bits, count = shaped(dtype, lanes), dtype.bits, len(rows)
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [p.do(f"vector.shuffle {x}, {y} {picks} : {t}, {t}") for x, y in pairs]
        # what took turns is one element of the next round, or of the whole
        both = f"vector<{2 * lanes}x{t.rpartition('x')[2]}"
        bits *= 2
        t = f"vector<{lanes}xi{bits}>" if len(rows) > 1 else shaped(dtype, count * lanes)
        if t != both:
            rows = [p.do(f"vector.bitcast {x} : {both} to {t}") for x in rows]
    return rows[0]


def _squares(
    p: Printer, source: View, target: View, outer: Sequence[Axis], column: Axis, lane: Axis
) -> None:
    """Another axis is together in the source: transpose in registers."""

    def panel(a: str, b: str) -> None:
        def columns(c: str) -> None:
            begin = _begin(p, c, COLUMNS, column[0])
            left = step(p, a, begin, 1, source.dtype)
            right = step(p, b, begin, column[2], target.dtype)
            quarters = [
                [
                    source.read(p, at(p, left, (4 * q + i) * lane[1], source.dtype), COLUMNS)
                    for q in range(4)
                ]
                for i in range(4)
            ]
            for i, row in enumerate(_transpose(p, quarters, source.to)):
                _write(p, target, row, at(p, right, i * column[2], target.dtype), LANES)

        loop(p, -(-column[0] // COLUMNS), columns)

    def panels(a: str, b: str) -> None:
        def some(k: str) -> None:
            begin = _begin(p, k, LANES, lane[0])
            panel(step(p, a, begin, lane[1], source.dtype), step(p, b, begin, 1, target.dtype))

        loop(p, -(-lane[0] // LANES), some)

    _nest(p, source, target, outer, panels)


def _transpose(p: Printer, quarters: list[list[str]], dtype: DType) -> list[str]:
    """16 rows of 4 to 4 rows of 16; `quarters[i][q]` is row 4 q + i."""

    def mix(x: str, y: str, picks: Sequence[int], size: int) -> str:
        t = shaped(dtype, size)
        return p.do(f"vector.shuffle {x}, {y} {list(picks)} : {t}, {t}")

    z: list[str] = []
    for parts in quarters:
        halves = [mix(parts[0], parts[1], range(8), 4), mix(parts[2], parts[3], range(8), 4)]
        z.append(mix(halves[0], halves[1], range(16), 8))
    starts = range(0, LANES, 4)
    low = [i for s in starts for i in (s, 16 + s, s + 1, 17 + s)]
    high = [i for s in starts for i in (s + 2, 18 + s, s + 3, 19 + s)]
    first = [i for s in starts for i in (s, s + 1, 16 + s, 17 + s)]
    second = [i for s in starts for i in (s + 2, s + 3, 18 + s, 19 + s)]
    made: list[str] = []
    for picks in (low, high):
        upper, lower = mix(z[0], z[1], picks, 16), mix(z[2], z[3], picks, 16)
        made += [mix(upper, lower, first, 16), mix(upper, lower, second, 16)]
    return made
