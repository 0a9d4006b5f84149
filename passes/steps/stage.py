"""stage: store a value in local memory, so that later loops load it instead of recomputing it.

    loop(0.0) {(%r < 64, ...)  add(%acc, %e)}
    loop(%o0) {(%r < 64, ...)  div(%e, %total)}

becomes, by `stage e local`,

    %m = loop(0.0, alloc()) {(%r < 64, ...)  add(%acc, %e), store(%m, %e, %r)}
    loop(%o0) {(%r < 64, ...)  div(load(%m, %r), %total)}

The first loop that computes the value stores it, the others load it. Legal for a scalar that two or
more loops of one block over the same axis compute, and that depends on this axis and on enclosing
loops only. CPUs only: a program of a GPU has no local memory.

Source: `compute_at` and `store_at` of Halide (Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.builder import make, results_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_loop
from stack.ir.types import TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import all_loops, axis_of, is_memory, is_serial, starts_of
from stack.passes.steps.step import Step
from stack.passes.tiling.loops import extent_of
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Stage(Step):
    """Store a value in local memory between loops.

    Attributes:
        value: the name of the value.
        space: `local`, the memory of one thread.
    """

    name: ClassVar[str] = "stage"
    value: str
    space: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if self.space != "local":
            return f"values are staged in local memory, not in {self.space!r}"
        if isinstance(target, Gpu):
            return f"a program of a GPU has no memory for {self.value}"
        names = kernel.blocks[0].names
        named = [n for n, name in names.items() if name == self.value]
        if not named:
            return f"no value is called {self.value!r}"
        (value,) = named
        if not isinstance(value.type, TensorType) or value.tensor.rank or is_memory(value):
            return f"{self.value} is {value.type}, not a scalar"
        found = _home(kernel.blocks[0], value)
        if found is None:
            return f"no two loops of one block compute {self.value}"
        _, loops = found
        if not all(map(is_serial, loops)):
            return f"a loop that computes {self.value} is bound: stage it before"
        around = next(around for loop, around in all_loops(kernel) if loop is loops[0])
        known = {loop.blocks[0].params[0] for loop in (loops[0], *around)}
        extra = [v for v in value.vars if "extent" in v.attrs and v not in known]
        return f"{self.value} also depends on {extra[0].attrs['name']}" if extra else ""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        (value,) = (n for n, name in kernel.blocks[0].names.items() if name == self.value)
        found = _home(kernel.blocks[0], value)
        assert found is not None
        home, loops = found
        held = TensorType(value.dtype, (extent_of(loops[0]),), "local")
        memory = make("alloc", (), {"name": edit.names.own("keep")}, hint=held)

        def rebuilt(block: Block) -> Block:
            inner = {
                n: n.rebuilt(blocks=[rebuilt(b) for b in n.blocks])
                for n in block.nodes
                if is_loop(n) and block is not home
            }
            known = {**inner, **{p: p for p in block.params}}
            if block is home:
                known.update(_kept(edit, value, memory, loops))
            done = edit.remade(block.results, known)
            return Block(block.params, [done[r] for r in block.results])

        return edit.finished(rebuilt(edit.block))


def computed_again(kernel: Node, axis: str, is_slow: Callable[[Node, Node], bool]) -> list[Node]:
    """The values that several loops over an axis, side by side in one block, compute again.

    Args:
        kernel: the kernel.
        axis: the axis.
        is_slow: tells, for a value and the loop's variable, whether it costs more than a load. The
            search stops at such a value: its operands are not returned.
    """
    found: dict[Node, None] = {}
    for block in _blocks(kernel.blocks[0]):
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
                is_one = var in node.vars and not node.tensor.rank and not is_memory(node)
                if is_one and is_slow(node, var) and node.vars.isdisjoint(held):
                    if node in seen:
                        found[node] = None
                        continue
                pending += node.args
            seen.update(loop.blocks[0].nodes)
    return list(found)


def _blocks(block: Block) -> Iterator[Block]:
    """A block and all blocks nested in it."""
    yield block
    for node in block.nodes:
        for inner in node.blocks:
            yield from _blocks(inner)


def _home(block: Block, value: Node) -> tuple[Block, list[Node]] | None:
    """The block in which two or more loops over one axis compute a value, and these loops."""
    loops = [n for n in block.nodes if is_loop(n) and value in n.blocks[0].nodes]
    along = [n for n in loops if n.blocks[0].params[0] is loops[0].blocks[0].params[0]]
    if len(along) > 1 and not _carried_in(value, along):
        return block, along
    inner = (_home(b, value) for n in block.nodes for b in n.blocks)
    return next((found for found in inner if found is not None), None)


def _carried_in(value: Node, loops: Sequence[Node]) -> bool:
    """Whether a value depends on a loop-carried value."""
    return any(not value.vars.isdisjoint(loop.blocks[0].params[1:]) for loop in loops)


def _kept(edit: Edit, value: Node, memory: Node, loops: Sequence[Node]) -> dict[Node, Node]:
    """Lets the first loop store a value, and the others load it.

    Returns:
        The replacements of the results of these loops.
    """
    first, *others = loops
    var, *held = first.blocks[0].params
    kept = Node("var", (), {"name": edit.names.own("keep")}, memory.type)
    store = make("store", (kept, value, var))
    body = Block((var, *held, kept), [*first.blocks[0].results, store])
    made = make("loop", [*starts_of(first), memory], first.attrs, (body,))
    *results, full = results_of(made)
    known = dict(zip(results_of(first), results, strict=True))
    for old, new in known.items():
        edit.note(old, new)
    load = make("load", (full, var), hint=value.type)
    edit.note(value, load)
    for loop in others:
        block = loop.blocks[0]
        before = edit.remade([full], known)[full]
        again = edit.remade([load], {full: before})[load]
        own = {p: p for p in block.params}
        done = edit.remade(block.results, {**known, **own, value: again})
        starts = edit.remade(starts_of(loop), known)
        new = make(
            "loop",
            [starts[s] for s in starts_of(loop)],
            loop.attrs,
            (Block(block.params, [done[r] for r in block.results]),),
        )
        known.update(zip(results_of(loop), results_of(new), strict=True))
        for old, made_of in zip(results_of(loop), results_of(new), strict=True):
            edit.note(old, made_of)
    return known
