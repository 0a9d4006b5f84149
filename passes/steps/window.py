"""window: load the run of memory that a tile reads once, and pick its elements from the run.

    load(%p, sub(%key, %row)) : f16<64x64>     window p     %run = load(%p, %first + iota)
                                                            gather(%run, 63 + iota_k - iota_m)

A tile of rows m and keys k that reads memory at k - m + c reads few elements, each of them many
times: a table of relative positions, a Toeplitz matrix. Legal if an index of a load is affine in
two or more axes of its tile, all other indices are the same for the whole tile, and the run has at
most 1024 elements, and at most half as many as the tile. GPUs only.

Source: relative position biases (Shaw, Uszkoreit and Vaswani, NAACL 2018) compute such loads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from stack.ir.builder import constant, make
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node
from stack.ir.traits import converts, is_load, is_positions, repeated
from stack.passes.steps.affine import AffineIndex, place_of
from stack.passes.steps.bounds import extreme
from stack.passes.steps.edit import Edit
from stack.passes.steps.loops import why_no_memory
from stack.passes.steps.step import Step
from stack.passes.steps.tiles import conjunction, positions, spread_along, tile_type
from stack.passes.tiling.frame import power_of_two, static
from stack.target import Gpu, Target

MOST = 1024  # elements of a run
SHARE = 0.5  # of the elements of the tile that it has at most


class MemoryRun(NamedTuple):
    """The contiguous range (run) of memory that all elements of a tile are read from.

    Attributes:
        axis: the axis of the memory that the window slides along.
        place: the index of the elements of the tile along that axis.
        span: the elements from the first to the last that the tile reads.
    """

    axis: int
    place: AffineIndex
    span: int


@dataclass(frozen=True)
class WindowLoads(Step, name="window", only=Gpu):
    """Load runs of a memory, from which tiles pick their elements."""

    memory: str

    def broken(self, kernel: Node, target: Target | None) -> Iterator[str]:
        yield why_no_memory(kernel, self.memory)
        own = {p for p in kernel.blocks[0].params if str(p.attrs["name"]) == self.memory}
        if not any(
            run_of(n) for n in kernel.blocks[0].all_nodes if is_load(n) and n.args[0] in own
        ):
            yield f"no tile reads short runs of {self.memory} many times"

    def apply(self, kernel: Node) -> Node:
        edit = Edit(kernel)
        picked: dict[Node, tuple[Node, Node, Node]] = {}  # a gather: its run, its index, its load

        def visit(old: Node, made: Node) -> Node:
            if converts(made) and made.args[0] in picked:
                # the run has fewer elements to convert
                run, index, load = picked[made.args[0]]
                wide = edit.locate(
                    load, make("cast", (run,), hint=run.tensor.with_dtype(old.dtype))
                )
                return _gather(wide, index)
            is_mine = is_load(old) and str(old.args[0].attrs["name"]) == self.memory
            found = run_of(made) if is_mine else None
            if found is None:
                return made
            run, index = edit.locate(old, _loaded(made, found)), _index(made, found)
            gathered = _gather(run, index)
            _, mask, other = access_parts(made)
            if mask is not None and other is not None:
                return make("select", (mask, gathered, other), hint=made.type)
            picked[gathered] = run, index, old
            return gathered

        return edit.everywhere(visit)


def run_of(load: Node) -> MemoryRun | None:
    """Returns the contiguous range of memory that contains all elements of a loaded tile; None if
    loading the tile from such a range has no advantage or is not possible.
    """
    if load.tensor.rank < 2:
        return None
    index = access_parts(load)[0]
    # not the same for all elements of the tile
    moving = [axis for axis, i in enumerate(index) if repeated(i).tensor.rank]
    if len(moving) != 1:
        return None
    place = place_of(index[moving[0]])
    if place is None or place.ends() is None:
        return None
    own = {t: c for t, c in place.terms.items() if is_positions(t)}
    if len(own) < 2 or any(t.tensor.rank for t in place.terms if t not in own):
        return None
    count = 1 + sum(abs(c) * (_size(t) - 1) for t, c in own.items())
    extent, tile = power_of_two(count), prod(map(static, load.shape))
    if extent > MOST or extent > SHARE * tile:
        return None
    return MemoryRun(moving[0], place, count)


def _size(positions: Node) -> int:
    return static(positions.shape[int(positions.attrs["axis"])])


def _loaded(load: Node, run: MemoryRun) -> Node:
    """Builds the load of the contiguous range of memory, as a tile of one axis."""
    index = access_parts(load)[0]
    dtype = index[run.axis].dtype
    size, extent = static(load.args[0].shape[run.axis]), power_of_two(run.span)
    shape = (extent,)
    first = spread_along(extreme(run.place, -1, dtype), (), shape)
    at = make("add", (first, positions(dtype, extent)))
    ends = run.place.ends()
    assert ends is not None
    tests: list[Node] = []
    if ends[0] < 0:
        tests.append(make("ge", (at, constant(0, dtype))))
    if ends[1] + extent - run.span >= size:
        tests.append(make("lt", (at, constant(size, dtype))))
    places = [
        at if axis == run.axis else spread_along(i.args[0] if i.tensor.rank else i, (), shape)
        for axis, i in enumerate(index)
    ]
    mask = conjunction(tests)
    masked = [] if mask is None else [mask, constant(0, load.dtype)]
    return make("load", [load.args[0], *places, *masked], hint=tile_type(load.dtype, shape))


def _index(load: Node, run: MemoryRun) -> Node:
    """Builds, for each element of the tile, its index in the loaded range of memory."""
    shape = tuple(map(static, load.shape))
    own = {t: c for t, c in run.place.terms.items() if is_positions(t)}
    dtype = next(iter(own)).dtype
    first = constant(sum(-c * (_size(t) - 1) for t, c in own.items() if c < 0), dtype)
    total: Node | None = None
    for term, count in sorted(own.items(), key=lambda item: int(item[0].attrs["axis"])):
        axis = int(term.attrs["axis"])
        one = make("mul", (positions(dtype, shape[axis]), constant(count, dtype)))
        if total is None:
            # before the broadcast: LLVM then sees which elements of a thread have the same index
            one = make("add", (first, one))
        one = spread_along(one, (axis,), shape)
        total = one if total is None else make("add", (total, one))
    assert total is not None
    return total


def _gather(run: Node, index: Node) -> Node:
    axes = " ".join(f"t{i}" for i in range(index.tensor.rank))
    return make("gather", (run, index), {"rule": f"w!, {axes} -> {axes}"})
