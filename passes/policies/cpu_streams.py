"""Streams on a CPU: rows run along the lanes of vectors, and a loop takes panels of keys.

A key is one element of the streamed axis. Each value of a panel is a vector of rows, so that
maxima, sums and rescaling are operations on vectors. The products of a panel are blocks in
registers; states with columns, as the weighted sums of attention, are in local memory.

    attention of 2 heads, 512 rows, 512 keys, 64 columns:
    split j 64 tail=overlap; bind i cores; bind j.0 cores; split r 64 tail=peel; block r.1;
    vectorize j.1; sink k r.0; fission r.1 c into=s; stage exp2 local; fission k r.1 into=t;
    stage_mem p0 c; stage_mem o0 k; split s 6 tail=overlap; microkernel s.1;
    split t 6 tail=overlap; microkernel t.1
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property

from stack.ir.contraction import product_types
from stack.ir.node import Node
from stack.ir.stream_op import streamed_extent
from stack.ir.traits import contractions, converts, is_load, is_loop, multiplies
from stack.ir.types import F32, DType, holds_all
from stack.passes.cpu_products.gemm import WIDTHS, column_cost, mma_rows, pick_rows, why_sums
from stack.passes.nest.online import STREAMED
from stack.passes.nest.scope import letter
from stack.passes.policies.step_lowering import StepLowering, reordered, split
from stack.passes.positions.streams import stream_axes
from stack.passes.steps.assume import limits_loops
from stack.passes.steps.guard import summand
from stack.passes.steps.loops import all_loops, axes, axis_of, loops_along, nests, stores_only
from stack.passes.steps.microkernel import product_at
from stack.passes.steps.panels import BlockProduct, names_of_memory, read_by
from stack.passes.steps.primitives import (
    Assume,
    Bind,
    BlockStates,
    BoundLoops,
    ComputeWith,
    Fission,
    LoweredKernel,
    Microkernel,
    Pack,
    Rewrite,
    Sink,
    Stage,
    StageMem,
    Step,
    Vectorize,
)
from stack.passes.steps.stage import computed_again
from stack.passes.steps.stage_mem import strided_accesses
from stack.passes.steps.tiles import is_transposed
from stack.passes.tiling.contraction import result_names
from stack.passes.tiling.frame import CannotTile, is_expensive, static, wide
from stack.schedule import Axis, AxisSplit, Domain, Schedule
from stack.target import Cpu, Mma

PRODUCTS = "stvwxyz"  # the axes of loops over products
COLUMNS = "u"  # the axis of the loop that adds the products of a panel to states with columns


class CpuStreams(StepLowering[Cpu]):
    """Lowers a stream with rows."""

    def check(self) -> None:
        """Raises CannotTile if the loop nest and the schedule show that `take` would find no
        kernel.
        """
        row, _ = self.row_and_column
        _ = self.schedule
        rows = {loop.blocks[0].params[0] for loop, _ in loops_along(self.nest, row)}
        for load in filter(is_load, self.nest.blocks[0].all_nodes):
            if load.dtype.kind != "f" and any(is_transposed(load, var) for var in rows):
                raise CannotTile(_strided(load.dtype))

    @cached_property
    def row_and_column(self) -> tuple[str, str]:
        """Returns the names of the nest's axes of rows and of columns; "" for no columns. Raises
        CannotTile if the stream has no rows.
        """
        if any(wide(s.dtype) != F32 for s in self.group.blocks[0].results):
            raise CannotTile("a state is not in f32")
        found = stream_axes(self.group)
        names = {
            name: letter(i) for i, (name, size) in enumerate(found.extents.items()) if size > 1
        }
        row, column = names.get(found.row, ""), names.get(found.column, "")
        if not row:
            raise CannotTile("it has one row: vectors have a row in each lane")
        return row, column

    @property
    def is_limited(self) -> bool:
        """True if a mask that compares positions, such as a causal one, hides keys, so that panels
        (blocks of keys) can be skipped or shortened.
        """
        if not BoundLoops(STREAMED).why_not(self.nest):
            return True
        keys = self.schedule.block("k")
        has_panels = axes(self.nest).get(STREAMED, 0) > keys
        return has_panels and limits_loops(self.nest, STREAMED, keys)

    def take(self, made: LoweredKernel) -> None:
        row, column = self.row_and_column
        made.take(Rewrite("powers").because("exp2 takes fewer instructions than exp"))
        converted = [n for n in made.kernel.blocks[0].all_nodes if converts(n)]
        if not self.is_short and any(n.dtype.bits == 16 for n in converted):
            made.take(Rewrite("unrounded").because("registers hold f32"))
        parallel, rows = self._order(made, row, column), self.schedule.block("m")
        outer, row = split(made, row, rows, "overlap", "vectors of rows fill registers")
        for axis in (*parallel, outer) if outer else parallel:
            made.take(Bind(axis, "cores").because("threads share rows"))
        key = self._panels(made, self.schedule.block("k"), row, column)
        products = self._apart(made, key, column)
        self._transposed(made)
        for axis in products:
            # sums of scalars, as of a bias times a weight, are those of all rows: no `dot` has them
            if any(t.rank for loop in _sums(made.kernel, axis) for t in loop.types):
                self._tile(made, axis)

    @cached_property
    def domain(self) -> Domain:
        """The axes: m (rows, which are vectorized), k (keys), e (columns of states) and b. Raises
        CannotTile for a stream without rows, or if the sums of one row do not fit in the cache.
        """
        axes, cpu = stream_axes(self.group), self.target
        if not axes.row:
            raise CannotTile("it has no axis of rows, which are the lanes of its vectors")
        if not self._most:
            raise CannotTile(
                f"{axes.columns} columns of sums are more than {cpu.cache_bytes} bytes"
            )
        rows, keys = axes.rows, static(streamed_extent(self.group))
        widest = max(WIDTHS) * cpu.lanes
        found = (
            Axis("b", axes.batch, "parallel"),
            Axis("m", rows, "parallel", ("vector",), most=min(rows, widest)),
            Axis("e", axes.columns, "parallel"),
            Axis("k", keys, "stream", ("serial",), most=keys, is_free=True),
        )
        return Domain(found, options=())

    @property
    def _most(self) -> int:
        """The most rows of a program whose sums stay in the second-level cache."""
        axes = stream_axes(self.group)
        sums = 4 * len(axes.wide) * axes.columns
        return min(axes.rows, self.target.cache_bytes // max(sums, 1))

    def complete(self, given: Schedule) -> Schedule:
        cpu, most, wide = self.target, self._most, stream_axes(self.group).wide
        part = 1 << (most.bit_length() - 1)  # rows, if they are fewer than lanes
        fits = [v for v in WIDTHS if v * cpu.lanes <= most]
        vectors = min(fits, key=lambda v: column_cost(v, cpu), default=0)
        has_tiles = any(m.rows > 1 for s in wide for m in cpu.mmas(product_types(s)))
        best = cpu.streams.tiled_panel if has_tiles else cpu.streams.panel
        keys = static(streamed_extent(self.group))
        rows = AxisSplit("m", vectors * cpu.lanes or part, "vector")
        return given.filled(Schedule((rows, AxisSplit("k", _panel(keys, best), "serial"))))

    def _wide(self, dtype: DType) -> str:
        """Returns the element type in which operands of type `dtype` are copied: f32, unless an
        instruction of the CPU multiplies the narrow type.
        """
        return "f32" if dtype != F32 and not self.is_short else ""

    @property
    def is_short(self) -> bool:
        """True if the CPU has an instruction that multiplies the 16-bit operands of a dot."""
        dots = contractions(self.group.blocks[0].nodes)
        return any(self.target.mmas(product_types(dot)) for dot in dots)

    def _order(self, made: LoweredKernel, row: str, column: str) -> list[str]:
        """Reorders the nest so that the loop over rows is innermost, except for the loop over
        columns. Returns the axes that are distributed over threads, outermost first."""
        (now,) = nests(made.kernel) or [[]]
        last = [a for a in (row, column) if a in now]
        first = [a for a in now if a not in last]
        made.take(*reordered(now, [*first, *last], "rows are vectorized"))
        return first

    def _panels(self, made: LoweredKernel, size: int, row: str, column: str) -> str:
        """Splits the loop over keys into panels (blocks of `size` keys), and computes the states of
        a panel at once. Returns the axis over the keys of a panel.
        """
        why = "the products of a panel stay in the cache"
        panel, key = split(made, STREAMED, size, "peel", why)
        made.may(BlockStates(key).because("states are rescaled once in a panel"))
        made.take(Vectorize(row).because("each lane has a row"))
        if panel:
            self._masks(made, panel)
        if column and panel:
            why = "columns share the other states"
            sunk = Sink(column, panel, COLUMNS).because(why)
            made.may(sunk)
            for branch in _branches(made.kernel):
                if made.may(Sink(column, branch).because(why)):
                    made.may(sunk)
        if panel:
            made.may(ComputeWith(panel).because("results share states"))
        return key

    def _masks(self, made: LoweredKernel, panel: str) -> None:
        """Shortens the loop over panels (blocks of keys), so that it skips panels that masks of
        positions hide.
        """
        made.may(Assume(panel).because("exp of such numbers is 0 in nearly all rows"))
        cut = BoundLoops(panel, "cut").because("fully visible panels need no mask")
        if not made.may(cut):
            made.may(BoundLoops(panel).because("a mask hides all other panels"))

    def _apart(self, made: LoweredKernel, key: str, column: str) -> list[str]:
        """Splits the loops over a panel so that each product has loops of its own, which one `dot`
        can replace. Returns the axes of these loops."""
        products: list[str] = []
        while inner := next(_sums(made.kernel, key), None):
            name = next(n for n in PRODUCTS if n not in products)
            why = "the products of a panel are computed at once"
            made.take(Fission(key, axis_of(inner), name).because(why))
            products.append(name)
        while any(made.may(step) for step in self._stages(made, key, column)):
            pass  # a step renames the values that are left
        for axis in (self._cut(made), column):
            for name in PRODUCTS:
                step = Fission(axis, key, name).because("products are computed at once")
                if name not in products and axis in axes(made.kernel) and made.may(step):
                    products.append(name)
        made.may(ComputeWith(key).because("one pass over a panel"))
        return products

    def _cut(self, made: LoweredKernel) -> str:
        """Splits the loop over the columns of states into tiles whose sums fit in registers.

        Before that, copies rows to local memory if they are strided or have to be converted to f32.
        Returns the axis inside of a tile; the axis of columns if one tile has them all.
        """
        for memory, access in strided_accesses(made.kernel, COLUMNS).items():
            if access.is_read and (access.dtype != F32 or access.gap > 1):
                step = StageMem(memory, COLUMNS, self._wide(access.dtype))
                made.may(step.because("rows of a panel are contiguous"))
        columns = axes(made.kernel).get(COLUMNS, 0)
        wide = stream_axes(self.group).wide
        rows = pick_rows(columns, self.schedule.block("m"), F32, self.target) if columns else 0
        for mma in self.target.mmas(product_types(wide[0])) if wide else ():
            if 1 < mma.rows <= columns:
                rows = mma_rows(mma, columns)
        return split(made, COLUMNS, rows, "peel", f"registers hold {rows} rows of sums")[1]

    def _stages(self, made: LoweredKernel, key: str, column: str) -> list[Step]:
        """Returns the steps that store values of a panel (block of keys) in local memory because
        several loops need them: factors of products with columns, and expensive values.
        """
        found = dict.fromkeys(_factors(made.kernel, key, {column, COLUMNS}))
        again = computed_again(made.kernel, key, lambda node, _: is_expensive(node))
        names = [made.kernel.blocks[0].names[value] for value in found | dict.fromkeys(again)]
        return [Stage(name, "local").because("it is computed once") for name in names]

    def _transposed(self, made: LoweredKernel) -> None:
        """Copies operands and results whose rows are strided in memory through local memory,
        transposed.
        """
        for axis in axes(made.kernel):
            for memory, access in strided_accesses(made.kernel, axis).items():
                if access.is_vector and access.is_read and access.dtype.kind != "f":
                    raise CannotTile(_strided(access.dtype))
                if access.is_vector:
                    wide = self._wide(access.dtype) if access.is_read else ""
                    step = StageMem(memory, axis, wide)
                    made.may(step.because("its rows are strided"))

    def _tile(self, made: LoweredKernel, axis: str) -> None:
        """Splits the loop `axis` over the rows of a matmul into tiles that fit in registers, and
        replaces each by one `dot`.
        """
        mma = self._instruction(made, axis)
        if mma is None:
            self._gathered(made, axis)
        extent, (product, *_) = axes(made.kernel)[axis], _products(made.kernel, axis)
        rows = mma_rows(mma, extent) if mma is not None and mma.rows > 1 else 0
        rows = rows or pick_rows(extent, product.tile[1], F32, self.target)
        _, axis = split(made, axis, rows, "overlap", f"registers hold {rows} rows of sums")
        name, called = mma.name if mma else "", names_of_memory(made.kernel)
        found = _products(made.kernel, axis)
        shape = [static(s) for s in found[0].dot.shape]
        why = why_sums(shape, found[0].dot.dtype, mma, self.target)
        made.take(Microkernel(axis, name).because(why))
        for panel in dict.fromkeys(called(product.panel) for product in found) if mma else ():
            made.take(Pack(panel).because(f"{name} multiplies neighbours"))

    def _gathered(self, made: LoweredKernel, axis: str) -> None:
        """Copies the rows of a dot's operand to local memory if they are strided there, or have to
        be converted.

        Rows with a large stride would evict each other from the L1 cache.
        """
        for product in _products(made.kernel, axis):
            memory = read_by(product.rows).args[0]
            if memory not in made.kernel.blocks[0].params:
                continue  # scores of a panel are in local memory already
            if memory.dtype != F32 or not _is_run(product):
                wide = "f32" if memory.dtype != F32 else ""
                step = StageMem(str(memory.attrs["name"]), axis, wide)
                made.may(step.because("rows are contiguous, and f32"))
                return

    def _instruction(self, made: LoweredKernel, axis: str) -> Mma | None:
        """Returns the matrix instruction for the matmuls in the loops over `axis`, and makes their
        rows contiguous for it; None if there is none.
        """
        found, called = _products(made.kernel, axis), names_of_memory(made.kernel)
        types = {product.types for product in found}
        tiles = [product.tile for product in found]
        for mma in self.target.mmas(types.pop()) if len(types) == 1 else ():
            if all(mma.rows <= r and mma.divides(mma.rows, n, k) for r, n, k in tiles):
                for product in found:
                    if product.row_names[-1:] != product.depth:
                        step = StageMem(called(product.rows), axis)
                        made.may(step.because(f"{mma.name} multiplies neighbours"))
                return mma
        return None


def _panel(extent: int, best: int) -> int:
    """Picks the keys of a panel: the divisor of all keys closest to `best`, if one is close."""
    near = [s for s in range(best // 2, best + best // 2 + 1) if extent % s == 0]
    return min(extent, min(near, key=lambda s: abs(s - best), default=best))


def _strided(dtype: DType) -> str:
    return f"an array of {dtype} is read with strided rows"


def _products(kernel: Node, axis: str) -> list[BlockProduct]:
    """Returns the matmuls that the loops over an axis compute. Raises CannotTile if such a loop
    computes something else.
    """
    body = kernel.blocks[0]
    found = [product_at(body, loop) for loop, _ in loops_along(kernel, axis)]
    known = [product.blocks for product in found if product is not None]
    if len(known) < len(found):
        raise CannotTile(f"a loop over {axis} does more than sum products")
    return known


def _is_run(product: BlockProduct) -> bool:
    """True if all rows that a product reads are one contiguous range of memory."""
    load, (row, *_) = read_by(product.rows), result_names(product.dot)
    memory, inner = load.args[0].shape, load.tensor.rank - 1
    sizes = zip(product.row_names[1:], load.shape[1:], memory[len(memory) - inner :])
    return all(name == row or read == size for name, read, size in sizes)


def _branches(kernel: Node) -> list[str]:
    """Returns the axes of the loops of kind `branch`, whose body runs once or not at all."""
    loops = (loop for loop, _ in all_loops(kernel) if loop.attrs["kind"] == "branch")
    return list(dict.fromkeys(map(axis_of, loops)))


def _sums(kernel: Node, key: str) -> Iterator[Node]:
    """Yields the loops directly inside of the loops over keys that carry values, such as the sum of
    a product."""
    for loop, _ in loops_along(kernel, key):
        yield from (n for n in loop.blocks[0].nodes if is_loop(n) and not stores_only(n))


def _factors(kernel: Node, key: str, columns: Collection[str]) -> Iterator[Node]:
    """Yields factors of sums over keys that depend on the key but not on the column, so that one
    computation serves all columns. Factors that are loaded from memory are left out."""
    for loop, around in loops_along(kernel, key):
        outer = [n.blocks[0].params[0] for n in around if axis_of(n) in columns]
        block = loop.blocks[0]
        parts = [summand(h, r) for h, r in zip(block.params[1:], block.results, strict=True)]
        for part in filter(None, parts):
            for factor in part.args if outer and multiplies(part) else ():
                value = factor
                while converts(value) and holds_all(value.dtype, value.args[0].dtype):
                    (value,) = value.args
                is_own = block.params[0] in value.vars and value.vars.isdisjoint(outer)
                if is_own and not is_load(value):
                    yield value if value.dtype.bits == 16 else factor
