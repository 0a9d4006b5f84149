"""stage_mem: copy what a loop reads from memory, or stores to it, through local memory.

The copy is one block, and is transposed on its way:

    loop {(%i < 16, ...)                        %block = load(%p0, 0, %b) : f32<96x16>
      loop {(%r < 96, ...)                      %m = store(alloc(), transpose(%block), 0, 0)
        load(%p0, %r, add(%b, %i))              loop {(%i < 16, ...)
                                                  loop {(%r < 96, ...)
                         stage_mem p0 i             load(%m, %i, %r)

Each cache line of %p0 is then read once, and accesses along %r have unit stride. An output is
copied after the loop. Legal if the last index of an access has unit stride in the staged axis,
another index has unit stride in one inner loop, and no guard masks the access. Only a CPU has local
memory.

Source: `stage_mem` of Exo (Ikarashi et al., PLDI 2022); `cache_read` and `cache_write` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant, make, results_of
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.traits import is_item, is_load, is_loop, is_store
from stack.ir.types import DType, TensorType
from stack.passes.steps.edit import Edit
from stack.passes.steps.linear import linear
from stack.passes.steps.loops import loops_along, starts_of, why_not_free
from stack.passes.steps.step import Step
from stack.passes.steps.stored import memory_of
from stack.target import Gpu, Target


class Strided(NamedTuple):
    """An access that is contiguous along a loop, and strided along an inner loop.

    Attributes:
        node: the load or the store.
        is_read: whether it is a load.
        dtype: of the memory.
        rank: of the memory.
        line: the variable of the loop.
        lane: the variable of the inner loop.
        axis: the axis of the memory that the inner loop indexes.
        corner: the first element of the block that both loops access.
    """

    node: Node
    is_read: bool
    dtype: DType
    rank: int
    line: Node
    lane: Node
    axis: int
    corner: tuple[Node, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Iterations of the loop and of the inner loop."""
        return int(self.line.attrs["extent"]), int(self.lane.attrs["extent"])

    @property
    def local(self) -> TensorType:
        """The local memory: one line for each iteration of the loop."""
        return TensorType(self.dtype, self.shape, "local")

    @property
    def block(self) -> TensorType:
        """The block, in the order of the memory's axes."""
        lines, lanes = self.shape
        shape = (lanes, *(1,) * (self.rank - self.axis - 2), lines)
        return TensorType(self.dtype, shape, "tile")


@dataclass(frozen=True)
class StageMem(Step):
    """Copy what the loops over an axis read from memory, or store to it.

    Attributes:
        memory: a parameter of the kernel.
    """

    name: ClassVar[str] = "stage_mem"
    memory: str
    axis: str

    def why_not(self, kernel: Node, target: Target | None = None) -> str:
        if isinstance(target, Gpu):
            return f"a program of a GPU has no memory for {self.memory}"
        names = [str(p.attrs["name"]) for p in kernel.blocks[0].params]
        if self.memory not in names:
            return f"no memory {self.memory!r}; there are: {', '.join(names)}"
        why = why_not_free(kernel, self.axis)
        if why:
            return why
        is_own = self._is_own(kernel)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        known = [access for loop in loops for access in _reads(loop, is_own).values()]
        stored = [_store(loop, is_own) for loop in loops]
        known += [access for access in stored if access is not None]
        if not known:
            return (
                f"no unmasked access to {self.memory} is contiguous along {self.axis} and strided"
                " along one inner loop"
            )
        size = max(lines * lanes * a.dtype.bytes for a in known for lines, lanes in [a.shape])
        if size > LARGEST_LOCAL:
            return f"{size} bytes of {self.memory}, and a program has {LARGEST_LOCAL}"
        return ""

    def _is_own(self, kernel: Node) -> Callable[[Node], bool]:
        """Returns a test for whether a value is a version of the memory."""
        held = memory_of(kernel.blocks[0])
        return lambda memory: str(held(memory).attrs["name"]) == self.memory

    def apply(self, kernel: Node) -> Node:
        edit, is_own = Edit(kernel), self._is_own(kernel)

        def change(old: Node, args: Sequence[Node], block: Block) -> list[Node]:
            loop = old.rebuilt(args, blocks=[block])
            reads = _reads(loop, is_own)
            if reads:
                done = edit.remade(block.results, _from_copies(edit, reads))
                inside = Block(block.params, [done[r] for r in block.results])
                loop = old.rebuilt(args, blocks=[inside])
            stored = _store(loop, is_own)
            return _with_copy(edit, loop, stored) if stored else results_of(loop)

        return edit.change_loops(self.axis, change)


def _reads(loop: Node, is_own: Callable[[Node], bool]) -> dict[Node, Strided]:
    """The loads of a loop that can read from the copy."""
    nodes = loop.blocks[0].all_nodes
    found = {n: _strided(loop, n) for n in nodes if is_load(n) and is_own(n.args[0])}
    return {n: access for n, access in found.items() if access is not None}


def _store(loop: Node, is_own: Callable[[Node], bool]) -> Strided | None:
    """The only store of a loop to the memory, if local memory can replace it; else None."""
    stores = [n for n in loop.blocks[0].all_nodes if is_store(n) and is_own(n.args[0])]
    found = _strided(loop, stores[0]) if len(stores) == 1 else None
    if found is None or not any(_leads_to(r, stores[0]) for r in loop.blocks[0].results):
        return None
    if any(is_load(n) and is_own(n.args[0]) for n in loop.blocks[0].all_nodes):
        return None
    # every enclosing loop must run all of its iterations: the copy covers the whole block
    ways = (n for n in loop.blocks[0].all_nodes if is_loop(n) and n.attrs.get("limited"))
    return None if any(stores[0] in way.blocks[0].all_nodes for way in ways) else found


