"""The shares of all classes of dims of a kernel, from its largest tile down.

A thread takes a vector along memory, the lanes of a warp what follows it, warps the outer axes, so
that reductions along the inner ones stay in a warp. What is left over goes round in turns. Axes of
one tile use different bits of the thread's number; axes that never meet may use the same. Where
two such axes meet in a smaller tile after all, the later one has another share there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.classes import Classes, Dim, is_tile
from stack.passes.gpu_layout.runs import Runs, size_of, sizes_of
from stack.passes.gpu_layout.share import Layout, Share, bits_of, share_of


class Choice:
    """Shares by class. `anchors` are layouts that the machine prescribes."""

    def __init__(
        self, classes: Classes, runs: Runs, warps: int, anchors: dict[Node, Layout]
    ) -> None:
        self.classes = classes
        self.threads = WARP * warps
        self.shares: dict[Dim, Share] = {}
        self.vectors = _vectors(classes, runs)
        for node, layout in anchors.items():
            for axis, share in enumerate(layout):
                if (node, axis) in classes.root:
                    self.shares.setdefault(classes.of((node, axis)), share)
        tiles = [n for n in classes.nodes if is_tile(n) and not classes.is_cheap(n)]
        # of tiles of one size those first that say how memory is read
        for node in sorted(tiles, key=lambda n: (-prod(sizes_of(n.tensor)), n.op != "load")):
            self._settle(node)

    def home(self, node: Node) -> Layout:
        """Where a tile lies that is not cheap."""
        dims = [
            self.classes.of(d) if (d := (node, i)) in self.classes.root else None
            for i in range(node.tensor.rank)
        ]
        layout = [Share() if d is None else self.shares[d] for d in dims]
        taken = 0
        apart: list[int] = []
        for i, share in enumerate(layout):
            if share.bits & taken:
                apart.append(i)
            else:
                taken |= share.bits
        if apart:
            sizes = [size_of(node.tensor, i) for i in apart]
            vectors = [0 if (d := dims[i]) is None else self.vectors.get(d, 0) for i in apart]
            for i, share in zip(apart, blocked(sizes, vectors, self.threads, taken), strict=True):
                layout[i] = share
        return tuple(layout)

    def _settle(self, node: Node) -> None:
        """Give the dims of a tile that have no share one."""
        dims = [self.classes.of(d) for d in _dims(self.classes, node)]
        known = [self.shares[d] for d in dims if d in self.shares]
        left = [d for d in dims if d not in self.shares]
        if not left:
            return
        sizes = [size_of(d[0].tensor, d[1]) for d in left]
        vectors = [self.vectors.get(d, 0) for d in left]
        layout = blocked(sizes, vectors, self.threads, bits_of(known))
        self.shares.update(zip(left, layout, strict=True))


def blocked(sizes: Sequence[int], vectors: Sequence[int], threads: int, taken: int = 0) -> Layout:
    """Shares of the dims of a tile over the threads whose bits are not taken.

    Args:
        sizes: of the dims.
        vectors: neighbours along each that memory moves together; 0 where there are none.
        threads: of a block, a power of two.
        taken: bits of the thread's number that other dims use.
    """
    free = [bit for bit in _bits(threads) if not bit & taken]
    order = sorted(range(len(sizes)), key=lambda i: (-vectors[i], -i))
    each = max(1, prod(sizes) >> len(free))
    digits: list[list[tuple[int, int]]] = [[] for _ in sizes]
    left = list(sizes)
    first = order[0]
    vector = min(max(1, vectors[first]), left[first], each)
    digits[first].append((vector, 0))
    left[first] //= vector
    for bits, axes in (
        ([b for b in free if b < WARP], order),
        ([b for b in free if b >= WARP], order[::-1]),
    ):
        for axis in axes:
            while bits and left[axis] > 1:
                digits[axis].append((2, bits.pop(0)))
                left[axis] //= 2
    return tuple(share_of(*d, (rest, 0)) for d, rest in zip(digits, left, strict=True))


def _bits(threads: int) -> list[int]:
    return [1 << i for i in range(threads.bit_length() - 1)]


def _dims(classes: Classes, node: Node) -> list[Dim]:
    return [d for i in range(node.tensor.rank) if (d := (node, i)) in classes.root]


def _vectors(classes: Classes, runs: Runs) -> dict[Dim, int]:
    """For each class the most neighbours in memory of what is read and written along it."""
    found: dict[Dim, int] = {}
    for node in classes.nodes:
        if node.op not in ("load", "store"):
            continue
        tile = node if node.op == "load" else node.args[1]
        for dim in _dims(classes, tile):
            root = classes.of(dim)
            found[root] = max(found.get(root, 0), runs.vector(node, dim[1]))
    return found
