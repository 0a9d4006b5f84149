"""Lowering for a GPU: the builder and the policy for each kind of group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stack.ir.node import Node
from stack.ir.traits import (
    contractions,
    is_contraction,
    is_generated,
    is_running,
    is_stream,
)
from stack.passes.gpu_products.group_split import UNFUSED, horizontal_products
from stack.passes.gpu_products.library_copies import copy_seconds
from stack.passes.gpu_products.product_policy import ProductPolicy
from stack.passes.gpu_products.tile_choice import (
    LIBRARY,
    best_seconds,
    horizontal_product,
    is_given_to_library,
    is_lone,
    library_seconds,
    product_of,
    unfused_seconds,
)
from stack.passes.policies.gpu_streams import ProductStreams, has_products
from stack.passes.policies.mix_order import MixOrderLowering, space_of
from stack.passes.policies.products import Products
from stack.passes.policies.row_streams import RowStreams
from stack.passes.policies.rows import RowLowering
from stack.passes.policies.scans import GpuScans
from stack.passes.policies.step_lowering import (
    Shown,
    StepLowering,
    UserSteps,
    check_list,
    shown,
    written,
)
from stack.passes.steps.primitives import Launch, Step, parse_steps
from stack.passes.tiling.multi_gemm import products_of
from stack.schedule import Policy, Schedule
from stack.target import Gpu, Target, as_gpu

Maker = Callable[[Node, Gpu], StepLowering[Gpu]]


def stream_lowering(stream: Node, gpu: Gpu) -> ProductStreams | RowStreams:
    """Returns the object that lowers a stream to a GPU kernel: one for streams with matmuls, one
    for those without.
    """
    return (ProductStreams if has_products(stream) else RowStreams)(stream, gpu)


# the kinds of groups: the first one whose test is true builds the kernel
LOWERINGS: list[tuple[Callable[[Node, Gpu], bool], Maker]] = [
    (lambda group, _: bool(written(group)), UserSteps),
    (lambda group, _: is_stream(group), stream_lowering),
    (lambda group, _: any(map(is_running, group.blocks[0].nodes)), GpuScans),
    (lambda group, gpu: space_of(group.blocks[0], gpu) is not None, MixOrderLowering),
    (lambda group, _: bool(contractions(group.blocks[0].nodes)), Products),
    (lambda _, __: True, RowLowering),
]


def lowering_of(group: Node, gpu: Gpu) -> StepLowering[Gpu]:
    """Returns the object that lowers a fusion group or a stream to a GPU kernel. Raises CannotTile
    if the group has no such kernel.
    """
    return next(made for takes, made in LOWERINGS if takes(group, gpu))(group, gpu)


def taken_steps(group: Node, text: str, gpu: Gpu) -> list[Step]:
    """Parses a list of steps, and checks that they are legal for the nest of a group.

    A list without `launch` gets one, with the usual number of warps.

    Raises:
        UsageError: the text cannot be read, a step is not legal, or the group has no loop nest.
    """
    made = lowering_of(group, gpu)
    steps = parse_steps(text)
    if not any(isinstance(step, Launch) for step in steps):
        usual = (
            made.policy().complete(Schedule()).warps
            if isinstance(made, RowLowering)
            else Launch.USUAL
        )
        steps.append(Launch(usual))
    check_list(group, steps, gpu)
    return steps


def shown_steps(node: Node, target: Target) -> Shown:
    """Returns the plain loop nest of a group, and the GPU kernel after each loop transformation of
    its schedule; see `stepped.shown`.
    """
    if is_generated(node) and is_given_to_library(node):
        return []
    gpu = as_gpu(target)
    return shown(node, lambda group: lowering_of(group, gpu))


def block_policy(group: Node, gpu: Gpu, has_threads: bool = False) -> Policy | None:
    """Returns the policy that schedules a fusion or a stream; None if there is nothing to choose.

    Args:
        group: a `fusion` or a `stream`.
        gpu: the target.
        has_threads: as for `ProductPolicy`.

    Raises:
        CannotTile: the group has no block kernel.
    """
    if not is_stream(group) and any(map(is_contraction, group.blocks[0].nodes)):
        return product_policy(group, gpu, has_threads)
    if is_stream(group):
        return stream_lowering(group, gpu).policy()
    body = group.blocks[0]
    if any(map(is_running, body.nodes)) or space_of(body, gpu) is not None:
        return None
    return RowLowering(group, gpu).policy()


def product_policy(group: Node, gpu: Gpu, has_threads: bool = False) -> ProductPolicy:
    """Returns the policy of a group with matrix products.

    Its candidates include the alternatives to a fused kernel: a library call, or unfused kernels.

    Args:
        group: a `fusion` with a contraction.
        gpu: the target.
        has_threads: as for `ProductPolicy`.

    Raises:
        CannotTile: the group has no block kernel.
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
        others[LIBRARY] = library_seconds(product, dtype, gpu) + copy_seconds(dots[0], gpu)
    if horizontal:
        others[UNFUSED] = sum(best_seconds(p, dtype, gpu) for p in horizontal)
    elif len(dots) > 1:
        others[UNFUSED] = unfused_seconds(product, dtype, gpu)
    return ProductPolicy(product, dtype, gpu, others, has_threads)
