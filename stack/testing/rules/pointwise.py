"""Programs that compute each element alone: many inputs are tried as elements of long arrays."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from stack.ir.builder import make, param
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.traits import is_elementwise, is_number, spread
from stack.ir.types import BF16, DType, TensorType
from stack.rewrite.inputs import inputs_of
from stack.testing.rules.ordinals import from_ordinals, largest, ordinals
from stack.testing.rules.values import SMALL, every_value, special_values

Arrays = list[np.ndarray]
MOST = 1 << 17  # points that are tried at a time
SAMPLES = 256  # points of a box
BOXES = 16  # boxes that are halved at a time
ROUNDS = 8


def stretched(func: Func, count: int) -> Func | None:
    """Returns the function on vectors of `count` elements; None if it is not elementwise.

    Scalars that are parameters become vectors too.
    """
    params = [param(str(p.attrs["name"]), _vector(p.dtype, count)) for p in func.params]
    done: dict[Node, Node] = dict(zip(func.params, params, strict=True))
    for node in func.body.nodes:
        if is_number(node):
            done[node] = node
        elif spread(node) == ():
            done[node] = done[node.args[0]]
        elif is_elementwise(node):
            args = [done[a] for a in node.args]
            shape = next((a.shape for a in args if a.shape), ())
            hint = node.tensor.with_shape(shape)
            done[node] = make(node.op, args, node.attrs, hint=hint)
        else:
            return None
    results = [_full(done[r], count) for r in func.results]
    return Func(func.name, Block(params, results), func.level)


def _vector(dtype: DType, count: int) -> TensorType:
    return TensorType(dtype, (count,))


def _full(node: Node, count: int) -> Node:
    """Returns a value that has one element for each point."""
    if node.shape:
        return node
    return make("broadcast", (node,), {"axes": ()}, hint=_vector(node.dtype, count))


def domain(dtypes: Sequence[DType]) -> tuple[Arrays, bool]:
    """Returns points for parameters of these types, and whether these are all that exist.

    They are all combinations of all values if that is few enough, else of special values, of as
    many as fit.
    """
    sizes = [_bits(d) for d in dtypes]
    if sum(sizes) <= SMALL:
        return _product([_every(d) for d in dtypes]), True
    most = int(MOST ** (1 / len(dtypes)))
    return _product([special_values(d)[:most] for d in dtypes]), False


def _bits(dtype: DType) -> int:
    return 1 if dtype.kind == "b" else dtype.bits if dtype.kind in "iuf" else 2 * SMALL


def _every(dtype: DType) -> np.ndarray:
    found = every_value(dtype)
    assert found is not None, "its size was tested"
    return found


def _product(values: Sequence[np.ndarray]) -> Arrays:
    return [a.reshape(-1) for a in np.meshgrid(*values, indexing="ij")]


def random_points(func: Func, seed: int) -> Arrays:
    """Returns inputs of all kinds that checks draw, for a function of vectors."""
    kinds = ("plain", "ties", "large", "tiny", "huge", "denormal", "mixed", "limits", "integers")
    drawn = [inputs_of(func, kind, seed) for kind in kinds]
    return [np.concatenate(column) for column in zip(*drawn, strict=True)]


Score = Callable[[Arrays], np.ndarray]
Box = tuple[tuple[int, int], ...]


def box_search(dtypes: Sequence[DType], score: Score, rng: np.random.Generator) -> None:
    """Looks for the points with the largest score, by halving intervals of floats.

    A box is an interval of finite floats, in order of their values, for each parameter. Boxes with
    the largest scores among random points in them are halved along their longest side. Parameters
    that are no floats take special values. `score` keeps what it is interested in.
    """
    whole: Box = tuple(_whole(d) for d in dtypes)
    counter = itertools.count()
    queue: list[tuple[float, int, Box]] = [(0.0, next(counter), whole)]
    for _ in range(ROUNDS):
        boxes = [heapq.heappop(queue)[-1] for _ in range(min(BOXES, len(queue)))]
        halves = [half for box in boxes for half in _halves(box)]
        if not halves:
            return
        drawn = [_points(box, dtypes, rng) for box in halves]
        found = score([np.concatenate(c) for c in zip(*drawn, strict=True)])
        for box, worst in zip(halves, found.reshape(len(halves), -1).max(1), strict=True):
            heapq.heappush(queue, (-float(worst), next(counter), box))


def _whole(dtype: DType) -> tuple[int, int]:
    """The interval of all finite floats; that of indices of special values for other types."""
    if dtype.kind != "f":
        return 0, len(special_values(dtype)) - 1
    last = largest(dtype)
    return -last, last


def _halves(box: Box) -> list[Box]:
    """Halves a box along its longest side; none if it is one point."""
    sides = [high - low for low, high in box]
    axis = sides.index(max(sides))
    low, high = box[axis]
    if low == high:
        return []
    middle = (low + high) // 2
    return [(*box[:axis], side, *box[axis + 1 :]) for side in ((low, middle), (middle + 1, high))]


def _points(box: Box, dtypes: Sequence[DType], rng: np.random.Generator) -> Arrays:
    """Draws points of a box, its corners among them."""
    found: Arrays = []
    for number, ((low, high), dtype) in enumerate(zip(box, dtypes, strict=True)):
        drawn = rng.integers(low, high, SAMPLES, endpoint=True)
        drawn[: 1 << len(box)][:SAMPLES] = _corners(low, high, number, len(box))
        if dtype.kind == "f":
            found.append(from_ordinals(drawn, dtype))
        else:
            found.append(special_values(dtype)[drawn])
    return found


def _corners(low: int, high: int, number: int, count: int) -> np.ndarray:
    """The coordinate of a box's corners along its side `number` of `count`."""
    bits = np.arange(min(1 << count, SAMPLES)) >> number & 1
    return np.where(bits == 1, high, low)


def simplest(points: Arrays) -> int:
    """Returns the index of the point whose values are the simplest to read."""
    return int(np.argmin(sum(_length(a) for a in points)))


def _length(array: np.ndarray) -> np.ndarray:
    """Returns for each element how hard it is to read: 0 for 0, little for small whole numbers."""
    if array.dtype.kind == "b":
        return array.astype(np.float64)
    values = array.astype(np.float64)
    with np.errstate(all="ignore"):
        size = np.log2(1 + np.abs(values)) + (values < 0) / 4
        part = 8 * (values != np.round(values)) + 4 * (values * 4 != np.round(values * 4))
    hard = np.where(np.isfinite(values), size + part, np.where(np.isnan(values), 40, 30))
    return np.minimum(hard, 200)


def simpler(value: np.generic, dtype: DType) -> np.ndarray:
    """Returns values near a float, and simple ones, to replace it by if the error stays."""
    if dtype.kind != "f" or not np.isfinite(value):
        return special_values(dtype)
    rounded = [float(f"{float(value):.{digits}g}") for digits in range(1, 9)]
    with np.errstate(over="ignore"):
        held = np.asarray(rounded, dtype=dtype.numpy)
    if dtype is BF16:
        held = from_ordinals(ordinals(held, dtype), dtype)
    return np.concatenate([special_values(dtype), held[np.isfinite(held)]])
