"""Statements of a kernel as MLIR text: names, constants, and the text of each value."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from stack.ir.data import encode
from stack.ir.node import Block, Node, unique_name
from stack.ir.traits import is_number
from stack.ir.types import DType, TensorType
from stack.target import Cpu

from .elementwise import is_short, shaped
from .locations import location
from .writer import Function


def lanes_of(type_: TensorType) -> int:
    """Number of lanes of a vector; 0 for a scalar."""
    return int(math.prod(type_.shape)) if type_.rank else 0  # pyright: ignore[reportArgumentType, reportCallIssue]


def memory_type(dtype: DType, lanes: int = 0) -> str:
    """The type that loads and stores of `lanes` elements move; a bool takes a byte."""
    kind = "i8" if dtype.kind == "b" else shaped(dtype)
    return f"vector<{lanes}x{kind}>" if lanes else kind


# numbered names of this printer; a value of the program must not have one of them
_OWN = re.compile(
    r"lo|hi|step|table|tiles|layout|(?:t|k|k_|i|loop|slot|sums?|carry\d+_|part\d+_)\d+"
)


class Statements:
    """The printed lines, and the text of every value so far.

    `readable` text has names and source lines of the IR, and `arguments` as names of memory. If the
    kernel's own source lines are given as `origin`, statements also have MLIR locations.
    """

    def __init__(
        self,
        block: Block,
        name: str,
        readable: bool,
        cpu: Cpu,
        arguments: Sequence[str] = (),
        origin: Sequence[str] | None = None,
    ) -> None:
        self.block = block
        self.memories = dict(zip(block.params, arguments))
        self.taken: set[str] = set()
        self.counts: dict[str, int] = {}
        self.name = name
        self.readable = readable
        self.is_located = origin is not None
        # location of the current statement; a kernel of one source line has it everywhere
        self.location = location(origin) if origin and len(origin) == 1 else ""
        self.shown: tuple[str, ...] = ()  # the source lines of the last comment
        self.cpu = cpu
        self.uses: set[Function] = set()
        self.top: list[str] = []  # constants and stack memory, printed first
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.values: dict[Node, str] = {}
        # matmuls that an instruction stores from tile registers: printers, and addresses of results
        self.deferred: dict[Node, Callable[[str], None]] = {}
        self.stored: dict[Node, str] = {}
        self.tile_rows: list[int] = []  # numbers of rows of AMX registers, if used
        self.count = 0
        self.hint = ""

    def fresh(self) -> str:
        self.count += 1
        hint, self.hint = self.hint, ""
        if hint:
            return f"%{self.named(hint)}"
        return f"%{self.count}" if not self.readable else f"%t{self.count}"

    def named(self, hint: str) -> str:
        """Returns a name like the program's `hint` that is valid in MLIR and not used yet."""
        name = "".join(c if c.isascii() and (c.isalnum() or c in "_.") else "_" for c in hint)
        name = f"v{name}" if name[0].isdigit() else name
        name = f"{name}_" if _OWN.fullmatch(name) else name
        return unique_name(name, self.taken, self.counts)

    def do(self, text: str) -> str:
        name = self.fresh()
        self.put(f"{name} = {text}")
        return name

    def put(self, text: str) -> None:
        # an operation with a region has its location after the region
        after = f" {self.location}" if self.location and not text.endswith("{") else ""
        self.lines.append("  " * self.depth + text + after)

    def number(self, value: float, dtype: DType, lanes: int) -> str:
        t = shaped(dtype, lanes)
        if dtype.kind == "b":
            inner = "true" if value else "false"
        elif dtype.is_integer:
            signed = np.asarray(value).astype(dtype.numpy).view(f"i{dtype.bytes}")
            inner = str(int(signed))
        else:
            held = encode(np.asarray(value, dtype=dtype.numpy), dtype)
            bits = int(held.view(f"u{held.dtype.itemsize}"))
            inner = f"0x{bits:0{dtype.bytes * 2}X}"
            if is_short(dtype):
                inner = str(int(held.view(np.int16)))
        if lanes:
            inner = f"dense<{inner}>"
        return self.constant(inner if t == "i1" else f"{inner} : {t}")

    def constant(self, text: str) -> str:
        if text not in self.constants:
            self.constants[text] = f"%k{len(self.constants)}"
            self.top.append(f"  {self.constants[text]} = arith.constant {text}")
        return self.constants[text]

    def reserve(self, name: str, size: int, kind: str) -> None:
        """Allocates `size` elements of type `kind` on the stack, at the start of the kernel."""
        count = self.constant(f"{size} : i64")
        self.top.append(
            f"  {name} = llvm.alloca {count} x {kind} {{alignment = 64 : i64}} : (i64) -> !llvm.ptr"
        )

    def sums(self, node: Node) -> str:
        """Returns the address of a matmul result that an instruction stores from tile registers.

        The first call prints the matmul, so that it is computed just before its first reader.
        """
        if node not in self.stored:
            name, size = f"%sums{len(self.stored)}", lanes_of(node.tensor)
            self.reserve(name, size, memory_type(node.dtype))
            self.deferred[node](name)
            self.stored[node] = name
        return self.stored[node]

    def value(self, node: Node, lanes: int = 0) -> str:
        """Returns the text of a value; a scalar is broadcast if the value is to have lanes."""
        if is_number(node):
            return self.number(node.attrs["value"].array, node.dtype, lanes)
        made = self.values[node]
        if lanes and not node.tensor.rank:
            scalar, t = shaped(node.dtype), shaped(node.dtype, lanes)
            hint, self.hint = self.hint, ""
            made = self.do(f"vector.broadcast {made} : {scalar} to {t}")
            self.hint = hint
        return made
