"""Simulates all ranks of a mesh in one process. An array of this space has one part for each rank.

Each op runs on every rank in the space of a single rank. The ops of `mesh_ops` communicate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, cast

import numpy as np

from stack.errors import StackError
from stack.ir.array_space import Run
from stack.ir.data import Data
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node, walk
from stack.ir.space import NumpySpace
from stack.ir.types import TensorType
from stack.mesh.meshes import Axes, Mesh
from stack.mesh.ops import group_of, is_meeting, is_place, overlap_of, traffic
from stack.mesh.overlap import Overlap
from stack.mesh.sharding import part_held, part_start

Array = np.ndarray[Any, Any]
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def overlapping(whole: Array, at: int, size: int, overlap: Overlap, number: int) -> Array:
    """The part of an array that rank `number` of a group gets along axis `at`, if parts overlap.
    Elements of the part outside of the axis, which has `size` elements, are 0.
    """
    first = overlap.first(number)
    start, stop = max(first, 0), min(first + overlap.size, size)
    if start >= stop:
        start = stop = first = 0
    held = np.take(whole, range(start, stop), at)
    around = [(0, 0)] * whole.ndim
    around[at] = (start - first, first + overlap.size - stop)
    return np.pad(held, around)


@dataclass(frozen=True)
class RankParts:
    """A value of a partitioned program: the local array of each rank, by rank number."""

    parts: tuple[Array, ...]


@dataclass
class MeshSpace(NumpySpace):
    """The semantics of a partitioned program: every op on every rank.

    Attributes:
        sent: bytes that one rank sent, by op.
        counts: number of runs of each collective, by op.
    """

    mesh: Mesh
    sent: dict[str, int] = field(default_factory=dict[str, int])
    counts: dict[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        super().__init__()
        self.own = NumpySpace()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("op_") and name not in _TOGETHER:
            return super().__getattribute__("_everywhere")(name)
        return super().__getattribute__(name)

    def _everywhere(self, name: str) -> Callable[..., Any]:
        """Returns a function that evaluates the local op `name`, which does not communicate, on
        every rank.
        """
        own = getattr(self.own, name)

        def run(node: Node, *args: RankParts) -> Any:
            return self._each(lambda *parts: own(node, *parts), args)

        return run

    def _each(self, run: Callable[..., Any], values: Sequence[RankParts]) -> Any:
        """Calls `run` with each rank's parts of the values. If it returns a tuple, so does this
        method: one value with parts on all ranks for each result.
        """
        ranks = range(self.mesh.ranks)
        made = [run(*(value.parts[rank] for value in values)) for rank in ranks]
        if isinstance(made[0], tuple):
            return tuple(RankParts(parts) for parts in zip(*made, strict=True))
        return RankParts(tuple(made))

    def constant(self, data: Data) -> Any:
        return RankParts((data.array,) * self.mesh.ranks)

    def settle(self, value: Any, type_: TensorType) -> Any:
        return RankParts(tuple(self.own.settle(part, type_) for part in value.parts))

    def elementwise(self, node: Node, *args: Any) -> Any:
        return self._each(lambda *parts: self.own.elementwise(node, *parts), args)

    # ---- control: if a branch uses the mesh, all ranks must take the same branch

    def op_cond(self, node: Node, run: Run, index: Any, *args: Any) -> tuple[Any, ...]:
        inner = [n for block in node.blocks for _, n in walk(block)]
        if any(is_meeting(n) or is_place(n) for n in inner):
            return self.own.op_cond(node, run, self._agreed(node, index), *args)

        def alone(block: Block, values: Sequence[Array]) -> Any:
            return evaluate(block, values, self.own)

        return self._each(lambda *own: tuple(self.own.op_cond(node, alone, *own)), (index, *args))

    def op_while(self, node: Node, run: Run, *args: Any) -> tuple[Any, ...]:
        while bool(self._agreed(node, run(node.blocks[0], args)[0])):
            args = run(node.blocks[1], args)
        return args

    def _agreed(self, node: Node, value: Any) -> Any:
        first, *others = value.parts
        if any(not np.array_equal(first, other) for other in others):
            raise StackError(f"{node.op}: ranks take different branches: {value.parts}")
        return first

    # ---- collectives

    def _met(
        self, node: Node, x: Any, combine: Callable[[list[Array], int], Array], over: Axes
    ) -> RankParts:
        """Evaluates a collective and counts its traffic. In each group of ranks along the axes
        `over`, the rank at `position` gets `combine(the group's parts of x, position)`.
        """
        self.sent[node.op] = self.sent.get(node.op, 0) + traffic(node)
        self.counts[node.op] = self.counts.get(node.op, 0) + 1
        made: dict[int, Array] = {}
        for group in self.mesh.groups(over):
            held = [x.parts[rank] for rank in group]
            made.update((rank, combine(held, place)) for place, rank in enumerate(group))
        return RankParts(tuple(made[rank] for rank in range(self.mesh.ranks)))

    def op_all_reduce(self, node: Node, x: Any) -> RankParts:
        combine = COMBINE[node.attrs["kind"]]
        over = group_of(node.attrs)[1]
        return self._met(node, x, lambda held, _: reduce(combine, held), over)

    def op_all_gather(self, node: Node, x: Any) -> RankParts:
        at, over = node.attrs["axis"], group_of(node.attrs)[1]
        return self._met(node, x, lambda held, _: np.concatenate(held, at), over)

    def op_reduce_scatter(self, node: Node, x: Any) -> RankParts:
        at, over = node.attrs["axis"], group_of(node.attrs)[1]
        combine = COMBINE[node.attrs["kind"]]

        def own(held: list[Array], place: int) -> Array:
            return reduce(combine, (np.split(part, len(held), at)[place] for part in held))

        return self._met(node, x, own, over)

    def op_all_to_all(self, node: Node, x: Any) -> RankParts:
        split, concat = node.attrs["split"], node.attrs["concat"]

        def own(held: list[Array], place: int) -> Array:
            return np.concatenate([np.split(p, len(held), split)[place] for p in held], concat)

        return self._met(node, x, own, group_of(node.attrs)[1])

    def op_shard(self, node: Node, x: Any) -> RankParts:
        at, over = node.attrs["axis"], group_of(node.attrs)[1]
        overlap = overlap_of(node.attrs)
        if overlap is not None:
            return RankParts(
                tuple(
                    overlapping(part, at, part.shape[at], overlap, self.mesh.number(rank, over))
                    for rank, part in enumerate(x.parts)
                )
            )
        made: list[Array] = []
        size = int(cast("int", node.shape[at]))
        for rank, part in enumerate(x.parts):
            start = part_start(part.shape[at], over, self.mesh.positions(rank, over))
            made.append(np.take(part, range(start, start + size), at))
        return RankParts(tuple(made))

    def op_halo(self, node: Node, x: Any) -> RankParts:
        at, size = node.attrs["axis"], node.attrs["size"]
        overlap = Overlap(*node.attrs["overlap"])

        def own(held: list[Array], place: int) -> Array:
            return overlapping(np.concatenate(held, at), at, size, overlap, place)

        return self._met(node, x, own, group_of(node.attrs)[1])

    def op_permute(self, node: Node, x: Any) -> RankParts:
        order: tuple[int, ...] = node.attrs["order"]
        every = self.mesh.axes_of(", ".join(name for name, _ in self.mesh.axes))

        def own(held: list[Array], place: int) -> Array:
            return held[order.index(place)]

        return self._met(node, x, own, every)

    def op_part_start(self, node: Node) -> RankParts:
        return self._places(node, part_start)

    def op_part_held(self, node: Node) -> RankParts:
        return self._places(node, part_held)

    def _places(self, node: Node, place: Callable[[int, Axes, Sequence[int]], int]) -> RankParts:
        mesh, over = group_of(node.attrs)
        size = int(node.attrs["size"])
        found = (place(size, over, mesh.positions(r, over)) for r in range(mesh.ranks))
        return RankParts(tuple(np.asarray(n, np.int64) for n in found))


_TOGETHER = frozenset(name for name in vars(MeshSpace) if name.startswith("op_")) | {"op_const"}
