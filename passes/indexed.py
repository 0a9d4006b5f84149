"""indexed: compute only the elements that indices select, instead of whole arrays.

- A loss reads one logarithm of each row: only those are computed.
- The gradient of an embedding that is also a classifier's weight is a scatter into zeros plus a
  matmul. The rows are added to the matmul's result, in place if its memory is free, and no array of
  zeros is built.
- If only a part of a sort is read, at its beginning or around its middle, that part is selected.
- If indices along a row are known without data, as in a pad by reflection, the row is copied part
  by part. If they are not, but read copies of one array, as in a roll, only one copy is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stack.ir import ops
from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, constant, make, spread_by_name
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.interpreter import evaluated
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, splat, spread, writes_by_data
from stack.passes.rules.indexing import gathered_operand
from stack.rewrite.engine import Replacement, Scope, on, replace, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


@dataclass(frozen=True)
class Indexed(BlockPass, needs=("gather", "scatter", "sort")):
    """Gather before computing, scatter sums into their addends, select instead of sorting."""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(super().run(func, log), RULES, log)

    def change(self, block: Block, log: Log) -> Block:
        scope, changed = Scope(block, log), dict[Node, Replacement]()
        for node in block.nodes:
            if node.op != "sort":
                continue
            axis, slices = int(node.attrs["axis"]), slices_of(node, scope)
            size = node.args[0].shape[axis]
            limits: list[Dim] = [s.attrs["limit"][axis] for s in slices]
            known = [n for n in limits if isinstance(n, int)]
            if not known or len(known) < len(limits) or not isinstance(size, int):
                continue
            start, first = min(int(s.attrs["start"][axis]) for s in slices), max(known)
            if first - start >= size or not log.spend("indexed"):
                continue
            kept = {"first": first, "start": start} if start else {"first": first}
            chosen = make("sort", node.args, {**node.attrs, **kept})
            for old in slices:
                item = make("item", (chosen,), old.args[0].attrs)
                new = item if item.type == old.type else _later(item, old, axis, start)
                changed[old] = Replacement(new)
        return replace(block, changed) if changed else block


def _later(item: Node, old: Node, axis: int, start: int) -> Node:
    """Returns slice `old` of a whole array as a slice of `item`, which is the part of that array
    from index `start` of an axis on."""
    ends = ("start", "limit")
    moved = {e: tuple(n - start * (i == axis) for i, n in enumerate(old.attrs[e])) for e in ends}
    return make("slice", (item,), {**old.attrs, **moved})


def slices_of(node: Node, scope: Scope) -> list[Node]:
    """Returns the slices of a sort's results if nothing but slices reads them; empty if anything
    else does, or the block returns one."""
    found: list[Node] = []
    for item in scope.users(node):
        users = scope.users(item)
        if not is_item(item) or scope.is_result(item) or any(u.op != "slice" for u in users):
            return []
        found += users
    return [] if scope.is_result(node) else found


@on("gather")
def gather_first(node: Node, op: Builder, scope: Scope) -> Node | None:
    """gather(op(x, v)) with fewer elements than x is op(gather(x), v).

    v must be constant along the indexed axes.
    """
    rule = parse_rule(node.attrs["rule"])
    own, names = ([a.names[0] for a in o] for o in (rule.inputs[0], rule.outputs[0]))
    indexed = {i for i, axis in enumerate(rule.inputs[0]) if axis.mark == "!"}

    def same(arg: Node) -> Node | None:
        if not arg.shape:
            return arg
        axes = spread(arg)
        if axes is None or not indexed.isdisjoint(axes):
            return None
        return spread_by_name(arg.args[0], [own[i] for i in axes], names, node.shape)

    return gathered_operand(node, same)


@on("add", of=("scatter",))
def scatter_last(node: Node, op: Builder, scope: Scope) -> Node | None:
    """y + scatter(0, i, u) is scatter(y, i, u), if sums have at least 32 bits."""
    for whole, rows in (node.args, node.args[::-1]):
        if not writes_by_data(rows) or rows.attrs["kind"] != "add" or splat(rows.args[0]) != 0:
            continue
        if whole.type != node.type or node.dtype.bits < 32 or scope.used_outside(rows, (node,)):
            continue
        return make("scatter", (whole, *rows.args[1:]), rows.attrs)
    return None


MOST_RUNS = 8  # most runs of one gather: each is an operand of a concatenation

Run = tuple[int, int, int]  # first index, length, step


@on("gather")
def gather_of_runs(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A gather along the last axis at known indices: slices, reversed slices, and broadcasts.

    Pads by reflection and replication are such gathers. At least one run must fill a vector:
    otherwise picking elements one by one is as fast.
    """
    if len(node.args) != 2:
        return None
    rule = parse_rule(node.attrs["rule"])
    source, index = node.args
    (own, given), made = rule.inputs, rule.outputs[0]
    axis = next(i for i, a in enumerate(own) if a.mark)
    if axis < source.tensor.rank - 1 or _lies_across(source):
        return None  # the indices select rows, which are copied whole
    if index.tensor.rank != 1 or [*own[:axis], *given, *own[axis + 1 :]] != [*made]:
        return None
    places, size = evaluated(index, "iu"), source.shape[axis]
    if places is None or not isinstance(size, int) or not 0 <= places.min() <= places.max() < size:
        return None
    runs = _runs(places.tolist())
    longest = max(count for _, count, _ in runs) * source.dtype.bytes
    if len(runs) > MOST_RUNS or longest < scope.log.cpu.vector_bytes:
        return None
    parts = [_part(source, axis, run) for run in runs]
    return parts[0] if len(parts) == 1 else make("concat", parts, {"axis": axis})


