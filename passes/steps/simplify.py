"""Substitute loop variables in a block, and remove guards that become constant.

    select(lt(%j, 48), load(%p0, %j), 0.0)      with %j from 0 to 47:      load(%p0, %j)

Operands are visited on demand: of a selection with a constant condition, only the chosen side is
built.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stack.ir.builder import constant, make
from stack.ir.forms import filled
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import choice, connective, is_load, is_loop, is_store
from stack.passes.steps.edit import Edit
from stack.passes.steps.intervals import WHOLE, Ranges, held, is_condition


def substituted(
    edit: Edit, roots: Sequence[Node], known: Mapping[Node, Node], ranges: Ranges = WHOLE
) -> list[Node]:
    """Rebuilds some values with the nodes in `known` replaced, and removes guards (conditions on
    loop variables) that become constant.

    `ranges`: the iterations that run, for variables that do not run over their whole extent.
    """
    return _Substitution(edit, known, ranges).all(roots)


class _Substitution:
    def __init__(self, edit: Edit, known: Mapping[Node, Node], ranges: Ranges) -> None:
        self.edit, self.ranges = edit, ranges
        self.done = dict(known)
        changed = {v for old in known for v in (old.vars or (old,))} | set(known)
        self.changed = frozenset(changed | set(ranges))

    def all(self, roots: Iterable[Node]) -> list[Node]:
        """Rebuilds all roots. Returns their replacements."""
        found = list(roots)
        pending = list(reversed(found))
        while pending:  # a stack of its own: chains are as long as programs make them
            node = pending[-1]
            missing = [] if node in self.done else self._missing(node)
            if missing:
                pending += missing
                continue
            pending.pop()
        return [self.done[r] for r in found]

    def _missing(self, node: Node) -> list[Node]:
        """Returns the operands that have to be rebuilt before `node` can be; rebuilds it and
        returns none if all are.
        """
        if self.changed.isdisjoint(node.vars) and node not in self.changed:
            self.done[node] = node
            return []
        chosen, test = self._chosen(node)
        needed = [n for n in ([test] if test is not None else []) if n not in self.done]
        if needed:
            return needed
        value = held(self.done[test], self.ranges) if test is not None else None
        if value is not None and chosen is not None:
            side = chosen[0 if value else 1]
            if isinstance(side, Node):
                if side not in self.done:
                    return [side]
                self.done[node] = self.edit.note(node, filled(self.done[side], node))
                return []
            missing = [a for a in side if a not in self.done]
            if not missing:
                args = [self.done[a] for a in side]
                made = make(node.op, args, node.attrs, hint=node.type)
                self.done[node] = self.edit.note(node, made)
            return missing
        missing = [a for a in node.args if a not in self.done]
        if not missing:
            self.done[node] = self.edit.note(node, self._made(node))
        return missing

    def _chosen(self, node: Node) -> tuple[tuple[Node | list[Node], Node] | None, Node | None]:
        """Returns the two alternatives of a select node or a masked access, with its condition;
        None and None for other nodes. A masked access is either the unmasked one, given as its
        operands, or the value in its place.
        """
        if (found := choice(node)) is not None:
            return (found.yes, found.no), found.test
        if is_load(node) or is_store(node):
            index, mask, other = access_parts(node)
            if mask is not None:
                first = node.args[: 1 if is_load(node) else 2]
                skipped = node.args[0] if is_store(node) else other
                assert skipped is not None
                return ([*first, *index], skipped), mask
        return None, None

    def _made(self, node: Node) -> Node:
        """Rebuilds a node with its new operands and blocks; returns a constant for a condition that
        is known.
        """
        args = [self.done[a] for a in node.args]
        blocks = [self._block(b) for b in node.blocks] if is_loop(node) else node.blocks
        made = node.rebuilt(args, blocks=blocks)
        if not is_condition(made):
            return made
        if (value := held(made, self.ranges)) is not None:
            return filled(constant(value, made.dtype), made)
        left = [a for a in made.args if held(a, self.ranges) is None]
        return left[0] if connective(made) and len(left) == 1 else made

    def _block(self, block: Block) -> Block:
        """Rebuilds the body of an inner loop, with the replacements of the code around it."""
        inner = _Substitution(self.edit, {**self.done, **{p: p for p in block.params}}, self.ranges)
        inner.changed = self.changed
        return Block(block.params, inner.all(block.results))
