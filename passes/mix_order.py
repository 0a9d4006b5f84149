"""mix_order: join groups that read the same rows but reduce along different axes.

`fuse` joins only reductions over the same axes. The gradients of a norm reduce along rows, those of
its gain and bias over all rows. One walk over the rows computes all of them (see
`policies/mix_order.py`), and reads each row once. If rows are too long for that, both groups
compute the values that one would write only for the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, make, param, reshaped
from stack.ir.control_ops import result_type
from stack.ir.node import Block, Node, deps, topological
from stack.ir.traits import behind, is_alias, is_fusion, is_item, is_reduction, maker
from stack.ir.types import TupleType
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.mix_order import MixOrderSpace, space_of
from stack.passes.tiling.frame import CannotTile
from stack.rewrite.engine import Replacement, inline_block, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.target import Gpu


@dataclass(frozen=True)
class MixOrder(BlockPass):
    """Join groups that reduce along and across the same rows.

    Attributes:
        max_inputs: most arrays that a joined group may read.
        min_programs: fewest programs that a joined group may run in.
    """

    max_inputs: int = 32
    min_programs: int = 48

    def change(self, block: Block, log: Log) -> Block:
        spaces: Spaces = {}  # each step asks the other pairs again; equal layers have equal ones
        while (fused := self._step(block, log, spaces)) is not None:
            block = fused
        return block

    def _step(self, block: Block, log: Log, spaces: Spaces) -> Block | None:
        """Returns the block with the first suitable pair of row groups joined, or with each
        recomputing the values between them. None if there is no such pair."""
        groups = [n for n in block.nodes if is_fusion(n) and n.attrs["kind"] == "reduction"]
        users = _users(block)
        for second, before in _sharing(groups):
            for first in before:
                if _is_apart(first, second, users):
                    continue
                pair = _Pair(first, second, users, block)
                key = pair.body.params, pair.body.results
                if key not in spaces:
                    spaces[key] = space_of(pair.body, log.gpu)
                space = spaces[key]
                fits = space is not None and space.programs >= self.min_programs
                if len(pair.args) > self.max_inputs or not (fits or pair.is_between(log.gpu)):
                    continue
                lines = (*block.locs.get(first, ()), *block.locs.get(second, ()))
                if not log.spend(
                    "mix_order" if fits else "mix_order_unfused", tuple(dict.fromkeys(lines))
                ):
                    return None
                names = " and ".join(f"%{block.names.get(n, n.op)}" for n in (first, second))
                does = (
                    "are one mix-order reduction" if fits else "each recompute the values between"
                )
                log.note(f"{names} {does}")
                return replace(block, pair.fused() if fits else pair.unfused())
        return None


Users = dict[Node, list[Node]]
Spaces = dict[object, MixOrderSpace | None]  # of pairs, by parameters and results


def _users(block: Block) -> Users:
    found: Users = {}
    for node in block.nodes:
        for arg in dict.fromkeys(deps(node)):
            found.setdefault(arg, []).append(node)
    return found


def _elements(node: Node) -> int:
    sizes = [s for s in node.shape if isinstance(s, int)]
    return math.prod(sizes) if len(sizes) == node.tensor.rank else -1


def _bytes(node: Node) -> int:
    return _elements(node) * node.dtype.bytes


def _has_kernel(group: Node, gpu: Gpu) -> bool:
    try:
        lowering_of(group, gpu).check()
    except CannotTile:
        return False
    return True


def _sources(group: Node) -> set[Node]:
    """Returns those arrays of more than one axis that a group reads, perhaps through views, and
    that have the most elements of all that it reads."""
    bases = {behind(a) for a in group.args}
    most = max((_elements(b) for b in bases), default=0)
    return {b for b in bases if _elements(b) == most and b.tensor.rank > 1}


def _sharing(groups: Sequence[Node]) -> Iterator[tuple[Node, list[Node]]]:
    """Yields each group with those before it that read the same rows: one of the largest arrays
    that it reads is a result of such a group, or one of the largest arrays that this group reads.
    """
    place = {group: i for i, group in enumerate(groups)}
    readers: dict[Node, list[int]] = {}  # places of groups, by the largest arrays that they read
    for i, group in enumerate(groups):
        sources = _sources(group)
        before = {place.get(maker(s), i) for s in sources}
        before.update(*(readers.get(s, ()) for s in sources))
        yield group, [groups[k] for k in sorted(before) if k < i]
        for source in sources:
            readers.setdefault(source, []).append(i)


def _is_apart(first: Node, second: Node, users: Users) -> bool:
    """True if a path from one group to the other contains a node that is neither a view nor an item
    of several results. Joining the groups would then close a cycle."""
    for source, target in ((first, second), (second, first)):
        pending = [(u, False) for u in users.get(source, ())]
        seen: set[tuple[Node, bool]] = set()
        while pending:
            node, left = pending.pop()
            if node is target and left:
                return True
            if (node, left) in seen or node is target:
                continue
            seen.add((node, left))
            left = left or not (is_item(node) or is_alias(node))
            pending.extend((u, left) for u in users.get(node, ()))
    return False


class _Pair:
    """Two groups as one, the first before the second."""

    def __init__(self, first: Node, second: Node, users: Users, block: Block) -> None:
        self.members = (first, second)
        self.block = block
        self.args: list[Node] = []
        self.params: list[Node] = []
        self.values: dict[Node, Node] = {}
        self.b = Builder()
        self.outputs: list[Node] = []
        for member in self.members:
            self._inline(member)
        for member in self.members:
            many = isinstance(member.type, TupleType)
            outs = users.get(member, []) if many else [member]
            self.outputs += [o for o in outs if self._is_needed(o, users)]
        self.body = self.b.block(self.params, [self.values[o] for o in self.outputs])

    def _is_needed(self, value: Node, users: Users) -> bool:
        """True if the block returns a value of the pair, or a node outside of the pair reads it,
        directly or through views."""
        if value in self.block.results:
            return True
        for user in users.get(value, ()):
            if user in self.members:
                continue
            if not is_alias(user) or self._is_needed(user, users):
                return True
        return False

    def _inline(self, member: Node) -> None:
        results = inline_block(member.blocks[0], [self._read(a) for a in member.args], self.b)
        if not isinstance(member.type, TupleType):
            self.values[member] = results[0]
            return
        for i, (result, type_) in enumerate(zip(results, member.type.items, strict=True)):
            self.values[Node("item", (member,), {"index": i}, type_)] = result

    def _read(self, arg: Node) -> Node:
        base = behind(arg)
        if base not in self.values:
            self.values[base] = param(f"p{len(self.args)}", base.type)
            self.args.append(base)
            self.params.append(self.values[base])
        return reshaped(self.values[base], arg.shape)

    def fused(self) -> dict[Node, Replacement]:
        """Returns replacements of the needed results by one group."""
        return self._group(self.outputs, self.members[0])

    def is_between(self, gpu: Gpu) -> bool:
        """True if the second group should recompute values that the first one writes for it alone.

        This must not read more bytes than the values have, repeat no reduction, and leave two
        groups that have kernels.
        """
        first, second = self.members
        own = [v for v in self.values if maker(v) is first]
        passed = [v for v in own if v in set(map(behind, second.args))]
        between = [v for v in passed if v not in self.outputs]
        if not between or all(v in between for v in own):
            return False
        if any(is_reduction(n) for n in topological([self.values[v] for v in passed])):
            return False
        read = {behind(x) for x in first.args} - {behind(x) for x in second.args}
        if sum(map(_bytes, read)) > sum(map(_bytes, between)):
            return False
        made = (r.node for r in self.unfused().values())
        return all(_has_kernel(maker(n), gpu) for n in made)

    def unfused(self) -> dict[Node, Replacement]:
        """Returns replacements of the results by those of two separate groups. Each recomputes the
        other's values that it reads."""
        first, second = self.members
        mine = [o for o in self.outputs if o is second or second in o.args]
        rest = [o for o in self.outputs if o not in mine]
        return {**self._group(rest, first), **self._group(mine, second)}

    def _group(self, outputs: list[Node], like: Node) -> dict[Node, Replacement]:
        results = [self.values[o] for o in outputs]
        found = set(topological(results))
        used = [(a, p) for a, p in zip(self.args, self.params, strict=True) if p in found]
        params = [param(f"p{i}", p.type) for i, (_, p) in enumerate(used)]
        b = Builder()
        block = Block([p for _, p in used], results, self.b.names, self.b.locs)
        body = b.block(params, inline_block(block, params, b))
        attrs = {"kind": "reduction", "name": like.attrs["name"]}
        group = Node("fusion", [a for a, _ in used], attrs, result_type(body.type), (body,))
        if len(outputs) == 1:
            return {outputs[0]: Replacement(group, self.members)}
        return {
            out: Replacement(make("item", (group,), {"index": i}), self.members)
            for i, out in enumerate(outputs)
        }
