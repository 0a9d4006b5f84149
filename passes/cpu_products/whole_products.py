"""Pads matmuls of narrow types with zeros, so that a matrix instruction divides their extents.

Such an instruction multiplies groups of neighbours along the contracted axis, for one vector of
columns. Zeros at the end of the contracted axis add nothing. Columns of zeros are sliced off again.
Padding copies narrow operands; otherwise they would be widened, or a library would be called. If
the last contracted axis is only one group long, such as the taps of a window, the rows are
transposed so that a longer axis is last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.ir.builder import Builder, constant, make
from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.ir.traits import in_windows
from stack.passes.cpu_products.gemm import is_row_of_sums
from stack.passes.cpu_products.mma import mma_of
from stack.passes.rules.dot_layout import dot_axes, make_dot
from stack.passes.rules.transposes import transposed
from stack.passes.tiling.contraction import Roles, operand_names, roles_of
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.engine import Scope
from stack.target import Cpu, Mma


def whole_product(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Pads the operands of a matmul with zeros so that a matrix instruction divides its extents,
    and slices the result back; None if the matmul needs or allows no padding.
    """
    cpu = scope.log.cpu
    known = cpu.mmas(product_types(node))
    if not known or any(map(in_windows, node.args)):
        return None
    try:
        made = _wider(node, known[-1], cpu)
    except CannotTile:
        return None
    if made is None or made.shape == node.shape:
        return made
    start = (0,) * node.tensor.rank
    step = (1,) * node.tensor.rank
    return make("slice", (made,), {"start": start, "limit": node.shape, "step": step})


def _wider(dot: Node, mma: Mma, cpu: Cpu) -> Node | None:
    """Returns the matmul padded with zeros, so that instruction `mma` divides its extents, or with
    transposed rows as `_along_deepest` returns it. None if it needs no padding, or if no
    instruction fits the padded matmul. Raises CannotTile as `roles_of`."""
    if is_row_of_sums(dot) or mma_of(dot, cpu) is not None:
        return None
    roles = roles_of(dot, by_lane=True)
    depth = operand_names(dot, roles.left)[-1]
    if roles.is_by_lane or depth not in roles.contracted:
        return None
    deep = max(roles.sizes[depth], mma.group + 1)
    more = {
        depth: deep - roles.sizes[depth] + -deep % mma.depth,
        roles.lane: max(0, mma.lanes - roles.sizes[roles.lane]),
    }
    if roles.sizes[depth] <= mma.group and (turned := _along_deepest(dot, roles, depth)):
        return turned
    inputs, output = dot_axes(dot)
    args = [_padded(a, names, more) for a, names in zip(dot.args, inputs, strict=True)]
    made = make_dot(args, inputs, output, dot)
    return made if any(more.values()) and mma_of(made, cpu) is not None else None


def _along_deepest(dot: Node, roles: Roles, depth: str) -> Node | None:
    """Returns the dot with its left operand transposed, so that the longest contracted axis is
    last. None if the axis `depth`, which is last now, is as long."""
    deepest = max(roles.contracted, key=lambda n: roles.sizes[n])
    if roles.sizes[deepest] == roles.sizes[depth]:
        return None
    args, (inputs, output) = list(dot.args), dot_axes(dot)
    own = inputs[roles.left]
    inputs[roles.left] = order = [*(n for n in own if n != deepest), deepest]
    args[roles.left] = transposed(args[roles.left], [own.index(n) for n in order])
    return make_dot(args, inputs, output, dot)


def _padded(x: Node, names: Sequence[str], more: Mapping[str, int]) -> Node:
    """Appends zeros to an array: `more[name]` at the end of the axis `name`, for the axes in
    `more`. `names` are the names of all its axes.
    """
    high = tuple(more.get(n, 0) for n in names)
    if not any(high):
        return x
    none = (0,) * x.tensor.rank
    attrs = {"low": none, "high": high, "interior": none}
    return make("pad", (x, constant(0, x.dtype)), attrs)
