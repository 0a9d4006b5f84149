"""Places to and from the placements of DTensor."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard

from stack.errors import UsageError
from stack.frontends.torch.distributed.placements import from_placements, to_placements
from stack.mesh.meshes import parse_mesh
from stack.mesh.sharding import part_held, part_start, sharded

M = parse_mesh("dp=2, tp=4")
ALL = [Shard(0), Shard(1), Replicate(), Partial("sum")]


@pytest.mark.parametrize("placements", list(itertools.product(ALL, ALL)))
def test_there_and_back(placements: tuple[object, object]) -> None:
    assert to_placements(from_placements(M, placements, 2)) == list(placements)


def test_other_kinds() -> None:
    made = from_placements(M, [Partial("max"), Shard(-1)], 2)
    assert (made.kind, made.axes) == ("max", ((), (M.axis("tp"),)))
    assert to_placements(made) == [Partial("max"), Shard(1)]


def test_what_has_no_words() -> None:
    with pytest.raises(UsageError, match="two kinds"):
        from_placements(M, [Partial("max"), Partial("sum")], 1)
    with pytest.raises(UsageError, match="2 axes"):
        from_placements(M, [Shard(0)], 1)
    with pytest.raises(UsageError, match="whole axes"):
        to_placements(sharded(M, ((M.axis("tp:(1)2"),),)))
    with pytest.raises(UsageError, match="order of the mesh"):
        to_placements(sharded(M, ((M.axis("tp"), M.axis("dp")),)))


@pytest.mark.parametrize("size", [3, 5, 8, 13])
def test_parts_are_those_of_torch(size: int) -> None:
    """`torch.chunk`, once for each axis, is how DTensor cuts."""
    axes = M.axes_of("dp, tp")
    whole = torch.arange(size)
    for rank in range(8):
        part = whole
        for axis, position in zip(axes, M.positions(rank, axes), strict=True):
            chunks = part.chunk(axis.size)
            part = chunks[position] if position < len(chunks) else part[:0]
        place = M.positions(rank, axes)
        start, held = part_start(size, axes, place), part_held(size, axes, place)
        assert part.tolist() == list(range(start, start + held))
