"""fuse: group ops so that values in between stay out of memory.

Every elementwise op, reduction and movement op ends up in a `fusion` node. Dots, convolutions,
sorts, scans, gathers and scatters stay bare if nothing fuses with them. So do control flow,
framework calls, free reshapes, and ops that the backend has no code for. Kinds of groups, and their
guarantees for backends:

- "loop": every result is one loop space in row-major order; each element is computed on its own.
- "reduction": all reductions run over the same axes (the row) of one space; results are the space,
  or one value for each row.
- "gemm": one dot, or with `multi_gemm` several of one left operand, whose result is the loop space,
  and an elementwise epilogue.

Values that a group would write for others alone are recomputed in their readers. The deviations of
a norm over columns are summed by one kernel and scaled by the next: each reads the array and
recomputes them, instead of writing and reading four bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from typing import Self

from stack.ir import ops
from stack.ir.builder import Builder
from stack.ir.func import Func
from stack.ir.node import Block, Node, topological
from stack.ir.traits import behind, is_contraction, is_input, repeats
from stack.passes.epilogue_fission import fission_epilogues
from stack.passes.rules.movement import in_shape, is_like
from stack.passes.tiling.contraction import why_unfused
from stack.rewrite.engine import Scope, on, replace, rewrite
from stack.rewrite.fusion import FusionRule, Grouping, Limits, steered
from stack.rewrite.fusion_pass import FusionPass
from stack.rewrite.given_groups import GivenGroups
from stack.rewrite.group import Group, bytes_of, flops_of
from stack.rewrite.join import Maps
from stack.rewrite.log import Log
from stack.rewrite.outline import outline
from stack.rewrite.passes import changed_bodies
from stack.rewrite.verdict import NOT_MINE, Acceptance, Ok, Why


def recompute_values(grouping: Grouping) -> None:
    """Recompute cheap values in their readers, if that reads fewer bytes than storing them."""
    refused: dict[Node, tuple[Group, ...]] = {}  # the groups that make and read a value that stays

    def is_done(group: Group, value: Node) -> bool:
        readers = [r for r in grouping.readers.get(value, ()) if r not in group.held]
        consumers = list(dict.fromkeys(g for r in readers for g in grouping.groups.get(r, ())))
        if refused.get(value) == (group, *consumers):
            return False
        refused[value] = group, *consumers
        if any(not grouping.groups.get(r) or is_contraction(r) for r in readers):
            return False
        return _recompute(grouping, group, value, consumers)

    while any(is_done(g, v) for g in grouping.all_groups for v in g.outputs):
        pass


def _recompute(grouping: Grouping, group: Group, value: Node, consumers: Sequence[Group]) -> bool:
    """Tries to recompute `value`, a result of `group`, in all groups that read it, so that `group`
    need not write it. Returns True if it did."""
    chain = _made_of(grouping, group, value)
    if not chain:
        return False
    producer = grouping.regroup(chain)
    if isinstance(producer, Why) or not _reads_less(producer, value, consumers):
        return False
    done = grouping.copies("recompute", replace_fields(producer, outputs=(value,)), consumers)
    for new, old in zip(done, consumers, strict=False):
        grouping.put(new, old)
    if done:
        left = tuple(o for o in group.outputs if o is not value)
        grouping.put(
            replace_fields(group, outputs=left, copied=group.copied | producer.held), group
        )
    return bool(done)


def _made_of(grouping: Grouping, group: Group, value: Node) -> list[Node]:
    """Returns the members of a group that compute a value, if they are few elementwise operations.

    Empty if they are not, if the block returns the value, or if no member reads it.
    """
    if value in grouping.needed or value not in group.read_inside:
        return []
    found = [value]
    for node in found:
        found += [n for n in group.reach(node) if n not in found]
    known = all(ops.lookup(n.op).kind == "elementwise" for n in found)
    cost = sum(flops_of(n) for n in found)
    return found if known and cost <= grouping.limits.recompute else []


def _reads_less(producer: Group, value: Node, consumers: Sequence[Group]) -> bool:
    """True if the groups `consumers` read fewer bytes of further operands to recompute a value than
    writing it once and reading it in each of them takes."""
    read = [v for c in consumers for v in producer.inputs if v not in c.inputs]
    return sum(map(bytes_of, read)) < bytes_of(value) * (1 + len(consumers))


class VerticalFusion(FusionRule):
    """Fuses elementwise and movement ops with each other: chains, diamonds."""

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        if any(group.dots or group.reduces for group in (producer, consumer)):
            return NOT_MINE
        return Ok


class RowFusion(FusionRule):
    """Fuses reductions with producers, consumers and other reductions of the same row."""

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        if producer.dots or consumer.dots:
            return NOT_MINE
        if producer.reduces and maps.moved:
            return Why("the consumer reads a reduction's row at a computed index")
        return Ok


class MultiGemm(FusionRule):
    """Fuses matmuls of one left operand that elementwise ops join: `f(x @ a) * (x @ b)`."""

    stage = 1

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        if not producer.dots or not consumer.dots:
            return NOT_MINE
        if maps.moved:
            return Why("the result of the dot is read at a computed index")
        if any(behind(a) in producer.held for dot in consumer.dots for a in dot.args):
            return Why("a dot reads its operands from memory")
        why = why_unfused((*producer.dots, *consumer.dots))
        return Why(why) if why else Ok


class Epilogue(FusionRule):
    """Fuses a dot with the elementwise ops that follow it: bias, activation, residual.

    It runs in stage 1: ops that a row group takes in at no cost, such as the scale and mask of a
    softmax, stay there.
    """

    stage = 1

    def __init__(self, most: float = 0.0) -> None:
        self.most = most

    def legal(self, producer: Group, consumer: Group, maps: Maps) -> Acceptance | Why:
        if not producer.dots and not consumer.dots:
            return NOT_MINE
        if not producer.dots:
            return Why("a dot reads its operands from memory")
        if consumer.dots:
            return Why("two dots are two kernels")
        if consumer.reduces:
            return Why("the consumer reduces whole rows, and a tile of the dot has parts of rows")
        if maps.moved:
            return Why("the result of the dot is read at a computed index")
        if self.most and maps.merged is not None:
            work = _work_on_others(maps.merged)
            if work > self.most:
                return Why(f"{work:g} operations on an element, at most {self.most:g} are allowed")
        return Ok


def _work_on_others(group: Group) -> float:
    """Returns the scalar operations per result element that a group does after its dot. 0 without a
    dot, or if the group reads no other array as large as the dot's result."""
    if not group.dots:
        return 0.0
    size = group.dots[0].tensor.size
    operands = {a for dot in group.dots for a in dot.args}
    if not any(n.tensor.size == size for n in group.inputs if n not in operands):
        return 0.0
    after = (n for n in group.members if n not in group.dots and n.tensor.size == size)
    return sum(flops_of(n) for n in after)


