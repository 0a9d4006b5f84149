"""Groups around one dot to kernels at the tile level.

A program computes `rows` rows of `lanes` columns: `%c = dot(%a, %b)` over the whole contracted
axes, kept in local memory, from which a loop over the rows takes them one by one through the
epilogue. The grid runs over batch axes, panels of columns, and tiles of rows, in that order: what
distribute packs for a panel then serves all tiles of rows below it.

Sizes that the tile does not divide need no second kernel: the last tile starts early enough to
be whole, and computes some elements a second time. That needs outputs that do not lie in the
memory of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stack.ir import ops
from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.contraction import product_types
from stack.ir.dim import Dim, add, minimum, mul
from stack.ir.node import Node
from stack.ir.traits import behind, contractions, in_windows, maker, runs_once
from stack.ir.types import F32, F64, I32, I64, DType, TensorType
from stack.passes.blocking.frame import NamedTile
from stack.passes.cpu_loops.walk import walk_of
from stack.passes.exact_tiling.by_lane import shared_tile
from stack.passes.exact_tiling.mma import (
    depth_tile,
    fitting_rows,
    known_to_libraries,
    mma_lanes,
    mma_of,
    mma_rows,
    sums_along_depth,
)
from stack.passes.exact_tiling.tiler import Tiler
from stack.passes.tiling.contraction import (
    operand_names,
    result_names,
    roles_of,
)
from stack.passes.tiling.frame import CannotTile, wide
from stack.target import Cpu, Mma, Target, as_cpu

PREFERRED_ROWS = {4: 4, 2: 7, 1: 12}  # by vectors in a row: enough sums, short code
MOST_ROWS = max(PREFERRED_ROWS.values())
# vectors in a row: of elements that are no power of two LLVM makes single ones
WIDTHS = tuple(PREFERRED_ROWS)
# of the time of a multiplication: loading a vector of the panel from the second-level cache, and an
# element of a row from the first
PANEL_LOAD, ROW_LOAD = 0.8, 0.4


def most_rows(vectors: int, cpu: Cpu) -> int:
    """Rows of a tile of so many vectors in a row."""
    return min(cpu.most_rows(vectors), MOST_ROWS)


def tile_cost(rows: int, vectors: int) -> float:
    """Time of one step of the contracted axes for a tile of so many rows and vectors in a row.

    An operand is loaded for the products of one row, or of one vector, of a tile.
    """
    return rows * vectors + PANEL_LOAD * vectors + ROW_LOAD * rows


def column_cost(vectors: int, cpu: Cpu) -> float:
    """Time for one column of tiles of so many vectors in a row, relative to that of the best."""

    def cost(vectors: int) -> float:
        rows = most_rows(vectors, cpu)
        return tile_cost(rows, vectors) / (rows * vectors)

    return cost(vectors) / min(map(cost, WIDTHS))


def pick_lanes(extent: int, dtype: DType, cpu: Cpu, height: int = 1) -> int:
    """Columns of a tile: those that cover the extent, with tiles of its rows, in the least time.

    Few rows leave registers free: their tiles are wider, as memory is read in longer runs then.
    """
    vector = cpu.vector_bytes // dtype.bytes
    fits = [v for v in WIDTHS if v * vector <= extent]
    if not fits:
        return 1 << (extent.bit_length() - 1)  # part of a vector; the last tile starts early

    def cost(vectors: int) -> float:
        rows = pick_rows(height, vectors * vector, dtype, cpu)
        return -(-extent // (vectors * vector)) * -(-height // rows) * tile_cost(rows, vectors)

    best = min(fits, key=lambda v: (cost(v), -v))
    wider = 2 * vector * cpu.cores
    while _fits(2 * best, height, cpu) and extent % (best * wider) == 0:
        best *= 2
    return best * vector


def _fits(vectors: int, rows: int, cpu: Cpu) -> bool:
    """Whether sums fit in registers; what one row alone is multiplied with stays in memory."""
    return vectors <= cpu.sums if rows == 1 else rows <= cpu.most_rows(vectors)


def pick_rows(extent: int, lanes: int, dtype: DType, cpu: Cpu) -> int:
    """Rows of a tile of packed panels."""
    widest = max(WIDTHS) * cpu.vector_bytes // dtype.bytes
    lanes = min(1 << max(lanes.bit_length() - 1, 0), widest)
    vectors = max(1, lanes * dtype.bytes // cpu.vector_bytes)
    most = most_rows(vectors, cpu)
    least = min(PREFERRED_ROWS[vectors], most // 2 + 1)
    return fitting_rows(extent, least, most, lambda rows: tile_cost(rows, vectors))


def memory_of(operand: Node) -> Node:
    """What a product reads for an operand, through windows or as it is."""
    return operand.args[0] if in_windows(operand) else operand


def check_worth(dot: Node, cpu: Cpu) -> None:
    """Raise CannotTile where a library does a dot better, with the reason.

    It has the instructions of the CPU for shapes that ours do not divide. Where it has none it
    multiplies element by element, and where sums are wider than operands it widens these first.
    """
    operand = dot.args[0].dtype
    if operand.bits != 16 or operand != dot.dtype or is_row_of_sums(dot):
        return
    if roles_of(dot, by_lane=True).is_by_lane or any(map(in_windows, dot.args)):
        return
    if known_to_libraries(dot, cpu) and mma_of(dot, cpu) is None:
        raise CannotTile(f"libraries have instructions for products of {operand}")


def is_kept(group: Node, dot: Node) -> bool:
    """Whether the right operand of a group's dot stays from call to call."""
    memory, params = memory_of(dot.args[roles_of(dot, by_lane=True).right]), group.blocks[0].params
    return memory in params and runs_once(maker(behind(group.args[params.index(memory)])))


