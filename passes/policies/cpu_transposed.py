"""Strided accesses on a CPU: transpose blocks in local memory, so that vectors are contiguous.

If an operand is stored transposed, vectorizing the output's innermost axis would read one element
from each cache line. Where consecutive iterations of the next outer loop read consecutive elements,
the policy stages a block of them: `split i 16; stage_mem p0 i.1`. If output rows are shorter than a
vector, it vectorizes across rows and stages the output: `reorder i j; stage_mem o0 j`.
"""

from __future__ import annotations

from collections.abc import Mapping

from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import is_load
from stack.passes.policies.cpu_vectors import Plan, is_innermost, partition
from stack.passes.policies.step_lowering import split
from stack.passes.steps.affine import start_along
from stack.passes.steps.loops import axes, axis_of, loops_along
from stack.passes.steps.primitives import LoweredKernel, Reorder, Split, StageMem
from stack.passes.steps.stage_mem import StridedAccess, strided_accesses
from stack.passes.tiling.frame import static
from stack.target import Cpu


def move_unit_stride_inward(made: LoweredKernel, plan: Plan) -> None:
    """Makes the axis along which the largest transposed operand is contiguous the innermost of the
    axes that are not reduced.
    """
    sizes: dict[str, int] = {}
    for loop, around in loops_along(made.kernel, plan.lane) if plan.lane else ():
        lane = loop.blocks[0].params[0]
        variables = {outer.blocks[0].params[0]: axis_of(outer) for outer in around}
        for node in filter(is_load, loop.blocks[0].all_nodes):
            *others, last = access_parts(node)[0] or [lane]
            if not any(lane in place.vars for place in others):
                continue
            for var, axis in variables.items():
                if axis in plan.kept and start_along(last, var) is not None:
                    size = static(node.args[0].tensor.bytes)
                    sizes[axis] = max(size, sizes.get(axis, 0))
    if not sizes:
        return
    axis = max(sizes, key=sizes.__getitem__)
    plan.sink(made, axis, f"the largest transposed operand is contiguous along {axis}")


def strided_inputs(kernel: Node, plan: Plan, cpu: Cpu) -> Mapping[str, StridedAccess]:
    """Returns the inputs to copy through local memory, by name: they are strided along the vector
    axis and contiguous along the last axis that is not reduced.

    Empty if a staged block would exceed its share of the cache, or has too few lines to pay off.
    """
    if not is_innermost(kernel, plan):
        return {}
    found = {
        memory: access
        for memory, access in strided_accesses(kernel, plan.kept[-1]).items()
        if access.is_read and access.dtype.kind != "b"
    }
    lines = min((_lines(a, cpu) for a in found.values()), default=0)
    footprint = sum(lines * a.shape[1] * a.dtype.bytes for a in found.values())
    fits = lines >= cpu.rows.staged_lines and footprint <= cpu.staged_bytes
    return found if fits else {}


def _lines(access: StridedAccess, cpu: Cpu) -> int:
    return min(cpu.vector_bytes // access.dtype.bytes, access.shape[0])


def stage_inputs(
    made: LoweredKernel, plan: Plan, strided: Mapping[str, StridedAccess], cpu: Cpu
) -> None:
    """Splits a loop, and copies the strided inputs of each of its blocks to local memory,
    transposed.
    """
    axis, lane = plan.kept[-1], plan.lane
    partition(made, axis)
    lines = min(_lines(a, cpu) for a in strided.values())
    parts = loops_along(made.kernel, axis)
    extent = axes(made.kernel)[axis]
    if axis in plan.parallel:
        plan.parallel.remove(axis)
    if extent > lines:
        even = (n for n in range(lines, cpu.rows.staged_lines - 1, -1) if extent % n == 0)
        block = next(even, lines)
        outer, axis = split(made, axis, block, "peel", "a block is as wide as a vector")
        plan.parallel += [outer] if extent >= 2 * block else []
    columns = next((n for n in range(64, 31, -8) if axes(made.kernel)[lane] % n == 0), 0)
    is_whole = len(parts) == 1 and len(loops_along(made.kernel, axis)) == 1
    if is_whole and not plan.is_reduced and axes(made.kernel)[lane] > 64 and columns:
        cut = Split(lane, columns).because("a block fits in the first-level cache")
        made.take(cut, Reorder(axis, cut.outer))
        plan.parallel.append(cut.outer)
        plan.lane = cut.inner
    for memory in strided:
        made.may(StageMem(memory, axis).because(f"{memory} is strided along {lane}"))


def stage_outputs(made: LoweredKernel, plan: Plan) -> None:
    """Copies those outputs through local memory that a loop over a reduction axis stores with a
    stride.
    """
    for axis in axes(made.kernel):
        if axis in (*plan.kept, plan.lane):
            continue
        for memory, access in strided_accesses(made.kernel, axis).items():
            if not access.is_read and str(access.lane.attrs["name"]) == plan.lane:
                why = f"{memory} is strided along {plan.lane}"
                made.may(StageMem(memory, axis).because(why))


def vectorize_rows(made: LoweredKernel, plan: Plan, cpu: Cpu) -> str:
    """Vectorize across rows if rows are shorter than a vector.

    Returns the axis of a row, which then encloses the vector axis, or "" if nothing was done.
    """
    if not _has_short_rows(made.kernel, plan, cpu):
        return ""
    rows, row = plan.kept.pop(), plan.lane
    plan.parallel.remove(rows)
    outer, rows = split(made, rows, cpu.rows.stored_rows, "peel", "threads share blocks of rows")
    plan.parallel += [outer] if outer else []
    made.take(Reorder(rows, row).because("a row is shorter than a vector: vectorize across rows"))
    plan.lane = rows
    for output in made.kernel.blocks[0].params[len(made.kernel.args) :]:
        why = "a block of rows is stored at once"
        made.may(StageMem(str(output.attrs["name"]), row).because(why))
    return row


def _has_short_rows(kernel: Node, plan: Plan, cpu: Cpu) -> bool:
    """True if every output row is shorter than a vector and either most operands are strided or
    deinterleaving costs less than idle lanes."""
    if plan.is_reduced or not is_innermost(kernel, plan):
        return False
    found = axes(kernel)
    rows, row = found[plan.kept[-1]], found[plan.lane]
    others = {name for name in found if name not in (*plan.kept, plan.lane)}
    outputs = kernel.blocks[0].params[len(kernel.args) :]
    if others or any(o.dtype.kind == "b" for o in outputs) or not 1 < row < cpu.lanes <= rows:
        return False
    if Reorder(plan.kept[-1], plan.lane).why_not(kernel, cpu):
        return False
    size = row * max(o.dtype.bytes for o in outputs)
    is_short = size * cpu.rows.deinterleaved_rows < cpu.vector_bytes
    return is_short or _mostly_strided(kernel, plan)


def _mostly_strided(kernel: Node, plan: Plan) -> bool:
    """True if more than half of the bytes that vary along a row are read with a stride."""
    strided = set(strided_accesses(kernel, plan.kept[-1]))
    sizes: dict[str, int] = {}
    for loop, _ in loops_along(kernel, plan.lane):
        lane = loop.blocks[0].params[0]
        for node in filter(is_load, loop.blocks[0].all_nodes):
            if any(lane in place.vars for place in access_parts(node)[0]):
                memory = node.args[0]
                sizes[str(memory.attrs["name"])] = static(memory.tensor.bytes)
    return 2 * sum(size for name, size in sizes.items() if name in strided) > sum(sizes.values())
