"""Reductions down columns on a GPU: the warps of a block share the loop of each element.

Where few elements of a result each take a long loop, one thread for each keeps most of a GPU idle.
Here a block takes as many elements as a warp has lanes, and each of its warps walks over its share
of every loop; what the warps find meets in shared memory. Accesses stay along rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stack.ir.builder import constant
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.types import TensorType
from stack.ir.warp_ops import WARP
from stack.passes.cpu_loops.chunk import Chunk, Sweeps, is_fold, is_memory, origin_of, reachable
from stack.passes.gpu_loops.frame import Threads, index, threads_of
from stack.passes.gpu_loops.operand import line
from stack.passes.tiling.frame import COMBINE
from stack.target import Gpu

BUSY = 1024  # threads of a processor from which one for each element does
LEAST = 8  # turns of a loop that is worth sharing
KINDS = {op: kind for kind, op in COMBINE.items()}


@dataclass(frozen=True)
class Shared:
    """A loop whose turns the warps share.

    Attributes:
        loop: at the tile level; it carries one value.
        kind: how that is reduced.
        added: what each turn adds to it.
        level: how many shared loops in a row this one follows.
    """

    loop: Node
    kind: str
    added: Node
    level: int


def distribute_columns(block: Block, gpu: Gpu) -> Block | None:
    """The kernel's block at the loop level; None where no loop is worth sharing."""
    threads = Threads(block)
    sinks = threads.program.results
    nodes = reachable(sinks)
    if any(is_fold(n) for n in nodes) or any(origin_of(s) not in threads.outputs for s in sinks):
        return None
    if threads.rows * max(Sweeps(sinks).extent, 1) >= threads_of(gpu, BUSY):
        return None
    loops = _shared_loops(nodes)
    return _Columns(threads, loops, gpu).block() if loops else None


def _shared_loops(nodes: Sequence[Node]) -> list[Shared]:
    """Loops that reduce, of which none lies in another."""
    turns = {p for n in nodes if n.op == "loop" and _is_serial(n) for p in n.blocks[0].params}
    found: dict[Node, Shared] = {}
    for node in nodes:
        reduced = _reduced(node)
        if reduced is not None and turns.isdisjoint(node.vars):
            before = [found[n].level + 1 for n in reachable([node]) if n in found]
            found[node] = Shared(node, *reduced, max(before, default=0))
    return list(found.values())


def _reduced(loop: Node) -> tuple[str, Node] | None:
    """How a serial loop reduces, and what; None where it does something else, or is short."""
    if loop.op != "loop" or not _is_serial(loop) or len(loop.args) != 1:
        return None
    (turn, held), (result,) = loop.blocks[0].params, loop.blocks[0].results
    kind, others = KINDS.get(result.op), [a for a in result.args if a is not held]
    if is_memory(held) or kind is None or len(others) != 1 or _extent(turn) < LEAST:
        return None
    if held in others[0].vars or not _is_identity(loop.args[0], kind):
        return None
    return kind, others[0]


def _is_identity(start: Node, kind: str) -> bool:
    """Whether a reduction starts from nothing, so that each warp can."""
    value = start.args[0] if start.op == "broadcast" else start
    return value is constant(identity(kind, value.dtype), value.dtype)


