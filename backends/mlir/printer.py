"""The loop level as MLIR text: one kernel, one function over a table of buffer addresses.

Parallel loops at the top of a kernel become one range of iterations that threads share. Memory is
an address with row-major offsets; bool is held in bytes. Statements carry the source lines that
they came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stack.ir import ops
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.types import DType, TensorType, TupleType

from . import contract, threads
from . import math as functions
from .elementwise import Unprintable, cast, element, emit, shaped
from .writer import Function

PARALLEL_WORK = 30_000  # scalar operations from which a kernel pays for waking threads
PIECE_WORK = 8_000  # scalar operations from which a piece pays for being fetched
_REDUCE = {"sum": "add", "prod": "mul", "and": "and", "or": "or"}


def print_kernel(kernel: Node, name: str, readable: bool = False) -> str:
    """The module of one kernel node.

    Args:
        name: of the function; its one argument is a table of addresses, inputs then outputs.
        readable: with names and source lines of the IR; without them equal kernels have equal
            text, which is what the cache is keyed by.

    Raises:
        Unprintable: naming the op that has no statement.
    """
    return Printer(kernel.blocks[0], name, readable).module()


def lanes_of(type_: TensorType) -> int:
    """Lanes of a vector, 0 for a scalar."""
    return int(math.prod(type_.shape)) if type_.rank else 0  # pyright: ignore[reportArgumentType, reportCallIssue]


def memory_element(dtype: DType) -> str:
    """The type of an element in memory."""
    return "i8" if dtype.kind == "b" else element(dtype)


class Printer:
    def __init__(self, block: Block, name: str, readable: bool) -> None:
        self.block = block
        self.name = name
        self.readable = readable
        self.uses: set[Function] = set()
        self.top: list[str] = []  # constants and stack memory, before everything
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[Node, str] = {}
        self.count = 0
        self.hint = ""

    # ---- statements

    def fresh(self) -> str:
        self.count += 1
        hint, self.hint = self.hint, ""
        if hint:
            return f"%{hint}" if not hint[0].isdigit() else f"%v{hint}"
        return f"%{self.count}" if not self.readable else f"%t{self.count}"

    def do(self, text: str) -> str:
        name = self.fresh()
        self.put(f"{name} = {text}")
        return name

    def put(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def number(self, value: float, dtype: DType, lanes: int) -> str:
        inner = _literal(value, dtype)
        t = shaped(dtype, lanes)
        if lanes:
            inner = f"dense<{inner}>"
        return self.constant(inner if t == "i1" else f"{inner} : {t}")

    def constant(self, text: str) -> str:
        if text not in self.constants:
            self.constants[text] = f"%k{len(self.constants)}"
            self.top.append(f"  {self.constants[text]} = arith.constant {text}")
        return self.constants[text]

    # ---- frame

    def module(self) -> str:
        loops, program = _parallel_nest(self.block)
        extents = [int(loop.params[0].attrs["extent"]) for loop in loops]
        total = math.prod(extents)
        work = sum(cost_of(node) for node in program.nodes)  # of one iteration
        threaded = bool(loops) and total > 1 and work * total >= PARALLEL_WORK
        for i, p in enumerate(self.block.params):
            slot, address = f"%slot{i}", f"%{p.attrs['name']}"
            self.put(f"{slot} = llvm.getelementptr %table[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
            self.put(f"{address} = llvm.load {slot} : !llvm.ptr -> !llvm.ptr")
            self.values[p] = address
        for node in self.block.nodes:
            if loops and node.blocks and node.blocks[0] is loops[0]:
                self._range(loops, extents, total, threaded)
                break  # only the items of the nest come after it
            self.statement(node)
        return self._assemble(total if threaded else 0, math.ceil(PIECE_WORK / max(work, 1)))

    def _range(self, loops: list[Block], extents: list[int], total: int, threaded: bool) -> None:
        one = self.constant("1 : i64")
        low, high = "%lo", "%hi"
        if not threaded:
            low, high = self.constant("0 : i64"), self.constant(f"{total} : i64")
        self.put(f"scf.for %step = {low} to {high} step {one} : i64 {{")
        self.depth += 1
        rest = "%step"
        for loop, extent in reversed(list(zip(loops, extents, strict=True))):
            index = loop.params[0]
            size = self.constant(f"{extent} : i64")
            if loop is loops[0]:
                self.values[index] = rest
            else:
                self.values[index] = self.do(f"arith.remui {rest}, {size} : i64")
                rest = self.do(f"arith.divui {rest}, {size} : i64")
        outside = list(self.block.params[-len(loops[0].params[1:]) :])
        for loop, inner in zip(loops, [*loops[1:], None], strict=True):
            for carried, memory in zip(loop.params[1:], outside, strict=True):
                self.values[carried] = self.values[memory]
            outside = list(loop.params[1:])
            for node in loop.nodes:
                if inner is not None and node.blocks and node.blocks[0] is inner:
                    break  # only its items come after the inner loop
                self.statement(node)
        self.depth -= 1
        self.put("}")

    def _assemble(self, shared: int, grain: int) -> str:
        """The module; `shared` iterations go through the pool, in pieces of at least `grain`."""
        body = f"{self.name}_body"
        parts = [f"llvm.func @{self.name}(%table: !llvm.ptr) {{\n"]
        if shared:
            parts = [threads.prelude(), threads.entry(self.name, body, shared, grain)]
            parts.append(threads.body(body))
        parts.extend(f"{line}\n" for line in (*self.top, *self.lines))
        parts.append("  llvm.return\n}\n")
        parts.append(functions.definitions(sorted(self.uses)))
        return "".join(parts)

    def body(self, block: Block) -> None:
        """The nodes of an open block."""
        for node in block.nodes:
            self.statement(node)

    # ---- nodes

    def statement(self, node: Node) -> None:
        if node.op == "const" and not node.tensor.rank:
            return
        if self.readable:
            lines = self.block.locs.get(node)
            if lines:
                self.put(f"// {', '.join(lines)}")
            if not _is_memory(node) and node.op != "loop":
                self.hint = self.block.names.get(node, "")
        special = getattr(self, f"_{node.op}", None)
        if contract.is_block(node):
            self.values[node] = contract.block(self, node)
        elif special is not None:
            self.values[node] = special(node)
        elif ops.lookup(node.op).kind == "elementwise":
            self.values[node] = self._elementwise(node)
        else:
            raise Unprintable(f"no statement for {node.op}")

    def value(self, node: Node) -> str:
        if node.op == "const" and not node.tensor.rank:
            return self.number(node.attrs["value"].array, node.dtype, 0)
        return self.values[node]

    def on_lanes(self, node: Node, lanes: int) -> str:
        """A value as a vector of `lanes`, a scalar repeated."""
        if node.op == "const" and not node.tensor.rank:
            return self.number(node.attrs["value"].array, node.dtype, lanes)
        if lanes and not node.tensor.rank:
            hint, self.hint = self.hint, ""
            scalar, t = element(node.dtype), shaped(node.dtype, lanes)
            made = self.do(f"vector.broadcast {self.value(node)} : {scalar} to {t}")
            self.hint = hint
            return made
        return self.value(node)

    def _elementwise(self, node: Node) -> str:
        lanes = lanes_of(node.tensor)
        args = [self.on_lanes(a, lanes) for a in node.args]
        hint, self.hint = self.hint, ""
        made = emit(self, node, args, lanes)
        if hint and self.readable:
            made = self._rename(made, hint)
        return made

    def _rename(self, name: str, hint: str) -> str:
        """Give the last statement the IR's name."""
        self.hint = hint
        new = self.fresh()
        if self.lines[-1].strip().startswith(f"{name} = "):
            self.lines[-1] = self.lines[-1].replace(f"{name} = ", f"{new} = ", 1)
            return new
        return name

    def _iota(self, node: Node) -> str:
        lanes = lanes_of(node.tensor)
        return self.constant(f"dense<{list(range(lanes))}> : {shaped(node.dtype, lanes)}")

    def _broadcast(self, node: Node) -> str:
        (source,) = node.args
        if source.tensor.rank:
            raise Unprintable("a broadcast of a vector")
        return self.on_lanes(source, lanes_of(node.tensor))

    def _item(self, node: Node) -> str:
        source = node.args[0]
        return self.values[source].split("|")[node.attrs["index"]]

    def _reduce(self, node: Node) -> str:
        source, kind = node.args[0], node.attrs["kind"]
        x, dtype = self.value(source), node.dtype
        t = shaped(dtype, lanes_of(source.tensor))
        if dtype.is_float and kind in ("max", "min"):
            name = f"{kind}imumf"
        elif kind in ("max", "min"):
            sign = "s" if dtype.kind == "i" else "u"
            name = {"max": "or", "min": "and"}[kind] if dtype.kind == "b" else f"{kind}{sign}i"
        else:
            name = _REDUCE[kind]
            if dtype.kind == "b" and kind in ("sum", "prod"):
                name = "or" if kind == "sum" else "and"
        flags = " fastmath<reassoc>" if dtype.is_float and name in ("add", "mul") else ""
        return self.do(f"vector.reduction <{name}>, {x}{flags} : {t} into {element(dtype)}")

    def _alloc(self, node: Node) -> str:
        size = math.prod(node.shape)  # pyright: ignore[reportArgumentType, reportCallIssue]
        name = f"%{node.attrs['name']}"
        count = self.constant(f"{size} : i64")
        self.top.append(
            f"  {name} = llvm.alloca {count} x {memory_element(node.dtype)}"
            " {alignment = 64 : i64} : (i64) -> !llvm.ptr"
        )
        return name

    # ---- memory

    def _offset(self, memory: Node, index: Sequence[Node], lanes: int) -> str:
        """Row-major offset of an index, as i64 or a vector of it."""
        t = f"vector<{lanes}xi64>" if lanes else "i64"
        total: str | None = None
        stride = 1
        for axis, size in reversed(list(zip(index, memory.shape, strict=True))):
            if not _is_zero(axis):
                term = self.on_lanes(axis, lanes)
                term = self._as_i64(term, axis, lanes)
                if stride != 1:
                    term = self.do(f"arith.muli {term}, {self._splat(stride, lanes)} : {t}")
                total = term if total is None else self.do(f"arith.addi {total}, {term} : {t}")
            stride *= int(size)  # pyright: ignore[reportArgumentType]
        return total if total is not None else self._splat(0, lanes)

    def _as_i64(self, value: str, axis: Node, lanes: int) -> str:
        from stack.ir.types import I64

        return cast(self, value, axis.dtype, I64, lanes)

    def _splat(self, value: int, lanes: int) -> str:
        return self.constant(f"dense<{value}> : vector<{lanes}xi64>" if lanes else f"{value} : i64")

    def address(self, memory: Node, index: Sequence[Node], lanes: int) -> str:
        hint, self.hint = self.hint, ""
        offset = self._offset(memory, index, lanes)
        kind = f"vector<{lanes}xi64>" if lanes else "i64"
        result = f"vector<{lanes}x!llvm.ptr>" if lanes else "!llvm.ptr"
        made = self.do(
            f"llvm.getelementptr {self.value(memory)}[{offset}]"
            f" : (!llvm.ptr, {kind}) -> {result}, {memory_element(memory.dtype)}"
        )
        self.hint = hint
        return made

    def _load(self, node: Node) -> str:
        memory, lanes = node.args[0], lanes_of(node.tensor)
        index, mask, other = access_parts(node)
        t = f"vector<{lanes}x{memory_element(node.dtype)}>" if lanes else memory_element(node.dtype)
        scattered = any(i.tensor.rank for i in index)
        hint, self.hint = self.hint, ""
        if not lanes:
            made = self._load_scalar(node, index, mask, other, t)
        elif scattered or mask is not None:
            address = self.address(memory, index, lanes if scattered else 0)
            test = self.on_lanes(mask, lanes) if mask is not None else self._all(lanes)
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
        return self._from_memory(made, node.dtype, lanes)

    def _load_scalar(
        self, node: Node, index: Sequence[Node], mask: Node | None, other: Node | None, t: str
    ) -> str:
        memory = node.args[0]
        if mask is None or other is None:
            return self.do(f"llvm.load {self.address(memory, index, 0)} : !llvm.ptr -> {t}")
        # element 0 exists: groups with empty arrays never get here
        offset = self._offset(memory, index, 0)
        safe = self.do(f"arith.select {self.value(mask)}, {offset}, {self._splat(0, 0)} : i64")
        address = self.do(
            f"llvm.getelementptr {self.value(memory)}[{safe}]"
            f" : (!llvm.ptr, i64) -> !llvm.ptr, {memory_element(memory.dtype)}"
        )
        found = self.do(f"llvm.load {address} : !llvm.ptr -> {t}")
        fill = self._fill(other, node.dtype, 0, t)
        return self.do(f"arith.select {self.value(mask)}, {found}, {fill} : {t}")

    def _all(self, lanes: int) -> str:
        return self.constant(f"dense<true> : vector<{lanes}xi1>")

    def _fill(self, other: Node | None, dtype: DType, lanes: int, t: str) -> str:
        if other is None:
            zero = "0.0" if dtype.is_float else "0"
            return self.constant(f"dense<{zero}> : {t}" if lanes else f"{zero} : {t}")
        return self._to_memory(self.on_lanes(other, lanes), dtype, lanes)

    def _from_memory(self, value: str, dtype: DType, lanes: int) -> str:
        if dtype.kind != "b":
            return value
        t = f"vector<{lanes}xi8>" if lanes else "i8"
        zero = self.constant(f"dense<0> : {t}" if lanes else "0 : i8")
        return self.do(f"arith.cmpi ne, {value}, {zero} : {t}")

    def _to_memory(self, value: str, dtype: DType, lanes: int) -> str:
        if dtype.kind != "b":
            return value
        f, t = (f"vector<{lanes}xi1>", f"vector<{lanes}xi8>") if lanes else ("i1", "i8")
        return self.do(f"arith.extui {value} : {f} to {t}")

    def _store(self, node: Node) -> str:
        memory, value = node.args[:2]
        lanes = lanes_of(value.tensor)
        index, mask, _ = access_parts(node)
        stored = self._to_memory(self.value(value), value.dtype, lanes)
        kind = memory_element(value.dtype)
        t = f"vector<{lanes}x{kind}>" if lanes else kind
        scattered = any(i.tensor.rank for i in index)
        address = self.address(memory, index, lanes if scattered else 0)
        size = value.dtype.bytes
        if scattered:
            test = self.on_lanes(mask, lanes) if mask is not None else self._all(lanes)
            self.put(
                f"llvm.intr.masked.scatter {stored}, {address}, {test} {{alignment = {size} : i32}}"
                f" : {t}, vector<{lanes}xi1> into vector<{lanes}x!llvm.ptr>"
            )
        elif mask is not None:
            raise Unprintable("a masked store of a block")
        else:
            self.put(
                f"llvm.store {stored}, {address} {{alignment = {size} : i64}} : {t}, !llvm.ptr"
            )
        return self.values[memory]

    # ---- loops

    def _loop(self, node: Node) -> str:
        block = node.blocks[0]
        index, *carried = block.params
        registers = [
            (p, init, out)
            for p, init, out in zip(carried, node.args, block.results, strict=True)
            if not _is_memory(p)
        ]
        for p, init in zip(carried, node.args, strict=True):
            if _is_memory(p):
                self.values[p] = self.values[init]
        self.count += 1
        name, result = f"%i{self.count}", f"%loop{self.count}"
        for position, (p, _, _) in enumerate(registers):
            self.values[p] = f"%carry{self.count}_{position}"
        self.values[index] = name
        inits = [
            f"{self.values[p]} = {self.on_lanes(init, lanes_of(p.tensor))}"
            for p, init, _ in registers
        ]
        types = ", ".join(shaped(p.dtype, lanes_of(p.tensor)) for p, _, _ in registers)
        head = f"iter_args({', '.join(inits)}) -> ({types}) " if registers else ""
        lead = f"{result}:{len(registers)} = " if registers else ""
        zero, one = self._splat(0, 0), self._splat(1, 0)
        extent = self.constant(f"{index.attrs['extent']} : i64")
        self.put(f"{lead}scf.for {name} = {zero} to {extent} step {one} {head}: i64 {{")
        self.depth += 1
        self.body(block)
        if registers:
            outs = ", ".join(self.on_lanes(o, lanes_of(p.tensor)) for p, _, o in registers)
            self.put(f"scf.yield {outs} : {types}")
        self.depth -= 1
        self.put("}")
        found: list[str] = []
        position = 0
        for p, init in zip(carried, node.args, strict=True):
            if _is_memory(p):
                found.append(self.values[init])
            else:
                found.append(f"{result}#{position}")
                position += 1
        return "|".join(found)


