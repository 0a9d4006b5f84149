"""Prints ops on tiles that are distributed over the threads of a block.

The first two axes of a tile are warp and lane; the rest is in the registers of a thread. They are
an array in row-major order, and an op is one statement for all of them: EACH(n) is an unrolled loop
over i. Reordering registers costs nothing: it only changes the index expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.warp_ops import copy_parts

from .expressions import c_type, expression
from .products import Products
from .values import CudaValue, at, count_of, is_across, registers_of

if TYPE_CHECKING:
    from .printer import Printer

COMBINE = {"sum": "add", "prod": "mul"}


class Threads:
    """Prints the statements of one kernel on values distributed over its threads."""

    def __init__(self, printer: Printer) -> None:
        self.p = printer
        self.products = Products(printer)

    def value(self, node: Node) -> CudaValue | None:
        """Prints a node and returns its value; None for ops without special treatment here."""
        make = getattr(self, f"_{node.op}", None) or getattr(self.products, node.op, None)
        return make(node) if make is not None else None

    # ---- index expressions

    def _iota(self, node: Node) -> CudaValue:
        axis = int(node.attrs["axis"])
        if axis < 2:
            return CudaValue(f"int(threadIdx.{'yx'[axis]})")
        sizes = registers_of(node.tensor)
        return self._lazy(node, _coordinate("i", sizes, axis - 2))

    def _broadcast(self, node: Node) -> CudaValue:
        (source,) = node.args
        if not source.tensor.rank:
            return self._lazy(node, self.p.value(source).text)
        sizes = registers_of(node.tensor)
        axes = [int(a) - 2 for a in node.attrs["axes"][2:]]
        return self._renamed(node, _index("i", sizes, axes))

    def _transpose(self, node: Node) -> CudaValue:
        sizes = registers_of(node.tensor)
        perm = [int(a) - 2 for a in node.attrs["perm"][2:]]
        axes = [perm.index(axis) for axis in range(len(perm))]
        return self._renamed(node, _index("i", sizes, axes))

    def _reshape(self, node: Node) -> CudaValue:
        return self.p.value(node.args[0])

    def _again(self, node: Node) -> CudaValue:
        return self.p.value(node.args[0])

    def _div(self, node: Node) -> CudaValue | None:
        """Prints a division of a tile by a broadcast value as a product with its reciprocal.

        None, and nothing printed, if exact results are required, if the divisor is no broadcast f32
        value, or if computing its reciprocals would save little.
        """
        p, (over, by) = self.p, node.args
        count, source = count_of(node.tensor), by.args[0] if by.op == "broadcast" else by
        if p.is_exact or node.dtype.name != "f32" or source is by:
            return None
        if is_across(source) and 2 * max(1, count_of(source.tensor)) > count:
            return None
        each = p.value(source)
        made = self._each(source, each.count, f"1.0f / {each.element}")
        p.values[source], kept = made, each
        inverse = self._broadcast(by).element
        p.values[source] = kept
        return self._each(node, count, f"{p.value(over).element} * {inverse}")

    def _cast(self, node: Node) -> CudaValue | None:
        return self.p.value(node.args[0]) if node in self.p.packed else None

    def _lazy(self, node: Node, element: str) -> CudaValue:
        """Returns a value without registers: readers print the text `element` in its place.

        The text contains the element's index `i`; a scalar gets the text of element 0.
        """
        count = count_of(node.tensor)
        return CudaValue("", count, each=element) if count else CudaValue(at(element, "0"))

    def _renamed(self, node: Node, index: str) -> CudaValue:
        """Returns a value that reads the operand's registers in another order or repeated.

        Prints no statement. `index`: the text of the index in the operand, for element `i` of the
        result.
        """
        source = self.p.value(node.args[0])
        if not source.count:
            return replace(source, count=count_of(node.tensor), each=source.text)
        return self._lazy(node, at(source.element, index))

    # ---- reductions and scans in registers

    def _reduce(self, node: Node) -> CudaValue:
        p, (arg,) = self.p, node.args
        sizes = registers_of(arg.tensor)
        over = [int(a) - 2 for a in node.attrs["axes"]]
        kept = [a for a in range(len(sizes)) if a not in over]
        length = math.prod(sizes[a] for a in over)
        parts = [sizes[a] for a in kept], [sizes[a] for a in over]
        index = _scattered("i", parts[0], kept, sizes), _scattered("r", parts[1], over, sizes)
        element = at(p.value(arg).element, " + ".join(t for t in index if t != "0") or "0")
        if length == 1:
            return self._lazy(node, element)
        combine = self._function(str(node.attrs["kind"]), node)
        kind, count = c_type(node.dtype), count_of(node.tensor)
        made = p.registers(node, count, kind) if count else CudaValue(p.fresh(p.hint(node)))
        part = p.fresh("part")
        if not count:
            p.put(f"{kind} {made.text};")
            element = at(element, "0")
        p.put(f"EACH({count}) {{" if count else "{")
        p.put(f"  {kind} {part}[{length}];")
        p.put('  _Pragma("unroll")')
        p.put(f"  for (int r = 0; r < {length}; ++r) {part}[r] = {element};")
        p.put(f"  {made.element} = in_pairs<{length}>({part}, {combine});")
        p.put("}")
        return made

    def _scan(self, node: Node) -> CudaValue:
        p, (arg,) = self.p, node.args
        sizes, axis = registers_of(node.tensor), int(node.attrs["axis"]) - 2
        count, stride = math.prod(sizes), math.prod(sizes[axis + 1 :])
        if count == 1:
            return p.value(arg)
        kind = str(node.attrs["kind"])
        made = p.registers(node, count, c_type(node.dtype))
        place = _coordinate("i", sizes, axis)
        first, before = (sizes[axis] - 1, "i + ") if node.attrs["reverse"] else (0, "i - ")
        element = p.value(arg).element
        combined = expression(
            COMBINE.get(kind, kind),
            node.dtype,
            node.dtype,
            [f"{made.text}[{before}{stride}]", element],
        )
        text = f"{made.text}[i] = {place} == {first} ? {element} : {combined};"
        if node.attrs["reverse"]:
            p.put('_Pragma("unroll")')
            p.put(f"for (int i = {count - 1}; i >= 0; --i) {text}")
        else:
            p.put(f"EACH({count}) {text}")
        return made

    def _function(self, kind: str, node: Node) -> str:
        """A C++ lambda that combines two elements."""
        combined = expression(COMBINE.get(kind, kind), node.dtype, node.dtype, ["a", "b"])
        t = c_type(node.dtype)
        return f"[]({t} a, {t} b) -> {t} {{ return {combined}; }}"

    def _shuffle(self, node: Node) -> CudaValue:
        p, kind = self.p, node.attrs["kind"]
        count = count_of(node.tensor)
        text = f"shuffle_{kind}({p.value(node.args[0]).element}, {node.attrs['by']})"
        return self._each(node, count, text)

    def _each(self, node: Node, count: int, text: str) -> CudaValue:
        p = self.p
        if not count:
            return p.declare(node, text)
        made = p.registers(node, count)
        p.put(f"EACH({count}) {made.text}[i] = {text};")
        return made

    # ---- memory

    def _load(self, node: Node) -> CudaValue:
        p, memory = self.p, node.args[0]
        index, mask, other = access_parts(node)
        count, vector = count_of(node.tensor), int(node.attrs.get("vector") or 1)
        name = p.value(memory).text
        offset = p.access.place(memory, index)
        if vector == 1:
            text = f"{name}[{offset}]"
            if mask is not None and other is not None:
                text = f"{p.value(mask).element} ? {text} : {p.value(other).element}"
            return self._each(node, count, text)
        made = p.registers(node, count, c_type(node.dtype))
        parts = [f"{made.text} + i", f"{name} + {offset}"]
        if mask is not None and other is not None:
            parts += [p.value(mask).element, p.value(other).element]
        p.put(f"EVERY({count}, {vector}) load_run<{vector}>({', '.join(parts)});")
        return made

    def _async_copy(self, node: Node) -> CudaValue:
        p, (target, source) = self.p, node.args[:2]
        to, start, mask = copy_parts(node)
        lanes = int(node.attrs["lanes"])
        wanted = lanes * source.dtype.bytes
        count = count_of(to[0].tensor) or 1
        places = [
            f"{p.value(m).text} + {p.access.place(m, index)}"
            for m, index in ((target, to), (source, start))
        ]
        test = f", {p.value(mask).element}" if mask is not None else ""
        p.put(f"EVERY({count}, {lanes}) copy_async<{wanted}>({', '.join(places)}{test});")
        p.put("copies_commit();")
        p.under_way += 1
        return p.value(target)

    def _store(self, node: Node) -> CudaValue:
        p, (memory, value) = self.p, node.args[:2]
        index, mask, _ = access_parts(node)
        count, vector = count_of(value.tensor), int(node.attrs.get("vector") or 1)
        target = p.value(memory)
        place = f"{target.text} + {p.access.place(memory, index)}"
        test = f"if ({p.value(mask).element}) " if mask is not None else ""
        if vector == 1:
            each = f"EACH({count}) " if count else ""
            p.put(f"{each}{test}*({place}) = {p.value(value).element};")
        else:
            held = self.filled(value)
            store = "stream_run" if node.attrs.get("evict") == "first" else "store_run"
            p.put(f"EVERY({count}, {vector}) {test}{store}<{vector}>({place}, {held.text} + i);")
        p.reveal([memory])
        return target

    def filled(self, node: Node) -> CudaValue:
        """Returns a value with one register per element, all of its element type.

        If it has no such registers yet, they are declared and filled by a copy.
        """
        value = self.p.value(node)
        if not value.each and self.p.c_type(node) == c_type(node.dtype):
            return value
        made = self.p.registers(node, count_of(node.tensor), c_type(node.dtype))
        self.p.put(f"EACH({made.count}) {made.text}[i] = {value.element};")
        return made


def _coordinate(name: str, sizes: Sequence[int], axis: int) -> str:
    """Returns the text of the coordinate on an axis of row-major index `name` in a tile."""
    if sizes[axis] == 1:
        return "0"
    inner = math.prod(sizes[axis + 1 :])
    text = name if inner == 1 else f"{name} / {inner}"
    return text if math.prod(sizes[:axis]) == 1 else f"{text} % {sizes[axis]}"


def _index(name: str, sizes: Sequence[int], axes: Sequence[int]) -> str:
    """Returns the text of the row-major index in a tile with only `axes`, in this order.

    `name`: the row-major index in the whole tile, which has the extents `sizes`.
    """
    if list(axes) == list(range(len(sizes))):
        return name
    terms: list[str] = []
    stride = 1
    for axis in reversed(axes):
        text = _coordinate(name, sizes, axis)
        if text != "0":
            terms.append(text if stride == 1 else f"{text} * {stride}")
        stride *= sizes[axis]
    return " + ".join(reversed(terms)) or "0"


def _scattered(name: str, parts: Sequence[int], axes: Sequence[int], sizes: Sequence[int]) -> str:
    """Returns the text of the offset that some axes contribute to a row-major index of a tile.

    `name`: the row-major index over these `axes` alone, with extents `parts`; `sizes`: the extents
    of the whole tile.
    """
    terms: list[str] = []
    for place, axis in enumerate(axes):
        text = _coordinate(name, parts, place)
        stride = math.prod(sizes[axis + 1 :])
        if text != "0":
            terms.append(text if stride == 1 else f"{text} * {stride}")
    return " + ".join(terms) or "0"
