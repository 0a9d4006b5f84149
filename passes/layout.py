"""layout: absorb transposes into dots, or move them past other ops, to copy the fewest bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from stack.ir import ops
from stack.ir.builder import Builder
from stack.ir.conv_op import channels_second, sums_over_images
from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.traits import axis_order, is_alias, mixes, reads_by_data
from stack.passes.cpu_products.phases import product_of_phases
from stack.passes.cpu_products.windows import fills_vectors, why_kept, why_library
from stack.passes.rules.convolutions import (
    are_apart,
    are_places,
    comes_last,
    is_sum_of_taps,
    places_apart,
    single_channels,
    windows_apart,
    with_channels_last,
)
from stack.passes.rules.dot_layout import DOT_RULES
from stack.passes.rules.movement import MOVEMENT_RULES
from stack.passes.rules.transposes import ALIGNED, HOIST_RULES, SINK_RULES
from stack.passes.tiling.frame import static
from stack.rewrite.engine import Rule, Scope, on, rewrite
from stack.rewrite.group import bytes_of
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.target import Cpu

_BASE: tuple[Rule, ...] = (*MOVEMENT_RULES, *DOT_RULES)
_STEPS: dict[str, tuple[Rule, ...]] = {
    "absorb": _BASE,
    "sink": (*_BASE, *SINK_RULES),
    "hoist": (*_BASE, *HOIST_RULES),
}
# plans to try, simplest first: a later one is chosen only if it moves fewer bytes
_PLANS: tuple[tuple[str, ...], ...] = (
    ("absorb",),
    ("sink",),
    ("hoist",),
    ("sink", "hoist"),
)

# functions after a plan, with their logs, by the block before it
_Tried = dict[tuple[Block, tuple[str, ...]], tuple[Func, Log]]


@dataclass(frozen=True)
class Layout(Pass, needs=("transpose", "dot", "ragged_dot", "conv")):
    """Cancel transposes and absorb them into dots, sinking or hoisting them if that saves bytes.

    Attributes:
        loops: the target of the kernels. With `cpu`, convolutions that multiply windows get their
            channels last, if the remaining copies cost less than a library's reordering. Others
            whose windows do not overlap become matmuls. A transpose whose reader reduces with one
            element per cache line costs more than a copy.
    """

    loops: str = ""

    def run(self, func: Func, log: Log) -> Func:
        is_cpu = self.loops == "cpu"
        tried: _Tried = {}
        if is_cpu and "conv" in func.body.ops:
            func = rewrite(func, (phases_together,), log)
            pays = _windows_pay(func, log, tried)
            first = (windows_last,) if pays else (single_channels, places_apart)
            func = rewrite(func, (*first, windows_apart), log)
        best, least = _best(func, log, tried, is_cpu)
        before = transposed_bytes(func.body, is_cpu)
        log.note(f"plan {'+'.join(best)}: {before} bytes of transposes before, {least} after")
        if log.fuel.left is None:
            found, made = _apply(best, func, log, tried)
            log.extend(made)
            return found
        for step in best:
            func = rewrite(func, _STEPS[step], log)
        return func


def _may_stand_last(conv: Node) -> bool:
    """True if the layout of a float convolution may be changed to channels last: it does not have
    it yet, and is not the gradient of a weight. Libraries support that layout, too."""
    is_other = conv.attrs.get("channels_last") or sums_over_images(conv)
    return conv.dtype.is_float and conv.tensor.rank > 2 and not is_other


@on("conv")
def phases_together(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A convolution with a dilated image: one matmul computes all phases of the result."""
    return product_of_phases(node, scope.log.cpu)


