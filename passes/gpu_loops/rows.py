"""Kernels without a matrix product on a GPU: elementwise work by vectors, reductions by rows.

Without a reduction along the tile axis all elements are one range of short vectors, one for each
thread. With one, a row belongs to a team: the lanes of one warp where it is short, else all warps
of a block. What a thread finds on its own goes to the lanes of its warp by shuffles, and from warp
to warp through shared memory. Rows and vectors past the end stay at the last one: what is done
there is done twice, and alike, so that no access is masked.
"""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir import ops
from stack.ir.builder import constant
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.types import TensorType
from stack.ir.warp_ops import VECTOR_BYTES, WARP
from stack.passes.cpu_loops.chunk import (
    Chunk,
    Sweeps,
    is_tile,
    is_value,
    origin_of,
    reachable,
    tile_extent,
    tiles_of,
)
from stack.passes.gpu_loops.frame import CannotDistribute, Threads, index, threads_of
from stack.passes.tiling.frame import COMBINE
from stack.target import Gpu

MOST_LANES = 8  # elements of a vector
BUSY = 256  # threads of a processor from which it is kept busy
BLOCK_WARPS = 4  # warps of a block whose warps work alone
WARP_VECTORS = 128  # longest row of vectors that one warp takes on
CHUNKS = 4  # vectors that a thread of a large team is given
UNROLLED = 8  # most chunks that are unrolled, so that values may stay in registers
KEEP_BYTES = 256  # most registers for values that stay from one sweep to the next
DEAR = 8  # scalar operations from which a value is kept rather than computed again


def distribute_rows(block: Block, gpu: Gpu, lanes: int = 0) -> Block:
    """The block of a tile kernel without a dot, at the loop level of a GPU.

    Args:
        lanes: elements of a vector; 0 picks them.

    Raises:
        CannotDistribute: what stands against it.
    """
    return _Rows(Threads(block), lanes, gpu).block()


