"""stage_mem: copy what a loop reads from memory, or stores to it, through local memory.

The copy is one block in the order of the loops, and is transposed on its way if it has to be:

    loop {(%i < 16, ...)                        %block = load(%p0, 0, %b) : f32<96x16>
      loop {(%r < 96, ...)                      %m = store(alloc(), transpose(%block), 0, 0)
        load(%p0, %r, add(%b, %i))              loop {(%i < 16, ...)
                                                  loop {(%r < 96, ...)
                         stage_mem p0 i             load(%m, %i, %r)

Each cache line of %p0 is then read once, and accesses along %r have unit stride. An output is
copied after the loop. With an element type, as in `stage_mem p0 i f32`, the copy is converted, and
the loop no longer converts what it loads.

Legal if one index of an access has unit stride in the staged axis, another one in an inner loop or
in the lanes of a vector, and no guard masks the access. The loop must convert all that it loads to
the element type, which holds all values of the memory. Only a CPU has local memory.

Source: `stage_mem` of Exo (Ikarashi et al., PLDI 2022); `cache_read` and `cache_write` of TensorIR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from stack.ir.bounds import LARGEST_LOCAL
from stack.ir.builder import constant, converted, make, reshaped, results_of
from stack.ir.equivalence import once_in
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import memory_of, starts_of
from stack.ir.node import Block, Node
from stack.ir.traits import converts, is_load, is_loop, is_store, maker
from stack.ir.types import DTYPES, DType, TensorType, holds_all
from stack.passes.steps.affine import AffineIndex, index_of, last_of
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import loops_along, why_no_memory, why_not_free
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import tile_type
from stack.passes.tiling.frame import static
from stack.target import Cpu, Target


class StridedAccess(NamedTuple):
    """A load or store in two nested loops that access a block of memory: a loop over lines, and an
    inner loop or vector along each line.

    Attributes:
        node: the load or the store.
        line: the variable of the loop.
        lane: the variable of the inner loop, or the number of each lane of a vector.
        axis: the axis of the memory that the inner loop indexes.
        along: the axis of the memory that the loop indexes.
        corner: the first element of the block that both loops access.
    """

    node: Node
    line: Node
    lane: Node
    axis: int
    along: int
    corner: tuple[Node, ...]

    @property
    def is_read(self) -> bool:
        """True for a load."""
        return is_load(self.node)

    @property
    def memory(self) -> TensorType:
        """The type of the memory."""
        return self.node.args[0].tensor

    @property
    def dtype(self) -> DType:
        """The element type of the memory."""
        return self.memory.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of iterations of the loop over lines, and of the inner loop."""
        last = last_of(self.lane)
        assert last is not None
        return int(self.line.attrs["extent"]), last + 1

    @property
    def is_vector(self) -> bool:
        """True if the inner loop was vectorized, so that the access moves a vector."""
        return bool(self.lane.tensor.rank)

    @property
    def place(self) -> tuple[Node, Node]:
        """The index of the access in local memory."""
        return self.line, constant(0, self.line.dtype) if self.is_vector else self.lane

    @property
    def is_transposed(self) -> bool:
        """True if the loop over lines runs along the later axis of the memory."""
        return self.axis < self.along

    @property
    def gap(self) -> int:
        """Elements of all axes of the memory between the two indexed ones; 1 for none."""
        first, last = sorted((self.along, self.axis))
        return prod(map(static, self.memory.shape[first + 1 : last]))

    def local(self, dtype: DType) -> TensorType:
        """Returns the type of the local memory: one line for each iteration of the outer loop."""
        return TensorType(dtype, self.shape, "local")

    @property
    def block(self) -> TensorType:
        """The type of the block that both loops access, with axes in the order of the memory."""
        sizes = {self.along: self.shape[0], self.axis: self.shape[1]}
        shape = tuple(sizes.get(axis, 1) for axis in range(min(sizes), self.memory.rank))
        return tile_type(self.dtype, shape)


