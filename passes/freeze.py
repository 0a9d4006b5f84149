"""freeze: what is made of weights alone stands in a call of its own, which need not run each time.

Partial evaluation: the weights are known to stay from call to call, so what depends on them alone
is known too. The call gives the values that cross over to the rest of the program: those that the
rest would write to memory in each call, and those that it reads no more bytes of than of what
they are made of. What it would read larger, such as a small integer that becomes a float, it goes
on making itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.errors import unknown_name
from stack.ir.builder import Builder, param, results_of
from stack.ir.node import Block, Func, Node
from stack.ir.ops import lookup
from stack.ir.traits import (
    behind,
    is_array,
    is_contraction,
    is_input,
    is_known,
    is_while,
    runs_once,
    unchanged_in,
)
from stack.ir.types import TensorType
from stack.rewrite.engine import Replacement, copied, replace
from stack.rewrite.group import bytes_of
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass

STAY = ("control", "foreign", "group", "item")  # kinds of ops that run where they stand
FROM_MEMORY = ("contraction", "control", "foreign", "group")  # kinds that read what was written


@dataclass(frozen=True)
class Freeze(Pass):
    """Put what is made of weights and constants alone into a call with `once`.

    Weights that products take go through it as they are: a later pass may pack them there.

    Attributes:
        weights: names of the parameters that stay as they are from call to call.
    """

    name: ClassVar[str] = "freeze"
    weights: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        known = {str(p.attrs["name"]): p for p in func.params}
        for name in self.weights:
            if name not in known:
                raise unknown_name("no parameter", name, known)
        weights = [known[name] for name in self.weights]
        return Func(func.name, _frozen(func.body, weights, log), func.level)


def _frozen(block: Block, weights: Sequence[Node], log: Log) -> Block:
    """A block, and bodies in it, with a call for what is made of weights alone."""
    known = _Frozen(block, weights).sources
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if is_while(node):
            *tests, body = node.blocks
            staying = [p for p, arg in unchanged_in(node).items() if arg in known]
            body = _frozen(body, staying, log)
            changed[node] = Replacement(node.rebuilt(blocks=[*tests, body]))
    block = replace(block, changed) if changed else block
    found = _Frozen(block, weights)
    crossing = [n for n in found.crossing() if log.spend("freeze", found.lines(n))]
    for node in crossing:
        if not is_input(node):
            log.note(found.told(node), found.lines(node))
    return _with_call(block, crossing, found) if crossing else block


def _takes_it_once(node: Node, value: Node) -> bool:
    """Whether a node is a loop whose body has a call with `once` on a value."""
    if not is_while(node):
        return False
    calls = [n for n in node.blocks[-1].nodes if runs_once(n)]
    given = [p for p, arg in unchanged_in(node).items() if arg is value]
    return any(p in call.args for call in calls for p in given)


class _Frozen:
    """What a block makes of weights alone.

    Attributes:
        sources: for each such value the weights and constant arrays that it is made of.
    """

    def __init__(self, block: Block, weights: Sequence[Node]) -> None:
        self.block = block
        arrays = (n for n in block.nodes if is_array(n))
        self.sources: dict[Node, frozenset[Node]] = {n: frozenset({n}) for n in (*weights, *arrays)}
        for node in block.nodes:
            if node.blocks or lookup(node.op).kind in STAY:
                continue
            found = [self.sources[a] for a in node.args if a in self.sources]
            is_alone = all(a in self.sources or is_known(a) for a in node.args)
            if found and is_alone and isinstance(node.type, TensorType):
                self.sources[node] = frozenset[Node]().union(*found)

    def crossing(self) -> list[Node]:
        """The values that the rest of the program is given, in its order."""
        found: set[Node] = set()
        made: set[Node] = set()  # by the rest, in each call
        pending = [n for n in self.block.nodes if n not in self.sources and not is_known(n)]
        while pending:
            reader = pending.pop()
            for arg in (behind(a) for a in reader.args if a in self.sources):
                if self._pays(arg, reader):
                    found.add(arg)
                elif arg not in made:
                    made.add(arg)
                    pending.append(arg)
        return [n for n in (*self.block.params, *self.block.nodes) if n in found]

    def _pays(self, value: Node, reader: Node) -> bool:
        """Whether a reader is better off with a value that is there."""
        if is_input(value) or is_known(value):
            return is_contraction(reader) or _takes_it_once(reader, value)
        if lookup(reader.op).kind in FROM_MEMORY:
            return True
        is_made = lookup(value.op).kind != "movement"  # others read it through a view
        return is_made and bytes_of(value) <= sum(map(bytes_of, self.sources[value]))

    def lines(self, node: Node) -> tuple[str, ...]:
        return self.block.locs.get(node, ())

    def told(self, node: Node) -> str:
        """A value, and what it is made of, in words."""
        made_of = ", ".join(self._name(n) for n in self.sources[node])
        return f"{self._name(node)}: {bytes_of(node)} bytes, made of {made_of} once"

    def _name(self, node: Node) -> str:
        return str(node.attrs.get("name") or self.block.names.get(node, node.op))


def _with_call(block: Block, crossing: Sequence[Node], found: _Frozen) -> Block:
    """The block with a call in front that gives what crosses."""
    needed = _union(found.sources[n] for n in crossing)
    weights = [p for p in block.params if p in needed]
    own = {w: param(str(w.attrs["name"]), w.type) for w in weights}
    inside, b = Builder(), Builder()
    body = inside.block([*own.values()], copied(block, crossing, own, inside))
    call = b.op("call", weights, {"name": "weights", "once": True}, (body,))
    known: dict[Node, Node] = {p: p for p in block.params}
    known |= zip(crossing, results_of(call), strict=True)
    for old, new in zip(crossing, results_of(call), strict=True):
        b.names[new] = block.names.get(old) or str(old.attrs.get("name", old.op))
    made = iter(copied(block, [r for r in block.results if not is_input(r)], known, b))
    # a parameter that is handed on stays one: a turn of a loop is seen to leave it as it is
    return b.block(block.params, [r if is_input(r) else next(made) for r in block.results])


def _union(sets: Iterable[frozenset[Node]]) -> frozenset[Node]:
    return frozenset[Node]().union(*sets)
