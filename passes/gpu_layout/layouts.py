"""Chooses the shares of all classes of dims of a kernel, from its largest tile down.

A thread gets a vector that is contiguous in memory, the lanes of a warp get the vectors that
follow, and warps the outer axes, so that reductions of inner axes stay within a warp. If elements
are left over, each thread has several such vectors. Axes of one tile use different bits of the
thread number; axes that never meet may use the same ones. If two axes with the same bits do meet
in a smaller tile, the later axis has another share there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from stack.ir.node import Node
from stack.ir.warp_ops import WARP
from stack.passes.gpu_layout.classes import Dim, DimClasses, is_tile
from stack.passes.gpu_layout.contiguity import Contiguity, size_of, sizes_of, tile_of
from stack.passes.gpu_layout.share import Layout, Share, bits_of, share_of


class Layouts:
    """The layout of each tile of a kernel.

    Args:
        prescribed: layouts that instructions prescribe.
    """

    def __init__(
        self,
        classes: DimClasses,
        contiguity: Contiguity,
        warps: int,
        prescribed: Mapping[Node, Layout],
    ) -> None:
        self.classes = classes
        self.threads = WARP * warps
        self.shares: dict[Dim, Share] = {}
        self.vectors = _vectors(classes, contiguity)
        for node, layout in prescribed.items():
            for dim in classes.dims(node):
                self.shares.setdefault(classes.of(dim), layout[dim[1]])
        tiles = [n for n in classes.nodes if is_tile(n) and not classes.is_cheap(n)]
        # loads before other tiles of their size: coalesced reads matter most
        for node in sorted(tiles, key=lambda n: (-prod(sizes_of(n.tensor)), n.op != "load")):
            self._choose(node)

    def of(self, node: Node, vectors: Sequence[int] = ()) -> Layout:
        """Returns the layout of a tile, from the shares that were chosen for the classes of its
        dims. A cheap tile has no such shares: it gets a layout for the `vectors` of the use that
        needs it."""
        if self.classes.is_cheap(node):
            sizes = sizes_of(node.tensor)
            return self.blocked(sizes, vectors or [0] * len(sizes))
        dims = {d[1]: self.classes.of(d) for d in self.classes.dims(node)}
        axes = range(node.tensor.rank)
        layout = [self.shares[dims[i]] if i in dims else Share() for i in axes]
        taken = 0
        clashes: list[int] = []
        for i, share in enumerate(layout):
            if share.bits & taken:
                clashes.append(i)
            else:
                taken |= share.bits
        if clashes:
            sizes = [size_of(node.tensor, i) for i in clashes]
            widths = [self.vectors.get(dims[i], 0) for i in clashes]
            for i, share in zip(clashes, self.blocked(sizes, widths, taken), strict=True):
                layout[i] = share
        return tuple(layout)

    def blocked(self, sizes: Sequence[int], vectors: Sequence[int], taken: int = 0) -> Layout:
        """Returns how the dims of a tile are distributed over threads: consecutive threads get
        consecutive vectors.

        Args:
            sizes: of the dims.
            vectors: neighbours along each dim that one access moves; 0 if they are not contiguous.
            taken: bits of the thread number that other dims use.
        """
        free = [bit for i in range(self.threads.bit_length() - 1) if not (bit := 1 << i) & taken]
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

    def _choose(self, node: Node) -> None:
        """Chooses shares for the dims of a tile whose classes have none yet."""
        dims = [self.classes.of(d) for d in self.classes.dims(node)]
        known = [self.shares[d] for d in dims if d in self.shares]
        left = [d for d in dims if d not in self.shares]
        if not left:
            return
        sizes = [size_of(d[0].tensor, d[1]) for d in left]
        vectors = [self.vectors.get(d, 0) for d in left]
        layout = self.blocked(sizes, vectors, bits_of(known))
        self.shares.update(zip(left, layout, strict=True))


def _vectors(classes: DimClasses, contiguity: Contiguity) -> dict[Dim, int]:
    """For each class, the widest vector of all loads and stores along it."""
    found: dict[Dim, int] = {}
    for node in classes.nodes:
        for dim in classes.dims(tile_of(node)) if node.op in ("load", "store") else ():
            root = classes.of(dim)
            found[root] = max(found.get(root, 0), contiguity.vector(node, dim[1]))
    return found