@dataclass(frozen=True)
class StageMem(Step, name="stage_mem", only=Cpu):
    """Copy what the loops over an axis read from memory, or store to it.

    Attributes:
        memory: a parameter of the kernel.
        axis: the axis of the loops.
        dtype: the element type of the copy; by default that of the memory.
    """

    memory: str
    axis: str
    dtype: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_memory(kernel, self.memory)
        yield why_not_free(kernel, self.axis)
        is_own = self._is_own(kernel)
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        reads = [_reads(loop, is_own) for loop in loops]
        for loop, found in zip(loops, reads, strict=True):
            for node in found if self.dtype else ():
                users = [n for n in loop.blocks[0].all_nodes if node in n.args]
                if any(not converts(n) or n.dtype.name != self.dtype for n in users):
                    yield f"the loop over {self.axis} uses {self.memory} as {node.dtype}"
                if not all(holds_all(n.dtype, node.dtype) for n in users):
                    yield f"{self.dtype} does not hold all values of {node.dtype}"
        known = [access for found in reads for access in found.values()]
        stored = [_store(loop, is_own) for loop in loops]
        known += [access for access in stored if access is not None]
        if not known:
            yield (
                f"no unmasked access to {self.memory} has unit stride along {self.axis} and along"
                " one inner loop"
            )
        size = max(prod(a.shape) * a.dtype.bytes for a in known)
        if size > LARGEST_LOCAL:
            yield f"{size} bytes of {self.memory}, and a program has {LARGEST_LOCAL}"

    def _is_own(self, kernel: Node) -> Callable[[Node], bool]:
        """Returns a predicate: whether a value is a version of the memory of the step."""
        held = memory_of(kernel.blocks[0])
        return lambda value: held(value).attrs.get("name") == self.memory

    def apply(self, kernel: Node) -> Node:
        edit, is_own = Edit(kernel), self._is_own(kernel)
        copies: dict[tuple[Node | int, ...], Node] = {}

        def change(_: Node, loop: Node) -> list[Node]:
            block, known = loop.blocks[0], dict[Node, Node]()
            for node, access in _reads(loop, is_own).items():
                dtype = DTYPES[self.dtype] if self.dtype else node.dtype
                axes = access.along, access.axis  # x and its transpose have one corner
                key = node.args[0], access.line, access.lane, *axes, *access.corner
                if key not in copies:
                    copies[key] = edit.locate(node, _copy(edit, access, dtype))
                hint = node.tensor.with_dtype(dtype)
                load = make("load", (copies[key], *access.place), hint=hint)
                users = [n for n in block.all_nodes if node in n.args] if self.dtype else [node]
                known.update(dict.fromkeys(users, load))
            if known:
                loop = loop.rebuilt(blocks=[edit.body(block, known)])
            stored = _store(loop, is_own)
            return _with_copy(edit, loop, stored, is_own) if stored else results_of(loop)

        return edit.change_loops(self.axis, change)


def _reads(loop: Node, is_own: Callable[[Node], bool]) -> dict[Node, StridedAccess]:
    """Returns the loads of a loop that can read from a local copy, each with its access pattern."""
    nodes = loop.blocks[0].all_nodes
    found = {n: _strided(loop, n) for n in nodes if is_load(n) and is_own(n.args[0])}
    return {n: access for n, access in found.items() if access is not None}


def _store(loop: Node, is_own: Callable[[Node], bool]) -> StridedAccess | None:
    """Returns the only store of a loop to the memory, if it can be staged; else None."""
    nodes = loop.blocks[0].all_nodes
    found = [n for n in nodes if (is_load(n) or is_store(n)) and is_own(n.args[0])]
    if len(found) != 1 or not is_store(found[0]):
        return None
    # the copy covers the whole block: all loops that carry the memory store to all of it
    ways = (n for n in nodes if is_loop(n) and any(map(is_own, starts_of(n))))
    is_whole = all(found[0] in n.blocks[0].all_nodes and not n.attrs.get("limited") for n in ways)
    return _strided(loop, found[0]) if is_whole else None


def strided_accesses(kernel: Node, axis: str) -> dict[str, StridedAccess]:
    """Returns the accesses in loops over an axis that move along the last axis of a memory, by the
    name of the memory; the inner loop or vector is strided there. Masks are ignored.
    """
    held = memory_of(kernel.blocks[0])
    found: dict[str, StridedAccess] = {}
    for loop, _ in loops_along(kernel, axis):
        for node in loop.blocks[0].all_nodes:
            if is_load(node) or is_store(node):
                access = _strided(loop, node, masked=True)
                if access is not None and access.along == access.memory.rank - 1:
                    found[str(held(node.args[0]).attrs["name"])] = access
    return found