@on("conv")
def windows_last(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Convert a convolution to channels last, between transposes."""
    if not _may_stand_last(node):
        return None
    return with_channels_last(node, {**node.attrs, "channels_last": True})


def _best(
    func: Func, log: Log, tried: _Tried, by_lines: bool, enough: int = 0
) -> tuple[tuple[str, ...], int]:
    """Tries plans, which are sequences of transpose rewrites. Returns the plan after which
    transposes move the fewest bytes, and these bytes. Stops early at a plan that leaves at most
    `enough` bytes."""
    best: tuple[str, ...] = ()
    least: int | None = None
    for plan in _PLANS:
        cost = transposed_bytes(_apply(plan, func, log, tried)[0].body, by_lines)
        if least is None or cost < least:
            best, least = plan, cost
        if least <= enough:
            break
    return best, least or 0


def _windows_pay(func: Func, log: Log, tried: _Tried) -> bool:
    """True if transposing images to channels last costs fewer bytes than it saves.

    It saves loops over memory: epilogues, which matmuls compute themselves, and a library's
    reordering of images, results and weights.
    """
    moved = [n for _, n in walk(func.body) if n.op == "conv" and _may_stand_last(n)]
    if all(_stands_second(n, log.cpu) for n in moved):
        return False
    trial = rewrite(func, (windows_last,), Log(target=log.target))
    convs = [n for _, n in walk(trial.body) if n.op == "conv" and _is_overlapping(n)]
    saved = sum(2 * bytes_of(n) for n in convs)
    products = [n for n in convs if not why_kept(n, log.cpu) and fills_vectors(n, log.cpu)]
    saved += sum(2 * (bytes_of(n) + bytes_of(n.args[0])) for n in products)
    # matmuls read their weights in place
    saved += sum(2 * bytes_of(n.args[1]) for n in moved if not why_library(n, log.cpu))
    _, left = _best(trial, log, tried, by_lines=True, enough=saved)
    log.note(f"windows of {len(convs)} convolutions: {left} bytes of transposes, for {saved}")
    return left <= saved


def _stands_second(conv: Node, cpu: Cpu) -> bool:
    """True if a convolution is as fast with its channels in front of the image axes, because it
    reads each element of the image only a few times."""
    taps = prod(map(static, channels_second(conv.args[1].shape, conv.attrs)[2:]))
    if comes_last(conv):
        reads = cpu.convolutions.copied_reads * prod(conv.attrs["stride"])
        return is_sum_of_taps(conv) and taps < reads
    if are_apart(conv) or are_places(conv):
        return True
    fills_rows = is_sum_of_taps(conv) and static(conv.shape[-1]) >= cpu.lanes
    return fills_rows and taps < cpu.convolutions.copied_taps


def _is_overlapping(conv: Node) -> bool:
    """True if a convolution has channels last and overlapping windows."""
    return bool(conv.attrs.get("channels_last")) and not are_apart(conv)


def _apply(plan: tuple[str, ...], func: Func, log: Log, tried: _Tried) -> tuple[Func, Log]:
    """Returns the function after the rewrites of a plan, one after another, and their log. Results
    are cached in `tried` for each prefix of a plan."""
    made = Log(verbose=log.verbose)
    if not plan:
        return func, made
    key = func.body, plan
    if key not in tried:
        func, before = _apply(plan[:-1], func, log, tried)
        made.extend(before)
        tried[key] = rewrite(func, _STEPS[plan[-1]], made), made
    return tried[key]


def _takes_as_it_lies(node: Node) -> bool:
    """True if a node needs its operands in row-major order, such as a matmul, a free reshape or a
    gather. A transposed operand must then be copied first."""
    whole = ops.lookup(node.op).kind in ("contraction", "foreign")
    return whole or is_alias(node) or mixes(node) or reads_by_data(node)


def transposed_bytes(block: Block, by_lines: bool = False) -> int:
    """Counts the bytes that transposes move. A transpose that elementwise code reads in place
    counts half.

    With `by_lines`, it counts more than a copy if a reduction reads one element per cache line.
    """
    total = 0
    readers: dict[object, list[Node]] = {}
    for node in block.nodes:
        for arg in node.args:
            readers.setdefault(arg, []).append(node)
        for inner in node.blocks:
            total += transposed_bytes(inner)
    for node in block.nodes:
        if axis_order(node):
            must_exist = node in block.results or any(map(_takes_as_it_lies, readers.get(node, ())))
            reads = 3 if by_lines and _is_reduced_across(node, readers) else 1
            total += bytes_of(node) * (2 if must_exist else reads)
    return total


def _is_reduced_across(transpose: Node, readers: Mapping[object, Sequence[Node]]) -> bool:
    """True if a reduction behind a transpose, perhaps after elementwise ops, reduces the axis that
    is contiguous in memory and keeps the last axis of the transpose. It then reads one element per
    cache line."""
    perm = axis_order(transpose) or ()
    last = len(perm) - 1
    along = perm.index(last)  # the contiguous axis of the source
    seen, left = {transpose}, [transpose]
    while left and along != last:
        for reader in readers.get(left.pop(), ()):
            axes = reader.attrs["axes"] if reader.op == "reduce" else ()
            if along in axes and last not in axes:
                return True
            if reader.op in ALIGNED and reader.shape == transpose.shape and reader not in seen:
                seen.add(reader)
                left.append(reader)
    return False