class _Rows:
    """One kernel; also what its chunks share (see `chunk.Program`)."""

    def __init__(self, threads: Threads, lanes: int, gpu: Gpu) -> None:
        self.t = threads
        self.busy = threads_of(gpu, BUSY)
        self.b = threads.b
        self.fresh = threads.fresh
        self.note = threads.note
        self.sinks = list(threads.program.results)
        if any(origin_of(s) not in (*threads.outputs, *threads.old.params) for s in self.sinks):
            raise CannotDistribute("it stores twice to one memory")
        self.sweeps = Sweeps(self.sinks)
        nodes = reachable(self.sinks)
        if any(not self.sweeps.turns.isdisjoint(f.vars) for w in self.sweeps.work for f in w[0]):
            raise CannotDistribute("it reduces along the tile in every turn of a loop")
        if len({tile_extent(n) for n in nodes if is_tile(n)}) > 1:
            raise CannotDistribute("its tiles are of several sizes")
        self.extent = max(self.sweeps.extent, 1)
        self.lanes = lanes or _lanes(nodes, self.extent)
        self.scalars: dict[Node, Node] = {}
        self.kept: dict[Node, Node] = {}
        self.chunk_index: Node | None = None
        self.chunks = 1
        self.is_warp = False
        self.swap: dict[Node, Node] = {}
        self.warps = 1

    def kept_at(self, offset: Node) -> Sequence[Node]:
        chunk = self.chunk_index if self.chunk_index is not None else self.t.int(0)
        return [self.t.warp, self.t.lane, chunk, self.t.int(0)]

    def block(self) -> Block:
        has_folds = any(folds for folds, _ in self.sweeps.work)
        return self._by_rows() if has_folds else self._pointwise()

    # ---- elementwise

    def _pointwise(self) -> Block:
        t, rows = self.t, self.t.rows
        while self.lanes > 1 and rows * self.extent // self.lanes < self.busy:
            self.lanes //= 2
        along = self.extent // self.lanes
        count = rows * along
        warps = min(2 * BLOCK_WARPS, -(-count // WARP))
        blocks = -(-count // (warps * WARP))

        def program(step: Node, held: list[Node]) -> list[Node]:
            return t.over_warps(
                warps, held, lambda inner: t.over_lanes(inner, lambda m: work(step, m))
            )

        def work(step: Node, held: list[Node]) -> list[Node]:
            warp = self.b.add(t.times(step, warps), t.warp)
            place = self.b.add(t.times(warp, WARP), t.lane)
            place = t.clamped(place, blocks * warps * WARP, count)
            row, column = place, t.int(0)
            if along > 1:
                row, column = self.b.div(place, along), self.b.rem(place, along)
            offset = t.times(column, self.lanes) if along > 1 else column
            chunk = Chunk(self, offset, self.lanes)
            chunk.swap = t.grid_swap(row)
            return [chunk.sink(s, m) for s, m in zip(self.sinks, held, strict=True)]

        return t.kernel(blocks, program)

    # ---- reductions

    def _by_rows(self) -> Block:
        t, rows = self.t, self.t.rows
        along = self.extent // self.lanes
        self.is_warp = along <= WARP_VECTORS and rows > 1
        if self.is_warp:
            self.chunks = -(-along // WARP)
            blocks = -(-rows // BLOCK_WARPS)
            return t.kernel(blocks, lambda step, held: self._alone(step, held, blocks, rows))
        share = CHUNKS if rows * along >= CHUNKS * self.busy else 1
        self.warps = min(WARP, -(-along // (WARP * share)))
        self.chunks = -(-along // (WARP * self.warps))

        def program(step: Node, held: list[Node]) -> list[Node]:
            self.swap = t.grid_swap(step)
            return self._sweep_all(held)

        return t.kernel(rows, program)

    def _alone(self, step: Node, held: list[Node], blocks: int, rows: int) -> list[Node]:
        """A row for each warp."""
        t = self.t

        def body(inner: list[Node]) -> list[Node]:
            row = self.b.add(t.times(step, BLOCK_WARPS), t.warp)
            self.swap = t.grid_swap(t.clamped(row, blocks * BLOCK_WARPS, rows))
            return self._sweep_all(inner)

        return t.over_warps(BLOCK_WARPS, held, body)

    def _sweep_all(self, held: list[Node]) -> list[Node]:
        t = self.t
        keep = self._worth_keeping()
        after = dict(zip(self.sinks, held, strict=True))
        sweep = self._sweep if self.is_warp else self._phase
        for i, (folds, stores) in enumerate(self.sweeps.work):
            kept = keep.get(i, [])
            scalars = [s for s in stores if not _moves([], [s])]
            if scalars:  # one lane stores them
                written, _ = sweep([], scalars, [], [after[s] for s in scalars])
                after.update(zip(scalars, written, strict=True))
                stores = [s for s in stores if s not in scalars]
            if not (stores or folds):
                continue
            shape = (BLOCK_WARPS if self.is_warp else self.warps, WARP, self.chunks, self.lanes)
            writes = [after[s] for s in stores]
            writes += [t.memory("local", "keep", n.dtype, *shape) for n in kept]
            writes, totals = sweep(folds, stores, kept, writes)
            after.update(zip(stores, writes[: len(stores)], strict=True))
            self.kept.update(zip(kept, writes[len(stores) :], strict=True))
            for fold, total in zip(folds, totals, strict=True):
                self.note(fold, total)
                self.scalars[fold] = total
        return [after[s] for s in self.sinks]

    def _worth_keeping(self) -> dict[int, list[Node]]:
        """For each sweep, what stays in registers: dear values first, then what was loaded."""
        if self.chunks > UNROLLED:
            return {}
        room = KEEP_BYTES
        kept: dict[Node, int] = {}
        for is_wanted in (_is_dear, _is_loaded):
            for node, sweeps in self.sweeps.needed(kept).items():
                size = self.chunks * self.lanes * node.dtype.bytes if is_value(node) else 0
                if node not in kept and is_wanted(node) and len(sweeps) > 1 and 0 < size <= room:
                    room -= size
                    kept[node] = sweeps[0]
        found: dict[int, list[Node]] = {}
        for node, sweep in kept.items():
            found.setdefault(sweep, []).append(node)
        return found

    # ---- one sweep

    def _phase(
        self, folds: list[Node], stores: list[Node], keep: list[Node], writes: list[Node]
    ) -> tuple[list[Node], list[Node]]:
        """A sweep of a whole block; its reductions go from warp to warp through shared memory."""
        t, count = self.t, len(writes)
        shared = [t.memory("shared", "sums", f.dtype, self.warps) for f in folds]

        def body(held: list[Node]) -> list[Node]:
            after, totals = self._sweep(folds, stores, keep, held[:count])
            parts = zip(held[count:], totals, strict=True)
            return [*after, *(self.b.store(m, total, t.warp) for m, total in parts)]

        warps = self.warps if _moves(folds, stores) else 1
        after = t.over_warps(warps, [*writes, *shared], body)
        totals: list[Node] = []
        for fold, memory in zip(folds, after[count:], strict=True):
            line = TensorType(fold.dtype, (self.warps,), "tile")
            every = self.b.load(memory, t.int(0), type=line)
            totals.append(self.b.reduce(every, kind=fold.attrs["kind"], axes=(0,)))
        return after[:count], totals

    def _sweep(
        self, folds: list[Node], stores: list[Node], keep: list[Node], writes: list[Node]
    ) -> tuple[list[Node], list[Node]]:
        """A sweep of one warp: memories afterwards, and what its lanes reduce to."""
        t, count = self.t, len(writes)
        kinds = [f.attrs["kind"] for f in folds]
        parts = [t.memory("local", "part", f.dtype, _extent_of(t.warp), WARP) for f in folds]

        def body(held: list[Node]) -> list[Node]:
            after, vectors = self._chunks(folds, stores, keep, held[:count])
            totals = [
                self.b.reduce(v, kind=k, axes=(0,)) for v, k in zip(vectors, kinds, strict=True)
            ]
            stored = zip(held[count:], totals, strict=True)
            return [*after, *(self.b.store(m, v, t.warp, t.lane) for m, v in stored)]

        after = t.over_lanes([*writes, *parts], body, WARP if _moves(folds, stores) else 1)
        totals: list[Node] = []
        for memory, fold, kind in zip(after[count:], folds, kinds, strict=True):
            across = TensorType(fold.dtype, (WARP,), "tile")
            lanes = self.b.load(memory, t.warp, t.int(0), type=across)
            totals.append(self.b.reduce(lanes, kind=kind, axes=(0,)))
        return after[:count], totals

    def _chunks(
        self, folds: list[Node], stores: list[Node], keep: list[Node], held: list[Node]
    ) -> tuple[list[Node], list[Node]]:
        """All chunks of one thread: memories afterwards, and a vector for each reduction."""
        t = self.t
        if self.chunks == 1 or not (keep or _moves(folds, stores)):
            self.chunk_index = None
            return self._chunk(folds, stores, keep, held, t.int(0))
        step = index(self.fresh("c"), self.chunks)
        self.chunk_index = step
        types = [TensorType(f.dtype, (self.lanes,), "tile") for f in folds]
        starts = [
            self.b.broadcast(
                constant(identity(f.attrs["kind"], f.dtype), f.dtype), axes=(), type=line
            )
            for f, line in zip(folds, types, strict=True)
        ]
        accs = [Node("var", (), {"name": self.fresh("acc")}, line) for line in types]
        inner = [Node("var", (), {"name": self.fresh("m")}, m.type) for m in held]
        after, vectors = self._chunk(folds, stores, keep, inner, step)
        sums = [
            self.b.op(COMBINE[f.attrs["kind"]], [a, v])
            for f, a, v in zip(folds, accs, vectors, strict=True)
        ]
        block = Block((step, *accs, *inner), [*sums, *after])
        kind = "unroll" if self.chunks <= UNROLLED else "serial"
        loop = self.b.op("loop", [*starts, *held], {"kind": kind}, (block,))
        count = len(folds) + len(held)
        results = [self.b.item(loop, index=i) for i in range(count)] if count > 1 else [loop]
        return results[len(folds) :], results[: len(folds)]

    def _chunk(
        self,
        folds: list[Node],
        stores: list[Node],
        keep: list[Node],
        held: list[Node],
        step: Node,
    ) -> tuple[list[Node], list[Node]]:
        t = self.t
        along, width = self.extent // self.lanes, WARP * (1 if self.is_warp else self.warps)
        place = t.lane if self.is_warp else self.b.add(t.times(t.warp, WARP), t.lane)
        if self.chunks > 1:
            place = self.b.add(t.times(step, width), place)
        inside: Node | None = None
        if along % width:
            inside = self.b.lt(place, along)
            place = self.b.min(place, along - 1)
        chunk = Chunk(self, t.times(place, self.lanes), self.lanes)
        chunk.swap = dict(self.swap)
        after = [chunk.sink(s, m) for s, m in zip(stores, held[: len(stores)], strict=True)]
        vectors: list[Node] = []
        for fold in folds:
            value = chunk.value(fold.args[0])
            if inside is not None:  # what is done twice counts once
                neutral = constant(identity(fold.attrs["kind"], fold.dtype), fold.dtype)
                value = self.b.select(inside, value, neutral)
            vectors.append(value)
        for node, memory in zip(keep, held[len(stores) :], strict=True):
            place = self.kept_at(chunk.offset)
            after.append(self.b.store(memory, chunk.value(node), *place))
        return after, vectors


def _lanes(nodes: Sequence[Node], extent: int) -> int:
    """Elements of a vector: sixteen bytes of the narrowest type, where they divide the axis."""
    moved = [n if n.op == "load" else n.args[1] for n in nodes if n.op in ("load", "store")]
    indices = [access_parts(n)[0] for n in nodes if n.op in ("load", "store")]
    tiles = [n for n in moved if is_tile(n)]
    if not tiles or any(is_tile(i) for index in indices for i in index):
        return 1
    lanes = min(MOST_LANES, VECTOR_BYTES // min(n.dtype.bytes for n in tiles))
    while extent % lanes:
        lanes //= 2
    return lanes


def _moves(folds: Sequence[Node], stores: Sequence[Node]) -> bool:
    """Whether a sweep goes along the tile axis; else one lane stores scalars."""
    return bool(tiles_of([*(f.args[0] for f in folds), *stores]))


def _extent_of(variable: Node) -> int:
    return int(variable.attrs["extent"])


def _is_dear(node: Node) -> bool:
    op = ops.lookup(node.op)
    return op.kind == "elementwise" and op.flops >= DEAR


def _is_loaded(node: Node) -> bool:
    return node.op == "load" and not any(is_tile(a) for a in node.args)
