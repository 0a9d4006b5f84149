"""Which tile a product on a GPU takes, or whether a library does it: a model of time, best first.

A program computes `rows` x `lanes` sums, `step` deep at a time. The time is the largest of three:
products on the busiest processor, what comes from memory, and what comes through the L2 cache.
Rates are those of the target, and so is what each tile reaches of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod

from stack.ir import ops
from stack.ir.node import Block, Node, topological
from stack.ir.traits import converts, reads_by_data
from stack.ir.types import DType
from stack.ir.warp_ops import LINE_BYTES, MATRIX, WARP
from stack.passes.tiling.contraction import operand_names, result_names, roles_of
from stack.passes.tiling.frame import power_of_two
from stack.schedule import Prediction, Schedule, Split, schedules_of
from stack.target import Gpu

# waits for memory of a tile: before its first product and after its last; more where it then reads
# another array; what is left of it where another tile runs meanwhile
PROLOGUE, READING, HIDDEN = 1, 2, 1 / 3
ACROSS_WAITS = 2  # likewise of a row, where lines are summed across: each element changes threads
MOST_HELD = 128  # registers of a thread for sums: half of what instructions can name
LIBRARY = "library"  # stands where a tile would, for a product that a library computes


@dataclass(frozen=True)
class Tile:
    """Extents of a tile, and how its programs run.

    Attributes:
        rows: of the result in a program.
        lanes: columns of the result in a program.
        step: elements of the contracted axis that are multiplied at a time.
        warps: that share a program.
        stages: steps that are loaded ahead.
        persistent: as many programs as processors take tiles in turn, so that the end of one
            tile overlaps the start of the next.
        last: rows and lanes of smaller tiles, which take what is left when not all processors
            have such a tile any more.
        rate: of a full processor, relative to `Gpu.bf16_rate`.
        products: how many a program computes, each with such a tile of sums.
    """

    rows: int
    lanes: int
    step: int
    warps: int
    stages: int
    persistent: bool = False
    last: tuple[int, int] | None = None
    rate: float = field(default=1.0, compare=False)
    products: int = field(default=1, compare=False)

    def is_shared(self, dtype: DType, gpu: Gpu) -> bool:
        """Whether a processor holds two such programs."""
        return 2 * self.stages * self.step_bytes(dtype.bytes) <= gpu.operand_bytes

    def step_bytes(self, size: int) -> int:
        """Shared memory that both operands take in one step, of elements of so many bytes."""
        return (self.rows + self.products * self.lanes) * self.step * size

    def fitted(self, dtype: DType, gpu: Gpu, held: int = 1) -> Tile | None:
        """The tile with the stages that shared memory has room for; None where not one fits.

        Its sums take half of the registers of a processor at most, and of its threads where they
        are held more than once.
        """
        stages = min(self.stages, gpu.operand_bytes // self.step_bytes(dtype.bytes))
        sums = held * self.sums(dtype)
        of_threads = self.warps * WARP * MOST_HELD if held > 1 else sums
        if not stages or sums > min(gpu.registers // 2, of_threads):
            return None
        return replace(self, stages=stages)

    def sums(self, dtype: DType) -> int:
        """Registers that the sums take, of operands of a type."""
        return self.rows * self.lanes * self.products * max(1, dtype.bytes // 4)

    @property
    def schedule(self) -> Schedule:
        """The same as blocks of the axes m, n and k of a product."""
        rows, lanes = self.last or (0, 0)
        splits = (
            Split("m", self.rows, "grid", rows),
            Split("n", self.lanes, "grid", lanes),
            Split("k", self.step, "serial"),
        )
        own = splits[1:] if self.rows == 1 else splits
        return Schedule(own, self.warps, self.stages, self.persistent)

    @staticmethod
    def of(schedule: Schedule) -> Tile:
        """The tile of a complete schedule; its rate is not known."""
        rows, lanes, step = (schedule.block(axis, 1) for axis in "mnk")
        tile = Tile(rows, lanes, step, schedule.warps, schedule.stages, schedule.persistent)
        last = (schedule.tail("m"), schedule.tail("n"))
        if not any(last):
            return tile
        return replace(tile, last=(last[0] or tile.rows, last[1] or tile.lanes))


WIDE = 64  # rows from which tensor cores read operands where they are
LIBRARY_SINGLE = Tile(64, 64, 32, 4, 3)  # in f32, at the rate of plain multiply-adds
LIBRARY_GAIN = 0.93  # of our time: what a library may take, so that it is surely faster
# columns and depth of a tile of one row, along lines of the other operand and across them
ALONG = ((8, 512), (4, 1024))
ACROSS = ((32, 256), (64, 128), (16, 256))
MOST_PROGRAMS = 5  # of one row on a processor
BUSY = 18  # scalar operations on an element of the result, from which threads have fewer sums


@dataclass(frozen=True)
class Product:
    """`batch` products of `height` x `depth` by `depth` x `width`.

    `reads`: whether what follows reads another array of the size of the result.
    `work`: how many scalar operations on an element of the result follow.
    `gemms`: how many such products of one left operand a program computes.
    `results`: how many arrays of the size of the result are written.
    `rounds`: whether f32 operands may be rounded to TF32.
    `across`: whether the lines of the operand with the columns lie along them; of operands that may
    be rounded, whether those of one do not lie along what is summed.
    `by_threads`: whether threads multiply by themselves, and no tensor core.
    `horizontal`: how many of one left operand have programs of their own, side by side; their
    widths are added up.
    """

    height: int
    width: int
    depth: int
    batch: int = 1
    reads: bool = False
    work: float = 0.0
    gemms: int = 1
    results: int = 1
    across: bool = False
    horizontal: int = 1
    rounds: bool = False
    by_threads: bool = False


@cache
def measured_tiles(gpu: Gpu, product: str) -> tuple[Tile, ...]:
    """The tiles of a target for a kind of product, one of `stack.target.record.PRODUCTS`."""
    held = [t for t in gpu.tiles if t.product == product]
    return tuple(replace(Tile.of(Schedule.parse(t.schedule)), rate=t.rate) for t in held)


def tiles_of(product: Product, dtype: DType, gpu: Gpu) -> tuple[Tile, ...]:
    """Tiles for a product of an element type."""
    if product.height == 1:
        return _lines(product, dtype)
    if product.by_threads:
        tiles = measured_tiles(gpu, "fma")
        return tuple(replace(t, step=max(MATRIX, t.step * 4 // dtype.bytes)) for t in tiles)
    if dtype.bits <= 16:
        return measured_tiles(gpu, "half")
    return measured_tiles(gpu, "tf32" if product.rounds else "single")


def _lines(product: Product, dtype: DType) -> tuple[Tile, ...]:
    """Tiles of one row: plain instructions sum lines of the other operand, each read once."""
    deepest = max(16, power_of_two(product.depth))
    found: dict[Tile, None] = {}
    for lanes, step in ACROSS if product.across else ALONG:
        step = step if not product.across or dtype.bits <= 16 else step // 2
        wider = max(1, step // deepest)
        found[Tile(1, lanes * wider, step // wider, 4, 4 if product.across else 3)] = None
    return tuple(found)


def product_of(body: Block, dots: Sequence[Node]) -> Product:
    """What the tiler makes of the dots in a group. Raises CannotTile."""
    dot = dots[0]
    roles = roles_of(dot)
    sizes = roles.sizes
    inputs = topological([a for d in dots for a in d.args])
    size = dot.tensor.size
    rows = [n for n in body.nodes if reads_by_data(n)]  # rows that data picks are read so too
    reads = any(n.tensor.size == size and n not in inputs for n in (*body.params, *rows))
    return Product(
        height=sizes[roles.row] if roles.row else 1,
        width=sizes[roles.lane],
        depth=prod(sizes[name] for name in roles.contracted),
        batch=prod(sizes[name] for name in (*roles.batch, *roles.panels, *roles.outer)),
        reads=reads,
        across=bool(lying_across(dot))
        if may_round(dot)
        else operand_names(dot, roles.right)[-1] == roles.lane,
        work=sum(_work(n) for n in body.nodes if n.tensor.size == size and n not in inputs),
        gemms=len(dots),
        results=sum(r.tensor.size == size for r in body.results),
        rounds=may_round(dot),
    )


def may_round(dot: Node) -> bool:
    """Whether the operands of a product may be rounded to TF32."""
    return dot.attrs.get("precision") == "tf32"


def lying_across(dot: Node) -> list[int]:
    """The operands of a product whose lines do not lie along what is summed."""
    made = result_names(dot)
    return [i for i in range(2) if operand_names(dot, i)[-1] in made]


def horizontal_product(products: Sequence[Product]) -> Product:
    """Products of one left operand side by side, each by programs of its own."""
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
    """How many of the `down` lines of `across` tiles fill all processors, wave after wave."""
    return down * across // gpu.processors * gpu.processors // max(1, across)  # there may be none


def _with_last(tile: Tile, product: Product, gpu: Gpu) -> list[Tile]:
    """A large tile with the smaller ones that may take what it leaves."""
    down, across = -(-product.height // tile.rows), -(-product.width // tile.lanes)
    lines = whole_waves(down, across, gpu)
    if tile.rows * tile.lanes < 128 * 256 or product.batch != 1 or lines in (0, down):
        return []
    return [replace(tile, last=(t.rows, t.lanes)) for t in measured_tiles(gpu, "tail")]


def seconds(tile: Tile, product: Product, dtype: DType, gpu: Gpu) -> float:
    """What the model expects of a product."""
    return predicted(tile, product, dtype, gpu).seconds


def predicted(tile: Tile, product: Product, dtype: DType, gpu: Gpu) -> Prediction:
    """What the model expects of a product, and of what."""
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
    if product.rounds and product.across and tile.rows >= WIDE:
        rate *= gpu.across_share
    own = flops * gpu.processors / (gpu.bf16_rate * rate)  # of a tile
    waves = -(-programs // gpu.processors)
    prologue, end, hidden = (gpu.latency * w for w in (PROLOGUE, READING, HIDDEN))
    if not product.reads:
        end = prologue
    busy = waves * (own + (hidden if tile.persistent else end))
    if tile.is_shared(dtype, gpu):
        busy = waves * (own + hidden)
        left = programs % (2 * gpu.processors) if dtype.bits <= 16 else programs
        if 0 < left <= gpu.processors:
            # the last ones have a processor alone
            busy += own / gpu.lone_share - own + prologue - hidden
    parts = {
        "tensor": busy,
        "memory": (read + written) / gpu.memory_rate,
        "cache": cached / (gpu.cache_rate * used),
    }
    return Prediction(gpu.launch + max(parts.values()), parts)


def _line_seconds(tile: Tile, product: Product, dtype: DType, gpu: Gpu) -> float:
    """What the model expects of a product of one row, whose programs wait for memory only."""
    lanes = tile.lanes * product.gemms
    programs = -(-product.width // tile.lanes) * product.batch
    own = lanes * product.depth * dtype.bytes
    under_way = (tile.stages - 1) * lanes * tile.step * dtype.bytes
    slots = gpu.processors * min(MOST_PROGRAMS, max(1, gpu.operand_bytes // under_way))
    is_short = product.across and tile.lanes * dtype.bytes < LINE_BYTES
    memory = gpu.memory_rate * (gpu.piece_share if is_short else 1.0)
    waves, left = divmod(programs, slots)
    latency = gpu.latency * (ACROSS_WAITS if product.across else 1)
    last = max(left * own / memory, own * latency / under_way) if left else 0.0
    written = product.width * product.results * product.batch * dtype.bytes
    return gpu.launch + waves * slots * own / memory + last + written / gpu.memory_rate


def ranked(product: Product, dtype: DType, gpu: Gpu) -> list[Tile]:
    """Tiles for a product, the one that the model expects to be fastest first."""
    tiles = tiles_of(product, dtype, gpu)
    is_busy = product.reads and product.work >= BUSY and not product.by_threads
    if is_busy and dtype.bits <= 16 and product.height > 1:
        tiles = measured_tiles(gpu, "reading")
    elif product.reads or product.horizontal > 1:
        # another tile that is loaded in the loop over tiles takes registers of the sums
        tiles = tuple(replace(t, persistent=False, rate=min(t.rate, 1.0)) for t in tiles)
    if product.gemms > 1:
        parts = (_part(t, product.gemms) for t in tiles)
        tiles = tuple(t for t in parts if t.lanes >= (MATRIX if t.rows > 1 else 1))
    elif dtype.bits <= 16 and product.horizontal == 1:
        tiles = (*tiles, *(more for t in tiles for more in _with_last(t, product, gpu)))
    if product.height > 1:
        held = 2 if product.by_threads else 1
        tiles = [fit for t in tiles if (fit := t.fitted(dtype, gpu, held)) is not None]
    return sorted(tiles, key=lambda tile: seconds(tile, product, dtype, gpu))


def best_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """What the model expects of a product with its best tile."""
    return min(seconds(t, product, dtype, gpu) for t in ranked(product, dtype, gpu))


def _part(tile: Tile, count: int) -> Tile:
    """The tile that several products have each, so that their sums take the registers of one.

    Triton keeps only one product under way where a loop over tiles has several sums: 0.72 of the
    rate.
    """
    lanes = tile.lanes // power_of_two(count)
    stages = 4 if tile.persistent else tile.stages
    return replace(tile, lanes=lanes, products=count, stages=stages, persistent=False)


def unfused_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """What the model expects of joined products one by one, the last with what joins them."""
    lone = replace(product, gemms=1, results=1, reads=False, work=0.0)
    last = replace(product, gemms=1, results=max(1, product.results - 1), reads=True)
    return (product.gemms - 1) * best_seconds(lone, dtype, gpu) + best_seconds(last, dtype, gpu)


def library_seconds(product: Product, dtype: DType, gpu: Gpu) -> float:
    """What the model expects of a library, which computes a product and nothing else."""
    tiles = tiles_of(product, dtype, gpu)
    if product.height != 1:
        single = replace(LIBRARY_SINGLE, rate=gpu.f32_rate / gpu.bf16_rate)
        # an extent that is no power of two fills all processors where the others leave many idle
        more = measured_tiles(gpu, "library")
        tiles = (*tiles, *more) if dtype.bits <= 16 else (single,)
    return min(seconds(t, product, dtype, gpu) for t in tiles)


def first_text(group: Node) -> str:
    """The schedule that was chosen for a group; "" where none was."""
    named = schedules_of(group)
    return named[0] if named else ""


def is_given_to_library(group: Node) -> bool:
    """Whether a library was chosen for a group, as its tile."""
    return first_text(group) == LIBRARY


def is_lone(body: Block, dot: Node) -> bool:
    """Whether a group is nothing but a product of floats, which a library computes as well.

    A library reads slices of its operands where they are. What it rounds is a setting of the
    process.
    """
    others = [n for n in body.nodes if n is not dot and not is_slice_of(n, body.params)]
    return not others and dot.dtype.kind == "f" and not may_round(dot)


def is_slice_of(node: Node, arrays: Sequence[Node]) -> bool:
    """Whether a node is a part of one of some arrays, without gaps."""
    return node.op == "slice" and node.args[0] in arrays and set(node.attrs["step"]) == {1}