def tile_of(
    dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0, is_kept: bool = False
) -> tuple[int, int]:
    """Rows and columns of a tile; those that are given stay.

    `is_kept`: whether the right operand stays from call to call.
    """
    roles, dtype, mma = roles_of(dot, by_lane=True), wide(dot.dtype), mma_of(dot, cpu)
    height = roles.sizes[roles.row] if roles.row else 1
    width = roles.sizes[roles.lane]
    if mma and mma.rows > 1:
        depths = [roles.sizes[n] for n in roles.contracted]
        size = dot.args[0].dtype.bytes
        lanes = lanes or mma_lanes(mma, width, depths, size, cpu, is_kept)
        return rows or mma_rows(mma, height), lanes
    if sums_along_depth(dot, cpu):
        own = depth_tile(roles, cpu)
        return rows or own[0], lanes or own[1]
    vector = cpu.vector_bytes // dtype.bytes
    widths = [lanes] if lanes else [n * vector for n in WIDTHS if n * vector <= width]
    shared = shared_tile(dot, roles, widths or [1 << (width.bit_length() - 1)], rows, cpu)
    if shared is not None:
        return shared
    others = 1 if mma and mma.offset else 0  # rows of sums, where few are multiplied in place
    lanes = lanes or pick_lanes(width, dtype, cpu, (rows or height) + others)
    return rows or pick_rows(height, lanes, dtype, cpu), lanes


def tile_and_mma(dot: Node, cpu: Cpu, lanes: int = 0, rows: int = 0) -> tuple[int, int, Mma | None]:
    """The same, and the instruction that does it.

    Raises CannotTile where no part of a panel fits.
    """
    rows, lanes = tile_of(dot, cpu, lanes, rows)
    roles, mma, operand = roles_of(dot, by_lane=True), mma_of(dot, cpu), dot.args[0].dtype
    left = operand_names(dot, roles.left)
    deepest = roles.sizes[max(roles.contracted, key=left.index)]
    mma = mma and cpu.mma(product_types(dot), rows, lanes, deepest)
    panel = lanes, (operand if mma else wide(dot.dtype)).bytes
    walk = walk_of(roles.contracted, left, roles.sizes, panel, cpu, mma)
    if walk.block is None:
        size = roles.sizes[walk.cut]
        raise CannotTile(f"a contracted axis of {size} has no blocks of equal size")
    return rows, lanes, mma


