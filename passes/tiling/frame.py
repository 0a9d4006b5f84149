"""Helpers of all lowerings to kernels: constant sizes, accumulation types, loops and names.

Two variables with the same name and type are the same node. A loop must not reuse the name of an
enclosing loop's variable. So code that adds a loop or memory to a kernel takes a name from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import count

from stack.ir import ops
from stack.ir.algebra import COMBINE as COMBINE
from stack.ir.dim import Dim, Expr
from stack.ir.equivalence import once_in
from stack.ir.node import Block, Node, unique_name
from stack.ir.traits import converts, is_input, is_loop, is_number, reads_by_data
from stack.ir.types import F32, DType

EXPENSIVE = 8  # scalar operations from which a value is stored rather than recomputed
LOG2E = math.log2(math.e)  # exp(x) is exp2(x * this)


def power_of_two(size: int) -> int:
    """Returns the smallest power of two that is at least `size`."""
    return 1 << max(0, (size - 1).bit_length())


class CannotTile(Exception):
    """Raised if no kernel can be generated for a group; the message says why."""


def wide(dtype: DType) -> DType:
    """Returns the type in which a kernel computes: f32 for 16-bit floats."""
    return F32 if dtype.kind == "f" and dtype.bits == 16 else dtype


def is_rounded(node: Node, dtype: DType) -> bool:
    """True if a value in the type of computations already has the precision of `dtype`: it is a
    number, or was converted from this type. Gathers after the conversion do not matter.
    """
    if wide(dtype) == dtype or is_number(node):
        return True
    while reads_by_data(node):
        node = node.args[0]
    return converts(node) and node.args[0].dtype == dtype


def is_expensive(node: Node) -> bool:
    """True if an elementwise op costs more to recompute than to store and load its result."""
    op = ops.lookup(node.op)
    return op.kind == "elementwise" and op.flops >= EXPENSIVE


def static(dim: Dim) -> int:
    """Returns a size as an integer. Raises CannotTile if it is symbolic, not constant."""
    if isinstance(dim, Expr):
        raise CannotTile(f"size {dim} is symbolic; bind it first")
    return dim


class Names:
    """Generates unique names in a kernel.

    Args:
        taken: names that are in use.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}
        self._numbers = count(1)

    def own(self, hint: str) -> str:
        """Returns the name `hint`, with a suffix if it is in use, and marks it as used."""
        return unique_name(hint, self._taken, self._counts)

    def numbered(self, hint: str) -> str:
        """Returns `hint` with a number that makes it unique; a number that it already has is
        replaced.
        """
        return self.own(f"{hint.split('__')[0]}__{next(self._numbers)}")


def names_of(block: Block) -> Names:
    """Returns the names in use in a kernel's block, as a generator of further unique names."""
    return Names(_names_in(block))


@once_in
def _names_in(block: Block) -> frozenset[str]:
    """Returns the names of variables and memories in a block, and in the blocks in it."""
    nodes = (*block.params, *block.nodes)
    own = [str(n.attrs["name"]) for n in nodes if n.op == "alloc" or is_input(n)]
    return frozenset(own).union(*[_names_in(b) for n in nodes for b in n.blocks])


def extent_of(loop: Node) -> int:
    """Returns the number of iterations of a loop."""
    return static(loop.blocks[0].params[0].attrs["extent"])


def with_own_variables(block: Block) -> Block:
    """Renames loop variables of a kernel so that no two of its loops share one.

    Loops that follow each other may share variables, so that equal values in them are one node.
    What a pass records about such a node would hold for both loops.
    """
    names, lines, own, seen = dict(block.names), dict(block.locs), names_of(block), set[Node]()

    def variable(old: Node) -> Node:
        if old in seen:
            name = own.own(str(old.attrs["name"]))
            old = Node("var", (), {**old.attrs, "name": name}, old.type)
        seen.add(old)
        return old

    def inside(block: Block, outer: Mapping[Node, Node]) -> Block:
        params = [variable(p) for p in block.params]
        done = {**outer, **dict(zip(block.params, params, strict=True))}
        for node in block.nodes:
            blocks = [inside(b, done) for b in node.blocks] if is_loop(node) else node.blocks
            made = node.rebuilt([done.get(a, a) for a in node.args], blocks=blocks)
            done[node] = made
            if node in names:
                names.setdefault(made, names[node])
            if node in lines:
                lines.setdefault(made, lines[node])
        return Block(params, [done.get(r, r) for r in block.results])

    made = inside(block, {})
    return Block(made.params, made.results, names, lines)
