"""freeze: move what depends on weights alone into a call of its own, which runs once.

Partial evaluation: weights do not change from call to call, so what depends on them alone does not
either. The call returns the values that the rest of the program would otherwise write to memory in
each call. It also returns values that are no larger than the weights that they are computed from.
Larger ones, such as a float cast from a small integer, are still computed in each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stack.errors import unknown_name
from stack.ir.builder import Builder, param, results_of
from stack.ir.func import Func
from stack.ir.node import Block, Node
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

STAY = ("control", "foreign", "group", "item")  # kinds of ops that are not moved
FROM_MEMORY = ("contraction", "control", "foreign", "group")  # kinds that read operands from memory


@dataclass(frozen=True)
class Freeze(Pass):
    """Put what depends on weights and constants alone into a call with `once`.

    Weights that matmuls read pass through the call unchanged: a later pass may pack them there.

    Attributes:
        weights: names of the parameters that do not change from call to call.
    """

    weights: tuple[str, ...] = ()

    def run(self, func: Func, log: Log) -> Func:
        known = {str(p.attrs["name"]): p for p in func.params}
        for name in self.weights:
            if name not in known:
                raise unknown_name("no parameter", name, known)
        weights = [known[name] for name in self.weights]
        return Func(func.name, _frozen(func.body, weights, log), func.level)


def _frozen(block: Block, weights: Sequence[Node], log: Log) -> Block:
    """Returns a block, and the bodies in it, with a call for what depends on weights alone."""
    known = _WeightValues(block, weights).sources
    changed: dict[Node, Replacement] = {}
    for node in block.nodes:
        if is_while(node):
            *tests, body = node.blocks
            staying = [p for p, arg in unchanged_in(node).items() if arg in known]
            body = _frozen(body, staying, log)
            changed[node] = Replacement(node.rebuilt(blocks=[*tests, body]))
    block = replace(block, changed) if changed else block
    found = _WeightValues(block, weights)
    crossing = [n for n in found.crossing() if log.spend("freeze", found.lines(n))]
    for node in crossing:
        if not is_input(node):
            log.note(found.told(node), found.lines(node))
    return _with_call(block, crossing, found) if crossing else block


def _takes_it_once(node: Node, value: Node) -> bool:
    """True for a `while` loop that carries a value unchanged, and whose body passes it to a call
    with `once`."""
    if not is_while(node):
        return False
    calls = [n for n in node.blocks[-1].nodes if runs_once(n)]
    given = [p for p, arg in unchanged_in(node).items() if arg is value]
    return any(p in call.args for call in calls for p in given)


class _WeightValues:
    """The values of a block that depend on weights alone.

    Attributes:
        sources: the weights and constant arrays that each such value is computed from.
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
        """Returns the values that the call returns to the rest of the program, in program order."""
        found: set[Node] = set()
        made: set[Node] = set()  # values that the rest computes in each call
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
        """True if `reader` should read a value of weights from the results of the call that runs
        once, instead of computing it again in each call of the program."""
        if is_input(value) or is_known(value):
            return is_contraction(reader) or _takes_it_once(reader, value)
        if lookup(reader.op).kind in FROM_MEMORY:
            return True
        is_made = lookup(value.op).kind != "movement"  # readers see other values through a view
        return is_made and bytes_of(value) <= sum(map(bytes_of, self.sources[value]))

    def lines(self, node: Node) -> tuple[str, ...]:
        return self.block.locs.get(node, ())

    def told(self, node: Node) -> str:
        """Returns the log line for a value that the call with `once` computes: its bytes, and the
        weights that it depends on."""
        made_of = ", ".join(self._name(n) for n in self.sources[node])
        return f"{self._name(node)}: {bytes_of(node)} bytes, computed once from {made_of}"

    def _name(self, node: Node) -> str:
        return str(node.attrs.get("name") or self.block.names.get(node, node.op))


def _with_call(block: Block, crossing: Sequence[Node], found: _WeightValues) -> Block:
    """Returns the block with a call in front that computes the crossing values."""
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
    # a parameter that is a result stays one, so that a loop still sees it as unchanged
    return b.block(block.params, [r if is_input(r) else next(made) for r in block.results])


def _union(sets: Iterable[frozenset[Node]]) -> frozenset[Node]:
    return frozenset[Node]().union(*sets)