class _Columns:
    """One kernel; also what its chunks share (see `chunk.Program`)."""

    def __init__(self, threads: Threads, loops: Sequence[Shared], gpu: Gpu) -> None:
        self.t = threads
        self.b = threads.b
        self.fresh = threads.fresh
        self.note = threads.note
        self.scalars: dict[Node, Node] = {}
        self.kept: dict[Node, Node] = {}
        self.loops = loops
        self.sinks = list(threads.program.results)
        self.along = max(Sweeps(self.sinks).extent, 1)
        self.count = threads.rows * self.along
        self.blocks = -(-self.count // WARP)
        longest = max(_extent(s.loop.blocks[0].params[0]) for s in loops)
        most = min(gpu.threads // WARP, max(2, threads_of(gpu, BUSY) // self.count))
        self.warps = _pick_warps(longest, most)
        self.found: dict[Node, Node] = {}  # of each loop: the memory with what the warps found

    def kept_at(self, offset: Node) -> Sequence[Node]:
        raise NotImplementedError

    def block(self) -> Block:
        """The kernel's block."""
        last = max(s.level for s in self.loops)

        def program(step: Node, held: list[Node]) -> list[Node]:
            for level in range(last + 1):
                self._reduce([s for s in self.loops if s.level == level])
            return self._finish(held)

        return self.t.kernel(self.blocks, program)

    def _chunk(self) -> Chunk:
        """The element of a lane, with what the warps found for it; past the end, the last one."""
        t, b = self.t, self.b
        place = b.add(t.times(t.step, WARP), t.lane)
        place = t.clamped(place, self.blocks * WARP, self.count)
        row, column = place, t.int(0)
        if self.along > 1:
            row, column = b.div(place, self.along), b.rem(place, self.along)
        chunk = Chunk(self, column, 1)
        chunk.swap = t.grid_swap(row)
        for shared in self.loops:
            if shared.loop in self.found:
                chunk.swap[shared.loop] = self._total(shared)
        return chunk

    def _turn(self, old: Node) -> tuple[Node, Node, Node | None]:
        """A warp's turns of a loop, the old index in one, and whether that exists."""
        b, extent = self.b, _extent(old)
        turn = index(self.fresh(str(old.attrs["name"])), -(-extent // self.warps))
        place = b.add(b.mul(turn, self.warps), self.t.warp)
        if extent % self.warps == 0:
            return turn, place, None
        return turn, b.min(place, extent - 1), b.lt(place, extent)

    # ---- reductions

    def _reduce(self, loops: Sequence[Shared]) -> None:
        """One phase: every warp's part of some loops, to shared memory."""
        t = self.t
        odd = self.warps + 1 - self.warps % 2  # lanes start in different banks
        parts = [t.memory("shared", "parts", s.loop.dtype, WARP, odd) for s in loops]

        def lanes(held: list[Node]) -> list[Node]:
            chunk = self._chunk()
            pairs = zip(held, loops, strict=True)
            return [self.b.store(m, self._part(chunk, s), t.lane, t.warp) for m, s in pairs]

        after = t.over_warps(self.warps, parts, lambda m: t.over_lanes(m, lanes))
        self.found.update(zip((s.loop for s in loops), after, strict=True))

    def _part(self, chunk: Chunk, shared: Shared) -> Node:
        """What a warp's turns of a loop come to."""
        old, held = shared.loop.blocks[0].params
        turn, place, inside = self._turn(old)
        held = Node("var", (), {"name": self.fresh(str(held.attrs["name"]))}, _one(held))
        value = chunk.child({old: place}).value(shared.added)
        if inside is not None:
            neutral = constant(identity(shared.kind, held.dtype), held.dtype)
            value = self.b.select(inside, value, neutral)
        total = self.b.op(COMBINE[shared.kind], [held, value])
        start = chunk.value(shared.loop.args[0])
        return self.b.op("loop", [start], {"kind": "serial"}, (Block((turn, held), [total]),))

    def _total(self, shared: Shared) -> Node:
        """What all warps found, for the element of a lane."""
        b, memory = self.b, self.found[shared.loop]
        parts = b.load(memory, self.t.lane, self.t.int(0), type=line(memory.dtype, self.warps))
        total = b.reduce(parts, kind=shared.kind, axes=(0,))
        type_ = _one(shared.loop)
        return b.broadcast(total, axes=(), type=type_) if type_.rank else total

    # ---- results

    def _finish(self, held: list[Node]) -> list[Node]:
        """What follows the loops: one warp stores single elements, all warps share loops."""
        after = dict(zip(self.sinks, held, strict=True))
        for is_loop in (False, True):
            sinks = [s for s in self.sinks if _is_store_loop(s) == is_loop]
            if sinks:
                made = self._store(sinks, [after[s] for s in sinks], self.warps if is_loop else 1)
                after.update(zip(sinks, made, strict=True))
        return [after[s] for s in self.sinks]

    def _store(self, sinks: Sequence[Node], held: list[Node], warps: int) -> list[Node]:
        t = self.t

        def lanes(memories: list[Node]) -> list[Node]:
            chunk = self._chunk()
            store = chunk.sink if warps == 1 else partial(self._store_turns, chunk)
            return [store(s, m) for s, m in zip(sinks, memories, strict=True)]

        return t.over_warps(warps, held, lambda m: t.over_lanes(m, lanes))

    def _store_turns(self, chunk: Chunk, sink: Node, memory: Node) -> Node:
        """A warp's turns of a loop of stores; past the end, the last one again."""
        block = sink.blocks[0]
        turn, place, _ = self._turn(block.params[0])
        inner = chunk.child({block.params[0]: place})
        return self.t.over(
            "serial", turn, [memory], lambda m: [inner.sink(block.results[0], m[0])]
        )[0]


def _pick_warps(turns: int, most: int) -> int:
    """Warps that share a loop: close to `most`, with equal shares where there are such."""
    divisors = [w for w in range(most, most // 2, -1) if turns % w == 0]
    return divisors[0] if divisors else -(-turns // -(-turns // most))


def _is_store_loop(sink: Node) -> bool:
    return sink.op == "loop" and len(sink.args) == 1


def _is_serial(loop: Node) -> bool:
    return loop.attrs["kind"] == "serial"


def _extent(variable: Node) -> int:
    return int(variable.attrs["extent"])


def _one(value: Node) -> TensorType:
    """The type of a value of one element."""
    return value.tensor.with_shape((1,)) if value.tensor.space == "tile" else value.tensor