def cost_of(node: Node) -> float:
    """Scalar operations of one node of a kernel, loops inside of it included."""
    if node.op == "loop":
        block = node.blocks[0]
        return int(block.params[0].attrs["extent"]) * sum(cost_of(n) for n in block.nodes)
    if isinstance(node.type, TupleType):
        return 0
    if node.op == "dot":
        return contract.cost(node)
    source = node.args[0].tensor if node.op in ("reduce", "store") else node.tensor
    if node.op == "store":
        source = node.args[1].tensor
    return max(ops.lookup(node.op).flops, 1) * max(lanes_of(source), 1)


def _parallel_nest(block: Block) -> tuple[list[Block], Block]:
    """The blocks of the parallel loops at the top of a kernel, and the innermost body."""
    found: list[Block] = []
    while True:
        loops = {r.args[0] if r.op == "item" else r for r in block.results}
        if len(loops) != 1:
            break
        (loop,) = loops
        if loop.op != "loop" or loop.attrs["kind"] != "parallel":
            break
        block = loop.blocks[0]
        found.append(block)
    return found, block


def _is_memory(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.space in ("global", "shared", "local")


def _is_zero(node: Node) -> bool:
    return node.op == "const" and not node.tensor.rank and int(node.attrs["value"].array) == 0


def _literal(value: object, dtype: DType) -> str:
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.is_integer:
        signed = np.asarray(value).astype(dtype.numpy).view(f"i{dtype.bytes}")
        return str(int(signed))
    if dtype.name == "bf16":
        bits = int(np.asarray(value, dtype=np.float32).view(np.uint32)) >> 16
    else:
        held = np.asarray(value, dtype=dtype.numpy)
        bits = int(held.view(f"u{held.dtype.itemsize}"))
    return f"0x{bits:0{dtype.bytes * 2}X}"
