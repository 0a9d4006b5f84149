"""Memory of a block kernel: tiles are read and written as blocks, runs or single elements."""

from __future__ import annotations

from collections.abc import Sequence

from stack.ir.axes import Index
from stack.ir.builder import constant
from stack.ir.dim import Dim, add, bounds, mul, symbols
from stack.ir.node import Block, Node
from stack.ir.traits import is_number, number
from stack.ir.types import I32, DType, TensorType
from stack.passes.blocking.block_policy import MASKED, BlockPolicy
from stack.passes.blocking.fold import BlockFold
from stack.passes.blocking.frame import Axis, NamedTile
from stack.passes.blocking.window import Window, window_of
from stack.passes.tiling.frame import static, wide


class BlockMemory(BlockFold):
    """Loads and stores of tiles over named axes."""

    block_policy: BlockPolicy = MASKED
    evict = ""  # a hint for what is read

    def __init__(self, body: Block, integer: DType = I32) -> None:
        super().__init__(body, integer)
        self.has_windows = False  # whether elements are picked from runs of memory
        self.met: dict[Node, set[str]] = {}  # memory that is read, and the axes that tell where
        self.padded: set[Node] = set()  # memory whose rows end in zeros past what is read

    def widen(self, value: NamedTile) -> NamedTile:
        """A 16-bit float as kernels compute with it."""
        return self.cast(value, wide(value.dtype))

    def load(
        self, memory: Node, index: Index, guard: NamedTile | None, raw: bool = False
    ) -> NamedTile:
        """Read a tile: a block where the index runs along the memory, else element by element."""
        told = {s.name for d in index for s in symbols(d)}
        # places that data gives may depend on any axis
        self.met.setdefault(memory, set()).update(told if told.isdisjoint(self.data) else self.axes)
        if not index:
            made = self._number_load(memory, guard)
            return made if raw else self.widen(made)
        axes = self.union([NamedTile(memory, tuple(self.tile_axes(d))) for d in index])
        guard_axes = guard.axes if guard is not None else ()
        if not axes and not guard_axes:
            place = [self.number(d).node for d in index]
            extra = [] if guard is None else [guard.node, constant(0, memory.dtype)]
            made = NamedTile(self.b.load(memory, *place, *extra, type=TensorType(memory.dtype, ())))
            return made if raw else self.widen(made)
        is_block = bool(axes) and (guard is None or self.block_policy.is_line)
        found = self.block_place(memory, index) if is_block else None
        window = window_of(self, index) if found is None and self.has_windows else None
        if found is not None:
            made = self._block_load(memory, *found, guard)
        elif window is not None and not raw:
            made = self._window_load(memory, index, window)
        else:
            made = self._element_load(memory, index, guard)
        return made if raw else self.widen(made)

    def _number_load(self, memory: Node, guard: NamedTile | None) -> NamedTile:
        """The one element of a scalar; 0 where the guard does not hold."""
        made = NamedTile(self.b.load(memory, type=TensorType(memory.dtype, ())))
        if guard is None:
            return made
        return self.apply("select", [guard, made, NamedTile(constant(0, memory.dtype))])

    def block_place(
        self, memory: Node, index: Index
    ) -> tuple[list[Node], list[str | None], bool] | None:
        """Scalar starts, the axis of each dim, and whether the block may pass the end."""
        starts: list[Node] = []
        along: list[str | None] = []
        clip = False
        if self.block_policy.is_line and any(self.tile_axes(d) for d in index[:-1]):
            return None
        for dim, size in zip(index, memory.shape, strict=True):
            names = self.tile_axes(dim)
            if not names:
                starts.append(self.number(dim).node)
                along.append(None)
                continue
            if len(names) > 1 or names[0] in along or names[0] not in self.axes:
                return None
            axis = self.axes[names[0]]
            rest = add(dim, mul(axis.place, -1))
            if self.tile_axes(rest):
                return None
            if not axis.is_covered:
                # past the end of the axis must be past the end of the memory, or zeros
                if rest != 0 or (axis.extent != size and memory not in self.padded):
                    return None
                clip = True
            starts.append(self._start_of(axis, rest))
            along.append(axis.name)
        return starts, along, clip

    def _start_of(self, axis: Axis, rest: Dim) -> Node:
        """Where a tile begins that lies so far from that of its axis."""
        if rest == 0:
            return axis.start
        moved = self.number(rest)
        return (
            moved.node
            if _is_zero(axis.start)
            else self.apply("add", [moved, NamedTile(axis.start)]).node
        )

    def reread(self, memory: Node, starts: Sequence[Node], node: Node) -> Node:
        """What stands for a read: itself, where nothing holds what was read there before."""
        return node

    def store_hints(self, memory: Node) -> dict[str, object]:
        """Attributes of a store of blocks that only tell how."""
        return {}

    def _block_load(
        self,
        memory: Node,
        starts: list[Node],
        along: list[str | None],
        clip: bool,
        guard: NamedTile | None,
    ) -> NamedTile:
        first = next(i for i, name in enumerate(along) if name is not None)
        dims = along[first:]
        shape = tuple(self.axes[n].block if n else 1 for n in dims)
        type_ = TensorType(memory.dtype, shape, "tile")
        attrs: dict[str, object] = {"clip": True} if clip else {}
        if self.evict and any(n is None and not is_number(s) for s, n in zip(starts, along)):
            attrs["evict"] = self.evict  # what other programs read too stays anyway
        extra: list[Node] = []
        if guard is not None:
            mask = self.spread(guard, [n for n in dims if n]) if guard.axes else guard.node
            extra = [mask, constant(0, memory.dtype)]
        node = self.b.op("load", [memory, *starts, *extra], attrs, hint=type_)
        node = self.reread(memory, starts, node)
        axes = tuple(n for n in dims if n)
        if len(axes) != len(dims):
            node = self.b.reshape(node, type=TensorType(memory.dtype, self.shape(axes), "tile"))
        return NamedTile(node, axes)

    def _element_load(self, memory: Node, index: Index, guard: NamedTile | None) -> NamedTile:
        places = [self.number(d) for d in index]
        mask = guard
        for name in self.union(places):
            mask = self.both(mask, self.mask(name))
        return self._read(memory, places, mask)

    def _read(self, memory: Node, places: Sequence[NamedTile], mask: NamedTile | None) -> NamedTile:
        """One element at each place; 0 where the mask does not hold."""
        axes = self.union([*places, *([mask] if mask is not None else [])])
        type_ = TensorType(memory.dtype, self.shape(axes), "tile")
        extra: list[Node] = []
        if mask is not None:
            extra = [self.spread(mask, axes), constant(0, memory.dtype)]
        nodes = [self.spread(p, axes) for p in places]
        return NamedTile(self.b.load(memory, *nodes, *extra, type=type_), axes)

    def _window_load(self, memory: Node, index: Index, window: Window) -> NamedTile:
        """Read the run that a tile meets, and pick each element from it."""
        size = static(memory.shape[window.dim])
        start = self.number(window.first).node
        run = self.axis("w", size, window.extent, start, is_aligned=False)
        low, high = bounds(window.first)
        at = self.number(run.place)
        mask = self.apply("ge", [at, self.int(0)]) if low < 0 else None
        if high + window.extent > size:
            mask = self.both(mask, self.apply("lt", [at, self.int(size)]))
        places = [at if i == window.dim else self.number(d) for i, d in enumerate(index)]
        values = self.widen(self._read(memory, places, mask))

        names = self.sorted(list(window.slopes))
        back = sum(-c * (self.axes[n].block - 1) for n, c in window.slopes.items() if c < 0)
        picked = self.int(back)
        for name in names:
            steps = self.apply("mul", [self.steps_of(name), self.int(window.slopes[name])])
            picked = self.apply("add", [picked, steps])
        axes = " ".join(f"t{i}" for i in range(len(names)))
        made = self.b.gather(values.node, picked.node, rule=f"w!, {axes} -> {axes}")
        return NamedTile(made, tuple(names))

    def store(
        self, memory: Node, value: NamedTile, index: Index, guard: NamedTile | None = None
    ) -> Node:
        """Write a value at an index where a guard holds; past the end of an axis nothing is."""
        value = self.cast(value, memory.dtype)
        axes = self.union([NamedTile(memory, tuple(self.tile_axes(d))) for d in index])
        if not axes:
            extra = [] if guard is None else [guard.node]
            return self.b.store(memory, value.node, *[self.number(d).node for d in index], *extra)
        found = None if guard is not None and guard.axes else self.block_place(memory, index)
        if found is None:
            places = [self.number(d) for d in index]
            mask = guard
            for name in axes:
                mask = self.both(mask, self.mask(name))
            extra = [] if mask is None else [self.spread(mask, axes)]
            nodes = [self.spread(p, axes) for p in places]
            return self.b.store(memory, self.spread(value, axes), *nodes, *extra)
        starts, along, clip = found
        first = next(i for i, name in enumerate(along) if name is not None)
        dims = along[first:]
        held = [n for n in dims if n]
        node = self.spread(NamedTile(value.node, value.axes), held)
        if len(held) != len(dims):
            shape = tuple(self.axes[n].block if n else 1 for n in dims)
            node = self.b.reshape(node, type=TensorType(memory.dtype, shape, "tile"))
        attrs: dict[str, object] = {"clip": True} if clip else {}
        extra = [] if guard is None else [guard.node]
        hints = {**attrs, **self.store_hints(memory)}
        return self.b.op("store", [memory, node, *starts, *extra], hints)


def _is_zero(start: Node) -> bool:
    return number(start) == 0
