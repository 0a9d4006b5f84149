"""Two-stage reductions: splits long reductions of few rows among the threads of a CPU.

A kernel is parallel over rows and reduces each row on one thread. So one thread would sum a whole
array. Here the reduced axis becomes (parts, rest). The first stage reduces the rest, in parallel
over parts; the second stage reduces the parts. The number of parts does not depend on the number of
running threads, so the result does not either. Partial sums of 16-bit floats are f32. The second
stage of a sum of floats adds in f64, since the last additions dominate the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stack.ir import ops
from stack.ir.axes import reshape_rule
from stack.ir.builder import Builder, converted, make, reshaped, sliced
from stack.ir.dim import floordiv
from stack.ir.node import Node, topological
from stack.ir.traits import is_alias, is_input, is_reduction
from stack.ir.types import F64, DType
from stack.passes.rules.movement import in_shape, is_like
from stack.passes.rules.short_axes import ends_short, is_across
from stack.passes.tiling.frame import COMBINE, wide
from stack.rewrite.engine import Scope
from stack.rewrite.group import flops_of
from stack.target import Cpu


def shared(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Splits one reduction into two, over parts of its axis and over their results, if a single
    thread would compute most of it. Returns the replacement, None to keep the reduction.
    """
    source, axes = node.args[0], sorted(int(a) for a in node.attrs["axes"])
    sizes = [s for s in source.shape if isinstance(s, int)]
    is_run = axes == [*range(axes[0], axes[0] + len(axes))] if axes else False
    if len(sizes) < source.tensor.rank or 0 in sizes or node.dtype.kind == "c":
        return None
    cpu = scope.log.cpu
    is_short = ends_short(sizes, cpu) and is_across(sizes, axes)  # see `short_axes`
    if not is_run and not is_short:
        return None
    extent = math.prod(sizes[a] for a in axes)
    kept = math.prod(sizes) // extent
    # a column reduction keeps contiguous lines: one thread takes a whole line, unless it is tiled
    line = math.prod(sizes[axes[-1] + 1 :])
    blocks = -(-line // cpu.rows.block) if line > cpu.rows.line else 1
    rows = math.prod(sizes[: axes[0]]) * blocks
    if rows >= cpu.parts.threads or not _pays(kept * extent * _work(source), cpu):
        return None
    if is_stage(node, scope):
        return None
    name = scope.block.names.get(node, node.op)
    cut = None if is_input(source) and is_run else _lead(sizes, axes, cpu)
    if cut is not None:
        scope.log.note(f"%{name}: {extent} elements for each of {kept} in {cut[1]} parts")
        return _by_lead(node, axes, *cut, scope)
    parts = _parts(extent, cpu)
    if extent < cpu.parts.least * parts or not is_run:
        return None
    if extent % parts and not is_input(source):
        return None  # its operand would be computed in separate kernels for two slices
    scope.log.note(f"%{name}: {extent} elements for each of {kept} in {parts} parts")
    return _in_stages(node, axes, extent, parts, scope)


def _work(source: Node) -> float:
    """Estimates the operations for each element that is reduced: one to combine it, and those of
    the elementwise ops that compute it.
    """
    return 1 + sum(map(flops_of, topological([source], lambda n: is_like(n, source))))


def _pays(work: float, cpu: Cpu) -> bool:
    """True if `work` operations take one thread so long that splitting them over the cores saves
    more than launching a second kernel costs.
    """
    alone = work / (cpu.lanes * cpu.clock)
    return alone / cpu.parts.threads + 2 * cpu.launch < cpu.parts.gain * alone


def _parts(extent: int, cpu: Cpu) -> int:
    """Picks into how many parts to split a reduced axis of this extent: a few for each core,
    preferably a divisor of the extent.
    """
    near = [p for p in _counts(cpu) if extent % p == 0 and extent >= cpu.parts.least * p]
    return min(near, key=lambda p: _distance(p, cpu), default=cpu.parts.each * cpu.cores)


def _counts(cpu: Cpu) -> range:
    return range(cpu.cores, cpu.parts.each**2 * cpu.cores)


def _distance(parts: int, cpu: Cpu) -> float:
    return abs(math.log(parts / (cpu.parts.each * cpu.cores)))


def _lead(sizes: list[int], axes: list[int], cpu: Cpu) -> tuple[int, int] | None:
    """Picks which of several reduced axes to split for a two-stage reduction.

    A part is then one piece of that axis, at one index of the reduced axes before it. If all
    reduced axes were merged and split instead, a computed operand would need divisions for its
    indices.

    Returns:
        The axis and the number of parts. None if no axis has a fitting divisor.
    """
    found: list[tuple[int, int]] = []
    before = 1
    for place, axis in enumerate(axes[:-1]):
        if axis > axes[0] + place:
            break  # an axis between them is not reduced
        counts = [p for p in _counts(cpu) if p % before == 0 and before * sizes[axis] % p == 0]
        found += [(axis, p) for p in counts]
        before *= sizes[axis]
    return min(found, key=lambda cut: _distance(cut[1], cpu), default=None)


def is_stage(node: Node, scope: Scope) -> bool:
    """True if a reduction or dot already is one of two stages: it feeds a reduction of the same
    kind, at most reshaped, or reads one.
    """
    kind = node.attrs.get("kind", "sum")
    users = [v for u in scope.users(node) for v in (scope.users(u) if is_alias(u) else [u])]
    read = [a.args[0] if is_alias(a) else a for a in node.args] if is_reduction(node) else []
    return any(is_reduction(o) and o.attrs["kind"] == kind for o in (*users, *read))


def _by_lead(node: Node, axes: list[int], axis: int, parts: int, scope: Scope) -> Node:
    """Reduces in two stages, in the parts that `_lead` picked.

    The first stage reduces within each piece of `axis` and over the axes after it, the second one
    over the pieces and the reduced axes before it.
    """
    shape, first = node.args[0].shape, axes[0]
    count = parts // math.prod(s for s in shape[first:axis] if isinstance(s, int))
    rest = floordiv(shape[axis], count)
    split = in_shape(node, (*shape[:axis], count, rest, *shape[axis + 1 :]), scope)
    inner = [a + 1 for a in axes if a >= axis]
    made = _staged(node, converted(split, wide(node.dtype)), inner, range(first, axis + 1))
    return converted(made, node.dtype)


def _staged(node: Node, split: Node, inner: Iterable[int], outer: Iterable[int]) -> Node:
    """Reduces an array as `node` does, over the axes `inner` first, then over the axes `outer` of
    what is left.
    """
    return _reduced(node, converted(_reduced(node, split, inner), _last(node)), outer)


def _reduced(node: Node, x: Node, axes: Iterable[int]) -> Node:
    return make("reduce", (x,), {"kind": node.attrs["kind"], "axes": tuple(axes)})


def _last(node: Node) -> DType:
    """Returns the element type in which the second stage of a two-stage reduction accumulates: f64
    for a sum of floats.

    Otherwise it is the type of the reduction, or f32 for 16-bit floats.
    """
    dtype = wide(node.dtype)
    return F64 if node.attrs["kind"] == "sum" and dtype.is_float else dtype


def _in_stages(node: Node, axes: list[int], extent: int, parts: int, scope: Scope) -> Node:
    """Builds a two-stage reduction: reduces each of the `parts` parts of the axis, then their
    results together with the elements that are left over.
    """
    source, first, dtype = node.args[0], axes[0], wide(node.dtype)
    before, after = source.shape[:first], source.shape[axes[-1] + 1 :]
    line = converted(reshaped(source, (*before, extent, *after)), dtype)
    whole = extent - extent % parts
    apart = (*before, parts, extent // parts, *after)
    if whole == extent:
        split = converted(in_shape(node, apart, scope), dtype)
    else:
        split = reshaped(_cut(line, first, 0, whole), apart)
    made = _staged(node, split, [first + 1], [first])
    if whole < extent:
        rest = _reduced(node, _cut(line, first, whole, extent), [first])
        made = make(COMBINE[str(node.attrs["kind"])], (made, converted(rest, made.dtype)))
    return converted(made, node.dtype)


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    """Slices an array: elements `start` to `stop` (exclusive) along one axis."""
    starts = [start if a == axis else 0 for a in range(x.tensor.rank)]
    return sliced(x, starts, [stop if a == axis else s for a, s in enumerate(x.shape)])


def unmerged(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rewrites a reduction over axes that a reshape has merged as a reduction over the axes before
    the reshape; None if this does not apply.

    Merging axes is free for an array in memory. A fused elementwise operand is computed inside of
    the reduction loop instead. There, the merged index would be divided for each element of each
    operand.
    """
    merge = node.args[0]
    axes: tuple[int, ...] = node.attrs["axes"]
    if not is_alias(merge) or scope.used_outside(merge, (node,)):
        return None
    source = merge.args[0]
    if ops.lookup(source.op).kind != "elementwise":
        return None
    rule = reshape_rule(source.shape, merge.shape)
    if rule.whole or any(len(a.names) > 1 for a in rule.inputs[0]):
        return None
    reduced = {n for i in axes for n in rule.outputs[0][i].names}
    own = tuple(i for i, a in enumerate(rule.inputs[0]) if reduced.issuperset(a.names))
    if len(own) <= len(axes):
        return None
    return reshaped(make("reduce", (source,), {**node.attrs, "axes": own}), node.shape)
