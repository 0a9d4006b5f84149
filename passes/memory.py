"""memory: assign every intermediate an offset in one arena, reusing memory by live range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stack.ir.func import Func
from stack.ir.memory_reuse import one_before, reads_in_order, reusable
from stack.ir.node import Block, Node
from stack.ir.traits import is_control, is_group, is_item, is_while, maker, place_of
from stack.ir.types import TensorType
from stack.passes.control import changed_bodies
from stack.passes.updates import Reuses, Role, in_place, is_library_of, updatable
from stack.rewrite.engine import replace
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
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
        uses = _Uses(block, made)
        lives = uses.lifetimes()
        keys = list(lives)
        offsets, total = place([lives[k] for k in keys]) if lives else ([], 0)
        where = dict(zip(keys, offsets, strict=True))
        plain = sum(life.size for life in lives.values())
        for node in block.nodes:
            if is_group(node) and log.spend("place", node=f"%{block.names[node]}"):
                keys_of = () if "updates" in node.attrs else uses.results(node)
                at = tuple(where.get(key, -1) for key in keys_of) or (-1,) * len(node.types)
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
        return made if reads_in_order(made) else self._updated(block, inner, {}, log, role)

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


class _Uses:
    """Finds which results of kernels and library steps each node of a block reads, and when.

    Reshapes, items and updates are views: a reader of a view reads the memory of the result behind
    it. Results of the nodes in `made` are not in the arena.
    """

    def __init__(self, block: Block, made: Sequence[Node]) -> None:
        self.block = block
        self.owner: dict[Node, list[Key]] = {}
        self.first: dict[Key, int] = {}
        self.last: dict[Key, int] = {}
        for step, node in enumerate(block.nodes):
            for arg in node.args:
                for key in self.owner.get(arg, ()):
                    self.last[key] = step
            source = one_before(node)
            if source is not None:
                self.owner[node] = self.owner.get(source, [])
            elif is_group(node) and node not in made:
                self.owner[node] = [(node, i) for i in range(len(node.types))]
                for key in self.owner[node]:
                    self.first[key] = self.last[key] = step
            elif is_item(node) and is_group(maker(node)):
                self.owner[node] = self.results(maker(node))[place_of(node) :][:1]

    def results(self, node: Node) -> list[Key]:
        """Returns the results of a kernel or library step that are allocated in the arena; empty
        for other nodes."""
        return self.owner.get(node, [])

    def lifetimes(self) -> dict[Key, Lifetime]:
        """Returns size, first and last use of every result that the block does not return."""
        returned = {key for r in self.block.results for key in self.owner.get(r, ())}
        sizes = {key: _bytes(key[0].types[key[1]]) for key in self.first}
        return {
            key: Lifetime(size, self.first[key], self.last[key])
            for key, size in sizes.items()
            if key not in returned and size >= 0
        }


def _bytes(type_: TensorType) -> int:
    size = type_.bytes
    return size if isinstance(size, int) else -1
