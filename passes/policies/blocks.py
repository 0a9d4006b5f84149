"""Which builder gives the kernel of a group on a GPU, and which policy schedules it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from stack.ir.node import Node
from stack.ir.traits import contractions, is_contraction, is_running, is_stream
from stack.passes.blocking.horizontal import HorizontalTiler, horizontal_products
from stack.passes.blocking.mix_order import MixOrderTiler, space_of
from stack.passes.blocking.multi_gemm import parts_of, products_of
from stack.passes.blocking.product_policy import ProductPolicy
from stack.passes.blocking.scan import ScanTiler
from stack.passes.blocking.stream import StreamTiler
from stack.passes.blocking.tile_choice import (
    LIBRARY,
    best_seconds,
    horizontal_product,
    is_lone,
    library_seconds,
    product_of,
    unfused_seconds,
)
from stack.passes.blocking.tiler import BlockTiler
from stack.passes.blocking.unfused import UNFUSED
from stack.passes.policies.rows import Rows
from stack.schedule import Policy
from stack.target import Gpu


class Lowering(Protocol):
    """What gives the kernel of one group."""

    def kernel(self) -> Node:
        """The kernel node. Raises CannotTile."""
        ...


Maker = Callable[[Node, Gpu], Lowering]

# the kinds of groups: the first whose test a group passes gives its kernel
LOWERINGS: list[tuple[Callable[[Node], bool], Maker]] = [
    (is_stream, StreamTiler),
    (lambda group: any(map(is_running, group.blocks[0].nodes)), ScanTiler),
    (lambda group: space_of(group.blocks[0]) is not None, MixOrderTiler),
    (lambda group: bool(parts_of(group.blocks[0])), HorizontalTiler),
    (lambda group: bool(contractions(group.blocks[0].nodes)), BlockTiler),
    (lambda _: True, Rows),
]


def lowering_of(group: Node, gpu: Gpu) -> Lowering:
    """What gives the kernel of blocks of a group. Raises CannotTile."""
    return next(made for takes, made in LOWERINGS if takes(group))(group, gpu)


def block_policy(group: Node, gpu: Gpu, has_threads: bool = False) -> Policy | None:
    """The policy of a fusion or a stream; None where blocks are not a matter of choice.

    `has_threads` as for `ProductPolicy`.

    Raises:
        CannotTile: no kernel of blocks computes it.
    """
    if not is_stream(group) and any(map(is_contraction, group.blocks[0].nodes)):
        return product_policy(group, gpu, has_threads)
    if is_stream(group):
        return StreamTiler(group, target=gpu).policy()
    body = group.blocks[0]
    if any(map(is_running, body.nodes)) or space_of(body) is not None:
        return None
    return Rows(group, gpu).policy()


def product_policy(group: Node, gpu: Gpu, has_threads: bool = False) -> ProductPolicy:
    """The policy of a group with a product, and what may take the place of its kernel.

    Raises:
        CannotTile: no kernel of blocks computes it.
    """
    body = group.blocks[0]
    dots = contractions(body.nodes)
    dtype = dots[0].args[0].dtype
    by_threads = has_threads and not (dtype.is_float and dtype.bits == 16)
    horizontal = [replace(p, by_threads=by_threads) for p in horizontal_products(body)]
    product = horizontal_product(horizontal) if horizontal else product_of(body, products_of(body))
    product = replace(product, by_threads=by_threads)
    others: dict[str, float] = {}
    if is_lone(body, dots[0]):
        others[LIBRARY] = library_seconds(product, dtype, gpu)
    if horizontal:
        others[UNFUSED] = sum(best_seconds(p, dtype, gpu) for p in horizontal)
    elif len(dots) > 1:
        others[UNFUSED] = unfused_seconds(product, dtype, gpu)
    return ProductPolicy(product, dtype, gpu, others, has_threads)