@on("gather")
def gather_of_copies(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A gather along an axis on which copies of one array follow each other, as in a roll by a
    number that is data: it reads one copy."""
    source, *places = node.args
    if source.op != "concat" or len(set(source.args)) > 1 or len(places) > 1:
        return None
    copy, axis = source.args[0], int(source.attrs["axis"])
    if not parse_rule(node.attrs["rule"]).inputs[0][axis].mark:
        return None
    size = copy.shape[axis]
    if not isinstance(size, int) or not size:
        return None
    within = op.rem(places[0], constant(size, places[0].dtype))
    return make("gather", (copy, within), node.attrs)


def _lies_across(node: Node) -> bool:
    """True if a value is computed by ops that only move elements, one of which is a transpose that
    makes the last axis strided."""
    while node.tensor.rank and node.args and ops.lookup(node.op).kind == "movement":
        if node.op == "transpose" and node.attrs["perm"][-1] != node.tensor.rank - 1:
            return True
        node = node.args[0]
    return False


def _runs(places: Sequence[int]) -> list[Run]:
    """Splits indices into runs of constant step, greedily from the first on."""
    found: list[Run] = []
    first = 0
    while first < len(places) and len(found) <= MOST_RUNS:
        step = places[first + 1] - places[first] if first + 1 < len(places) else 1
        last = first + 1
        while last < len(places) and places[last] - places[last - 1] == step:
            last += 1
        found.append((places[first], last - first, step))
        first = last
    return found


def _part(source: Node, axis: int, run: Run) -> Node:
    """Slices an array to the elements of a run of indices (first, count, step) along an axis. A
    negative step reverses, and step 0 broadcasts one element."""
    first, count, step = run
    low, high = sorted((first, first + (count - 1) * step))
    start, limit, steps = [0] * source.tensor.rank, [*source.shape], [1] * source.tensor.rank
    start[axis], limit[axis], steps[axis] = low, high + 1, abs(step) or 1
    part = make("slice", (source,), {"start": (*start,), "limit": (*limit,), "step": (*steps,)})
    if step < 0:
        return make("reverse", (part,), {"axes": (axis,)})
    if step or count == 1:
        return part
    rest: list[Dim] = [s for i, s in enumerate(source.shape) if i != axis]
    line = make("reshape", (part,), hint=part.tensor.with_shape((*rest,)))
    shape = (*rest[:axis], count, *rest[axis:])
    axes = tuple(i for i in range(len(shape)) if i != axis)
    return make("broadcast", (line,), {"axes": axes}, hint=part.tensor.with_shape(shape))


RULES = (gather_of_runs, gather_of_copies, gather_first, scatter_last)