def strided_accesses(kernel: Node, axis: str) -> dict[str, Strided]:
    """The strided accesses in the loops over an axis, by name of the memory; masks are ignored."""
    held = memory_of(kernel.blocks[0])
    found: dict[str, Strided] = {}
    for loop, _ in loops_along(kernel, axis):
        for node in loop.blocks[0].all_nodes:
            if is_load(node) or is_store(node):
                access = _strided(loop, node, masked=True)
                if access is not None:
                    found[str(held(node.args[0]).attrs["name"])] = access
    return found


def _strided(loop: Node, node: Node, masked: bool = False) -> Strided | None:
    """The access as a strided one; None if it is not, or if it is masked."""
    block = loop.blocks[0]
    line = block.params[0]
    inner = {n.blocks[0].params[0] for n in block.all_nodes if is_loop(n)}
    inside = {p for n in block.all_nodes for b in n.blocks for p in b.params} | set(block.params)
    index, mask, _ = access_parts(node)
    value = node if is_load(node) else node.args[1]
    last = linear(index[-1], line) if index else None
    if (mask is not None and not masked) or value.tensor.rank or last is None or last[0] != 1:
        return None
    corner = [*index[:-1], last[1] or constant(0, line.dtype)]
    moved = [(a, v) for a, i in enumerate(index[:-1]) for v in inner if v in i.vars]
    if len(moved) != 1:
        return None
    ((axis, lane),) = moved
    step = linear(index[axis], lane)
    if step is None or step[0] != 1:
        return None
    corner[axis] = step[1] or constant(0, lane.dtype)
    if any(not inside.isdisjoint(c.vars) for c in corner):
        return None
    memory = node.args[0].tensor
    return Strided(node, is_load(node), memory.dtype, memory.rank, line, lane, axis, tuple(corner))


def _from_copies(edit: Edit, reads: Mapping[Node, Strided]) -> dict[Node, Node]:
    """Replacements of loads: loads from a local copy of the block."""
    known: dict[Node, Node] = {}
    for node, access in reads.items():
        memory = make("alloc", (), {"name": edit.names.own("keep")}, hint=access.local)
        block = make("load", (node.args[0], *access.corner), hint=access.block)
        lines, lanes = access.shape
        if block.shape != (lanes, lines):
            block = make("reshape", (block,), hint=TensorType(access.dtype, (lanes, lines), "tile"))
        zero = constant(0, access.line.dtype)
        copy = make("store", (memory, make("transpose", (block,), {"perm": (1, 0)}), zero, zero))
        edit.locate(node, copy)
        load = make("load", (copy, access.line, access.lane), hint=node.type)
        known[node] = edit.note(node, load)
    return known


def _with_copy(edit: Edit, loop: Node, access: Strided) -> list[Node]:
    """The results of a loop that stores to local memory, and of the copy after it."""
    own = make("alloc", (), {"name": edit.names.own("keep")}, hint=access.local)
    made, place = _into(edit, loop, access, own)
    results = list(results_of(made))
    zero = constant(0, access.line.dtype)
    lines, lanes = access.shape
    lines = make(
        "load", (results[place], zero, zero), hint=TensorType(access.dtype, (lines, lanes), "tile")
    )
    block = make("transpose", (lines,), {"perm": (1, 0)})
    if access.block.shape != (lanes, lines):
        block = make("reshape", (block,), hint=access.block)
    memory = starts_of(loop)[place]
    results[place] = make("store", (memory, block, *access.corner))
    edit.locate(loop, results[place])
    return results


def _into(edit: Edit, loop: Node, access: Strided, own: Node) -> tuple[Node, int]:
    """The loop with its store redirected to local memory, and the position of that result."""
    block = loop.blocks[0]
    var, *held = block.params
    for place, (variable, result) in enumerate(zip(held, block.results, strict=True)):
        if not _leads_to(result, access.node):
            continue
        inner = result.args[0] if is_item(result) else result
        new = Node("var", (), {"name": edit.names.own("keep")}, own.type)
        known: dict[Node, Node] = {}
        if inner is access.node:
            known[result] = make("store", (new, inner.args[1], access.line, access.lane))
        else:
            made, _ = _into(edit, inner, access, new)
            known.update(zip(results_of(inner), results_of(made), strict=True))
        done = edit.remade(block.results, {**known, **{p: p for p in block.params}})
        inside = Block(
            (var, *(new if h is variable else h for h in held)), [done[r] for r in block.results]
        )
        starts = [own if h is variable else s for h, s in zip(held, starts_of(loop), strict=True)]
        return make("loop", starts, loop.attrs, (inside,)), place
    raise AssertionError("the store is in the loop")


def _leads_to(result: Node, store: Node) -> bool:
    """Whether a store makes the last version of a memory, directly or as the result of a loop."""
    while result is not store:
        loop = result.args[0] if is_item(result) else result
        if not is_loop(loop):
            return False
        result = loop.blocks[0].results[int(result.attrs["index"]) if is_item(result) else 0]
    return True
