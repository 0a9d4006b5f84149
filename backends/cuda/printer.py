"""Prints the loop level as CUDA C++: grid loops become blocks, two axes of values become threads.

A block has 32 x W threads: `threadIdx.x` is the lane, `threadIdx.y` the warp. The first two axes of
a tile are warp and lane. A value of rank 0 is the same in every thread. A barrier is printed
between two statements if one writes memory that the other accesses.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from stack.ir import ops
from stack.ir.bounds import Integers
from stack.ir.node import Block, Node, unique_name, walk
from stack.ir.traits import contractions, is_loop_sum
from stack.ir.types import TensorType
from stack.ir.warp_ops import WARP

from ..runtime.names import value_name
from .access import Access
from .expressions import FUNCTIONS, Unprintable, c_type, convert, expression, literal
from .loops import Loops, extent_of
from .prelude import RESERVED, prelude
from .program import grid_of, statements
from .shared import (
    ALIGNMENT,
    AccessedMemory,
    alignment_of,
    bytes_of,
    in_a_row,
    offsets,
    regions,
    roots_of,
    touched,
)
from .threads import Threads
from .values import CudaValue, Source, count_of, is_across

PRODUCTS = ("mma_sync", "warpgroup_mma")
WRITES = {"store": 1, "async_copy": 2}
STATIC_SHARED = 48 << 10  # bytes; more must be requested at launch
_NUMBER = re.compile(r"__\d+$")  # a suffix that makes names of the IR unique


def print_kernel(
    kernel: Node,
    name: str,
    readable: bool = False,
    lines: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Source:
    """Returns the CUDA C++ of one loop-level kernel node.

    Args:
        name: of the function; its arguments are pointers, inputs first, then outputs.
        readable: use the IR's names and source lines. Without them, equal kernels have equal text,
            which is the cache key.
        lines: source lines of the kernel as a whole.
        arguments: readable names of operands and results, from where the kernel is used.

    Raises:
        Unprintable: names the op that cannot be printed.
    """
    warps = int(kernel.attrs.get("warps") or 1)
    printer = Printer(kernel.blocks[0], name, readable, warps, arguments)
    return printer.source(len(kernel.args), lines)


class Printer:
    def __init__(
        self,
        block: Block,
        name: str,
        readable: bool,
        warps: int = 1,
        arguments: Sequence[str] = (),
    ) -> None:
        self.block = block
        self.memories = dict(zip(block.params, arguments))
        self.name = name
        self.readable = readable
        self.integers = Integers()
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[Node, CudaValue] = {}
        self.parts: dict[Node, list[CudaValue]] = {}  # results of loops
        self.taken = {*RESERVED, *FUNCTIONS}
        self.counts: dict[str, int] = {}
        self.since = AccessedMemory()  # memory accessed since the last barrier
        self.under_way = 0.0  # upper bound on groups of asynchronous copies in flight
        self.shown: tuple[str, ...] = ()
        self.origin = ""  # the source line of the statement being printed
        self.origins: list[str] = []
        self.roots = roots_of(block)
        nodes = [node for _, node in walk(block)]
        self.allocs = list(dict.fromkeys(n for n in nodes if n.op == "alloc"))
        self.uses = Counter(a for n in nodes for a in n.args)
        self.uses.update(r for n in nodes for b in n.blocks for r in b.results)
        # without 16-bit memory, errors of a few ulp are visible in the results
        self.is_exact = not any(p.dtype.is_float and p.dtype.bits == 16 for p in block.params)
        # in matmuls on tensor cores, a product and what is added to it may be rounded once
        self.contracts = bool(contractions(nodes))
        # casts of f32 to 16 bits that only a matmul uses; the matmul converts them in pairs
        self.packed = {
            a
            for n in nodes
            if n.op in PRODUCTS
            for a in n.args
            if a.op == "cast" and self.uses[a] == 1 and a.args[0].dtype.name == "f32"
        }
        self.warps = warps
        self.swizzles = self._swizzles()
        self.placed = self._places([n for n in self.allocs if n.tensor.space == "shared"])
        self.shared = max((at + bytes_of(n) for n, at in self.placed.items()), default=0)
        self.access = Access(self)
        self.loops = Loops(self)
        self.threads = Threads(self)

    def _swizzles(self) -> dict[Node, int]:
        """Maps each memory value with swizzled rows to the contiguous bytes of a row."""
        sizes = {n: int(root.attrs.get("swizzle") or 0) for n, root in self.roots.items()}
        return {n: size for n, size in sizes.items() if size}

    # ---- statements

    def put(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)
        self.origins += [self.origin] * (1 + text.count("\n"))

    def fresh(self, hint: str) -> str:
        hint = _NUMBER.sub("", hint)
        plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in hint)
        name = plain if self.readable else "v"
        if not name[:1].isalpha():
            name = f"v{name}"
        return unique_name(name, self.taken, self.counts)

    def hint(self, node: Node) -> str:
        return value_name(self.block, node, self.memories)

    def declare(self, node: Node, text: str) -> CudaValue:
        """Prints a scalar constant with the value `text` for a node; returns it as a value."""
        name = self.fresh(self.hint(node))
        self.put(f"const {self.c_type(node)} {name} = {text};")
        return CudaValue(name)

    def registers(self, node: Node, count: int, kind: str = "") -> CudaValue:
        """Declare registers that the next statements fill, of the C++ type of the node."""
        name = self.fresh(self.hint(node))
        align = min(16, _power_of_two(count * node.dtype.bytes))
        self.put(f"alignas({align}) {kind or self.c_type(node)} {name}[{count}];")
        return CudaValue(name, count)

    def c_type(self, node: Node) -> str:
        """The C++ type of an element. An i64 that provably fits 32 bits is an int."""
        if node.dtype.name == "i64" and self.integers.is_small(node):
            return "int"
        return c_type(node.dtype)

    def value(self, node: Node) -> CudaValue:
        if node.op == "const" and not node.tensor.rank:
            return CudaValue(literal(node.attrs["value"].array, node.dtype))
        return self.values[node]

    # ---- frame

    def source(self, inputs: int, origin: Sequence[str] = ()) -> Source:
        arguments: list[str] = []
        for i, p in enumerate(self.block.params):
            hint = f"{self.memories[p]}_ptr" if p in self.memories else str(p.attrs["name"])
            name = self.fresh(hint) if self.readable else f"p{i}"
            self.values[p] = CudaValue(name)
            const = "const " if i < inputs else ""
            arguments.append(f"{const}{c_type(p.dtype)}* __restrict__ {name}")
        loops, program = grid_of(self.block)
        blocks = math.prod(extent_of(n) for n in loops)
        if self.is_placed:
            align = max(map(alignment_of, self.placed), default=ALIGNMENT)
            self.put(f"extern __shared__ __align__({align}) unsigned char shared_memory[];")
        for alloc in self.allocs:
            self._alloc(alloc)
        self._grid_indices(loops)
        for loop in loops:
            for p, init in zip(loop.blocks[0].params[1:], loop.args, strict=True):
                self.values[p] = self.values[init]
        for node in statements(self.block, loops, program):
            self.statement(node)
        head = f"// {', '.join(origin)}\n" if origin else ""
        head += f'extern "C" __global__ void __launch_bounds__({WARP * self.warps})\n'
        head += f"{self.name}({', '.join(arguments)}) {{"
        body = "\n".join([head, *self.lines, "}\n"])
        before = prelude(body)
        origins = ("",) * f"{before}{head}\n".count("\n") + tuple(self.origins)
        dynamic = self.shared if self.is_placed else 0
        return Source(
            self.name, before + body, max(blocks, 1), self.warps, dynamic,
            self.shared - dynamic, origins,
        )  # fmt: skip

    def _grid_indices(self, loops: Sequence[Node]) -> None:
        rest = "blockIdx.x"
        for loop in reversed(loops):
            index = loop.blocks[0].params[0]
            name = self.fresh(str(index.attrs["name"]))
            extent = extent_of(loop)
            text = f"int({rest})" if loop is loops[0] else f"int({rest} % {extent}u)"
            self.put(f"const int {name} = {text};")
            self.values[index] = CudaValue(name)
            rest = f"{rest} / {extent}u"

    def _alloc(self, node: Node) -> None:
        kind, name = c_type(node.dtype), self.fresh(str(node.attrs["name"]))
        self.values[node] = CudaValue(name)
        if node.tensor.space == "local":
            raise Unprintable("memory in local")
        if self.is_placed:
            at = self.placed[node]
            self.put(f"{kind}* const {name} = reinterpret_cast<{kind}*>(shared_memory + {at});")
        else:
            size = math.prod(_sizes(node.tensor))
            self.put(f"__shared__ __align__(16) {kind} {name}[{size}];")

    def _places(self, allocs: Sequence[Node]) -> dict[Node, int]:
        """Maps each array in shared memory to its byte offset.

        Small arrays share no bytes. If others share bytes, they become one memory value in `roots`,
        so that barriers separate their uses.
        """
        if not self.is_placed:
            return in_a_row(allocs)
        loops, program = grid_of(self.block)
        placed = offsets(allocs, statements(self.block, loops, program), self.roots)
        shared = regions(placed)
        self.roots = {n: shared.get(root, root) for n, root in self.roots.items()}
        return placed

    # ---- nodes

    def statement(self, node: Node) -> None:
        if node.op == "alloc" or (node.op == "const" and not node.tensor.rank):
            return
        if node.op == "item":
            self.values[node] = self.parts[node.args[0]][int(node.attrs["index"])]
            return
        outer, lines = self.origin, self.block.locs.get(node, ())
        self._comment(lines)
        self.origin = lines[0] if lines else outer
        self._print(node)
        self.origin = outer

    def _print(self, node: Node) -> None:
        if node.op == "loop":
            self.loops.print(node)
            return
        if node.op == "async_wait" and self.under_way <= int(node.attrs["pending"]):
            self._arrived(node)
            return
        self.wait(node)
        across = is_across(_subject(node)) and self.threads.value(node)
        if across:
            self.values[node] = across
            return
        special = getattr(self, f"_{node.op}", None)
        if special is not None:
            self.values[node] = special(node)
        elif ops.lookup(node.op).kind == "elementwise":
            self.values[node] = self._elementwise(node)
        else:
            raise Unprintable(f"op {node.op}")

    def _comment(self, lines: tuple[str, ...]) -> None:
        if self.readable and lines and lines != self.shown:
            self.shown = lines
            self.put(f"// {', '.join(lines)}")

    @property
    def is_placed(self) -> bool:
        """True if shared arrays are parts of one dynamic allocation, requested at launch."""
        allocs = [n for n in self.allocs if n.tensor.space == "shared"]
        return bool(self.swizzles) or sum(map(bytes_of, allocs)) > STATIC_SHARED

    def wait(self, node: Node) -> None:
        """Prints a barrier if a statement conflicts with memory accesses since the last barrier.

        Then adds the accesses of the statement to those since the last barrier.
        """
        now = touched(node, self.roots)
        if self.since.meets(now):
            self.put("__syncthreads();")
            self.since.clear()
        self.since.add(now)

    def count_of(self, node: Node) -> int:
        """Registers per thread of a value; 0 for a scalar."""
        type_ = node.tensor
        if type_.rank == 0:
            return 0
        if not is_across(node):
            raise Unprintable(f"a value of type {type_}")
        return count_of(type_)

    def _elementwise(self, node: Node) -> CudaValue:
        count = self.count_of(node)
        args = [self.value(a) for a in node.args]
        texts = [a.element if count else a.text for a in args]
        if node.dtype.name in ("i32", "i64") and self.integers.range(node) is not None:
            text = self._index(node, texts)
        else:
            source = node.args[-1].dtype if node.op == "select" else node.args[0].dtype
            text = expression(self._rounded(node), source, node.dtype, texts, self.is_exact)
        if not count:
            return self.declare(node, text)
        made = self.registers(node, count)
        self.put(f"EACH({count}) {made.text}[i] = {text};")
        return made

    def _rounded(self, node: Node) -> str:
        """Returns the op, "alone" if no product that it adds may be fused in.

        Two kernels may compute a value, and must agree to the last bit. Sums that a loop carries
        may round both at once.
        """
        adds = node.op in ("add", "sub") and node.dtype.name in ("f32", "f64")
        of_product = adds and any(a.op == "mul" for a in node.args)
        if not of_product or self.contracts or any(map(is_loop_sum, node.args)):
            return node.op
        return f"{node.op} alone"

    def _index(self, node: Node, texts: Sequence[str]) -> str:
        """Returns the C++ text of an op on indices, which never overflows or divides by 0.

        `texts`: those of the operands. Computed in 32 bits if the result provably fits.
        """
        signs = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"}
        if node.op in ("min", "max", "cast", "select"):
            kind = self.c_type(node)
            if node.op == "cast":
                return convert(kind, texts[0])
            if node.op == "select":
                return f"{texts[0]} ? {texts[1]} : {texts[2]}"
            return f"{node.op}({', '.join(convert(kind, t) for t in texts)})"
        if node.op not in signs:
            return expression(node.op, node.dtype, node.dtype, texts)
        first = texts[0] if self.integers.is_small(node) else f"(long long){texts[0]}"
        return f"{first} {signs[node.op]} {texts[1]}"

    def _load(self, node: Node) -> CudaValue:
        return self.access.load(node)

    def _store(self, node: Node) -> CudaValue:
        return self.access.store(node)

    def _async_wait(self, node: Node) -> CudaValue:
        self.put(f"copies_wait<{node.attrs['pending']}>();")
        self.reveal(node.args)
        self.under_way = min(self.under_way, int(node.attrs["pending"]))
        return self._arrived(node)

    def _arrived(self, node: Node) -> CudaValue:
        """Makes each result of a wait for asynchronous copies another name of its operand."""
        self.values[node] = self.values[node.args[0]]
        self.parts[node] = [self.values[a] for a in node.args]
        return self.parts[node][0]

    def reveal(self, memories: Sequence[Node]) -> None:
        """Prints a fence that makes writes to shared memory visible to warpgroup matmuls.

        These read memory asynchronously.
        """
        if any(m in self.swizzles for m in memories):
            self.put("reveal_shared();")


def _subject(node: Node) -> Node:
    """Returns the node whose type decides whether a statement is printed for tiles or for scalars.

    That is the node itself; for a write to memory, its operand with the written value or index.
    """
    return node.args[WRITES[node.op]] if node.op in WRITES else node


def _sizes(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(s) for s in type_.shape)  # pyright: ignore[reportArgumentType]


def _power_of_two(size: int) -> int:
    return size & -size
