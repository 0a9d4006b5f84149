"""Selects the instruction of each matmul of a kernel, before anything is built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stack.ir.node import Node
from stack.ir.traits import contractions, is_contraction
from stack.ir.warp_ops import GROUP, GROUP_COLUMNS, GROUP_ROWS
from stack.passes.gpu_layout.attributes import Attributes
from stack.passes.gpu_layout.classes import is_tile
from stack.passes.gpu_layout.instruction_layouts import (
    fma_layout,
    mma_layout,
    swizzle_of,
    warpgroup_grid,
    warpgroup_layout,
)
from stack.passes.gpu_layout.matmul import Matmul
from stack.passes.gpu_layout.share import Layout
from stack.target import Gpu


class Instructions:
    """The instructions for the matmuls of a kernel, and the layouts that they prescribe.

    Attributes:
        has_warpgroups: True if warpgroups compute all matmuls that use matrix instructions.
        layouts: of the sums of each matmul for which some layout is prescribed.
        accumulations: additions to a matmul result that nothing else uses, each with its matmul:
            the accumulators start from the other operand.
    """

    def __init__(self, nodes: Sequence[Node], attributes: Attributes, gpu: Gpu) -> None:
        self.attributes = attributes
        matmuls = [Matmul(n) for n in contractions(nodes)]
        on_units = [m for m in matmuls if self.uses_matrix_units(m)]
        fits = bool(on_units) and all(_fits_warpgroups(m, attributes.warps) for m in on_units)
        self.has_warpgroups = fits and "wgmma" in gpu.features
        found = {m.node: self.layout_of(m) for m in matmuls}
        self.layouts = {node: layout for node, layout in found.items() if layout}
        self.accumulations = _accumulations(nodes)

    def uses_matrix_units(self, matmul: Matmul) -> bool:
        """True if matrix instructions compute a matmul."""
        return matmul.fits_matrix_units and not self.attributes.wants_fma

    def layout_of(self, matmul: Matmul) -> Layout:
        """The layout that the sums of a matmul should have; empty if none is prescribed."""
        if not self.uses_matrix_units(matmul):
            return fma_layout(matmul, self.attributes)
        make = warpgroup_layout if self.has_warpgroups else mma_layout
        return make(matmul.rows, matmul.columns, self.attributes.warps)


def _fits_warpgroups(matmul: Matmul, warps: int) -> bool:
    """True if warpgroups split a matmul evenly and its columns are whole swizzled rows."""
    if warps % GROUP or matmul.rows % GROUP_ROWS:
        return False
    _, across = warpgroup_grid(matmul.rows, warps)
    width = matmul.columns // across
    item = matmul.node.args[0].dtype.bytes
    line = swizzle_of(matmul.columns * item) // item
    return 8 <= width <= GROUP_COLUMNS and (matmul.is_transposed[1] or width % line == 0)


def _accumulations(nodes: Sequence[Node]) -> dict[Node, Node]:
    uses = Counter(a for n in nodes for a in n.args)
    uses.update(r for n in nodes for b in n.blocks for r in b.results)
    return {
        n: a
        for n in nodes
        for a in (n.args if n.op == "add" and is_tile(n) else ())
        if is_contraction(a) and uses[a] == 1 and all(is_tile(b) for b in n.args)
    }
