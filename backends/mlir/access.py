"""Loads and stores as MLIR text: row-major offsets, masks, and bools stored as bytes.

A mask of lanes before or after a position is one comparison of bytes. For `begin + i < end`, the
mask of lane `i` depends on `end - begin` only. As bytes, the lane numbers fit one vector; as 64-bit
positions, they would take eight times as many.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_number, is_positions, multiplies, repeats, signs
from stack.ir.types import I64, DType

from .elementwise import cast, is_short
from .statements import Statements, lanes_of, memory_type
from .steps import covers, first_of, load_steps, step_of_index


class Accesses(Statements):
    """Prints statements that read and write memory."""

    def _offset(self, memory: Node, index: Sequence[Node], lanes: int, first: bool = False) -> str:
        """Returns the row-major offset of an index, as i64 or as a vector of `lanes` i64.

        `first`: only the offset of the first lane.
        """
        t = f"vector<{lanes}xi64>" if lanes else "i64"
        total: str | None = None
        stride = 1
        for axis, size in reversed(list(zip(index, memory.shape, strict=True))):
            if not (is_number(axis) and int(axis.attrs["value"].array) == 0):
                if first:
                    term = first_of(self, axis)
                else:
                    term = cast(self, self.value(axis, lanes), axis.dtype, I64, lanes)
                if stride != 1:
                    term = self.do(f"arith.muli {term}, {self.number(stride, I64, lanes)} : {t}")
                total = term if total is None else self.do(f"arith.addi {total}, {term} : {t}")
            stride *= int(size)  # pyright: ignore[reportArgumentType]
        return total if total is not None else self.number(0, I64, lanes)

    def address(self, memory: Node, index: Sequence[Node], lanes: int, first: bool = False) -> str:
        hint, self.hint = self.hint, ""
        offset = self._offset(memory, index, lanes, first)
        kind = f"vector<{lanes}xi64>" if lanes else "i64"
        result = f"vector<{lanes}x!llvm.ptr>" if lanes else "!llvm.ptr"
        made = self.do(
            f"llvm.getelementptr {self.value(memory)}[{offset}]"
            f" : (!llvm.ptr, {kind}) -> {result}, {memory_type(memory.dtype)}"
        )
        self.hint = hint
        return made

    def _load(self, node: Node) -> str:
        memory, lanes = node.args[0], lanes_of(node.tensor)
        index, mask, other = access_parts(node)
        t = memory_type(node.dtype, lanes)
        scattered = any(i.tensor.rank for i in index)
        hint, self.hint = self.hint, ""
        if not lanes:
            made = self._load_scalar(node, index, mask, other, t)
        elif scattered and covers(node, self.cpu.vector_bytes):
            first = self.address(memory, index, 0, first=True)
            test = self.value(mask, lanes) if mask is not None else ""
            made = load_steps(self, node, first, t, test)
            if test:
                fill = self._fill(other, node.dtype, lanes, t)
                made = self.do(f"arith.select {test}, {made}, {fill} : vector<{lanes}xi1>, {t}")
        elif scattered or mask is not None:
            address = self.address(memory, index, lanes if scattered else 0)
            test = self.value(mask, lanes) if mask is not None else self._all(lanes)
            fill = self._fill(other, node.dtype, lanes, t)
            align = f"{{alignment = {node.dtype.bytes} : i32}}"
            if scattered:
                made = self.do(
                    f"llvm.intr.masked.gather {address}, {test}, {fill} {align}"
                    f" : (vector<{lanes}x!llvm.ptr>, vector<{lanes}xi1>, {t}) -> {t}"
                )
            else:
                made = self.do(
                    f"llvm.intr.masked.load {address}, {test}, {fill} {align}"
                    f" : (!llvm.ptr, vector<{lanes}xi1>, {t}) -> {t}"
                )
        else:
            address = self.address(memory, index, 0)
            self.hint = hint if node.dtype.kind != "b" else ""
            align = f"{{alignment = {node.dtype.bytes} : i64}}"
            made = self.do(f"llvm.load {address} {align} : !llvm.ptr -> {t}")
        if node.dtype.kind != "b":
            return made
        zero = self.constant(f"dense<0> : {t}" if lanes else "0 : i8")
        return self.do(f"arith.cmpi ne, {made}, {zero} : {t}")

    def _load_scalar(
        self, node: Node, index: Sequence[Node], mask: Node | None, other: Node | None, t: str
    ) -> str:
        memory = node.args[0]
        if mask is None or other is None:
            return self.do(f"llvm.load {self.address(memory, index, 0)} : !llvm.ptr -> {t}")
        # element 0 exists: groups with empty arrays never come here
        offset = self._offset(memory, index, 0)
        safe = self.do(f"arith.select {self.value(mask)}, {offset}, {self.number(0, I64, 0)} : i64")
        address = self.do(
            f"llvm.getelementptr {self.value(memory)}[{safe}]"
            f" : (!llvm.ptr, i64) -> !llvm.ptr, {memory_type(memory.dtype)}"
        )
        found = self.do(f"llvm.load {address} : !llvm.ptr -> {t}")
        fill = self._fill(other, node.dtype, 0, t)
        return self.do(f"arith.select {self.value(mask)}, {found}, {fill} : {t}")

    def _all(self, lanes: int) -> str:
        return self.constant(f"dense<true> : vector<{lanes}xi1>")

    def _fill(self, other: Node | None, dtype: DType, lanes: int, t: str) -> str:
        if other is None:
            zero = "0.0" if dtype.is_float and not is_short(dtype) else "0"
            return self.constant(f"dense<{zero}> : {t}" if lanes else f"{zero} : {t}")
        return self.to_memory(self.value(other, lanes), dtype, lanes)

    def to_memory(self, value: str, dtype: DType, lanes: int) -> str:
        """Converts a register value to its type in memory, `memory_type`: bools become bytes."""
        if dtype.kind != "b":
            return value
        t = memory_type(dtype, lanes)
        return self.do(f"arith.extui {value} : {f'vector<{lanes}xi1>' if lanes else 'i1'} to {t}")

    def _scatter(
        self, value: str, address: str, test: str, element: str, lanes: int, align: int
    ) -> None:
        """Store each lane at its own address if `test` is set.

        The number of lanes is rounded up to a power of two, with the added lanes disabled. LLVM
        rounds up by itself on x86, but leaves the masks of some added lanes undefined: with 17
        lanes of f32 it writes to addresses that were never computed.
        """
        wide = 1 << (lanes - 1).bit_length()
        if wide != lanes:
            none = self.constant(f"dense<false> : vector<{lanes}xi1>")
            value = self._widen(value, value, element, lanes, wide)
            address = self._widen(address, address, "!llvm.ptr", lanes, wide)
            test = self._widen(test, none, "i1", lanes, wide)
        self.put(
            f"llvm.intr.masked.scatter {value}, {address}, {test} {{alignment = {align} : i32}}"
            f" : vector<{wide}x{element}>, vector<{wide}xi1> into vector<{wide}x!llvm.ptr>"
        )

    def _widen(self, a: str, rest: str, element: str, lanes: int, wide: int) -> str:
        """The lanes of `a`, followed by lanes of `rest` up to `wide`; at most twice as many."""
        kept = ", ".join(map(str, range(wide)))
        return self.do(f"llvm.shufflevector {a}, {rest} [{kept}] : vector<{lanes}x{element}>")

    def _store(self, node: Node) -> str:
        memory, value = node.args[:2]
        lanes = lanes_of(value.tensor)
        index, mask, _ = access_parts(node)
        stored, t = (
            self.to_memory(self.value(value), value.dtype, lanes),
            memory_type(value.dtype, lanes),
        )
        scattered = any(i.tensor.rank for i in index)
        address = self.address(memory, index, lanes if scattered else 0)
        size = value.dtype.bytes
        if scattered:
            test = self.value(mask, lanes) if mask is not None else self._all(lanes)
            self._scatter(stored, address, test, memory_type(value.dtype), lanes, size)
        elif mask is not None and mask.tensor.rank:
            self.put(
                f"llvm.intr.masked.store {stored}, {address}, {self.value(mask)}"
                f" {{alignment = {size} : i32}} : {t}, vector<{lanes}xi1> into !llvm.ptr"
            )
        else:
            made = f"llvm.store {stored}, {address} {{alignment = {size} : i64}} : {t}, !llvm.ptr"
            self.put(made if mask is None else f"scf.if {self.value(mask)} {{ {made} }}")
        return self.values[memory]


MOST_LANES = 127  # largest signed byte
MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def lane_mask(p: Statements, node: Node) -> str | None:
    """The mask of a comparison of consecutive positions with another one; None for others."""
    lanes = lanes_of(node.tensor)
    if not 0 < lanes <= MOST_LANES or node.args[0].dtype is not I64:
        return None
    steps, reach = [step_of_index(a) for a in node.args], [_reach(a) for a in node.args]
    if steps not in ([1, 0], [0, 1]) or None in reach:
        return None
    if sum(r + 1 for r in reach if r is not None) >> 63:
        return None  # a difference may overflow 64 bits
    op, (place, other) = node.op, node.args
    if steps[0] == 0:
        op, place, other = MIRRORED[op], other, place
    before = p.do(f"arith.subi {first_of(p, other)}, {first_of(p, place)} : i64")
    if op in ("le", "gt"):
        before = p.do(f"arith.addi {before}, {p.constant('1 : i64')} : i64")
    least, most = p.constant("0 : i64"), p.constant(f"{lanes} : i64")
    before = p.do(f"arith.maxsi {before}, {least} : i64")
    before = p.do(f"arith.minsi {before}, {most} : i64")
    t, test = f"vector<{lanes}xi8>", "slt" if op in ("lt", "le") else "sge"
    count = p.do(f"arith.trunci {before} : i64 to i8")
    many = p.do(f"vector.broadcast {count} : i8 to {t}")
    numbers = p.constant(f"dense<{[*range(lanes)]}> : {t}")
    return p.do(f"arith.cmpi {test}, {numbers}, {many} : {t}")


def _reach(index: Node) -> int | None:
    """Returns an upper bound of the absolute value of an index and of its terms and factors.

    None if no bound is known, because the index depends on data.
    """
    if is_number(index):
        return abs(int(index.attrs["value"].array))
    if is_positions(index):
        return lanes_of(index.tensor)
    if "extent" in index.attrs:
        return int(index.attrs["extent"])
    if repeats(index):
        return _reach(index.args[0])
    if len(index.args) != 2 or not (multiplies(index) or signs(index)):
        return None
    left, right = map(_reach, index.args)
    if left is None or right is None:
        return None
    return left * right if multiplies(index) else left + right
