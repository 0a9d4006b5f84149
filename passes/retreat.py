"""retreat: compute a group in another way if the compiler refused its kernel."""

from __future__ import annotations

from dataclasses import dataclass

from stack.errors import UsageError
from stack.ir.builder import Builder, make, param, results_of
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_fusion, is_item, is_known, is_stream, items_of, place_of
from stack.ir.types import TupleType
from stack.passes.fuse import Fuse
from stack.passes.inline import Unfuse
from stack.passes.policies.step_lowering import written
from stack.passes.schedule import WriteSchedules
from stack.rewrite.engine import Replacement, inline_block, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass
from stack.schedule import schedules_of
from stack.target import Target


@dataclass(frozen=True)
class Retreat(BlockPass):
    """Give a group marked `refused` its next schedule, split it, or leave it to a library.

    This ends: schedules are tried in order, and groups contain fewer ops each time.

    Attributes:
        schedules: number of schedules that a matmul tries before its group is split; 0 if the
            backend proposes none.
    """

    schedules: int = 0

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node | Replacement] = {}
        for node in block.nodes:
            why, lines = node.attrs.get("refused"), block.locs.get(node, ())
            if why is None or not log.spend("retreat", lines):
                continue
            way, found = self._next(node, block, log.target)
            changed |= found
            log.note(f"{block.names.get(node, node.op)} takes {way}: {why}", lines)
        return replace(block, changed)

    def _next(
        self, node: Node, block: Block, target: Target | None
    ) -> tuple[str, dict[Node, Node | Replacement]]:
        """Returns the fallback of a group whose kernel the compiler refused: its description for
        the log, and the replacements. It is the next schedule, smaller groups, or a library, in
        this order."""
        schedule = self._schedule(node, target)
        if schedule:
            return f"schedule {schedule}", {node: _with(node, schedule=schedule)}
        parts = smaller(node, target, bool(self.schedules))
        if parts is None:
            new = _with(node, kind="library", why="its compiler refused a kernel", schedule=None)
            return "the library", {node: new}
        groups = [n for n in parts.nodes if not (is_known(n) or is_item(n))]
        return f"{len(groups)} groups", instead(node, parts.body, block)

    def _schedule(self, node: Node, target: Target | None) -> str:
        """Returns the schedule after the one that was refused; "" if there is none."""
        named = schedules_of(node)
        if not self.schedules or not named:
            return ""
        known = WriteSchedules(most=self.schedules).best(node, target)
        after = known[known.index(named[0]) + 1 :] if named[0] in known else known
        return after[0] if after else ""


def without_kernel(
    node: Node, why: Exception, block: Block, log: Log, lowering: BlockPass, scheduled: bool
) -> dict[Node, Node | Replacement]:
    """Returns the replacements of a group or stream without a kernel: smaller groups, to which the
    pass `lowering` is applied. Empty if it stays as it is. The groups get schedules if `scheduled`.
    Raises UsageError if a user wrote its steps.
    """
    name, lines = block.names.get(node, node.op), block.locs.get(node, ())
    if written(node):
        raise UsageError(f"%{name}: its steps make no kernel: {why}") from why
    parts = smaller(node, log.target, scheduled) if node.blocks else None
    if parts is None or not log.spend("parts", lines):
        log.note(f"{name} stays as it is: {why}", lines)
        return {}
    log.note(f"{name} becomes smaller groups: {why}", lines)
    return instead(node, lowering.block(parts.body, log, {}), block)


def smaller(node: Node, target: Target | None, scheduled: bool) -> Func | None:
    """Returns a group or stream as a function of smaller groups; None if it cannot be split.

    A stream first becomes one of its states alone, and groups that compute the results from these:
    without a stream, values as long as its axis would be in memory. The groups get schedules if
    `scheduled`.
    """
    params = [param(f"x{i}", a.type) for i, a in enumerate(node.args)]
    group = _with(node.rebuilt(params))
    if is_stream(node) and node.blocks[2].nodes:
        apart = Func("parts", _states_first(group))
        return _scheduled(Fuse().run(apart, Log(target=target)), target, scheduled)
    alone = Func("parts", Block(params, results_of(group)))
    plain = Unfuse().run(alone, Log(target=target))
    limit = len(plain.nodes) // 2
    if is_stream(node):
        return _scheduled(Fuse().run(plain, Log(target=target)), target, scheduled)
    while limit:
        parts = Fuse(max_nodes=limit).run(plain, Log(target=target))
        if all(_size(n) < _size(node) for n in parts.nodes) and len(parts.nodes) > 1:
            return _scheduled(parts, target, scheduled)
        limit //= 2
    return None


def _states_first(stream: Node) -> Block:
    """Returns a block that computes a stream's results from the results of another stream: the
    states of the first."""
    states, correct, finish = stream.blocks
    ends = finish.params[: len(states.results)]
    blocks = (states, correct, Block(finish.params, ends))
    made = _with(make("stream", stream.args, stream.attrs, blocks), schedule=None)
    b = Builder()
    results = inline_block(finish, [*results_of(made), *stream.args], b)
    return Block(stream.args, results, b.names, b.locs)


def _scheduled(func: Func, target: Target | None, scheduled: bool) -> Func:
    return WriteSchedules().run(func, Log(target=target)) if scheduled else func


def _size(node: Node) -> int:
    """Counts the ops in a group."""
    return len(node.blocks[0].nodes) if is_fusion(node) else 0


def _with(node: Node, **more: object) -> Node:
    """Returns the group with the attributes `more`, and without its mark `refused`.

    A value of None removes an attribute.
    """
    attrs = {**node.attrs, "refused": None, **more}
    held = {k: v for k, v in attrs.items() if v is not None}
    return node.rebuilt(attrs=held)


def instead(node: Node, parts: Block, block: Block) -> dict[Node, Node | Replacement]:
    """Returns replacements of the results of the group `node` by those of `parts`, a block that
    computes the same in smaller groups."""
    b = Builder()
    found = inline_block(parts, node.args, b)
    if not isinstance(node.type, TupleType):
        return {node: Replacement(found[0], (), b.names, b.locs)}
    return {
        n: Replacement(found[place_of(n)], (node,), b.names, b.locs)
        for n in items_of(node, block.nodes)
    }
