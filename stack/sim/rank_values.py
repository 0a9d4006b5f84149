"""Integers that a rank's program computes from its rank alone, such as positions of its tokens.

They say which elements a mask of positions hides on each rank. Arrays stay as small as their axes:
a broadcast value has size 1 along the axes that it repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from stack.ir.interpreter import evaluate_node
from stack.ir.node import Node
from stack.ir.ops import lookup
from stack.ir.space import NumpySpace
from stack.ir.traits import (
    axis_order,
    is_elementwise,
    is_number,
    is_positions,
    number,
    spread,
)
from stack.ir.types import TensorType
from stack.mesh.meshes import Axes
from stack.mesh.ops import group_of, is_place, overlap_of
from stack.mesh.sharding import part_held, part_start

Array = np.ndarray[Any, Any]
NOTHING: Mapping[Node, Array] = {}
MOST = 1 << 22  # elements of a value that is computed here
_PLACES = {"part_start": part_start, "part_held": part_held}
_SPACE = NumpySpace()


class RankValues:
    """Integers that are known on one rank without the program's inputs.

    Attributes:
        rank: the rank.
        read: mesh axes along which ranks have other values than this one, as far as known.
    """

    def __init__(self, rank: int = 0, given: Mapping[Node, Array] = NOTHING) -> None:
        self.rank = rank
        self.read: set[Axes] = set()
        self._given = given
        self._known: dict[Node, Array | None] = dict(given)
        self._ranks: dict[int, RankValues] = {rank: self}

    def inside(self, params: Sequence[Node], args: Sequence[Node]) -> RankValues:
        """Returns the values that are known in a block with these parameters and arguments."""
        values = {p: self.of(a) for p, a in zip(params, args, strict=True)}
        return RankValues(self.rank, {p: v for p, v in values.items() if v is not None})

    @property
    def key(self) -> tuple[tuple[Node, bytes], ...]:
        """The given values, as the key of a table."""
        return tuple((node, value.tobytes()) for node, value in self._given.items())

    def at(self, rank: int) -> RankValues:
        """Returns the values of the same program on another rank."""
        if rank not in self._ranks:
            found = self._ranks[rank] = RankValues(rank)
            found.read, found._ranks = self.read, self._ranks
        return self._ranks[rank]

    def of(self, node: Node) -> Array | None:
        """Returns the value of an integer or boolean node; None if it depends on data, or is too
        large."""
        if node not in self._known:
            self._known[node] = self._value(node) if _is_integer(node) else None
        return self._known[node]

    def _value(self, node: Node) -> Array | None:
        if is_number(node):
            return np.asarray(number(node))
        if is_positions(node):
            axis = int(node.attrs["axis"])
            shape = [1] * node.tensor.rank
            shape[axis] = int(str(node.shape[axis]))
            return np.arange(shape[axis]).reshape(shape)
        if is_place(node):
            return self._own(node)
        if node.op == "permute":
            return self.at(node.attrs["order"].index(self.rank)).of(node.args[0])
        args = [self.of(a) for a in node.args]
        known = [a for a in args if a is not None]
        if len(known) < len(args) or not args:
            return None
        if is_elementwise(node):
            is_small = prod(np.broadcast_shapes(*(a.shape for a in known))) <= MOST
            return _SPACE.elementwise(node, *known) if is_small else None
        return _moved(node, known)

    def _own(self, node: Node) -> Array | None:
        """Returns the number or the part of a value that a rank has by its coordinates."""
        mesh, over = group_of(node.attrs)
        self.read.add(over)
        at = mesh.positions(self.rank, over)
        if node.op in _PLACES:
            return np.asarray(_PLACES[node.op](int(node.attrs["size"]), over, at))
        whole, axis = self.of(node.args[0]), int(node.attrs["axis"])
        if whole is None or overlap_of(node.attrs) is not None:
            return None
        if whole.shape[axis] == 1:
            return whole
        start = part_start(whole.shape[axis], over, at)
        return whole.take(range(start, start + int(str(node.shape[axis]))), axis)


def _is_integer(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.dtype.kind in "iub" and not node.blocks


def _moved(node: Node, values: Sequence[Array]) -> Array | None:
    """Returns the result of an op that moves elements of values, which may have size 1 along axes
    that they repeat; None for other ops and large values."""
    to, order = spread(node), axis_order(node)
    if to is not None:
        shape = [1] * node.tensor.rank
        for size, axis in zip(values[0].shape, to, strict=True):
            shape[axis] = size
        return values[0].reshape(shape)
    if order is not None:
        return values[0].transpose(order)
    types = [node.tensor, *(a.tensor for a in node.args)]
    if lookup(node.op).kind != "movement" or any(int(str(t.size)) > MOST for t in types):
        return None
    shapes = (tuple(int(str(n)) for n in a.shape) for a in node.args)
    whole = map(np.broadcast_to, values, shapes)
    return evaluate_node(node, dict(zip(node.args, whole, strict=True)), _SPACE)
