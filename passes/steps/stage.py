"""stage: store a value in local memory, so that later loops load it instead of recomputing it.

    loop(0.0) {(%r < 64, ...)  add(%acc, %e)}
    loop(%o0) {(%r < 64, ...)  div(%e, %total)}

becomes, by `stage e local`,

    %m = loop(0.0, alloc()) {(%r < 64, ...)  add(%acc, %e), store(%m, %e, %r)}
    loop(%o0) {(%r < 64, ...)  div(load(%m, %r), %total)}

The first loop that computes the value stores it, the others load it. They may be inside of loops on
which the value does not depend; if all of them are, a loop of its own stores it:

    loop(%o0) {(%k < 64, ...)                                 %m = loop(alloc()) {(%r < 8, ...)
      loop(0.0) {(%r < 8, ...)  add(%acc, mul(%e, ...)) }       store(%m, %e, %r) }
                                                              loop(%o0) {(%k < 64, ...) ...

Legal for a scalar or a tile that depends on the axis of these loops and on enclosing loops only.
CPUs only: a program of a GPU has no local memory.

Source: `compute_at` and `store_at` of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stack.ir.builder import make, results_of
from stack.ir.memory import starts_of
from stack.ir.node import Block, Node, topological
from stack.ir.traits import is_loop, is_memory
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.fission import loaded, memory_for, slot
from stack.passes.steps.loops import axis_of, bodies, is_serial
from stack.passes.steps.step import Step
from stack.target import Cpu, Target


@dataclass(frozen=True)
class Stage(Step, name="stage", only=Cpu):
    """Store a value in local memory between loops.

    Attributes:
        value: the name of the value.
        space: `local`, the memory of one thread.
    """

    value: str
    space: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.space != "local":
            yield f"values are staged in local memory, not in {self.space!r}"
        names = kernel.blocks[0].names
        named = [n for n, name in names.items() if name == self.value]
        if not named:
            yield f"no value is called {self.value!r}"
        (value,) = named
        if not isinstance(value.type, TensorType) or is_memory(value):
            yield f"{self.value} is {value.type}, not a scalar or a tile"
        home = _home(kernel.blocks[0], value)
        if home is None:
            yield f"no two loops of one block compute {self.value}"
            return
        if not all(loop is None or is_serial(loop) for loop in (home.first, *home.others)):
            yield f"a loop that computes {self.value} is bound: stage it before"
        inside = {n.blocks[0].params[0] for n in home.block.all_nodes if is_loop(n)} - {home.axis}
        extra = [v for v in value.vars if v in inside]
        if extra:
            yield f"{self.value} also depends on {extra[0].attrs['name']}"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        (value,) = (n for n, name in kernel.blocks[0].names.items() if name == self.value)
        home = _home(kernel.blocks[0], value)
        assert home is not None
        memory = memory_for(edit, value, home.axis, "keep")
        known = _kept(edit, value, memory, home)
        return edit.finished(edit.values(edit.block.results, known))


def computed_again(kernel: Node, axis: str, is_slow: Callable[[Node, Node], bool]) -> list[Node]:
    """Returns the values that two or more loops over an axis in the same block compute, so that
    storing them would save work.

    Args:
        kernel: the kernel.
        axis: the axis.
        is_slow: tells, for a value and the loop's variable, whether it costs more than a load. The
            search stops at such a value: its operands are not returned.
    """
    found: dict[Node, None] = {}
    for block in bodies(kernel):
        along = [n for n in block.nodes if is_loop(n) and axis_of(n) == axis]
        seen: set[Node] = set()
        for loop in along:
            var, *held = loop.blocks[0].params
            pending, done = list(loop.blocks[0].results), set[Node]()
            while pending:
                node = pending.pop()
                if node in done or is_loop(node) or not isinstance(node.type, TensorType):
                    continue
                done.add(node)
                is_one = var in node.vars and not is_memory(node)
                if is_one and is_slow(node, var) and node.vars.isdisjoint(held):
                    if node in seen:
                        found[node] = None
                        continue
                pending += node.args
            seen.update(loop.blocks[0].nodes)
    return list(found)


class _Storage(NamedTuple):
    """Describes how a value that several loops compute is stored in local memory: in which block,
    and which loops store and load it.

    Attributes:
        block: the block.
        axis: the variable of the loops that compute the value.
        first: the loop of the block that stores it; None if it needs a loop of its own.
        others: the loops of the block that load it, or in which it is loaded.
    """

    block: Block
    axis: Node
    first: Node | None
    others: list[Node]


def _home(block: Block, value: Node) -> _Storage | None:
    """Finds the outermost block in which a value can be stored for several loops."""
    loops = [n for n in block.nodes if is_loop(n) and value in n.blocks[0].all_nodes]
    along = [(n, axis) for n in loops if (axis := _axis(n, value)) is not None]
    if along:
        axis = along[0][1]
        users = [n for n, own in along if own is axis]
        direct = [n for n in users if n.blocks[0].params[0] is axis]
        if len(direct) > 1 or len(users) > len(direct):
            before = set(topological(direct[:1]))
            first = direct[0] if direct and before.isdisjoint(set(users) - {direct[0]}) else None
            return _Storage(block, axis, first, [n for n in users if n is not first])
    inner = (_home(b, value) for n in block.nodes for b in n.blocks)
    return next((found for found in inner if found is not None), None)


def _axis(loop: Node, value: Node) -> Node | None:
    """Returns the variable of the loop over whose iterations a value is computed: that of `loop`,
    or of a loop inside it.

    None if the value depends on what these loops carry, or on a loop between them.
    """
    block = loop.blocks[0]
    var, *held = block.params
    if not value.vars.isdisjoint(held):
        return None
    if value in block.nodes:
        return var
    inner = [n for n in block.nodes if is_loop(n) and value in n.blocks[0].all_nodes]
    found = {_axis(n, value) for n in inner}
    return found.pop() if len(found) == 1 and var not in value.vars else None


def _kept(edit: Edit, value: Node, memory: Node, home: _Storage) -> dict[Node, Node]:
    """Rewrites loops so that one stores a value in `memory`, and the others load it instead of
    computing it.

    Returns:
        The replacements of the results of these loops.
    """
    kept = Node("var", (), {"name": edit.names.own("keep")}, memory.type)
    store = make("store", (kept, value, *slot(home.axis, value)))
    old: list[Node] = []
    starts: Sequence[Node] = ()
    body = Block((home.axis, kept), (store,))
    attrs: Mapping[str, object] = {"kind": "serial"}
    if home.first is not None:
        block = home.first.blocks[0]
        old, starts, attrs = results_of(home.first), starts_of(home.first), home.first.attrs
        body = Block((*block.params, kept), (*block.results, store))
    *results, full = results_of(make("loop", [*starts, memory], attrs, (body,)))
    load = loaded(full, home.axis, value)
    known = dict(zip(old, results, strict=True))
    for loop in home.others:
        (made,) = edit.values([loop], {**known, value: load})
        known.update(zip(results_of(loop), results_of(made), strict=True))
    return known
