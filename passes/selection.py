"""selection: find the first few elements of sorted rows by as many reductions, without sorting.

The largest element of a row is a maximum, the next one the maximum of the elements that sort after
it. Reductions of one row fuse into one kernel, which reads the row once; a sort is left to a
library, which reads it several times. Long rows are cut into equal parts: the first elements of a
row are among the first ones of its parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import Builder, constant, reshaped
from stack.ir.node import Block, Node
from stack.ir.space import identity
from stack.ir.traits import is_positions, place_of, spread
from stack.ir.types import DTYPES, F32, I32
from stack.passes.indexed import slices_of
from stack.rewrite.engine import Replacement, Scope, replace
from stack.rewrite.log import Log
from stack.rewrite.passes import BlockPass


@dataclass(frozen=True)
class Selection(BlockPass, needs=("sort",)):
    """Replace sorts, of which only the first few elements are read, by reductions.

    Attributes:
        most: most elements of a row that are selected, by two reductions each.
        loops: the kind of kernels: `cpu`, or empty for a GPU.
    """

    most: int = 16
    loops: str = ""

    def change(self, block: Block, log: Log) -> Block:
        changed: dict[Node, Node | Replacement] = {}
        held = _longest_row(log, self.loops == "cpu")
        scope = Scope(block, log)
        for node in block.nodes:
            if node.op != "sort":
                continue
            axis, slices = int(node.attrs["axis"]), slices_of(node, scope)
            size, limits = node.args[0].shape[axis], [s.attrs["limit"][axis] for s in slices]
            if not isinstance(size, int) or not _is_simple(node, axis):
                continue
            if not slices or not all(isinstance(n, int) and n <= self.most for n in limits):
                continue
            parts = _parts(size, max(limits), held)
            if not parts:
                log.miss("selection", f"{size} elements have no parts of up to {held}", node, block)
                continue
            if not log.spend("selection", block.locs.get(node, ())):
                continue
            b = Builder()
            results = _selected(node, axis, max(limits), parts, b)
            for old in slices:
                new = b.op("slice", (results[place_of(old.args[0])],), old.attrs)
                changed[old] = Replacement(new, (node,))
        return replace(block, changed)


def _longest_row(log: Log, is_cpu: bool) -> int:
    """Returns the most elements of a row that stay in the cache of a CPU, or in the registers of a
    GPU, while they are reduced several times.
    """
    if is_cpu:
        return log.cpu.kept_bytes // I32.bytes
    return log.gpu.rows.warps * log.gpu.rows.warp_elements


def _is_simple(sort: Node, axis: int) -> bool:
    """True for a sort by one array of numbers, together with positions along the axis."""
    key, *others = sort.args
    if not (key.dtype.is_integer or key.dtype.is_float) or sort.attrs["num_keys"] != 1:
        return False
    return all(_are_positions(n, axis) for n in others)


def _are_positions(node: Node, axis: int) -> bool:
    """True for an array of the indices along an axis."""
    axes = spread(node)
    if node.op == "reshape" and node.shape[axis] == node.tensor.size:
        return is_positions(node.args[0]) and node.args[0].tensor.rank == 1
    if axes is None:
        return is_positions(node) and int(node.attrs["axis"]) == axis
    inner = node.args[0]
    return is_positions(inner) and axes[int(inner.attrs["axis"])] == axis


def _parts(size: int, count: int, held: int) -> int:
    """Returns into how many equal parts rows of `size` elements are cut; 0 if that is impossible.

    A part, and the first `count` elements of all parts together, have at most `held` elements. The
    longer of both is as short as possible, since they are reduced one after the other.
    """
    if size <= held:
        return 1
    fitting = [n for n in range(2, held // count + 1) if size % n == 0 and size // n <= held]
    return min(fitting, key=lambda n: max(size // n, n * count), default=0)


def _selected(sort: Node, axis: int, count: int, parts: int, b: Builder) -> list[Node]:
    """Returns the first `count` elements of each operand of a sort.

    Equal elements are found in the order of their positions, as by a stable sort.
    """
    array, *others = sort.args
    key, is_descending = _in_order(array, b), bool(sort.attrs["descending"])
    if parts > 1:
        values, places = _first_of_parts(key, axis, count, parts, is_descending, b)
    else:
        values, places = _first(key, axis, count, is_descending, b)
    if key is not array:
        values = _picked(array, places, axis, b)
    types = [places.tensor.with_dtype(n.dtype) for n in others]
    return [values, *(places if t == places.type else b.cast(places, type=t) for t in types)]


def _first_of_parts(
    key: Node, axis: int, count: int, parts: int, is_descending: bool, b: Builder
) -> tuple[Node, Node]:
    """Returns the first elements of the first elements of equal parts of rows, and their places."""
    length = int(key.shape[axis]) // parts
    outer, inner = key.shape[:axis], key.shape[axis + 1 :]
    cut = reshaped(key, (*outer, parts, length, *inner))
    values, places = _first(cut, axis + 1, min(count, length), is_descending, b)
    starts = b.mul(b.iota(axis=axis, type=places.tensor), constant(length, I32))
    places = b.add(places, starts)
    joined = (*outer, parts * min(count, length), *inner)
    values, order = _first(reshaped(values, joined), axis, count, is_descending, b)
    return values, _picked(reshaped(places, joined), order, axis, b)


def _first(key: Node, axis: int, count: int, is_descending: bool, b: Builder) -> tuple[Node, Node]:
    """Returns the first `count` elements of sorted rows of numbers, and their places."""
    kind, before = ("max", b.lt) if is_descending else ("min", b.gt)
    positions = b.iota(axis=axis, type=key.tensor.with_dtype(I32))
    last, end = constant(identity(kind, key.dtype), key.dtype), constant(key.shape[axis], I32)
    found: list[tuple[Node, Node]] = []
    is_left: Node | None = None
    for _ in range(count):
        left = key if is_left is None else b.select(is_left, key, last)
        value = b.reduce(left, axes=(axis,), kind=kind)
        wide = _along(value, key, axis, b)
        equal = b.eq(key, wide)
        here = equal if is_left is None else b.and_(equal, is_left)
        place = b.reduce(b.select(here, positions, end), axes=(axis,), kind="min")
        later = b.and_(equal, b.gt(positions, _along(place, positions, axis, b)))
        is_left = b.or_(before(key, wide), later)
        found.append((value, place))
    values, places = (_joined(parts, axis, b) for parts in zip(*found, strict=True))
    return values, places


def _in_order(array: Node, b: Builder) -> Node:
    """Returns integers in the order of the elements of an array: the array itself if it has
    integers.

    Zeros of both signs become equal, and nan is the largest. Other floats are in the order of their
    bits, from which negative ones are subtracted so that larger magnitudes are smaller.
    """
    if not array.dtype.is_float:
        return array
    wide = array
    if array.dtype.bits < I32.bits:
        wide = b.cast(array, type=array.tensor.with_dtype(F32))
    integer = DTYPES[f"i{wide.dtype.bits}"]
    bits = b.bitcast(wide, type=wide.tensor.with_dtype(integer))
    low, high = (constant(identity(kind, integer), integer) for kind in ("max", "min"))
    signed = b.select(b.lt(bits, constant(0, integer)), b.sub(low, bits), bits)
    return b.select(b.isnan(wide), high, signed)


def _picked(array: Node, places: Node, axis: int, b: Builder) -> Node:
    """Returns the elements of an array at places along an axis, as many for each row."""
    names = [f"d{i}" for i in range(array.tensor.rank)]
    made = " ".join([*names[:axis], "k", *names[axis + 1 :]])
    source = " ".join([*names[:axis], f"{names[axis]}!", *names[axis + 1 :]])
    return b.gather(array, places, rule=f"{source}, {made} -> {made}")


def _along(value: Node, like: Node, axis: int, b: Builder) -> Node:
    """Repeats a value of each row along the row."""
    axes = tuple(i for i in range(like.tensor.rank) if i != axis)
    return b.op("broadcast", (value,), {"axes": axes}, hint=value.tensor.with_shape(like.shape))


def _joined(parts: tuple[Node, ...], axis: int, b: Builder) -> Node:
    """Concatenates values of rows, as the elements of short rows."""
    shape = (*parts[0].shape[:axis], 1, *parts[0].shape[axis:])
    columns = [b.op("reshape", (p,), hint=p.tensor.with_shape(shape)) for p in parts]
    return b.op("concat", columns, {"axis": axis})
