"""Finds linear recurrences that a program computes by a tree of slices.

`jax.lax.associative_scan` is no primitive of JAX: its trace is a tree. Neighbours are combined in
pairs, the array of pairs, half as long, is scanned in the same way, and gives the elements at odd
places; those at even places follow from the ones before them. Source: Blelloch, Prefix sums and
their applications (1990).

A tree of `log n` levels is `2 log n` kernels that wait for each other. Whoever knows that it is one
recurrence can compute it in one pass over memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.builder import Builder, constant, make
from stack.ir.dim import product
from stack.ir.equivalence import once_in
from stack.ir.node import Block, Node, topological
from stack.ir.types import I32, TensorType


@dataclass(frozen=True)
class Recurrence:
    """`h[t] = gate[t] * h[t-1] + value[t]` along an axis, from `h[0] = value[0]`.

    Attributes:
        gate: the factors, of the type of `value`. The first one has no meaning.
        value: the terms.
        axis: the axis of t.
    """

    gate: Node
    value: Node
    axis: int


@once_in
def recurrences_in(block: Block) -> dict[Node, Recurrence]:
    """Returns the linear recurrences that a block computes by trees, by the last node of each.

    Each level of a tree is a tree too; only whole ones are returned.
    """
    found: dict[Node, Recurrence] = {}
    levels: set[Node] = set()
    for node in reversed(block.nodes):
        recurrence = recurrence_of(node) if node not in levels else None
        if recurrence is not None:
            found[node] = recurrence
            levels.update(topological([node], known={recurrence.gate, recurrence.value}))
    return found


def recurrence_of(node: Node) -> Recurrence | None:
    """Returns the linear recurrence whose tree ends at a node, None if there is none.

    Gate and value are read from the largest level. Whether all of the tree is there shows when it
    is built again, since equal nodes are one object.
    """
    axis = _woven(node)
    steps = node.shape[axis] if axis is not None else None
    if axis is None or not isinstance(steps, int) or steps // 2 < 2:  # no level below
        return None
    (even,) = [pad.args[0] for pad in node.args if not pad.attrs["low"][axis]]
    step = even.args[-1] if even.args else even  # earlier * gate[2::2] + value[2::2], in any order
    terms = [a for a in step.args if _is_every_second(a, axis)]
    products = [p for p in step.args if any(_is_every_second(a, axis) for a in p.args)]
    if len(step.args) != 2 or len(terms) != 1 or len(products) != 1:
        return None
    (term,), (product,) = terms, products
    gate = next(a for a in product.args if _is_every_second(a, axis))
    found = Recurrence(gate.args[0], term.args[0], axis)
    if found.gate.type != node.type or found.value.type != node.type:
        return None
    order = step.args[0] is product, product.args[0] is not gate
    for is_earlier_first in (True, False):
        if _Tree(axis, *order, is_earlier_first).of(found.gate, found.value) is node:
            return found
    return None


def _woven(node: Node) -> int | None:
    """The axis along which a node puts the elements of two arrays in turn, None if it does not."""
    gaps = {a.attrs.get("interior", ()) for a in node.args}
    axes = [axis for axis, gap in enumerate(next(iter(gaps), ())) if gap]
    is_pair = len(node.args) == 2 and isinstance(node.type, TensorType)
    if not is_pair or len(gaps) != 1 or len(axes) != 1:
        return None
    lows = sorted(pad.attrs["low"][axes[0]] for pad in node.args)
    return axes[0] if lows == [0, 1] else None


def _is_every_second(node: Node, axis: int) -> bool:
    """True for `x[2::2]` along an axis."""
    if not {"start", "step"} <= node.attrs.keys() or node.tensor.rank <= axis:
        return False
    return node.attrs["start"][axis] == 2 == node.attrs["step"][axis]


@dataclass(frozen=True)
class _Tree:
    """Builds the tree of a recurrence. Equal nodes are one, so it is the program's or it is not.

    Attributes:
        is_product_first: False for `value + earlier * gate`.
        is_value_first: False for `gate * earlier`.
        is_earlier_first: False for a product of gates whose later factor comes first.
    """

    axis: int
    is_product_first: bool
    is_value_first: bool
    is_earlier_first: bool

    def of(self, gate: Node, value: Node) -> Node:
        """Returns the last node of the tree."""
        size = int(value.shape[self.axis])
        if size < 2:
            return value
        later, half = self._cut(gate, 1, size, 2), size // 2
        factors = self._cut(gate, 0, size - 1, 2), later
        gates = make("mul", factors if self.is_earlier_first else factors[::-1])
        terms = self._step(self._cut(value, 0, size - 1, 2), later, self._cut(value, 1, size, 2))
        odd = self.of(gates, terms)
        earlier = odd if size % 2 else self._cut(odd, 0, half - 1, 1)
        rest = self._step(earlier, self._cut(gate, 2, size, 2), self._cut(value, 2, size, 2))
        even = make("concat", (self._cut(value, 0, 1, 1), rest), {"axis": self.axis})
        return make("add", (self._spread(even, 0, 1 - size % 2), self._spread(odd, 1, size % 2)))

    def _step(self, earlier: Node, gate: Node, value: Node) -> Node:
        product = make("mul", (earlier, gate) if self.is_value_first else (gate, earlier))
        return make("add", (product, value) if self.is_product_first else (value, product))

    def _cut(self, node: Node, start: int, limit: int, step: int) -> Node:
        rank, axis = node.tensor.rank, self.axis
        attrs = {
            "start": tuple(start if i == axis else 0 for i in range(rank)),
            "limit": tuple(limit if i == axis else n for i, n in enumerate(node.shape)),
            "step": tuple(step if i == axis else 1 for i in range(rank)),
        }
        return make("slice", (node,), attrs)

    def _spread(self, node: Node, low: int, high: int) -> Node:
        """Puts a zero between every two elements, and at the ends if told so."""
        rank = node.tensor.rank
        counts = {"low": low, "high": high, "interior": 1}
        attrs = {
            k: tuple(n if i == self.axis else 0 for i in range(rank)) for k, n in counts.items()
        }
        return make("pad", (node, constant(0.0, node.dtype)), attrs)


def bytes_saved(found: Recurrence) -> float:
    """The bytes of memory that a tree moves, and one pass does not; 0 if its size is not known.

    Of n elements, the largest level reads gates and values and writes half as many pairs, then
    reads half of both and the other half's states, and writes all. So the levels, each half as
    long, move the array 11 times, and one pass moves it three times.
    """
    size = found.value.tensor.bytes
    return (11.0 - 3.0) * size if isinstance(size, int) else 0.0


def operands_of(found: Recurrence, b: Builder) -> tuple[Node, Node, Node]:
    """Returns gate, value and first state, such that `h[t] = gate[t] * h[t-1] + value[t]` also
    holds for t = 0. The axes behind that of t are one axis, of channels.

    The first gate becomes 0, as it may be infinite or nan, and the state before it is 0.
    """
    sizes, dtype, axis = found.value.shape, found.value.dtype, found.axis
    before, channels = sizes[:axis], product(sizes[axis + 1 :])
    shape, zero = (*before, sizes[axis], channels), constant(0.0, dtype)
    gate, value = (b.reshape(x, type=TensorType(dtype, shape)) for x in (found.gate, found.value))
    index = b.iota(axis=axis, type=TensorType(I32, shape))
    first = b.broadcast(zero, axes=(), type=TensorType(dtype, (*before, channels)))
    return b.select(b.eq(index, 0), zero, gate), value, first
