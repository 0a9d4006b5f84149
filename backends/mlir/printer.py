"""Prints the loop level as MLIR text: each kernel is a function over a table of buffer addresses.

Parallel loops at the top of a kernel become one range of iterations, which threads share:

loop {kind="parallel"} (%i < 8)  ...       iterations 0 to 7
loop {kind="parallel"} (%i < 4)  ...       iterations 8 to 11: the parts of a concatenation

Memory is an address with row-major offsets; a bool takes a byte. Statements carry their source
lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.kernel_ops import iterations, loop_parts
from stack.ir.memory import memory_of, starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import (
    is_alias,
    is_contraction,
    is_load,
    is_loop,
    is_memory,
    is_number,
    is_reduction,
    is_store,
    maker,
    moved,
    nest_of,
)
from stack.ir.types import I64, TupleType
from stack.target import Cpu, Target, as_cpu, cpu_at_hand
from stack.target.host import NATIVE

from ..runtime.names import value_name
from . import amx, contract, threads
from . import math as functions
from .access import MIRRORED, Accesses, lane_mask
from .elementwise import Unprintable, emit, shaped
from .locations import location
from .scans import scan
from .statements import lanes_of, memory_type
from .views import sizes

_HEAD = re.compile(r"^(llvm\.func .*?)(?: attributes \{(.*)\})? \{$", re.MULTILINE)
_REDUCE = {"sum": "add", "prod": "mul", "and": "and", "or": "or"}


def print_kernel(
    kernel: Node,
    name: str,
    readable: bool = False,
    target: Target | None = None,
    arguments: Sequence[str] = (),
    origin: Sequence[str] | None = None,
) -> str:
    """Returns the MLIR module of one kernel node.

    Args:
        name: of the function; its only argument is a table of addresses, inputs first, then
            outputs.
        readable: use the IR's names and source lines. Without them, equal kernels have equal text,
            which is the cache key.
        target: the CPU to print for; by default this machine's.
        arguments: readable names of operands and results, from where the kernel is used.
        origin: the kernel's own source lines. If given, statements get their source lines as
            locations, which become debug information.

    Raises:
        Unprintable: names the op that cannot be printed.
    """
    cpu = as_cpu(target or cpu_at_hand())
    return Printer(kernel.blocks[0], name, readable, cpu, arguments, origin).module()


class Printer(Accesses):
    """Prints one kernel, statement by statement."""

    # ---- frame

    def module(self) -> str:
        shares = {shared.nest[0]: shared for shared in shared_loops(self.block)}
        total = sum(shared.total for shared in shares.values())
        work = sum(
            shared.total * sum(map(cost_of, shared.program.nodes)) for shared in shares.values()
        )
        cpu = self.cpu  # whose core computes a vector per cycle
        is_shared = total > 1 and work >= round(cpu.launch * cpu.clock * cpu.lanes)
        for i, p in enumerate(self.block.params):
            slot, address = f"%slot{i}", f"%{self._memory(p)}"
            self.put(f"{slot} = llvm.getelementptr %table[{i}] : (!llvm.ptr) -> !llvm.ptr, i64")
            self.put(f"{address} = llvm.load {slot} : !llvm.ptr -> !llvm.ptr")
            self.values[p] = address
        first = 0
        for node in self.block.nodes:
            shared = shares.get(node)
            if shared is None:
                self.statement(node)
                continue
            bounds = self._bounds(first, shared.total, total) if is_shared else None
            self._range(shared, bounds)
            first += shared.total
        head = f"llvm.func @{self.name}(%table: !llvm.ptr) {{\n"
        if is_shared:
            grain = math.ceil(round(cpu.fetch * cpu.clock * cpu.lanes) * total / max(work, 1))
            body = f"{self.name}_body"
            head = threads.DECLARATION + threads.entry(self.name, body, total, grain)
            head += threads.body(body)
        parts = [head, *(f"{line}\n" for line in (*self.top, *self.lines))]
        if self.tile_rows:
            parts.append(f"  {amx.RELEASE}\n")
        parts.append("  llvm.return\n}\n")
        if self.uses:
            parts.append(functions.definitions(sorted(self.uses), "avx512f" in cpu.features))
        text = "".join(parts)
        return text if cpu.arch == NATIVE else _with_instructions(text, cpu)

    def _memory(self, node: Node) -> str:
        """Returns the name of an array: of an argument, or of memory that the kernel allocates."""
        known = self.memories.get(node) if self.readable else None
        return self.named(str(node.attrs["name"]) if known is None else f"{known}_ptr")

    def _bounds(self, first: int, count: int, total: int) -> tuple[str, str]:
        """Prints and returns which iterations of a loop are in the range of a thread, as the first
        one and the one after the last. The iterations of the loop begin at `first` of `total`.
        """
        if count == total:
            return "%lo", "%hi"
        zero, start, end = (self.constant(f"{n} : i64") for n in (0, first, count))
        low, high = (self.do(f"arith.subi {bound}, {start} : i64") for bound in ("%lo", "%hi"))
        low = self.do(f"arith.maxsi {low}, {zero} : i64")
        return low, self.do(f"arith.minsi {high}, {end} : i64")

    def _range(self, shared: SharedLoop, bounds: tuple[str, str] | None) -> None:
        """Prints the iterations of parallel loops within bounds; all of them without bounds."""
        one = self.constant("1 : i64")
        if bounds is None:
            bounds = self.constant("0 : i64"), self.constant(f"{shared.total} : i64")
        self.put(f"scf.for %step = {bounds[0]} to {bounds[1]} step {one} : i64 {{")
        self.depth += 1
        rest, loops = "%step", [loop.blocks[0] for loop in shared.nest]
        for loop, extent in reversed(list(zip(loops, shared.extents, strict=True))):
            index = loop.params[0]
            size = self.constant(f"{extent} : i64")
            if loop is loops[0]:
                self.values[index] = rest
            else:
                self.values[index] = self.do(f"arith.remui {rest}, {size} : i64")
                rest = self.do(f"arith.divui {rest}, {size} : i64")
        outside = list(starts_of(shared.nest[0]))
        self.values[shared.nest[0]] = "|".join(self.values[memory] for memory in outside)
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

    # ---- nodes

    def statement(self, node: Node) -> None:
        if is_number(node):
            return
        outer, lines = self.location, self.block.locs.get(node, ())
        if self.readable:
            if lines and lines != self.shown:
                self.shown = lines
                self.lines.append(f"{'  ' * self.depth}// {', '.join(lines)}")
            if not is_memory(node) and not is_loop(node):
                self.hint = value_name(self.block, node, self.memories)
        if self.is_located and lines:
            self.location = location(lines)
        special = getattr(self, f"_{node.op}", None)
        if _is_block(node):
            hint, self.hint = self.hint, ""
            self.values[node] = "|".join(contract.block(self, node))
            self.hint = hint
        elif special is not None:
            self.values[node] = special(node)
        elif ops.lookup(node.op).kind == "elementwise":
            self.values[node] = self._elementwise(node)
        else:
            raise Unprintable(f"op {node.op}")
        self.location = outer

    def _elementwise(self, node: Node) -> str:
        lanes = lanes_of(node.tensor)
        args = [self.value(a, lanes) for a in node.args]
        hint, self.hint = self.hint, ""
        made = lane_mask(self, node) if node.op in MIRRORED else None
        if made is None:
            made = emit(self, node, args, lanes)
        if hint and self.readable:
            made = self._rename(made, hint)
        return made

    def _rename(self, name: str, hint: str) -> str:
        """Renames a result after the IR's name `hint`, if the last printed line defines it.

        Returns the new name, or else the old one.
        """
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
        return self.value(source, lanes_of(node.tensor))

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
        return self.do(f"vector.reduction <{name}>, {x}{flags} : {t} into {shaped(dtype)}")

    def _scan(self, node: Node) -> str:
        return scan(self, node)

    def _alloc(self, node: Node) -> str:
        name = f"%{self._memory(node)}"
        self.reserve(name, math.prod(sizes(node)), memory_type(node.dtype))
        return name

    # ---- loops

    def _loop(self, node: Node) -> str:
        block = node.blocks[0]
        index, *carried = block.params
        limits, starts = loop_parts(node.args, node.attrs)
        registers = [
            (p, init, out)
            for p, init, out in zip(carried, starts, block.results, strict=True)
            if not is_memory(p)
        ]
        for p, init in zip(carried, starts, strict=True):
            if is_memory(p):
                self.values[p] = self.values[init]
        self.count += 1
        name, result = f"%i{self.count}", f"%loop{self.count}"
        for position, (p, _, _) in enumerate(registers):
            self.values[p] = f"%carry{self.count}_{position}"
        self.values[index] = name
        inits = [
            f"{self.values[p]} = {self.value(init, lanes_of(p.tensor))}" for p, init, _ in registers
        ]
        types = ", ".join(shaped(p.dtype, lanes_of(p.tensor)) for p, _, _ in registers)
        head = f"iter_args({', '.join(inits)}) -> ({types}) " if registers else ""
        lead = f"{result}:{len(registers)} = " if registers else ""
        first, one = self.number(0, I64, 0), self.number(1, I64, 0)
        end = self.constant(f"{index.attrs['extent']} : i64")
        if limits:
            first, end = (self.value(limit) for limit in limits)
        self.put(f"{lead}scf.for {name} = {first} to {end} step {one} {head}: i64 {{")
        self.depth += 1
        for inner in block.nodes:
            self.statement(inner)
        if registers:
            outs = ", ".join(self.value(o, lanes_of(p.tensor)) for p, _, o in registers)
            self.put(f"scf.yield {outs} : {types}")
        self.depth -= 1
        self.put("}")
        found: list[str] = []
        position = 0
        for p, init in zip(carried, starts, strict=True):
            if is_memory(p):
                found.append(self.values[init])
            else:
                found.append(f"{result}#{position}")
                position += 1
        return "|".join(found)


def _is_block(node: Node) -> bool:
    """True if a statement is a matmul, an alias, or concerns a tile of rank 2 or more."""
    if isinstance(node.type, TupleType) or is_loop(node) or node.op == "alloc":
        return False
    value = (moved(node) or node).tensor
    is_tile = value.space == "tile" and value.rank > 1
    return is_contraction(node) or is_alias(node) or is_tile


def cost_of(node: Node) -> float:
    """Scalar operations of one node of a kernel, including loops inside it."""
    if is_loop(node):
        return iterations(node) * sum(map(cost_of, node.blocks[0].nodes))
    if isinstance(node.type, TupleType):
        return 0
    if is_contraction(node):
        return contract.cost(node)
    source = (node.args[0] if is_reduction(node) else moved(node) or node).tensor
    return max(ops.lookup(node.op).flops, 1) * max(lanes_of(source), 1)


@dataclass(frozen=True)
class SharedLoop:
    """Perfectly nested parallel loops.

    Attributes:
        nest: the loops, outermost first.
        program: the body of the innermost one.
        extents: the number of iterations of each loop.
        total: the number of iterations of all loops together.
    """

    nest: Sequence[Node]
    program: Block
    extents: Sequence[int]
    total: int


def shared_loops(block: Block) -> list[SharedLoop]:
    """Returns the loops of a kernel whose iterations threads share, in order.

    If the kernel stores elsewhere too, or reads what it stores, these are the last loop alone, or
    none if it does not make all results. Each thread then runs the rest of the kernel for itself.
    """
    found: dict[Node, SharedLoop] = {}
    for node in block.nodes:
        if is_loop(node, "parallel"):
            inner, program = nest_of(node.blocks[0], "parallel")
            nest = node, *inner
            extents = [int(loop.blocks[0].params[0].attrs["extent"]) for loop in nest]
            found[node] = SharedLoop(nest, program, extents, math.prod(extents))
    arrays, memory = set(block.params), memory_of(block)
    stores = {n for n in block.nodes if is_store(n) or is_loop(n)}
    stored = {n: arrays.intersection(map(memory, filter(is_memory, n.args))) for n in stores}
    written = set().union(*stored.values())
    is_apart = not any(memory(n.args[0]) in written for n in block.all_nodes if is_load(n))
    if is_apart and all(node in found for node in stores if stored[node]):
        return [*found.values()]
    makers = {maker(result) for result in block.results}
    return [shared for loop, shared in found.items() if makers == {loop}]


def _with_instructions(text: str, cpu: Cpu) -> str:
    """Sets the target CPU on each function of a module, and the features that LLVM may use."""
    listed = ", ".join(f'"+{f}"' for f in cpu.features)
    own = f'target_cpu = "{cpu.arch}", target_features = #llvm.target_features<[{listed}]>'

    def head(match: re.Match[str]) -> str:
        both = ", ".join(filter(None, (match[2], own)))
        return f"{match[1]} attributes {{{both}}} {{"

    return _HEAD.sub(head, text)
