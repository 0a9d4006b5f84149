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
from stack.ir.traits import behind, is_array, is_contraction, is_input, is_known
from stack.ir.types import TensorType
from stack.rewrite.engine import copied
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
        found = _Frozen(func.body, [known[name] for name in self.weights])
        crossing = [n for n in found.crossing() if log.spend("freeze", found.lines(n))]
        if not crossing:
            return func
        for node in crossing:
            if not is_input(node):
                log.note(found.told(node), found.lines(node))
        return _with_call(func, crossing, found)


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
            return is_contraction(reader)
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


def _with_call(func: Func, crossing: Sequence[Node], found: _Frozen) -> Func:
    """The function with a call in front that gives what crosses."""
    needed = _union(found.sources[n] for n in crossing)
    weights = [p for p in func.params if p in needed]
    own = {w: param(str(w.attrs["name"]), w.type) for w in weights}
    inside, b = Builder(), Builder()
    block = inside.block([*own.values()], copied(func.body, crossing, own, inside))
    call = b.op("call", weights, {"name": "weights", "once": True}, (block,))
    known: dict[Node, Node] = {p: p for p in func.params}
    known |= zip(crossing, results_of(call), strict=True)
    for old, new in zip(crossing, results_of(call), strict=True):
        b.names[new] = func.body.names.get(old) or str(old.attrs.get("name", old.op))
    results = copied(func.body, func.results, known, b)
    return b.func(func.name, func.params, results, func.level)


def _union(sets: Iterable[frozenset[Node]]) -> frozenset[Node]:
    return frozenset[Node]().union(*sets)
