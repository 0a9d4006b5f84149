"""Cost model of matmuls on a GPU: ranks tile sizes, and decides when to call a library.

A program computes `rows` x `lanes` sums. Each step multiplies `step` elements of the contracted
axis. The predicted time is the largest of three: multiplications on the busiest multiprocessor,
traffic of device memory, and traffic of the L2 cache. The target gives the peak rates, and the
share of them that each tile reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

from stack.ir import ops
from stack.ir.axes import parse_rule
from stack.ir.contraction import ROUNDED, contraction
from stack.ir.node import Block, Node, topological
from stack.ir.traits import converts, reads_by_data
from stack.ir.types import DType
from stack.ir.warp_ops import GROUP_ROWS, LINE_BYTES, MATRIX, WARP
from stack.passes.tiling.contraction import operand_names, result_names, roles_of
from stack.passes.tiling.frame import power_of_two, static
from stack.schedule import AxisSplit, Prediction, Schedule, schedules_of
from stack.target import Gpu

LIBRARY = "library"  # replaces the tile in a schedule if a library computes the matmul


@dataclass(frozen=True)
class Tile:
    """The extents of a tile, and the launch configuration of its programs.

    A persistent program loops over tiles, one program for each multiprocessor, so that the epilogue
    of one tile overlaps the prologue of the next.
    """

    rows: int  # of the result in a program
    lanes: int  # columns of the result in a program
    step: int  # elements of the contracted axis that are multiplied at a time
    warps: int  # of a program
    stages: int  # prefetch depth, in steps
    persistent: bool = False
    last: tuple[int, int] | None = None  # rows and lanes of the tiles of the last, partial wave
    rate: float = field(default=1.0, compare=False)  # of a full multiprocessor, to Gpu.bf16_rate
    products: int = field(default=1, compare=False)  # matmuls in a program, each with such a tile

    def is_shared(self, dtype: DType, gpu: Gpu) -> bool:
        """True if two programs with such a tile fit in a multiprocessor's shared memory."""
        return 2 * self.stages * self.step_bytes(dtype.bytes) <= gpu.operand_bytes

    def step_bytes(self, size: int) -> int:
        """Returns the bytes of shared memory of all operands in one step; `size`: of an element."""
        return (self.rows + self.products * self.lanes) * self.step * size

    def fitted(self, dtype: DType, gpu: Gpu, held: int = 1) -> Tile | None:
        """Returns the tile with as many of its pipeline stages as fit in shared memory.

        None if not one stage fits, or if its accumulators (sums) take more than half of the
        registers of a multiprocessor.

        Args:
            held: copies of the accumulators that are held at once. With several, they must also
                fit in the tuned number of registers for each thread (`thread_sums`).
        """
        stages = min(self.stages, gpu.operand_bytes // self.step_bytes(dtype.bytes))
        sums = held * self.sums(dtype)
        of_threads = self.warps * WARP * gpu.matmuls.thread_sums if held > 1 else sums
        if not stages or sums > min(gpu.tile_registers, of_threads):
            return None
        return replace(self, stages=stages)

    def sums(self, dtype: DType) -> int:
        """Returns the registers that the sums take, for operands of a type."""
        return self.rows * self.lanes * self.products * max(1, dtype.bytes // 4)

    @property
    def schedule(self) -> Schedule:
        """The tile as a schedule: blocks of the axes m, n and k of a matmul."""
        rows, lanes = self.last or (0, 0)
        splits = (
            AxisSplit("m", self.rows, "grid", rows),
            AxisSplit("n", self.lanes, "grid", lanes),
            AxisSplit("k", self.step, "serial"),
        )
        own = splits[1:] if self.rows == 1 else splits
        return Schedule(own, self.warps, self.stages, self.persistent)

    @staticmethod
    def of(schedule: Schedule) -> Tile:
        """Returns the tile of a complete schedule. Its rate is unknown and stays at 1."""
        rows, lanes, step = (schedule.block(axis, 1) for axis in "mnk")
        tile = Tile(rows, lanes, step, schedule.warps, schedule.stages, schedule.persistent)
        last = (schedule.tail("m"), schedule.tail("n"))
        if not any(last):
            return tile
        return replace(tile, last=(last[0] or tile.rows, last[1] or tile.lanes))


LIBRARY_SINGLE = Tile(64, 64, 32, 4, 3)  # in f32, at the rate of multiply-adds without tensor cores
# columns and depth of a tile of one row, for a contiguous and for a strided contracted axis
ALONG = ((8, 512), (4, 1024))
ACROSS = ((32, 256), (64, 128), (16, 256))


@dataclass(frozen=True)
class Product:
    """The description of a matmul and its epilogue for the cost model: `batch` products of `height`
    x `depth` by `depth` x `width`.
    """

    height: int
    width: int  # of all matmuls in one launch together
    depth: int
    batch: int = 1
    reads: bool = False  # whether the epilogue reads another array of the size of the result
    work: float = 0.0  # scalar operations of the epilogue on an element of the result
    gemms: int = 1  # such matmuls of one left operand in a program
    results: int = 1  # arrays of the size of the result that are written
    across: bool = False  # whether the right operand is contiguous along its columns; if operands
    # may be rounded, whether the contracted axis is strided in one of them
    horizontal: int = 1  # matmuls of one left operand in one launch, with programs of their own
    rounds: bool = False  # whether f32 operands may be rounded to TF32
    rounded: bool = False  # whether they are TF32 values in memory already
    by_threads: bool = False  # whether threads multiply without tensor cores


@cache
def measured_tiles(gpu: Gpu, product: str) -> tuple[Tile, ...]:
    """Returns the tiles that were measured on a target, for one of the kinds of matmul in
    `stack.target.record.PRODUCTS`.
    """
    held = [t for t in gpu.tiles if t.product == product]
    return tuple(replace(Tile.of(Schedule.parse(t.schedule)), rate=t.rate) for t in held)


def tiles_of(product: Product, dtype: DType, gpu: Gpu) -> tuple[Tile, ...]:
    """Returns the candidate tiles for a matmul of an element type."""
    if product.height == 1:
        return _lines(product, dtype)
    if product.by_threads:
        tiles = measured_tiles(gpu, "fma")
        return tuple(replace(t, step=max(MATRIX, t.step * 4 // dtype.bytes)) for t in tiles)
    if dtype.bits <= 16:
        return measured_tiles(gpu, "half")
    if not product.rounds:
        return measured_tiles(gpu, "single")
    return measured_tiles(gpu, "tf32" if product.rounded else "rounding")


def _lines(product: Product, dtype: DType) -> tuple[Tile, ...]:
    """Returns candidate tiles of one row for matrix-vector products, without tensor cores. The
    matrix is read only once.
    """
    deepest = max(16, power_of_two(product.depth))
    found: dict[Tile, None] = {}
    for lanes, step in ACROSS if product.across else ALONG:
        step = step if not product.across or dtype.bits <= 16 else step // 2
        wider = max(1, step // deepest)
        found[Tile(1, lanes * wider, step // wider, 4, 4 if product.across else 3)] = None
    return tuple(found)


def product_of(body: Block, dots: Sequence[Node]) -> Product:
    """Describes the matmuls `dots` of a group, with the group's epilogue, for the cost model.

    Raises CannotTile if one kernel cannot compute them together.
    """
    dot = dots[0]
    roles = roles_of(dot)
    inputs = topological([a for d in dots for a in d.args])
    size = dot.tensor.size
    rows = [n for n in body.nodes if reads_by_data(n)]  # gathered rows are read too
    reads = any(n.tensor.size == size and n not in inputs for n in (*body.params, *rows))
    return Product(
        height=roles.height,
        width=roles.width,
        depth=roles.depth,
        batch=roles.products,
        reads=reads,
        across=bool(lying_across(dot))
        if may_round(dot)
        else operand_names(dot, roles.right)[-1] == roles.lane,
        work=sum(_work(n) for n in body.nodes if n.tensor.size == size and n not in inputs),
        gemms=len(dots),
        results=sum(r.tensor.size == size for r in body.results),
        rounds=may_round(dot),
        rounded=all(d.attrs.get("precision") == ROUNDED for d in dots),
    )


def may_round(dot: Node) -> bool:
    """True if the operands of a matmul may be rounded to TF32."""
    return "precision" in dot.attrs


def lying_across(dot: Node) -> list[int]:
    """Returns the numbers of the operands in which the contracted axis is strided."""
    made = result_names(dot)
    return [i for i in range(2) if operand_names(dot, i)[-1] in made]


def horizontal_product(products: Sequence[Product]) -> Product:
    """Joins matmuls of one left operand into one launch; each has programs of its own."""
    return replace(
        products[0],
        width=sum(p.width for p in products),
        reads=any(p.reads for p in products),
        work=max(p.work for p in products),
        horizontal=len(products),
    )


def _work(node: Node) -> float:
    op = ops.lookup(node.op)
    return op.flops if op.kind == "elementwise" and not converts(node) else 0.0


def whole_waves(down: int, across: int, gpu: Gpu) -> int:
    """Returns the rows of tiles that full waves compute, for a grid of `down` rows of `across`
    tiles. A full wave has one tile for each multiprocessor; the rows that are left are the partial
    wave."""
    return down * across // gpu.processors * gpu.processors // max(1, across)  # there may be none


def _with_last(tile: Tile, product: Product, gpu: Gpu) -> list[Tile]:
    """Returns copies of a large tile, each with a smaller tile for the last, partial wave."""
    down, across = -(-product.height // tile.rows), -(-product.width // tile.lanes)
    lines = whole_waves(down, across, gpu)
    if tile.rows * tile.lanes < gpu.tile_registers or product.batch != 1 or lines in (0, down):
        return []
    return [replace(tile, last=(t.rows, t.lanes)) for t in measured_tiles(gpu, "tail")]


def predicted(tile: Tile, product: Product, dtype: DType, gpu: Gpu) -> Prediction:
    """Predicts the time of a matmul with a tile, and the times of its parts."""
    if tile.rows == 1:
        spent = _line_seconds(tile, product, dtype, gpu)
        return Prediction(spent, {"memory": spent - gpu.launch})
    if tile.last:
        across = -(-product.width // tile.lanes)
        done = whole_waves(-(-product.height // tile.rows), across, gpu) * tile.rows
        tails = measured_tiles(gpu, "tail")
        small = next(t for t in tails if (t.rows, t.lanes) == tile.last)
        left = replace(product, height=product.height - done)
        first = predicted(replace(tile, last=None), replace(product, height=done), dtype, gpu)
        rest = predicted(small, left, dtype, gpu)
        parts = {part: spent + rest.parts[part] for part, spent in first.parts.items()}
        return Prediction(first.seconds + rest.seconds - gpu.launch, parts)
    height, width, depth = product.height, product.width, product.depth
    batch = product.batch
    programs = -(-height // tile.rows) * -(-width // tile.lanes) * batch
    lanes = tile.lanes * product.gemms
    flops = 2.0 * tile.rows * lanes * depth
    read = (height + width * product.gemms) * depth * batch * dtype.bytes
    written = height * width * product.results * batch * dtype.bytes
    cached = programs * (tile.rows + lanes) * depth * dtype.bytes
    used = min(1.0, max(1, programs) / gpu.processors)  # an empty result has none
    rate = tile.rate
    if product.rounds and product.across and tile.rows >= GROUP_ROWS:
        rate *= gpu.across_share
    own = flops * gpu.processors / (gpu.bf16_rate * rate)  # of a tile
    waves = -(-programs // gpu.processors)
    hidden, prologue = gpu.matmuls.hidden_waits * gpu.latency, gpu.latency
    end = gpu.matmuls.reading_waits * gpu.latency if product.reads else prologue
    busy = waves * (own + (hidden if tile.persistent else end))
    if tile.is_shared(dtype, gpu):
        busy = waves * (own + hidden)
        left = programs % (2 * gpu.processors) if dtype.bits <= 16 else programs
        if 0 < left <= gpu.processors:
            # each program of the last wave has a multiprocessor to itself
            busy += own / gpu.lone_share - own + prologue - hidden
    parts = {
        "tensor": busy,
        "memory": (read + written) / gpu.memory_rate,
        "cache": cached / (gpu.cache_rate * used),
    }
    return Prediction(gpu.launch + max(parts.values()), parts)


def _line_seconds(tile: Tile, product: Product, dtype: DType, gpu: Gpu) -> float:
    """Predicts the time of a matmul with one row, which is limited by memory only."""
    lanes = tile.lanes * product.gemms
    programs = -(-product.width // tile.lanes) * product.batch
    own = lanes * product.depth * dtype.bytes
    under_way = (tile.stages - 1) * lanes * tile.step * dtype.bytes
    fitting = max(1, gpu.operand_bytes // under_way)
    slots = gpu.processors * min(gpu.matmuls.line_programs, fitting)
    is_short = product.across and tile.lanes * dtype.bytes < LINE_BYTES
    memory = gpu.memory_rate * (gpu.piece_share if is_short else 1.0)
    waves, left = divmod(programs, slots)
    latency = gpu.latency * (gpu.matmuls.strided_waits if product.across else 1)
    last = max(left * own / memory, own * latency / under_way) if left else 0.0
    written = product.width * product.results * product.batch * dtype.bytes
    return gpu.launch + waves * slots * own / memory + last + written / gpu.memory_rate


def ranked(product: Product, dtype: DType, gpu: Gpu) -> list[Tile]:
    """Returns the tiles for a matmul, sorted by predicted time, the fastest first."""
    tiles = tiles_of(product, dtype, gpu)
    is_busy = product.reads and product.work >= gpu.matmuls.busy_ops and not product.by_threads
    if is_busy and dtype.bits <= 16 and product.height > 1:
        tiles = measured_tiles(gpu, "reading")
    elif product.reads or product.horizontal > 1 or gpu.shared:
        # A persistent program that loads another tile has fewer registers for sums. On a shared GPU
        # persistent programs that find no processor wait until the others have ended.
        tiles = tuple(replace(t, persistent=False, rate=min(t.rate, 1.0)) for t in tiles)
    if product.gemms > 1:
        parts = (_part(t, product.gemms) for t in tiles)
        tiles = tuple(t for t in parts if t.lanes >= (MATRIX if t.rows > 1 else 1))
    elif dtype.bits <= 16 and product.horizontal == 1:
        tiles = (*tiles, *(more for t in tiles for more in _with_last(t, product, gpu)))
    if product.height > 1:
        held = 2 if product.by_threads else 1
        tiles = [fit for t in tiles if (fit := t.fitted(dtype, gpu, held)) is not None]
    return sorted(tiles, key=lambda tile: predicted(tile, product, dtype, gpu).seconds)


def best_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """Predicts the time of a matmul with its best tile."""
    return predicted(ranked(product, dtype, gpu)[0], product, dtype, gpu).seconds


def _part(tile: Tile, count: int) -> Tile:
    """Shrinks a tile for a program that computes `count` matmuls, so that their sums together take
    the registers of one.

    Triton does not overlap the matmuls of a persistent loop with several sums, which reaches only
    0.72 of the rate.
    """
    lanes = tile.lanes // power_of_two(count)
    stages = 4 if tile.persistent else tile.stages
    return replace(tile, lanes=lanes, products=count, stages=stages, persistent=False)


def unfused_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """Predicts the seconds of `product`, several matmuls of one left operand, if each has a kernel
    of its own and the last one computes the epilogue.
    """
    lone = replace(product, gemms=1, results=1, reads=False, work=0.0)
    last = replace(product, gemms=1, results=max(1, product.results - 1), reads=True)
    return (product.gemms - 1) * best_seconds(lone, dtype, gpu) + best_seconds(last, dtype, gpu)


def library_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """Predicts the time of a library call, which computes the matmul without an epilogue."""
    tiles = tiles_of(product, dtype, gpu)
    if product.height != 1:
        single = replace(LIBRARY_SINGLE, rate=gpu.f32_rate / gpu.bf16_rate)
        # tiles whose extent is not a power of two may fill all multiprocessors
        more = measured_tiles(gpu, "library")
        tiles = (*tiles, *more) if dtype.bits <= 16 else (single,)
    return min(predicted(t, product, dtype, gpu).seconds for t in tiles)


def copy_seconds(dot: Node, gpu: Gpu) -> float:
    """Estimates the seconds that a library takes to copy operands of a dot.

    It reads an operand as a matrix, or a batch of them: rows and contracted axes are one axis each.
    If those of an operand are not adjacent in memory, in the same order, it is copied.
    """
    roles = contraction(parse_rule(dot.attrs["rule"]))
    sides = ((roles.left, roles.rows), (roles.right, roles.columns))
    seconds = 0.0
    for x, (names, own) in zip(dot.args, sides, strict=True):
        real = [n for n, size in zip(names, x.shape, strict=True) if size != 1]
        if not all(_is_run(role, real) for role in (roles.batch, own, roles.contracted)):
            seconds += gpu.launch + 2 * static(x.tensor.bytes) / gpu.memory_rate
    return seconds


def _is_run(role: Sequence[str], names: Sequence[str]) -> bool:
    """True if the axes of a role are adjacent and in the same order among all axes."""
    places = [names.index(n) for n in role if n in names]
    return all(b == a + 1 for a, b in pairwise(places))


def is_given_to_library(group: Node) -> bool:
    """True if the schedule of a group asks for a library call."""
    return schedules_of(group)[:1] == (LIBRARY,)


def is_lone(body: Block, dot: Node) -> bool:
    """True if a group computes only one matmul of floats, with nothing fused to it, so that a
    library call can replace it.

    A library reads slices of its operands in place. Rounding to TF32 is a setting of the process,
    so a matmul that may be rounded does not count.
    """
    slices = (n for n in body.nodes if n.op == "slice" and n.args[0] in body.params)
    own = {dot, *(n for n in slices if set(n.attrs["step"]) == {1})}
    return own.issuperset(body.nodes) and dot.dtype.kind == "f" and not may_round(dot)
