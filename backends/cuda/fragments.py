"""Tiles that a warp holds in the registers of its lanes, and the matrix instructions on them.

The instruction is m16n8k16 of 16-bit floats with sums in f32 (PTX ISA, "mma.m16n8k16"). Sums of 16
by 8 are four registers in each lane: rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next one.
Operands come from shared memory through ldmatrix, two elements to a register.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stack.ir.axes import parse_rule
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.types import TensorType

from .expressions import Unprintable
from .values import Value

if TYPE_CHECKING:
    from .printer import Printer

ROWS, COLUMNS, DEPTH = 16, 8, 16


class Fragments:
    """The warp-wide tiles of one kernel."""

    def __init__(self, printer: Printer, nodes: Sequence[Node]) -> None:
        self.printer = printer
        self.kept: set[TensorType] = set()  # memory in local that holds tiles
        self.operands: dict[Node, bool] = {}  # operand of an mma -> whether its depth is last
        self.firsts = {n.args[0] for n in nodes if n.op == "mma"}
        for node in nodes:
            tile = node.args[1] if node.op == "store" else node
            if node.op in ("load", "store") and self.is_tile(tile):
                if node.args[0].tensor.space == "local":
                    self.kept.add(node.args[0].tensor)
            if node.op == "mma":
                first, second = parse_rule(node.attrs["rule"]).inputs
                summed = {a.names[0] for a in first} & {a.names[0] for a in second}
                for names, arg in zip((first, second), node.args, strict=False):
                    self.operands[arg] = names[-1].names[0] in summed

    def is_tile(self, node: Node) -> bool:
        """Whether a value lies across a warp as a tile of two axes."""
        return isinstance(node.type, TensorType) and node.tensor.rank == 2

    def holds(self, memory: TensorType) -> bool:
        return memory in self.kept

    def registers_of(self, sizes: Sequence[int]) -> int:
        rows, columns = sizes[-2:]
        if rows % ROWS or columns % COLUMNS:
            raise Unprintable(f"a tile of {rows} x {columns}: 16 rows and 8 columns divide it")
        return math.prod(sizes) // 32

    def count(self, type_: TensorType) -> int:
        return self.registers_of([int(s) for s in type_.shape])  # pyright: ignore[reportArgumentType]

    # ---- loads

    def load(self, node: Node) -> Value:
        memory = node.args[0].tensor
        if memory.space == "local":
            return self._from_registers(node)
        if node in self.operands:
            return self._load_operand(node)
        return self._load_sums(node)

    def _from_registers(self, node: Node) -> Value:
        # the registers themselves: the one store to them follows what reads them
        return Value(self._own(node, node.tensor), self.count(node.tensor))

    def _own(self, node: Node, tile: TensorType) -> str:
        """The registers that hold a tile of the warp's own."""
        p, memory = self.printer, node.args[0].tensor
        index = access_parts(node)[0]
        corner = [p.integers.divisor(i) for i in index[-2:]]
        is_own = index[0] is p.variables.get("warp") and memory.shape[-2:] == tile.shape
        if not is_own or any(corner):
            raise Unprintable(f"{memory}: registers of another warp are out of reach")
        name = p.value(node.args[0]).text
        tiles = TensorType(memory.dtype, (*memory.shape[1:-2], self.count(tile)), "local")
        at = p.access.offset(tiles, [*index[1:-2], index[-1]])
        return name if at == "0" else f"({name} + {at})"

    def _load_operand(self, node: Node) -> Value:
        """An operand from shared memory, 8 x 8 matrices by fours."""
        p, memory = self.printer, node.args[0].tensor
        index, mask, _ = access_parts(node)
        if memory.space != "shared" or node.dtype.bits != 16 or mask is not None:
            raise Unprintable("matrix operands are 16-bit tiles in shared memory")
        depth_last = self.operands[node]
        is_first = node in self.firsts
        rows, columns = (int(s) for s in node.shape)  # pyright: ignore[reportArgumentType]
        stride = p.access.strides(memory)[-2]
        starts = p.access.piece(memory, index, 8)
        if rows % 16 or columns % 16 or stride % 8 or starts < 16:
            raise Unprintable(f"{node.type}: matrices start at 16 bytes, in tiles of 16 x 16")
        name = p.fresh(p.hint(node))
        depth, width = (columns, rows) if depth_last else (rows, columns)
        p.put(f"unsigned {name}[{width // 16 * (depth // 16)}][4];")
        # the order of an instruction's registers: the first operand's matrices go by rows first,
        # the second's by depth. Two elements of a register are neighbours in depth: where those
        # are not neighbours in memory, matrices are turned.
        low, high = "threadIdx.x % 16", "threadIdx.x / 16 * 8"
        if is_first != depth_last:
            low, high = "threadIdx.x % 8 + threadIdx.x / 16 * 8", "threadIdx.x / 8 % 2 * 8"
        function = "load_matrices" if depth_last else "load_matrices_turned"
        start = p.access.offset(memory, index)
        lane = p.fresh("lane_row")
        base = p.value(node.args[0]).text
        p.put(
            f"const {'f16' if node.dtype.name == 'f16' else 'bf16'}* const {lane} ="
            f" {base} + {start} + int({low}) * {stride} + int({high});"
        )
        down, across = (width // 16, depth // 16) if depth_last else (depth // 16, width // 16)
        place = f"r * {across} + c" if depth_last else f"c * {down} + r"
        p.put("#pragma unroll")
        p.put(f"for (int r = 0; r < {down}; ++r)")
        p.put("#pragma unroll")
        p.put(f"  for (int c = 0; c < {across}; ++c)")
        p.put(f"    {function}({name}[{place}], {lane} + r * {16 * stride} + c * 16);")
        return Value(name, width // 16 * (depth // 16))

    def _each(self, type_: TensorType, memory: TensorType, base: str, offset: str) -> list[str]:
        """Loops over the pairs of registers of a tile of sums, and where a pair lies."""
        rows, columns = (int(s) for s in type_.shape)  # pyright: ignore[reportArgumentType]
        stride = self.printer.access.strides(memory)[-2]
        lane = f"int(threadIdx.x / 4) * {stride} + int(threadIdx.x % 4) * 2"
        place = f"{base} + {offset} + {lane} + r * {8 * stride} + c * 8"
        across = columns // COLUMNS
        pair = f"(r / 2 * {across} + c) * 4 + r % 2 * 2"
        return [
            "#pragma unroll",
            f"for (int r = 0; r < {rows // 8}; ++r)",
            "#pragma unroll",
            f"  for (int c = 0; c < {across}; ++c)",
            place,
            pair,
        ]

    def _load_sums(self, node: Node) -> Value:
        p, memory = self.printer, node.args[0]
        index, mask, _ = access_parts(node)
        if mask is not None or any(i.tensor.rank for i in index):
            raise Unprintable("a tile of sums that is masked or gathered")
        made = p.registers(node, self.count(node.tensor))
        offset = p.access.offset(memory.tensor, index)
        *loops, place, pair = self._each(node.tensor, memory.tensor, p.value(memory).text, offset)
        for line in loops:
            p.put(line)
        p.put(f"    EACH(2) {made.text}[{pair} + i] = ({place})[i];")
        return made

    # ---- stores and products

    def store(self, node: Node) -> Value:
        p, memory, value = self.printer, node.args[0], node.args[1]
        index, mask, _ = access_parts(node)
        target, held = p.value(memory), p.value(value)
        if memory.tensor.space == "local":
            own = self._own(node, value.tensor)
            if held.text != own:
                p.put(f"EACH({self.count(value.tensor)}) {own}[i] = {held.element};")
            return target
        if mask is not None or any(i.tensor.rank for i in index):
            raise Unprintable("a store of a tile that is masked or scattered")
        held = p.filled(value, held)
        offset = p.access.offset(memory.tensor, index)
        *loops, place, pair = self._each(value.tensor, memory.tensor, target.text, offset)
        stride = p.access.strides(memory.tensor)[-2]
        is_even = p.access.piece(memory.tensor, index, 2) >= 2 * value.dtype.bytes
        for line in loops:
            p.put(line)
        if is_even and stride % 2 == 0:
            name = p.fresh("pair")
            kind = p.c_type(value)
            p.put(f"    {{ alignas({2 * value.dtype.bytes}) {kind} {name}[2];")
            p.put(f"      EACH(2) {name}[i] = {held.text}[{pair} + i];")
            p.put(f"      store_block<{2 * value.dtype.bytes}>({place}, {name}); }}")
        else:
            p.put(f"    EACH(2) ({place})[i] = {held.text}[{pair} + i];")
        return target

    def mma(self, node: Node) -> Value:
        """c += a @ b in the registers of c: nothing reads the old sums any more."""
        p = self.printer
        a, b, c = node.args
        is_loaded = a.op == b.op == "load" and c.op in ("load", "mma", "broadcast")
        if a is b or c.dtype.name != "f32" or not is_loaded:
            raise Unprintable("matrix instructions add products of loaded 16-bit tiles to f32")
        rows, columns = (int(s) for s in c.shape)  # pyright: ignore[reportArgumentType]
        first, second, sums = p.value(a), p.value(b), p.filled(c, p.value(c))
        depth = int(a.shape[1 if self.operands[a] else 0]) // DEPTH  # pyright: ignore[reportArgumentType]
        across = columns // COLUMNS
        p.put("#pragma unroll")
        p.put(f"for (int k = 0; k < {depth}; ++k)")
        p.put("#pragma unroll")
        p.put(f"  for (int r = 0; r < {rows // ROWS}; ++r)")
        p.put("#pragma unroll")
        p.put(f"    for (int c = 0; c < {across}; ++c)")
        p.put(
            f"      mma_{a.dtype}(&{sums.text}[(r * {across} + c) * 4],"
            f" &{sums.text}[(r * {across} + c) * 4 + 2],"
            f" {first.text}[r * {depth} + k], &{second.text}[c / 2 * {depth} + k][c % 2 * 2]);"
        )
        return sums
