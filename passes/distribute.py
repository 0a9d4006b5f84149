"""distribute: lower kernels of a CPU to the loop level.

Kernels that schedule steps made are loops already (`passes/policies`). A `dot` that step
`microkernel` made gets its packed panels here. In all kernels, long sums become sums of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from stack.errors import VerifyError
from stack.ir.lines import with_lines
from stack.ir.node import Block, Node
from stack.ir.printer import print_node
from stack.ir.traits import behind, is_kernel, maker, runs_once
from stack.ir.types import TensorType
from stack.passes.control import BlockPass
from stack.passes.cpu_loops.blocked_sums import sum_in_blocks
from stack.passes.cpu_loops.dot import find_dot, is_packed
from stack.passes.cpu_loops.gemm import counts_of, distribute_gemm, packed_operand, prepacked
from stack.passes.cpu_loops.gemm_plan import Counts
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.equivalent_groups import CachedTransform
from stack.rewrite.log import Log
from stack.target import Cpu, Target, as_cpu


@dataclass(frozen=True)
class Distribute(BlockPass):
    """Lower tile kernels to parallel loops over vectors, and long sums to sums of blocks."""

    def change(self, block: Block, log: Log) -> Block:
        if log.cpu.refused:
            log.note(log.cpu.refused)
        loops_of = CachedTransform(lambda kernel: with_lines(distribute_kernel(kernel, log.cpu)))
        prepacked_of = CachedTransform(
            lambda kernel: with_lines(distribute_prepacked(kernel, log.cpu))
        )

        @cache
        def counted(params: tuple[Node, ...], results: tuple[Node, ...], kept: bool) -> Counts:
            return counts_of(Block(params, results), log.cpu, kept)

        changed: dict[Node, Node | Replacement] = {}
        for node in block.nodes:
            if not is_kernel(node) or not log.spend("distribute"):
                continue
            is_prepacked = has_kept_panels(node, log.cpu)
            body = node.blocks[0]
            dot = find_dot(body)
            if dot is not None and not is_packed(dot):
                counts = counted(body.params, body.results, is_prepacked)
                log.note(f"{node.attrs['name']}: {counts}")
            if not is_prepacked:
                changed[node] = loops_of(node)
                continue
            product = prepacked_of(node)
            panels = {a: "panels" for a in product.args if a not in node.args}
            changed[node] = Replacement(product, names=panels)
        return replace(block, changed)


def distribute_kernel(kernel: Node, target: Target | None = None) -> Node:
    """Lowers one kernel to the loop level. Raises VerifyError for a kernel of a GPU."""
    block = kernel.blocks[0]
    if "warps" in kernel.attrs:
        lines = next((line for line in block.locs.values() if line), ())
        raise VerifyError("a kernel for a GPU has no loops of a CPU", print_node(kernel), lines)
    dot = find_dot(block)
    if dot is not None and not is_packed(dot):
        block = distribute_gemm(block, as_cpu(target))
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", kernel.args, attrs, kernel.type, (sum_in_blocks(block),))


def has_kept_panels(kernel: Node, cpu: Cpu) -> bool:
    """True if a tile kernel packs an operand that is the same in all calls, such as a weight."""
    kept = [runs_once(maker(behind(a))) for a in kernel.args]
    dot = find_dot(kernel.blocks[0])
    if not any(kept) or dot is None or is_packed(dot):
        return False
    operand = packed_operand(kernel.blocks[0], cpu)
    return operand is not None and kept[operand]


def distribute_prepacked(kernel: Node, cpu: Cpu) -> Node:
    """Lowers a tile kernel of one dot to two kernels: one packs panels, one multiplies them."""
    made = prepacked(kernel.blocks[0], cpu)
    args = list(kernel.args)
    attrs = {"level": "loop", "name": "pack", "ops": ("transpose",)}
    panels = made.packing.results[0].tensor
    type_ = TensorType(panels.dtype, panels.shape)
    packing = Node("kernel", [args[made.operand]], attrs, type_, (made.packing,))
    args[made.operand] = packing
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", args, attrs, kernel.type, (sum_in_blocks(made.block),))
