"""Attributes of GPU kernels, loops and accesses, which say how programs run: their code stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from stack.ir.bounds import Integers
from stack.ir.builder import constant, make
from stack.ir.memory import memory_of
from stack.ir.node import Block, Node
from stack.ir.traits import is_contraction, is_load, is_loop, is_store
from stack.ir.warp_ops import WARP
from stack.passes.steps.edit import Edit, Visit
from stack.passes.steps.loops import (
    axis_of,
    inner_loop,
    loops_along,
    stores_only,
    why_no_axis,
    why_no_memory,
    why_not_free,
)
from stack.passes.steps.step import LoopStep, Step
from stack.passes.steps.tiles import (
    loaded_bytes,
    parts_of,
    positions,
    spread_along,
    why_no_registers,
)
from stack.passes.tiling.frame import static
from stack.target import Gpu, Target


@dataclass(frozen=True)
class Launch(Step, name="launch", only=Gpu):
    """Set the launch configuration of a kernel.

        kernel(...) {...}        launch 4 stages=3        kernel(...) {stages=3, warps=4}

    Legal if the number of warps is a power of two, the target allows that many threads in a
    program, all tiles fit in registers, and the operands of all stages fit in shared memory. If a
    loop is bound to the grid, so are the loops beside it: programs run nothing else. GPUs only.

    Source: `num_warps` and `num_stages` of Triton.

    Attributes:
        warps: warps of a program.
        stages: stages of the software pipeline that loads the operands of a matmul.
        programs: the number of persistent programs; 0 for one program per iteration of the grid.
    """

    USUAL: ClassVar[int] = 4  # warps: one for each scheduler of a multiprocessor
    warps: int
    stages: int = 2
    programs: int = 0

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.warps < 1 or self.warps & (self.warps - 1):
            yield f"{self.warps} warps: the number is not a power of two"
        if self.stages < 1:
            yield f"stages={self.stages}: at least 1"
        if isinstance(target, Gpu) and self.warps * WARP > target.threads:
            yield f"{self.warps * WARP} threads, and a program has at most {target.threads}"
        yield _why_no_program(kernel.blocks[0])
        yield why_no_registers(kernel, target)
        loops = (n for n in kernel.blocks[0].all_nodes if is_loop(n) and n.attrs.get("staged"))
        held = self.stages * max((loaded_bytes(n.blocks[0]) for n in loops), default=0)
        if isinstance(target, Gpu) and held > target.operand_bytes:
            room = f"shared memory has room for {target.operand_bytes}"
            yield f"stages={self.stages}: operands of {held} bytes; {room}"

    def apply(self, kernel: Node) -> Node:
        held: dict[str, object] = {"warps": self.warps, "stages": self.stages}
        if self.programs:
            held["programs"] = self.programs
        return Edit(kernel.rebuilt(attrs={**kernel.attrs, **held})).everywhere(_masked)


def _why_no_program(block: Block) -> str:
    """Returns why some part of a block is outside of its loops on the grid; "" if none is."""
    bound = [node for node in block.nodes if is_loop(node, "grid")]
    if not bound:
        return ""
    for node in block.nodes:
        if is_loop(node) and not is_loop(node, "grid"):
            axis, other = axis_of(node), axis_of(bound[0])
            return f"axis {axis} is not bound to the grid, and {other} beside it is"
        if is_store(node):
            return f"a store is outside of the loop over {axis_of(bound[0])}, which is on the grid"
    return next(filter(None, (_why_no_program(loop.blocks[0]) for loop in bound)), "")


def _masked(_: Node, node: Node) -> Node | None:
    """Rewrites a load or store that is clipped at the end of memory and also masked by a condition:
    a mask over its elements replaces the clipping. None for other nodes.
    """
    if not (is_load(node) or is_store(node)) or "clip" not in node.attrs:
        return None
    index, mask, other, tile = parts_of(node)
    if mask is None:
        return None
    memory = node.args[0]
    lead = memory.tensor.rank - len(tile)
    test = spread_along(mask, (), tile)
    for axis, size in enumerate(tile):
        first, extent = index[lead + axis], static(memory.shape[lead + axis])
        if not Integers().may_pass(first, size, extent):
            continue
        place = make("add", (first, positions(first.dtype, size)))
        inside = make("lt", (place, constant(extent, first.dtype)))
        test = make("and", (test, spread_along(inside, (axis,), tile)))
    attrs = {k: v for k, v in node.attrs.items() if k != "clip"}
    if is_store(node):
        return make("store", [*node.args[:2], *index, test], attrs)
    zero = constant(0, node.dtype) if other is None else other
    return make("load", [memory, *index, test, zero], attrs, hint=node.type)


SIDES = ("", "rows", "columns")
MEMORY = ("shared", "global")


@dataclass(frozen=True)
class Threads(Step, name="threads", only=Gpu):
    """Compute matmuls by fused multiply-adds of threads.

        kernel(...) {warps=8, ...}      threads 8 8      kernel(...) {threads=[8, 8], warps=8, ...}

    Each thread computes a block of sums in registers. With `lanes=columns`, the lanes of a warp are
    along the columns alone, a sum each. With `operands=global`, threads load operands from global
    memory where they use them; by default a block of them is copied to shared memory first. Legal
    for a kernel with matrix products. For kernels of CUDA C++ only: Triton chooses by itself.

    Source: register tiling, as in V. Volkov and J. W. Demmel, Benchmarking GPUs to tune dense
    linear algebra (SC 2008).

    Attributes:
        rows: rows of sums of a thread.
        columns: columns of sums of a thread.
        lanes: `rows` or `columns` to put the lanes of a warp along that axis alone.
        operands: the memory that threads load operands from: `shared` or `global`.
    """

    rows: int = 0
    columns: int = 0
    lanes: str = ""
    operands: str = "shared"

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if min(self.rows, self.columns) < 0 or not (self.rows or self.columns or self.lanes):
            yield f"{self.rows} x {self.columns} sums: a thread has at least 1 row or 1 column"
        if self.lanes not in SIDES:
            yield f"lanes={self.lanes}: lanes are along rows or columns"
        if self.operands not in MEMORY:
            yield f"operands={self.operands}: operands are in {' or '.join(MEMORY)} memory"
        if not any(map(is_contraction, kernel.blocks[0].all_nodes)):
            yield "there is no matrix product: `tensorize` before"

    def apply(self, kernel: Node) -> Node:
        own: dict[str, object] = {"threads": (self.rows, self.columns)}
        own |= {"lanes": self.lanes} if self.lanes else {}
        own |= {"operands": self.operands} if self.operands != MEMORY[0] else {}
        return kernel.rebuilt(attrs={**kernel.attrs, **own})


SHARED = "shared"


@dataclass(frozen=True)
class Pipeline(LoopStep, name="pipeline", only=Gpu):
    """Prefetch the tiles that the loops over an axis load.

        loop(...) {kind="serial"} ...      pipeline r.0 3     loop(...) {ahead=3, kind="serial"} ...

    If some loops over the axis reduce, only these change: iterations that only store are
    independent, and overlap anyway. With `through=shared`, all tiles that the loop loads are copied
    through shared memory. Legal for a serial loop that loads a tile whose index depends on the
    iteration, if the tiles of all iterations in flight fit in shared memory. GPUs only.

    Source: Lam, Software pipelining (PLDI 1988); `software_pipeline` of TensorIR.

    Attributes:
        turns: the number of iterations in flight.
        through: `shared` to copy the tiles through shared memory; "" leaves it to the printer.
    """

    turns: int
    through: str = ""

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_not_free(kernel, self.axis)
        if self.turns < 1:
            yield f"axis {self.axis}: at least 1 iteration is in flight, not {self.turns}"
        if self.through not in ("", SHARED):
            yield f"axis {self.axis}: tiles go through {SHARED}, not through {self.through!r}"
        loops = [loop for loop, _ in loops_along(kernel, self.axis)]
        if not any(map(_reads, loops)):
            yield f"no loop over {self.axis} loads a tile whose index depends on {self.axis}"
        if self.through and isinstance(target, Gpu):
            held = self.turns * max(loaded_bytes(loop.blocks[0]) for loop in loops)
            if held > target.operand_bytes:
                room = f"shared memory has room for {target.operand_bytes}"
                yield f"axis {self.axis}: {self.turns} iterations load {held} bytes, and {room}"

    def change(self, edit: Edit, loop: Node) -> Node:
        others = (other for other, _ in loops_along(edit.kernel, self.axis))
        is_last = stores_only(loop) and not all(map(stores_only, others))
        if is_last or not _reads(loop):
            return loop
        staged = {"staged": True} if self.through else {}
        return loop.rebuilt(attrs={**loop.attrs, "ahead": self.turns, **staged})


def _reads(loop: Node) -> bool:
    block = loop.blocks[0]
    var = block.params[0]
    return any(is_load(n) and n.tensor.rank and var in n.vars for n in block.all_nodes)


@dataclass(frozen=True)
class Rasterize(LoopStep, name="rasterize", only=Gpu):
    """Order the programs of the loops over an axis and the loop around each in groups.

        loop(%o0) {kind="grid"} {(%i.0 < 32, ...)     rasterize j.0 8
          loop(...) {kind="grid"} {(%j.0 < 16, ...)     loop(...) {group=8, kind="grid"} {(%j.0 ...)

    Programs are numbered along the columns of 8 rows of tiles before the next 8 rows. Programs that
    run at the same time then load few rows of the left operand and few columns of the right one.
    Legal for a loop that is bound to the grid, directly inside of another one that is. GPUs only.

    Source: "grouped ordering" in the matrix multiplication tutorial of Triton; threadblock
    rasterization of CUTLASS.

    Attributes:
        axis: the axis of the inner loop.
        rows: iterations of the outer loop in a group.
    """

    rows: int

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_axis(kernel, self.axis)
        if self.rows < 1:
            yield f"axis {self.axis}: a group has at least 1 row, not {self.rows}"
        for loop, around in loops_along(kernel, self.axis):
            if loop.attrs["kind"] != "grid":
                yield f"axis {self.axis} is not bound to the grid: bind it before"
            if not around or inner_loop(around[-1], self.axis) is None:
                yield f"the loop over {self.axis} is not directly inside of another one"

    def change(self, edit: Edit, loop: Node) -> Node:
        return loop.rebuilt(attrs={**loop.attrs, "group": self.rows})


REUSE = "reuse"
WHEN = ("first", "last", REUSE)


@dataclass(frozen=True)
class Evict(Step, name="evict", only=Gpu):
    """Add an eviction hint to the loads and stores of a memory.

        store(%o0, ...)        evict o0 first        store(%o0, ...) {evict="first"}

    Caches evict lines with the hint `first` early: use it for data that is not reused. Lines with
    the hint `last` stay longest. `reuse` is for a memory that two loops load: `last` in loops that
    reduce, `first` for its other loads. Only accesses to blocks get the hint. Legal for a parameter
    of the kernel. Only GPUs have the hint.

    Source: eviction priorities of PTX (`evict_first`, `evict_last`); `eviction_policy` of Triton.

    Attributes:
        memory: the name of a parameter of the kernel.
        when: `first` or `last` to be evicted, or `reuse`.
    """

    memory: str
    when: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        if self.when not in WHEN:
            yield f"memory {self.memory}: the hint is {', '.join(WHEN)}, not {self.when!r}"
        yield why_no_memory(kernel, self.memory)

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        held = memory_of(kernel.blocks[0])
        usual = "first" if self.when == REUSE else self.when

        def hinted(when: str) -> Visit:
            def visit(old: Node, made: Node) -> Node:
                # later loops load the tiles of one that reduces, if `hold` does not keep them
                is_last = is_loop(old) and (stores_only(old) or old.attrs.get("limited"))
                if is_loop(old) and not is_last and self.when == REUSE:
                    return made.rebuilt(blocks=[edit.rewritten(made.blocks[0], hinted("last"))])
                is_access = (is_load(old) and bool(old.tensor.rank)) or is_store(old)
                if not is_access or str(held(old.args[0]).attrs["name"]) != self.memory:
                    return made
                is_block = not any(a.tensor.rank for a in old.args[1 if is_load(old) else 2 :])
                return made.rebuilt(attrs={**old.attrs, "evict": when}) if is_block else made

            return visit

        return edit.everywhere(hinted(usual))