def is_row_of_sums(dot: Node) -> bool:
    """A vector times a matrix whose contracted axis lies together: a reduction, not a tile."""
    if not result_names(dot):
        return True
    roles = roles_of(dot, by_lane=True)
    if not roles.row:
        last = operand_names(dot, roles.right)[-1]
        return last != roles.lane and last in roles.contracted
    return roles.sizes[roles.lane] == 1 and operand_names(dot, roles.left)[-1] in roles.contracted


def tile_gemm(group: Node, lanes: int = 0, rows: int = 0, target: Target | None = None) -> Node:
    """The kernel of a group that has a dot.

    Args:
        lanes: columns of a tile; 0 picks them.
        rows: rows of a tile; 0 picks them.
        target: the CPU.

    Raises:
        CannotTile: what stands against it.
    """
    return _GemmTiler(group, lanes, rows, as_cpu(target)).kernel()


class _GemmTiler(Tiler):
    def __init__(self, group: Node, lanes: int, rows: int, cpu: Cpu) -> None:
        super().__init__(group)
        dots = contractions(self.body.nodes)
        if len(dots) != 1:
            raise CannotTile("two dots are two kernels")
        self.dot = dots[0]
        self.roles = roles_of(self.dot, by_lane=True)
        self.dtype = wide(self.dot.dtype)
        if self.dtype not in (F32, F64, I32):
            raise CannotTile(f"no schedule for a dot of {self.dot.dtype}")
        if any(memory_of(a) not in self.inputs for a in self.dot.args):
            raise CannotTile("an operand of the dot is computed in its group")
        self.rows, self.tile, self.mma = tile_and_mma(self.dot, cpu, lanes, rows)
        self.start: dict[str, Dim] = {}  # where the tile begins on each axis
        self.made: Node | None = None
        self.held: Node | None = None

    # ---- the frame

    def kernel(self) -> Node:
        """The kernel node of the group. Raises CannotTile."""
        _, iter_vars, index_maps = self._root()
        stored = self.sited(iter_vars, index_maps, self._axes())

        def store_all(memories: Sequence[Node]) -> list[Node]:
            return [
                self._store_result(result, memory, place)
                for (result, place), memory in zip(stored, memories, strict=True)
            ]

        return self.built(self.in_grid(self.grid, self.outputs, store_all))

    def _spanning(self) -> list[Node]:
        return [self.dot]

    def _axes(self) -> Index:
        """What each axis of the product is in the kernel."""
        roles, names = self.roles, iter("ghijkl")

        def steps(extent: int) -> Dim:
            if extent == 1:
                return 0
            return self.program_axis(next(names, "l"), extent, 1, self.grid).place

        for name in (*roles.batch, *roles.panels):
            self.start[name] = steps(roles.sizes[name])
        begin = self.start[roles.lane] = self._tiles(roles.lane, self.tile, steps)
        for name in roles.outer:
            self.start[name] = steps(roles.sizes[name])
        if roles.row:
            self.start[roles.row] = self._tiles(roles.row, self.rows, steps)
        first, extent = self.number(begin).node, roles.sizes[roles.lane]
        self.lanes = self.axis("t", extent, self.tile, first, is_aligned=False, overlaps=True)
        self.line = self.loop_axis("r", self.rows)
        index = {**self.start, roles.lane: self.lanes.place}
        if roles.row and self.rows > 1:
            index[roles.row] = add(self.start[roles.row], self.line.place)
        self.place = tuple(index.get(name, 0) for name in result_names(self.dot))
        return self.place

    def _tiles(self, name: str, size: int, steps: Callable[[int], Dim]) -> Dim:
        """Where a tile of an axis starts; the last one starts early rather than ends late."""
        extent = self.roles.sizes[name]
        begin = mul(steps(-(-extent // size)), size)
        return begin if extent % size == 0 else minimum(begin, extent - size)

    # ---- the product

    def _dot(self, node: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        """One row of the product, at the place of the program."""
        if index != self.place:
            raise CannotTile("the result of the dot is read at a computed index")
        axes = (self.lanes.name,) if self.lanes.is_tile else ()
        if self.rows == 1 and axes:
            return NamedTile(self._shaped((self.tile,)), axes)
        zero = constant(0, I64)
        if self.held is None:
            shape = (self.rows, self.tile)
            memory = self.b.alloc(name="sums", type=TensorType(self.dtype, shape, "local"))
            self.held = self.b.store(memory, self._shaped(shape), zero, zero)
        type_ = TensorType(self.dtype, self.shape(axes), "tile" if axes else "value")
        row = self.line.start if self.rows > 1 else zero
        return NamedTile(self.b.load(self.held, row, zero, type=type_), axes)

    def _shaped(self, shape: tuple[int, ...]) -> Node:
        """The product with the axes of size 1 that a shape has."""
        made = self._product()
        return (
            made
            if made.shape == shape
            else self.b.reshape(made, type=made.tensor.with_shape(shape))
        )

    def _product(self) -> Node:
        if self.made is None:
            before, self.b.loc = self.b.loc, self.body.locs.get(self.dot, self.b.loc)
            blocks: dict[int, Node] = {}
            names: dict[int, list[str]] = {}
            for side in (self.roles.left, self.roles.right):
                blocks[side], names[side] = self._operand(side)
            rule = f"{' '.join(names[0])}, {' '.join(names[1])} ->"
            rule += f" {self.roles.row} {self.roles.lane}" if self.roles.row else self.roles.lane
            sums = TensorType(self.dtype, (), "value")
            self.made = self.b.op("dot", [blocks[0], blocks[1]], {"rule": rule}, hint=sums)
            self.b.names.setdefault(self.made, "c")
            self.b.loc = before
        return self.made

    def _operand(self, side: int) -> tuple[Node, list[str]]:
        """The block of an operand that the tile needs, and the names of its axes."""
        operand = self.dot.args[side]
        memory = self.inputs[memory_of(operand)]
        names = operand_names(self.dot, side)
        size: dict[str, int] = {n: self.roles.sizes[n] for n in self.roles.contracted}
        if side == self.roles.right:
            size[self.roles.lane] = self.tile
        else:
            size |= {self.roles.row: self.rows} if self.roles.row else {}
            size |= {self.roles.lane: self.tile} if self.roles.is_by_lane else {}
        first = min(i for i, n in enumerate(names) if n in size) if size else len(names) - 1
        if in_windows(operand):
            first = min(first, operand.attrs["axis"])
        shape = tuple(size.get(n, 1) for n in names[first:])
        place = tuple(self.start.get(n, 0) for n in names)
        if in_windows(operand):
            block = self._windows(operand, memory, place, shape)
        else:
            block = self._block(memory, place, shape)
        if self.mma is None:
            block = self.cast(NamedTile(block), self.dtype).node
        self.b.names.setdefault(block, "b" if side == self.roles.right else "a")
        return block, names[first:]

    def _block(self, memory: Node, place: Index, shape: tuple[int, ...]) -> Node:
        index = [self.number(d).node for d in place]
        return self.b.load(memory, *index, type=TensorType(memory.dtype, shape, "tile"))

    def _windows(self, node: Node, memory: Node, place: Index, shape: tuple[int, ...]) -> Node:
        """Windows of what they cover: the first starts where it starts in memory."""
        (source,) = ops.pull(node, place)
        at = {**node.attrs, "axis": node.attrs["axis"] - (len(place) - len(shape))}
        first, rank = at["axis"], len(at["window"])
        taps = shape[first + rank : first + 2 * rank]
        steps = zip(shape[first:], taps, at["stride"], at["dilation"], strict=False)
        spans = [(n - 1) * by + (k - 1) * apart + 1 for n, k, by, apart in steps]
        covered = (*shape[:first], *spans, *shape[first + 2 * rank :])
        return self.b.unfold(self._block(memory, source, covered), **{**at, "window": taps})

    # ---- stores

    def _store_result(self, result: Node, memory: Node, index: Index) -> Node:
        if result is not self.dot or self.rows == 1:
            return super()._store_result(result, memory, index)
        # nothing follows the dot: the whole tile goes out at once
        names = result_names(self.dot)
        first = names.index(self.roles.row)
        size = {self.roles.row: self.rows, self.roles.lane: self.tile}
        value = self._shaped(tuple(size.get(n, 1) for n in names[first:]))
        value = self.cast(NamedTile(value), result.dtype).node
        place = [self.number(self.start.get(n, 0)).node for n in names]
        return self.b.store(memory, value, *place)
