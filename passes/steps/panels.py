"""Panels: the operand with the columns of a matmul of blocks, its loops, and slices of blocks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from stack.ir.builder import Builder, constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.memory import memory_of
from stack.ir.node import Node
from stack.ir.traits import converts, in_windows, is_contraction, is_load, unconverted
from stack.ir.types import I64
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import all_loops, is_serial
from stack.passes.steps.step import Step
from stack.passes.tiling.contraction import operand_names, result_names
from stack.passes.tiling.frame import static

PAIR = "pair"  # the axis of neighbours that an instruction multiplies together


@dataclass(frozen=True)
class BlockProduct:
    """A `dot` of blocks in a kernel: rows by a panel of columns.

    Attributes:
        dot: the node.
        around: the loops around it, outermost first.
    """

    dot: Node
    around: tuple[Node, ...] = ()

    @property
    def types(self) -> tuple[str, str, str]:
        """The element types that the operands have in memory, and that of the sums."""
        first, second = (unconverted(operand).dtype.name for operand in self.dot.args)
        return first, second, self.dot.dtype.name

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns, and the extent of the last reduction axis of the operand with the rows."""
        rows, lanes = (1, *map(static, self.dot.shape))[-2:]
        return rows, lanes, self.sizes[self.depth[-1]]

    @property
    def lane(self) -> str:
        """The axis of the columns."""
        return result_names(self.dot)[-1]

    @property
    def side(self) -> int:
        """The position of the panel among the operands."""
        return 1 if self.lane in operand_names(self.dot, 1) else 0

    @property
    def rows(self) -> Node:
        """The operand with the rows."""
        return self.dot.args[1 - self.side]

    @property
    def panel(self) -> Node:
        """The operand with the columns, without what is prefetched as it is read."""
        operand = self.dot.args[self.side]
        return operand.args[0] if operand.op == "fetch" else operand

    @property
    def row_names(self) -> list[str]:
        return operand_names(self.dot, 1 - self.side)

    @property
    def panel_names(self) -> list[str]:
        return operand_names(self.dot, self.side)

    @property
    def sizes(self) -> dict[str, int]:
        """The extents of the axes of the panel."""
        return dict(zip(self.panel_names, map(static, self.panel.shape), strict=True))

    @property
    def depth(self) -> list[str]:
        """The contracted axes, in the order of the rows."""
        return [n for n in self.row_names if n in self.panel_names and n != self.lane]

    @property
    def contracted(self) -> list[str]:
        """The contracted axes of more than one element, in the order of the rows."""
        return [n for n in self.depth if self.sizes[n] != 1] or self.depth[-1:]

    @property
    def group(self) -> int:
        """The neighbours along the reduction axis that an instruction adds up in one sum."""
        return max(1, self.dot.dtype.bits // self.panel.dtype.bits)

    @property
    def tiles(self) -> list[Node]:
        """The innermost serial loops, over tiles of rows, that share one panel."""
        found: list[Node] = []
        for loop in reversed(self.around):
            if not is_serial(loop) or loop.blocks[0].params[0] in self.panel.vars:
                break
            found.insert(0, loop)
        return found

    @property
    def is_contiguous(self) -> bool:
        """True if neighbouring columns are neighbours in memory."""
        block, at = unconverted(self.panel), self.panel_names.index(self.lane)
        if not in_windows(block):
            return self.panel_names[-1] in (self.lane, PAIR)
        first, count = block.attrs["axis"], len(block.attrs["window"])
        is_place = first <= at < first + count
        axis = at if at < first + count else at - count
        step = block.attrs["stride"][at - first] if is_place else 1
        return axis == block.tensor.rank - count - 1 and step == 1

    @property
    def indices(self) -> list[Node]:
        """The variables of loops around the product that select the panel, outermost first."""
        variables = (loop.blocks[0].params[0] for loop in self.around)
        return [v for v in variables if v in self.panel.vars]

    @property
    def start(self) -> Node:
        """An index of the panel in memory: other indices have its type."""
        return read_by(self.panel).args[1]

    def corner(self, rank: int) -> list[Node]:
        """Returns the index of the first element of an array with `rank` axes."""
        return [constant(0, self.start.dtype)] * rank

    def rebuilt(self, rows: Node, panel: Node, *names: Sequence[str]) -> Node:
        """Builds the `dot` of other blocks, whose axes have these names; by default the same."""
        sides = [" ".join(n) for n in names or (self.row_names, self.panel_names)]
        args = [rows, panel]
        if not self.side:
            sides.reverse()
            args.reverse()
        rule = f"{', '.join(sides)} -> {' '.join(result_names(self.dot))}"
        return make("dot", args, {**self.dot.attrs, "rule": rule}, hint=self.dot.type)


def block_products(kernel: Node) -> Iterator[BlockProduct]:
    """Yields the matmuls of blocks in a kernel."""
    block = kernel.blocks[0]
    places = [(block, ()), *((loop.blocks[0], (*way, loop)) for loop, way in all_loops(kernel))]
    for inside, around in places:
        yield from (BlockProduct(n, around) for n in inside.nodes if is_contraction(n))


def why_not_one(kernel: Node) -> str:
    """Returns why a step cannot mean the matmul of blocks in a kernel; "" if there is one."""
    count = sum(1 for _ in block_products(kernel))
    return f"{count} matrix products of blocks, not one" if count != 1 else ""


@dataclass(frozen=True)
class ProductStep(Step):
    """A step that replaces the only `dot` of blocks in a kernel by itself."""

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        (product,) = block_products(kernel)
        known = {product.dot: self.change(edit, product)}
        return edit.finished(edit.values(edit.block.results, known))

    @abstractmethod
    def change(self, edit: Edit, product: BlockProduct) -> Node:
        """Returns what replaces the `dot`."""


def products_reading(kernel: Node, memory: str) -> list[BlockProduct]:
    """Returns the matmuls of blocks whose panel is read from an input or local memory."""
    name = names_of_memory(kernel)
    return [p for p in block_products(kernel) if name(p.panel) == memory]


def names_of_memory(kernel: Node) -> Callable[[Node], str]:
    """Returns a function that names the memory that a block is loaded from; "" for others."""
    held = memory_of(kernel.blocks[0])

    def name(block: Node) -> str:
        load = read_by(block)
        return str(held(load.args[0]).attrs.get("name", "")) if is_load(load) else ""

    return name


def read_by(block: Node) -> Node:
    """Returns what is behind the conversions and windows of a block: its load."""
    load = unconverted(block)
    return load.args[0] if in_windows(load) else load


# ---- slices of blocks in memory along one axis, also through conversions and windows


def is_sliced(block: Node) -> bool:
    """True if a block is one that `part` can slice: loaded without a mask, maybe in windows."""
    load = read_by(block)
    return is_load(load) and access_parts(load)[1] is None


def part(b: Builder, block: Node, axis: int, start: Node, size: int) -> Node:
    """Slices a block of values that a kernel loads: `size` elements along `axis`, from index
    `start` on. The loads below the block are narrowed, instead of loading all of it.
    """
    if converts(block):
        inner = part(b, block.args[0], axis, start, size)
        return b.cast(inner, type=inner.tensor.with_dtype(block.dtype))
    if not in_windows(block):
        return _cut(b, block, axis, start, size)
    # along an axis of taps, windows become `size` taps long, and only what they cover is loaded
    (source,), window = block.args, list(block.attrs["window"])
    tap = axis - block.attrs["axis"] - len(window)
    axis -= len(window) if tap >= 0 else 0
    covered = size
    if 0 <= tap < len(window):
        apart = block.attrs["dilation"][tap]
        covered = static(source.shape[axis]) - (window[tap] - size) * apart
        start = b.mul(start, apart)
        window[tap] = size
    cut = _cut(b, source, axis, start, covered)
    return b.unfold(cut, **{**block.attrs, "window": tuple(window)})


def _cut(b: Builder, block: Node, axis: int, start: Node, size: int) -> Node:
    """Slices a block that is a `load`: loads `size` elements along the axis, `start` further on."""
    memory, *index = block.args
    shape = tuple(size if i == axis else s for i, s in enumerate(block.shape))
    at = memory.tensor.rank - len(shape) + axis
    moved = [place for place in (index[at], start) if place is not constant(0, I64)]
    index[at] = b.add(*moved) if len(moved) == 2 else [*moved, start][0]
    return b.load(memory, *index, type=block.tensor.with_shape(shape))


def slice_of(b: Builder, block: Node, turns: Sequence[Node]) -> Node:
    """Returns the slice, along the outermost axis, of the next panel `block` that one iteration of
    the loops over row tiles prefetches. All iterations together prefetch the whole block.

    `turns`: index variables of the enclosing loops, outermost first.
    """
    extents = [static(t.attrs["extent"]) for t in turns]
    (number, *rest), inner = turns, extents[1:]
    for turn, count in zip(rest, inner, strict=True):
        number = b.add(b.mul(number, count), turn)  # row-major
    axis = next((i for i, size in enumerate(block.shape) if size != 1), 0)
    extent = static(block.shape[axis])
    size = -(-extent // math.prod(extents))
    start = b.mul(number, size)
    if size * math.prod(extents) > extent:
        start = b.min(start, extent - size)
    return part(b, block, axis, start, size)
