"""Products of one left operand in one launch, each by programs of its own: q, k and v.

None of them has as many tiles as would fill the processors to the last turn; together they leave
fewer idle. What follows a product is done by its programs.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.builder import Builder, param
from stack.ir.control_ops import result_type
from stack.ir.dim import Dim, Expr, substitute, symbol
from stack.ir.node import Block, Node, topological
from stack.passes.blocking.multi_gemm import parts_of
from stack.passes.blocking.tile_choice import Product, horizontal_product, product_of
from stack.passes.blocking.tiler import BlockTiler, Grid, Stored
from stack.passes.positions.index_maps import index_maps_of
from stack.passes.tiling.contraction import roles_of
from stack.passes.tiling.frame import CannotTile, static
from stack.rewrite.engine import inline_block


def horizontal_products(body: Block) -> list[Product]:
    """What the model knows of the products of a group that stand side by side; else none.

    Raises CannotTile.
    """
    return [product_of(part_of(body, results), [dot]) for dot, results in parts_of(body)]


def part_of(body: Block, results: Sequence[Node]) -> Block:
    """What of a body makes some of its results."""
    used = topological(results)
    return Block([p for p in body.params if p in used], results, body.names, body.locs)


def alone_of(group: Node) -> list[tuple[Node, list[int]]]:
    """A group for each product of a group, and which of the results are its."""
    body = group.blocks[0]
    outside = dict(zip(body.params, group.args, strict=True))
    attrs = unscheduled(group)
    made: list[tuple[Node, list[int]]] = []
    for _, results in parts_of(body):
        block = part_of(body, results)
        args = [outside[p] for p in block.params]
        part = Node("fusion", args, attrs, result_type(block.type), (block,))
        made.append((part, [i for i, r in enumerate(body.results) if r in results]))
    return made


def unscheduled(group: Node) -> dict[str, object]:
    """The attributes of a group without the schedules that were named for it."""
    return {k: v for k, v in group.attrs.items() if k != "schedule"}


def side_by_side(groups: Sequence[Node]) -> Node:
    """One group of several; its results are theirs, in order."""
    params: dict[Node, Node] = {}
    results: list[Node] = []
    b = Builder()
    for group in groups:
        args = [params.setdefault(a, param(f"p{len(params)}", a.type)) for a in group.args]
        results.extend(inline_block(group.blocks[0], args, b))
    block = b.block(list(params.values()), results)
    attrs = {"kind": "gemm", "name": "_and_".join(str(g.attrs["name"]) for g in groups)}
    return Node("fusion", list(params), attrs, result_type(block.type), (block,))


class HorizontalTiler(BlockTiler):
    """Builds the kernel of such a group."""

    def kernel(self) -> Node:
        self._take(
            horizontal_product(horizontal_products(self.body)), self.body.nodes[0].args[0].dtype
        )
        nests = [self._nest(dot, results) for dot, results in parts_of(self.body)]
        self.grid, first = nests[0]
        return self.finish(first, None, nests[1:])

    def _stores(
        self, results: Stored, memories: Sequence[Node], long: tuple[Expr, int] | None
    ) -> list[Node]:
        """Write the results of one product; the other memories stay as they are."""
        own = {result for result, _ in results}
        mine = [i for i, result in enumerate(self.body.results) if result in own]
        final = list(memories)
        stored = super()._stores(results, [memories[i] for i in mine], long)
        for i, memory in zip(mine, stored, strict=True):
            final[i] = memory
        return final

    def _nest(self, dot: Node, results: Sequence[Node]) -> tuple[Grid, Stored]:
        """The programs of one product, and where they store what."""
        iter_vars = tuple(symbol(f"d{i}", 0, static(s) - 1) for i, s in enumerate(dot.shape))
        index_maps = index_maps_of(self.body, dot, iter_vars)
        if any(r not in index_maps for r in results):
            raise CannotTile("its outputs do not share one index space")
        grid: Grid = []
        found = self._dot_axes(dot, roles_of(dot), grid)
        values: dict[str, Dim] = {str(m): d for m, d in zip(iter_vars, found, strict=True)}
        mine = [r for r in self.body.results if r in results]
        return grid, [(r, tuple(substitute(d, values) for d in index_maps[r])) for r in mine]
