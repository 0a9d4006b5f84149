"""Kernels from the tile level to the loop level of a CPU: grid to parallel loops, tiles to vectors.

The tile axis is walked in chunks of `width` lanes. Everything between two reductions along it is
one *sweep*: softmax is three sweeps (max, sum, store), LayerNorm three, a pointwise kernel one.
A value that is expensive or loaded lane by lane, and needed in a later sweep, is kept in memory of
the program; the rest is computed again from its loads. Serial loops that carry a tile move inside
the chunk, so a column sum keeps its accumulator in registers. Lanes that guards of loads tell apart
are walked apart (`cpu_loops/borders.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from stack.ir.builder import constant
from stack.ir.node import Block, Func, Node
from stack.ir.space import identity
from stack.ir.traits import (
    is_input,
    is_item,
    is_kernel,
    is_loop,
    is_store,
    loop_of,
)
from stack.ir.types import I64, TensorType
from stack.passes.control import BlockPass
from stack.passes.cpu_loops.blocked_sums import sum_in_blocks
from stack.passes.cpu_loops.borders import Case, Part, cases_of, run
from stack.passes.cpu_loops.carried import in_registers
from stack.passes.cpu_loops.chunk import (
    Chunk,
    Sweeps,
    check_lines,
    goes_around,
    is_gathered,
    is_value,
    origin_of,
    plus,
    tiles_of,
)
from stack.passes.cpu_loops.counts import Counts
from stack.passes.cpu_loops.dot import find_dot, is_packed, packs_blocks
from stack.passes.cpu_loops.gemm import counts_of, distribute_gemm
from stack.passes.cpu_loops.prepacked import distribute_prepacked, has_kept_panels
from stack.passes.cpu_loops.reloop import Copy
from stack.passes.cpu_loops.running import before_first, goes_back
from stack.passes.cpu_loops.turned import Turned, turned
from stack.passes.cpu_loops.turned_stores import turned_store
from stack.passes.tiling.frame import COMBINE, is_expensive
from stack.passes.tiling.loops import Rebuilt, extent_of, index, items
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.log import Log
from stack.rewrite.once import OnceAlike
from stack.target import Cpu, Target, as_cpu

KEEP_SHARE = 1 / 16  # of the second-level cache, for kept values: they should stay near


@dataclass(frozen=True)
class Distribute(BlockPass):
    """Turn tile kernels into parallel loops over vectors.

    Attributes:
        width: elements of a vector; 0: four registers of f32.
    """

    name: ClassVar[str] = "distribute"
    width: int = 0

    def run(self, func: Func, log: Log) -> Func:
        log.note(
            f"vectors of {self._width(log)} elements; a register has {log.cpu.vector_bytes} bytes"
        )
        if log.cpu.refused:
            log.note(log.cpu.refused)
        return super().run(func, log)

    def _width(self, log: Log) -> int:
        return self.width or 4 * log.cpu.lanes

    def change(self, block: Block, log: Log) -> Block:
        width = self._width(log)
        loops_of = OnceAlike(lambda kernel: distribute_kernel(kernel, width, log.cpu))
        prepacked_of = OnceAlike(lambda kernel: distribute_prepacked(kernel, log.cpu))

        @cache
        def counted(params: tuple[Node, ...], results: tuple[Node, ...], kept: bool) -> Counts:
            return counts_of(Block(params, results), log.cpu, kept)

        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            if not is_kernel(node, "tile") or not log.spend("distribute"):
                continue
            is_prepacked = has_kept_panels(node, log.cpu)
            body = node.blocks[0]
            dot = find_dot(body)
            if dot is not None and not is_packed(dot):
                counts = counted(body.params, body.results, is_prepacked)
                log.note(f"{node.attrs['name']}: {counts}")
            if not is_prepacked:
                changed[node] = Replacement(loops_of(node))
                continue
            product = prepacked_of(node)
            panels = {a: "panels" for a in product.args if a not in node.args}
            changed[node] = Replacement(product, names=panels)
        return replace(block, changed) if changed else block


def distribute_kernel(kernel: Node, width: int = 0, target: Target | None = None) -> Node:
    """One kernel from the tile level to the loop level; `width` as for the pass."""
    cpu = as_cpu(target)
    width = width or 4 * cpu.lanes
    block = kernel.blocks[0]
    dot = find_dot(block)
    if is_packed(dot) if dot is not None else packs_blocks(block):
        block = _Kernel(block, width, cpu, is_done=True).block()
    elif dot is None:
        check_lines(block)
        block = _Kernel(block, width, cpu).block()
    else:
        block = distribute_gemm(block, cpu)
    block = sum_in_blocks(block)
    attrs = {**kernel.attrs, "level": "loop"}
    return Node("kernel", kernel.args, attrs, kernel.type, (block,))


class _Kernel(Rebuilt):
    """Walks the grid loops down to the program, distributes it, and builds the loops again.

    `is_done` says that the program is vectors already.
    """

    def __init__(self, block: Block, width: int, cpu: Cpu, is_done: bool = False) -> None:
        super().__init__(block)
        self.cpu = cpu
        self.width = width
        self.is_done = is_done
        if is_done:  # its nodes stay, with their names and source lines
            self.b.names.update(block.names)
            self.b.locs.update(block.locs)

    def block(self) -> Block:
        results = self._level(self.old, self.old.params)
        return self.b.block(self.old.params, results)

    def _level(self, block: Block, params: Sequence[Node]) -> list[Node]:
        loop = loop_of(block, "grid")
        if loop is None:
            return list(block.results) if self.is_done else self._program(block)
        inner = loop.blocks[0]
        across = turned(inner, self.cpu) if loop_of(inner, "grid") is None else None
        if across is not None and not self.is_done:
            return self._in_blocks(loop, across)
        new = Block(inner.params, self._level(inner, inner.params))
        node = self.b.op("loop", loop.args, {"kind": "parallel"}, (new,))
        return items(self.b, node)

    def _program(self, block: Block) -> list[Node]:
        """Memory after one program; what it stores across is turned when all of it is there."""
        stores = [turned_store(r) for r in block.results]
        sinks = [
            store.lines(self.b, self.names) if store else result
            for store, result in zip(stores, block.results, strict=True)
        ]
        done = _Program(self, Block(block.params, sinks)).results()
        return [
            store.store(self.b, memory) if store else memory
            for store, memory in zip(stores, done, strict=True)
        ]

    def _in_blocks(self, loop: Node, across: Turned) -> list[Node]:
        """The innermost grid loop, some programs at a time; the last block begins early, and leaves
        out what the one before it does."""
        b, program = self.b, loop.blocks[0]
        row, *memories = program.params
        extent, rows = extent_of(loop), across.rows
        block, number = index(self.fresh("b"), -(-extent // rows)), index(self.fresh("r"), rows)
        begin = first = b.mul(block, rows)
        if extent % rows:
            begin = b.min(first, extent - rows)
        filled = [across.fill(b, n, begin, self.names) for n in across.loads]
        starts = [*memories, *filled]
        own = [Node("var", (), {"name": self.fresh("m")}, m.type) for m in starts]
        held = own[len(memories) :]
        swap = dict(zip(memories, own, strict=False))
        copy = Copy(b, self.old, {**swap, row: b.add(begin, number)}, {})
        for load, memory in zip(across.loads, held, strict=True):
            copy.done[load] = across.row(b, load, memory, begin, number, copy.new)
        inner = Block((number, *own), [copy.new(r) for r in program.results])
        done = Block(inner.params, [*_Program(self, inner).results(), *held])
        limits = [b.sub(first, begin), constant(rows, I64)] if begin is not first else []
        attrs = {"kind": "serial", **({"limited": True} if limits else {})}
        walked = items(b, b.op("loop", [*limits, *starts], attrs, (done,)))
        new = Block((block, *memories), walked[: len(memories)])
        return items(b, b.op("loop", loop.args, {"kind": "parallel"}, (new,)))


class _Program:
    """What one grid position does: sweeps along the tile axis, scalars between them."""

    def __init__(self, kernel: _Kernel, block: Block) -> None:
        self.kernel = kernel
        self.b = kernel.b
        self.sinks = list(block.results)
        # the index of the innermost loop around
        self.program = block.params[0] if block.is_open else None
        self.scalars: dict[Node, Node] = {}  # reductions that are done
        self.kept: dict[Node, Node] = {}  # value -> memory that holds it
        self.memory: dict[Node, Node] = {}  # sink -> memory after its sweep
        self.before = before_first(self.sinks)
        self.sweeps = Sweeps(self.sinks)
        self.extent = self.sweeps.extent
        self.fresh = kernel.fresh
        self.note = kernel.note

    def kept_at(self, offset: Node) -> Sequence[Node]:
        return [offset]

    def results(self) -> list[Node]:
        if not self.extent:
            return self.sinks
        keep = self._worth_keeping()
        for sweep, (folds, stores) in enumerate(self.sweeps.work):
            self._sweep(folds, stores, keep.get(sweep, []))
        return [self.memory.get(s, s) for s in self.sinks]

    def _worth_keeping(self) -> dict[int, list[Node]]:
        """For each sweep, the values that a later sweep needs as well and that take long."""
        room = int(KEEP_SHARE * self.kernel.cpu.cache_bytes)
        keep: dict[int, list[Node]] = {}
        for node, sweeps in self.sweeps.needed().items():
            size = self.extent * max(1, node.tensor.dtype.bytes) if is_value(node) else 0
            is_slow = is_expensive(node) or is_gathered(node)
            if is_slow and size and len(sweeps) > 1 and size <= room:
                room -= size
                keep.setdefault(sweeps[0], []).append(node)
        return keep

    # ---- one sweep

    def _sweep(self, folds: list[Node], stores: list[Node], keep: list[Node]) -> None:
        memories = [self._start(s) for s in stores]
        if not folds and not keep and len(stores) == 1 and goes_around(stores[0]):
            self.memory[stores[0]] = self._around(stores[0], memories[0])
            return
        # a sweep that only stores scalars is one step of one lane
        tiles = tiles_of([*(f.args[0] for f in folds), *stores])
        extent = self.extent if tiles else 1
        width, cpu = min(self.kernel.width, extent), self.kernel.cpu
        if not folds and not keep and not self.before:
            inner = self.sweeps.iterations
            for case in cases_of(self.b, tiles, extent, width, cpu.lanes, inner):
                parts = in_registers(case.parts, tiles, cpu, self.program)
                memories = self._in_case(stores, memories, Case(parts, case.times))
            self.memory.update(zip(stores, memories, strict=True))
            return
        for node in keep:
            name = self.kernel.fresh("keep")
            type_ = TensorType(node.dtype, (self.extent,), "local")
            memories.append(self.b.alloc(name=name, type=type_))
        totals: list[Node] = []
        parts = in_registers(run(0, extent, width), tiles, cpu, self.program)
        for part in reversed(parts) if goes_back(self.before) else parts:
            offset = constant(part.start, I64)
            if part.chunks > 1:
                zero = constant(0, I64)
                lanes, memories = self._chunk_loop(folds, stores, keep, memories, part, zero)
            else:
                lanes, memories = self._chunk(folds, stores, keep, memories, offset, part)
            ends = [
                self.b.reduce(v, kind=f.attrs["kind"], axes=(0,))
                for f, v in zip(folds, lanes, strict=True)
            ]
            known = self.kernel.old.locs
            self.b.locs.update((e, known[f]) for f, e in zip(folds, ends) if f in known)
            totals = (
                [
                    self.b.op(COMBINE[f.attrs["kind"]], [total, end])
                    for f, total, end in zip(folds, totals, ends, strict=True)
                ]
                if totals
                else ends
            )
        for fold, total in zip(folds, totals, strict=True):
            self.kernel.note(fold, total)
            self.scalars[fold] = total
        for sink, memory in zip(stores, memories, strict=False):
            self.memory[sink] = memory
        for node, memory in zip(keep, memories[len(stores) :], strict=True):
            self.kept[node] = memory

    def _around(self, sink: Node, memory: Node) -> Node:
        """Memory after a loop whose turns each go along the lanes."""
        inner = sink.blocks[0]
        new = Block(inner.params, _Program(self.kernel, inner).results())
        return self.b.op("loop", [memory], sink.attrs, (new,))

    def _in_case(self, stores: list[Node], memories: list[Node], case: Case) -> list[Node]:
        """Memories after the stores of a case: a loop of one turn, or of none."""
        if case.times is None:
            return self._stored(stores, memories, case.parts, constant(0, I64))
        held = [Node("var", (), {"name": self.fresh("m")}, m.type) for m in memories]
        once = index(self.fresh("once"), 1)  # lanes begin there, so that no load leaves the loop
        block = Block((once, *held), self._stored(stores, held, case.parts, once))
        attrs = {"kind": "serial", "limited": True}
        args = [constant(0, I64), case.times, *memories]
        return items(self.b, self.b.op("loop", args, attrs, (block,)))

    def _stored(
        self, stores: list[Node], memories: list[Node], parts: Sequence[Part], first: Node
    ) -> list[Node]:
        """Memories after the stores of all parts, from a lane on."""
        for part in parts:
            if part.chunks > 1 or part.limits:
                _, memories = self._chunk_loop([], stores, [], memories, part, first)
            else:
                offset = plus(self.b, first, constant(part.start, I64))
                _, memories = self._chunk([], stores, [], memories, offset, part)
        return memories

    def _start(self, sink: Node) -> Node:
        """The memory that a sink starts from; sinks that it follows come first."""
        origin = origin_of(sink)
        if (is_store(origin) or is_loop(origin) or is_item(origin)) and origin not in self.memory:
            self._sweep([], [origin], [])
        return self.memory.get(origin, origin)

    def _chunk_loop(
        self,
        folds: list[Node],
        stores: list[Node],
        keep: list[Node],
        memories: list[Node],
        part: Part,
        first: Node,
    ) -> tuple[list[Node], list[Node]]:
        fresh = self.kernel.fresh
        counter = index(fresh("c"), part.chunks)
        vector_types = [TensorType(f.dtype, (part.width,), "tile") for f in folds]
        starts = [
            self.b.broadcast(constant(identity(f.attrs["kind"], f.dtype), f.dtype), axes=(), type=t)
            for f, t in zip(folds, vector_types, strict=True)
        ]
        accs = [Node("var", (), {"name": fresh("acc")}, t) for t in vector_types]
        held = [Node("var", (), {"name": fresh("m")}, m.type) for m in memories]
        start = plus(self.b, first, constant(part.start, I64))
        step = self.b.sub(part.chunks - 1, counter) if goes_back(self.before) else counter
        offset = plus(self.b, self.b.mul(step, part.width), start)
        carried = [*self.before.values()]
        running = [Node("var", (), {"name": fresh("run")}, v.type) for v in carried]
        self.before.update(zip(self.before, running, strict=True))
        parts, after = self._chunk(folds, stores, keep, held, offset, part)
        sums = [
            self.b.op(COMBINE[f.attrs["kind"]], [a, p])
            for f, a, p in zip(folds, accs, parts, strict=True)
        ]
        block = Block((counter, *accs, *running, *held), [*sums, *self.before.values(), *after])
        attrs = {"kind": "serial", **({"limited": True} if part.limits else {})}
        init = [*(part.limits or ()), *starts, *carried, *memories]
        results = items(self.b, self.b.op("loop", init, attrs, (block,)))
        stored = len(folds) + len(running)
        self.before.update(zip(self.before, results[len(folds) : stored], strict=True))
        return results[: len(folds)], results[stored:]

    def _chunk(
        self,
        folds: list[Node],
        stores: list[Node],
        keep: list[Node],
        memories: list[Node],
        offset: Node,
        part: Part,
    ) -> tuple[list[Node], list[Node]]:
        """Operands of the folds on one chunk, and memories after its stores."""
        chunk = Chunk(self, offset, part.width, part.known)
        origins = [origin_of(s) for s in stores]  # what is read there is as it is by now
        chunk.swap = {o: m for o, m in zip(origins, memories, strict=False) if is_input(o)}
        after = [chunk.sink(s, m) for s, m in zip(stores, memories, strict=False)]
        for node, memory in zip(keep, memories[len(stores) :], strict=True):
            after.append(self.b.store(memory, chunk.value(node), offset))
        parts = [chunk.value(f.args[0]) for f in folds]
        return parts, after
