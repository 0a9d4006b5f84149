"""memory: assign every intermediate an offset in one arena, reusing memory by live range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir.func import Func
from stack.ir.memory import one_before, reads_in_order, reusable
from stack.ir.node import Block, Node
from stack.ir.traits import is_control, is_group, is_item, is_while, maker, place_of
from stack.passes.updates import Reuses, Role, in_place, is_library_of, updatable
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass, changed_bodies
from stack.run.memory import Lifetime, place

Key = tuple[Node, int]  # a result of a step


@dataclass(frozen=True)
class Memory(Pass):
    """Set `at` on kernels and library steps: a byte offset for each result, -1 for others.

    Attributes:
        made: ops whose library allocates the result itself, which then gets no offset.
        updated: ops whose library can write the result over its first operand. That is done if
            nothing else needs the operand. Kernels that first copy an operand, such as scatters,
            lose the copy likewise. A carried value of a loop is then updated in place.
    """

    made: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        body = self._plan(self._update(func.body, log, Role.PROGRAM), log)
        return Func(func.name, body, func.level) if body is not func.body else func

    def _plan(self, block: Block, log: Log) -> Block:
        changed = changed_bodies(block, lambda b: self._plan(b, log))
        made = [n for n in block.nodes if is_library_of(n, self.made)] if self.made else []
        lives = _lifetimes(block, made)
        offsets, total = place([*lives.values()]) if lives else ([], 0)
        where = dict(zip(lives, offsets, strict=True))
        plain = sum(life.size for life in lives.values())
        for node in block.nodes:
            if is_group(node) and log.spend("place", node=f"%{block.names[node]}"):
                at = tuple([where.get((node, i), -1) for i in range(len(node.types))])
                new = node.rebuilt(attrs={**node.attrs, "at": at})
                changed[node] = new
        if lives:
            log.note(f"{len(lives)} intermediates of {plain} bytes share an arena of {total} bytes")
        return replace(block, changed)

    def _update(self, block: Block, log: Log, role: Role) -> Block:
        """Returns the block with steps that write their result over a dead operand, in nested
        blocks too. The body of a loop and a branch may overwrite parameters."""
        inner: dict[Node, Node] = {}
        for node in block.nodes:
            if is_control(node):
                loop = {node.blocks[0]: Role.PROGRAM, node.blocks[-1]: Role.BODY}
                roles = loop if is_while(node) else dict.fromkeys(node.blocks, Role.BRANCH)
                blocks = [self._update(b, log, roles[b]) for b in node.blocks]
                inner[node] = node.rebuilt(blocks=blocks)
        reuses = {node: reusable(new) for node, new in inner.items()}
        made = self._updated(block, inner, reuses, log, role)
        if not inner or reads_in_order(made):
            return made
        return self._updated(block, inner, {}, log, role)

    def _updated(
        self, block: Block, inner: Mapping[Node, Node], reuses: Reuses, log: Log, role: Role
    ) -> Block:
        """Returns the block with updates in place and the control flow of `inner`, by old nodes."""
        updates = updatable(block, role, self.updated, reuses)
        changed = {n: new for n, new in inner.items() if new is not n}
        for node, pairs in updates.control.items():
            if pairs and log.spend("update", block.locs.get(node, ())):
                places = [pairs.get(i, -1) for i in range(len(node.types))]
                attrs = {**node.attrs, "reuses": places}
                changed[node] = inner[node].rebuilt(attrs=attrs)
        for node, update in updates.steps.items():
            if log.spend("update", block.locs.get(node, ())):
                changed[node] = in_place(node, update)
        return replace(block, changed)


def _lifetimes(block: Block, made: Sequence[Node]) -> dict[Key, Lifetime]:
    """Returns size, first and last use of every result of a kernel or library step that the arena
    has: none of those that the block returns, and none of the nodes in `made`.

    Reshapes, items and updates are views: a reader of a view reads the memory of the result behind
    it.
    """
    owner: dict[Node, list[Key]] = {}  # the results whose memory a value has
    first: dict[Key, int] = {}
    last: dict[Key, int] = {}
    for step, node in enumerate(block.nodes):
        for arg in node.args:
            last.update(dict.fromkeys(owner.get(arg, ()), step))
        source = one_before(node)
        if source is not None:
            owner[node] = owner.get(source, [])
        elif is_group(node) and node not in made:
            owner[node] = [(node, i) for i in range(len(node.types))]
            first.update(dict.fromkeys(owner[node], step))
            last.update(dict.fromkeys(owner[node], step))
        elif is_item(node) and is_group(maker(node)):
            owner[node] = owner.get(maker(node), [])[place_of(node) :][:1]
    returned = {key for r in block.results for key in owner.get(r, ())}
    found: dict[Key, Lifetime] = {}
    for key in first:
        size = key[0].types[key[1]].bytes
        if key not in returned and isinstance(size, int):
            found[key] = Lifetime(size, first[key], last[key])
    return found