def _strided(loop: Node, node: Node, masked: bool = False) -> StridedAccess | None:
    """Recognizes a load or store that moves by unit stride along one axis of memory with `loop`,
    and along another with an inner loop or vector. None for others, and for masked ones unless
    `masked`.
    """
    line, inside = loop.blocks[0].params[0], _variables(loop.blocks[0])
    index, mask, _ = access_parts(node)
    value = node if is_load(node) else node.args[1]
    if (mask is not None and not masked) or value.tensor.rank > 1:
        return None
    places = [index_of(i) for i in index]
    moved = {
        term: axis
        for axis, place in enumerate(places)
        for term in place.terms
        if term.tensor.rank or not inside.isdisjoint(term.vars)
    }
    steps = [place.terms[t] for place in places for t in moved if t in place.terms]
    if steps != [1, 1] or line not in moved or len({*moved.values()}) < 2:
        return None
    (lane,) = moved.keys() - {line}
    if last_of(lane) is None or lane.tensor.rank != value.tensor.rank:
        return None
    corner = (p.plus(AffineIndex(dict.fromkeys(moved.keys() & p.terms, 1)), -1) for p in places)
    starts = tuple(start.node(i.dtype) for start, i in zip(corner, index, strict=True))
    return StridedAccess(node, line, lane, moved[lane], moved[line], starts)


@once_in
def _variables(block: Block) -> frozenset[Node]:
    """Returns the variables of a loop, whose body is `block`, and of the loops in it."""
    return frozenset(block.params).union(*(b.params for n in block.all_nodes for b in n.blocks))


def _copy(edit: Edit, access: StridedAccess, dtype: DType) -> Node:
    """Builds local memory that contains the block which `access` covers."""
    memory = make("alloc", (), {"name": edit.names.own("keep")}, hint=access.local(dtype))
    block = make("load", (access.node.args[0], *access.corner), hint=access.block)
    if access.is_transposed:
        block = make("transpose", (reshaped(block, access.shape[::-1]),), {"perm": (1, 0)})
    block = reshaped(block, access.shape)
    zero = constant(0, access.line.dtype)
    return make("store", (memory, converted(block, dtype), zero, zero))


def _with_copy(
    edit: Edit, loop: Node, access: StridedAccess, is_own: Callable[[Node], bool]
) -> list[Node]:
    """Builds a loop that stores to local memory, and the copy from there to the memory after it.
    Returns the replacements of the loop's results.
    """
    own = make("alloc", (), {"name": edit.names.own("keep")}, hint=access.local(access.dtype))
    place = next(i for i, start in enumerate(starts_of(loop)) if is_own(start))
    results = list(results_of(_into(edit, loop, access, own, is_own)))
    zero = constant(0, access.line.dtype)
    lines = make("load", (results[place], zero, zero), hint=tile_type(access.dtype, access.shape))
    block = make("transpose", (lines,), {"perm": (1, 0)}) if access.is_transposed else lines
    block = reshaped(block, access.block.shape)
    memory = starts_of(loop)[place]
    results[place] = make("store", (memory, block, *access.corner))
    edit.locate(loop, results[place])
    return results


def _into(
    edit: Edit, loop: Node, access: StridedAccess, own: Node, is_own: Callable[[Node], bool]
) -> Node:
    """Rebuilds a loop so that it stores to local memory `own`, in place of the memory that `is_own`
    recognizes.
    """
    block, starts = loop.blocks[0], list(starts_of(loop))
    place = next(i for i, start in enumerate(starts) if is_own(start))
    params, result = list(block.params), block.results[place]
    new = Node("var", (), {"name": edit.names.own("keep")}, own.type)
    starts[place], params[place + 1] = own, new
    inner = maker(result)
    if inner is access.node:
        known = {result: make("store", (new, inner.args[1], *access.place))}
    else:
        made = _into(edit, inner, access, new, is_own)
        known = dict(zip(results_of(inner), results_of(made), strict=True))
    return make("loop", starts, loop.attrs, (edit.body(block, known, params),))
