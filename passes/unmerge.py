"""unmerge: keep axes that a reshape merged separate, so that a mesh can split each of them.

Frameworks flatten batch and sequence before the matmul of a weight's gradient, and batch and heads
before those of attention. A mesh can split the merged axis by the first one only. Separate axes can
be split by both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir.axes import LETTERS
from stack.ir.builder import Builder, make, reshaped
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.node import Node
from stack.passes.rules.dot_layout import dot_axes, make_dot, merged_sizes, operand_transpose
from stack.rewrite.engine import Scope, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass


@dataclass(frozen=True)
class Unmerge(Pass):
    """Let matmuls and transposes read axes as they were before a reshape merged them."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, (operand_transpose, contracted_merge, transposed_merge), log)


@on("dot")
def contracted_merge(node: Node, op: Builder, scope: Scope) -> Node | None:
    """dot(reshape(x), y) that contracts merged axes: contract each of them."""
    inputs, output = dot_axes(node)
    parts: dict[str, tuple[Dim, ...]] = {}
    for names, arg in zip(inputs, node.args, strict=True):
        for name, sizes in zip(names, merged_sizes(arg), strict=True):
            if sizes is not None and name not in output:
                parts.setdefault(name, sizes)
    if not parts:
        return None
    taken = {n for names in (*inputs, output) for n in names}
    fresh = iter([c for c in LETTERS if c not in taken])
    split = {n: [next(fresh) for _ in sizes] for n, sizes in parts.items()}
    args: list[Node] = []
    for names, arg in zip(inputs, node.args, strict=True):
        shape: list[Dim] = []
        for name, size in zip(names, arg.shape, strict=True):
            shape.extend(parts.get(name, (size,)))
        source = arg.args[0] if arg.op == "reshape" else arg
        args.append(source if source.shape == tuple(shape) else reshaped(arg, shape))
    apart = [[a for n in names for a in split.get(n, [n])] for names in inputs]
    return make_dot(args, apart, output, node)


@on("transpose")
def transposed_merge(node: Node, op: Builder, scope: Scope) -> Node | None:
    """transpose(reshape(x)) where the reshape merged axes: transpose first, then merge."""
    inner = node.args[0]
    parts = merged_sizes(inner)
    if not any(parts):
        return None
    source = [size for size in inner.args[0].shape if size != 1]
    places: list[list[int]] = []
    for size, merged in zip(inner.shape, parts, strict=True):
        start = sum(map(len, places))
        count = len(merged) if merged else int(size != 1)
        places.append(list(range(start, start + count)))
    axes: Sequence[int] = node.attrs["perm"]
    perm = [place for axis in axes for place in places[axis]]
    moved = make("transpose", (reshaped(inner.args[0], source),), {"perm": tuple(perm)})
    return reshaped(moved, node.shape)