@on("reshape")
def reshape_first(node: Node, op: Builder, scope: Scope) -> Node | None:
    """reshape(op(x, y)) is op(reshape(x), reshape(y)): views of x and y cost nothing outside of a
    group.

    The reshape moves all the way up, or not at all. Halfway, it would be in the middle of the group
    that computes x, as an index into a dot's tile. At the group's end it is a view of the result.
    """
    inner = node.args[0]
    tree = set(topological([inner], lambda n: is_like(n, inner)))
    own = {node, *tree}
    if any(scope.used_outside(value, own) for value in tree):
        return None
    sources = {a for value in tree for a in value.args if a.shape and a not in tree}
    if not sources or any(s.op == "dot" or (repeats(s) and s.args[0].shape) for s in sources):
        return None
    if len(sources) > 1 and not all(is_input(behind(s)) for s in sources):
        return None  # one of them may be computed in the same group, in its own shape
    return in_shape(node, node.shape, scope)


@dataclass(frozen=True)
class Fuse(FusionPass):
    """Group ops into kernels, greedily by bytes saved.

    Attributes:
        max_inputs: most values that a group may read.
        max_nodes: most ops in a group.
        recompute: most scalar operations to repeat for an element rather than store it.
        epilogue: fuse dots with the elementwise ops that follow them.
        max_epilogue: most scalar operations per element of an epilogue that reads another array of
            the dot's size; 0 for any number. More would take registers from the accumulators of a
            GPU.
        multi_gemm: let several dots of one left operand be one group, with the ops that join them.
        refuse: ops that the backend has no code for; they stay bare, for a library.
        rules: additional fusion rules, `module:Class`, asked before the built-in ones; `-NAME`
            disables a built-in rule.
        groups: groups to form in place of the greedy ones, as "%mul %add" by names of values; a
            group that is not legal is split, and values in no group stay alone. Loop bodies are
            fused as usual.
    """

    max_inputs: int = 32
    max_nodes: int = 128
    recompute: float = 8.0
    epilogue: bool = True
    max_epilogue: float = 0.0
    multi_gemm: bool = False
    refuse: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()

    def prepared(self, func: Func, log: Log) -> Func:
        return rewrite(func, (reshape_first,), log)

    def with_groups(self, groups: Iterable[str]) -> Self:
        return replace_fields(self, groups=tuple(groups))

    def run(self, func: Func, log: Log) -> Func:
        func = self.prepared(func, log)
        if not self.groups:
            return super().run(func, log)
        done: dict[Block, Block] = {}
        changed = changed_bodies(func.body, lambda body: self.block(body, log, done))
        body = replace(func.body, changed)
        grouping = self.grouping(body, log)
        GivenGroups(body, self.groups).form(grouping)
        grouping.report()
        return Func(func.name, outline(grouping), func.level)

    def grouping(self, block: Block, log: Log) -> Grouping:
        rules: tuple[FusionRule, ...] = (VerticalFusion(), RowFusion())
        grouped = frozenset({"reduce"})
        if self.epilogue:
            multi_gemm = (MultiGemm(),) if self.multi_gemm else ()
            rules = (*rules, *multi_gemm, Epilogue(self.max_epilogue))
            grouped |= {"dot"}
        rules = steered(rules, self.rules) if self.rules else rules
        limits = Limits(self.max_inputs, self.max_nodes, self.recompute)
        return Grouping(block, rules, log, limits, grouped, frozenset(self.refuse))

    def change(self, block: Block, log: Log) -> Block:
        grouping = self.grouping(block, log)
        grouping.run(0)
        if len(grouping.all_groups) > 1:
            recompute_values(grouping)
            if self.epilogue:
                fission_epilogues(grouping)
        if self.epilogue:
            grouping.run(1)
        grouping.report()
        return outline(grouping)
