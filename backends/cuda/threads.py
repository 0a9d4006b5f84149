"""Tiles that lie across the threads of a block: the rest of each is in a thread's registers.

Their first two axes are warp and lane. What a thread holds is an array of registers, row by row,
and an op is one statement for all of them: EACH(n) is an unrolled loop over i. Movements of
registers cost nothing: they are another way to write the index.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stack.ir import ops
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.types import TensorType
from stack.ir.warp_ops import GROUP_ROWS, copy_parts, group_operands

from .expressions import Unprintable, c_type, expression
from .values import Value

if TYPE_CHECKING:
    from .printer import Printer

UNIT = 16  # bytes that addresses in descriptors of matrices count
COMBINE = {"sum": "add", "prod": "mul"}


def is_across(node: Node) -> bool:
    """Whether a value lies across the threads of the block."""
    return isinstance(node.type, TensorType) and node.type.rank >= 2 and node.type.space == "tile"


def registers_of(type_: TensorType) -> list[int]:
    """The extents of what one thread holds."""
    return [int(s) for s in type_.shape[2:]]  # pyright: ignore[reportArgumentType]


def count_of(type_: TensorType) -> int:
    """Registers of a value in each thread; 0 where that is one scalar."""
    count = math.prod(registers_of(type_))
    return count if count > 1 else 0


class Threads:
    """The statements of one kernel on values across its threads."""

    def __init__(self, printer: Printer) -> None:
        self.p = printer

    def value(self, node: Node) -> Value | None:
        """The value of a node, after its statements; None for ops that are like any other."""
        make = getattr(self, f"_{node.op}", None)
        return make(node) if make is not None else None

    # ---- other ways to write an index

    def _iota(self, node: Node) -> Value:
        axis = int(node.attrs["axis"])
        if axis < 2:
            return Value(f"int(threadIdx.{'yx'[axis]})")
        sizes = registers_of(node.tensor)
        return self._lazy(node, _coordinate("i", sizes, axis - 2))

    def _broadcast(self, node: Node) -> Value:
        (source,) = node.args
        if not source.tensor.rank:
            return self._lazy(node, self.p.value(source).text)
        sizes = registers_of(node.tensor)
        axes = [int(a) - 2 for a in node.attrs["axes"][2:]]
        return self._renamed(node, _index("i", sizes, axes))

    def _transpose(self, node: Node) -> Value:
        sizes = registers_of(node.tensor)
        perm = [int(a) - 2 for a in node.attrs["perm"][2:]]
        axes = [perm.index(axis) for axis in range(len(perm))]
        return self._renamed(node, _index("i", sizes, axes))

    def _reshape(self, node: Node) -> Value:
        return self.p.value(node.args[0])

    def _again(self, node: Node) -> Value:
        return self.p.value(node.args[0])

    def _div(self, node: Node) -> Value | None:
        """Many quotients of one divisor: products with its inverse, where that does not show."""
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

    def _cast(self, node: Node) -> Value | None:
        return self.p.value(node.args[0]) if node in self.p.packed else None

    def _lazy(self, node: Node, element: str) -> Value:
        """What each register would hold, as text."""
        count = count_of(node.tensor)
        return Value("", count, each=element) if count else Value(at(element, "0"))

    def _renamed(self, node: Node, index: str) -> Value:
        """The registers of the operand in another order, or several times."""
        source = self.p.value(node.args[0])
        if not source.count:
            return replace(source, count=count_of(node.tensor), each=source.text)
        return self._lazy(node, at(source.element, index))

    # ---- reductions and scans in registers

    def _reduce(self, node: Node) -> Value:
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
        made = p.registers(node, count, kind) if count else Value(p.fresh(p.hint(node)))
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

    def _scan(self, node: Node) -> Value:
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
        """Two elements to one, as C++ takes it."""
        combined = expression(COMBINE.get(kind, kind), node.dtype, node.dtype, ["a", "b"])
        t = c_type(node.dtype)
        return f"[]({t} a, {t} b) -> {t} {{ return {combined}; }}"

    def _shuffle(self, node: Node) -> Value:
        p, kind = self.p, node.attrs["kind"]
        count = count_of(node.tensor)
        text = f"shuffle_{kind}({p.value(node.args[0]).element}, {node.attrs['by']})"
        return self._each(node, count, text)

    def _each(self, node: Node, count: int, text: str) -> Value:
        p = self.p
        if not count:
            return p.declare(node, text)
        made = p.registers(node, count)
        p.put(f"EACH({count}) {made.text}[i] = {text};")
        return made

    # ---- memory

    def _load(self, node: Node) -> Value:
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

    def _async_copy(self, node: Node) -> Value:
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

    def _load_matrix(self, node: Node) -> Value:
        """Nothing yet: each step of a product reads what it needs of a matrix."""
        p, (memory, row, column) = self.p, node.args
        pitch = p.access.strides(memory.tensor)[0]
        if node.dtype.bits != 16 or pitch % 8:
            raise Unprintable(f"a matrix {node.type} of rows of {pitch} elements")
        return Value(f"{p.value(row).text}, {p.value(column).text}")

    def _store(self, node: Node) -> Value:
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

    def filled(self, node: Node) -> Value:
        """A value in registers of its own."""
        value = self.p.value(node)
        if not value.each and self.p.c_type(node) == c_type(node.dtype):
            return value
        made = self.p.registers(node, count_of(node.tensor), c_type(node.dtype))
        self.p.put(f"EACH({made.count}) {made.text}[i] = {value.element};")
        return made

    # ---- products

    def _mma_sync(self, node: Node) -> Value:
        """Step by step along the depth: what all rows need, then columns by twice eight."""
        p, (a, b, c) = self.p, node.args
        if c.dtype.name != "f32" or a.dtype.name not in ("f16", "bf16"):
            raise Unprintable(f"matrix instructions on {a.dtype} that add to {c.dtype}")
        rows, depth = registers_of(a.tensor)
        width = registers_of(c.tensor)[1]
        down, pairs = rows // 2, width // 4
        made = p.registers(node, rows * width)
        p.put(f"EACH({made.count}) {made.text}[i] = {p.value(c).element};")
        left, right = (self._operand(x, x is a) for x in (a, b))
        p.put('_Pragma("unroll")')
        p.put(f"for (int k = 0; k < {depth // 4}; ++k) {{")
        p.put(f"  unsigned left[{down}][4];")
        p.put(f"  EACH({down}) {left('left[i]')};")
        p.put(f"  EACH({pairs}) {{")
        p.put("    unsigned right[4];")
        p.put(f"    {right('right')};")
        p.put('    _Pragma("unroll")')
        p.put(f"    for (int r = 0; r < {down}; ++r) {{")
        p.put(f"      float* const low = {made.text} + r * {2 * width} + i * 4;")
        for column in (0, 2):
            of = f"low + {column}, low + {width + column}" if column else f"low, low + {width}"
            second = f"right + {column}" if column else "right"
            p.put(f"      mma_{a.dtype}({of}, left[r], {second});")
        p.put("    }")
        p.put("  }")
        p.put("}")
        return made

    def _warpgroup_mma(self, node: Node) -> Value:
        """Step by step along the depth; an instruction for each 64 rows of the warpgroup."""
        p, c = self.p, node.args[0]
        left, right = group_operands(node)
        kind, depth = right[0].dtype.name, int(node.attrs["depth"])
        if c.dtype.name != "f32" or kind not in ("f16", "bf16"):
            raise Unprintable(f"matrix instructions on {kind} that add to {c.dtype}")
        rows, width = registers_of(c.tensor)
        first, second = (int(t) for t in node.attrs["turned"])
        is_sum = not is_zeros(c)
        if self._is_own(c):  # in its registers, which may not be read until the sums are done
            made = p.value(c)
        else:
            made = p.registers(node, rows * width)
            if is_sum:
                p.put(f"EACH({made.count}) {made.text}[i] = {p.value(c).element};")
        a = self._rows(left[0], depth) if len(left) == 1 else self._matrix(left, depth, first)
        b = self._matrix(right, depth, second)
        if is_sum:
            p.put(f"EACH({made.count}) settle({made.text}[i]);")
        p.put("groups_begin();")
        p.put('_Pragma("unroll")')
        p.put(f"for (int k = 0; k < {depth // 16}; ++k) {{")
        p.put(f"  EACH({rows // 2}) {{")
        p.put(f"    float* const low = {made.text} + i * {2 * width};")
        adds = "true" if is_sum else "k > 0"
        function = f"multiply_{width * 4}_{kind}"
        if len(left) == 1:
            call = f"{function}<{second}>(low, low + {width}, {a('i')}, {b('0')}, {adds})"
        else:
            call = f"{function}<{first}, {second}>(low, low + {width}, {a('i')}, {b('0')}, {adds})"
        p.put(f"    {call};")
        p.put("  }")
        p.put("}")
        p.put("groups_commit();")
        return made

    def _is_own(self, node: Node) -> bool:
        """Whether nothing else reads the registers of a value."""
        makes = node.op == "var" or ops.lookup(node.op).kind == "elementwise"
        return makes and not self.p.value(node).each and self.p.uses[node] == 1

    def _rows(self, arg: Node, depth: int) -> Callable[[str], str]:
        """A left operand in registers, of which an instruction takes two rows and 16 of depth."""
        name = self._packed(arg, True)
        return lambda i: f"{name}[{i} * {depth // 16} + k]"

    def _matrix(self, operand: Sequence[Node], depth: int, turned: int) -> Callable[[str], str]:
        """A descriptor of a matrix in shared memory, for 64 rows or all columns i and step k."""
        p, (memory, row, column) = self.p, operand
        swizzle, size = p.swizzles[memory], memory.dtype.bytes
        line = swizzle // size
        rows = int(memory.tensor.shape[0])  # pyright: ignore[reportArgumentType]
        places = f"{p.value(row).element}, {p.value(column).element}"
        start = f"{p.value(memory).text} + corner_of<{rows}, {line}>({places})"
        name = p.fresh("matrix")
        panel = rows * swizzle
        p.put(f"const unsigned long long {name} = matrix_at<{swizzle}, {panel if turned else UNIT}>({start});")
        across = GROUP_ROWS // line * panel if turned else GROUP_ROWS * swizzle
        deep = 16 * swizzle
        steps = f"k * {deep // UNIT}"
        if not turned:
            each = line // 16  # steps in a line of a row
            steps = f"k % {each} * {16 * size // UNIT} + k / {each} * {panel // UNIT}"
        return lambda i: f"{name} + {steps}" + (f" + {i} * {across // UNIT}" if i != "0" else "")

    def _warpgroup_wait(self, node: Node) -> Value:
        value = self.p.value(node.args[0])
        self.p.put(f"groups_wait<{node.attrs['pending']}>();")
        self.p.put(f"EACH({value.count}) settle({value.text}[i]);")
        return value

    def _operand(self, arg: Node, is_left: bool) -> Callable[[str], str]:
        """What fills four registers, for 16 rows or columns i and step k of the depth."""
        source = arg.args[0] if arg.op == "transpose" else arg
        if source.op == "load_matrix":
            return self._matrices(source, is_left)
        name, depth = self._packed(arg, is_left), registers_of(arg.tensor)[is_left]
        return lambda to: f"memcpy({to}, {name}[i * {depth // 4} + k], 16)"

    def _packed(self, arg: Node, is_left: bool) -> str:
        """An operand in registers of two elements, four for 16 rows or columns and 16 of depth."""
        rows, depth = registers_of(arg.tensor)[:: 1 if is_left else -1]
        p = self.p
        # of eight rows or columns and eight places along the depth, a pair of neighbours there
        block = ("i % 2", "i / 2") if is_left else ("i / 2", "i % 2")
        place = f"(r / {depth // 4} * 2 + {block[0]})", f"(r % {depth // 4} * 4 + {block[1]} * 2)"
        held = p.value(arg).element
        if is_left:
            first, step = f"{place[0]} * {depth} + {place[1]}", 1
        else:
            first, step = f"{place[1]} * {rows} + {place[0]}", rows
        name, count = p.fresh("packed"), rows // 2 * (depth // 4)
        pair = f"{at(held, first)}, {at(held, f'{first} + {step}')}"
        function = "pair_of"
        if arg in p.packed:
            function = f"narrow_pair<{c_type(arg.dtype)}>"
        p.put(f"unsigned {name}[{count}][4];")
        p.put('_Pragma("unroll")')
        p.put(f"for (int r = 0; r < {count}; ++r) EACH(4) {name}[r][i] = {function}({pair});")
        return name

    def _matrices(self, node: Node, is_left: bool) -> Callable[[str], str]:
        """Four 8 x 8 matrices at a time, for each of which eight lanes name a row."""
        p, memory = self.p, node.args[0]
        pitch = p.access.strides(memory.tensor)[0]
        row, column = (p.value(x).text for x in node.args[1:])
        function, steps = "load_matrices", (16 * pitch, 16)
        if node.attrs["turned"]:
            function, steps = "load_matrices_turned", (16, 16 * pitch)
            row, column = column, row
        lanes = "threadIdx.x % 16", "threadIdx.x / 16 * 8"
        if is_left == node.attrs["turned"]:
            lanes = "threadIdx.x / 16 * 8 + threadIdx.x % 8", "threadIdx.x / 8 % 2 * 8"
        base, kind = p.fresh("rows"), c_type(node.dtype)
        start = f"({row} + int({lanes[0]})) * {pitch} + {column} + int({lanes[1]})"
        p.put(f"const {kind}* const {base} = {p.value(memory).text} + {start};")
        return lambda to: f"{function}({to}, {base} + i * {steps[0]} + k * {steps[1]})"


def is_zeros(node: Node) -> bool:
    """Whether a tile is the number 0 all over."""
    source = node.args[0] if node.op == "broadcast" else node
    return source.op == "const" and not source.attrs["value"].array.any()


def at(element: str, index: str) -> str:
    """The text of an element at another index than i."""
    if index == "i":
        return element
    plain = index if index.isalnum() else f"({index})"
    return re.sub(r"\bi\b", plain, element)


def _coordinate(name: str, sizes: Sequence[int], axis: int) -> str:
    """The place on one axis of the element whose number is `name`."""
    if sizes[axis] == 1:
        return "0"
    inner = math.prod(sizes[axis + 1 :])
    text = name if inner == 1 else f"{name} / {inner}"
    return text if math.prod(sizes[:axis]) == 1 else f"{text} % {sizes[axis]}"


def _index(name: str, sizes: Sequence[int], axes: Sequence[int]) -> str:
    """The number of an element in a tile of some axes of another, from its number there."""
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
    """What an element's number in a tile of some axes adds to its number in the whole."""
    terms: list[str] = []
    for place, axis in enumerate(axes):
        text = _coordinate(name, parts, place)
        stride = math.prod(sizes[axis + 1 :])
        if text != "0":
            terms.append(text if stride == 1 else f"{text} * {stride}")
    return " + ".join(terms) or "0"
