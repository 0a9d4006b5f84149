"""Runs a partitioned program on a simulated mesh: all ranks in this process, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stack.errors import StackError, UsageError
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.types import TensorType
from stack.mesh.meshes import Mesh
from stack.mesh.sharding import Sharding, part_held, part_start, replicated
from stack.sim.mesh_space import MeshSpace, RankParts

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SimulatedRun:
    """The results of a simulated run.

    Attributes:
        results: global values.
        sent: bytes that one rank sent, by collective.
        counts: number of runs of each collective.
    """

    results: tuple[Array, ...]
    sent: dict[str, int]
    counts: dict[str, int]


def simulate(placed: Func, local: Func, arrays: Sequence[Array], filler: Any = 0) -> SimulatedRun:
    """Runs the program of one rank on all ranks of its mesh.

    Args:
        placed: the program on global values; its types have the shardings of parameters and
            results.
        local: the partitioned program, from pass `spmd`.
        arrays: one global array for each parameter.
        filler: the value of padding in parts; no result may depend on it.

    Raises UsageError for a program without a mesh, StackError if replicas of a result differ.
    """
    if not placed.meshes:
        raise UsageError(f"@{placed.name} has no mesh")
    mesh = placed.meshes[0]
    space = MeshSpace(mesh)
    given = [
        RankParts(tuple(parts_of(a, _sharding(p.tensor, mesh), filler)))
        for p, a in zip(placed.params, arrays, strict=True)
    ]
    found = evaluate(local.body, given, space)
    results = tuple(
        whole_of(value.parts, r.tensor, mesh)
        for value, r in zip(found, placed.results, strict=True)
    )
    return SimulatedRun(results, space.sent, space.counts)


def _sharding(type_: TensorType, mesh: Mesh) -> Sharding:
    return type_.sharding or replicated(mesh, type_.rank)


def cuts_of(shape: Sequence[int], sharding: Sharding, rank: int) -> tuple[slice, ...]:
    """Returns the slice along each dim of the global value that a rank has, without padding."""
    cuts: list[slice] = []
    for size, axes in zip(shape, sharding.axes, strict=True):
        place = sharding.mesh.positions(rank, axes)
        start = part_start(size, axes, place)
        cuts.append(slice(start, start + part_held(size, axes, place)))
    return tuple(cuts)


def parts_of(array: Array, sharding: Sharding, filler: Any = 0) -> list[Array]:
    """Cuts a global value into the array of each rank. Shorter parts are padded with `filler` to
    the size of the longest.
    """
    shape = tuple(int(cast("int", n)) for n in sharding.local_shape(array.shape))
    parts: list[Array] = []
    for rank in range(sharding.mesh.ranks):
        held = array[cuts_of(array.shape, sharding, rank)]
        with np.errstate(invalid="ignore"):  # a filler nan in an array of integers
            part = np.full(shape, filler, array.dtype)
        part[tuple(slice(0, n) for n in held.shape)] = held
        parts.append(part)
    return parts


def whole_of(parts: Sequence[Array], type_: TensorType, mesh: Mesh) -> Array:
    """Assembles the global value from its parts. Raises StackError if replicas differ."""
    sharding = _sharding(type_, mesh)
    shape = tuple(int(cast("int", n)) for n in type_.shape)
    whole = np.zeros(shape, parts[0].dtype)
    owner = np.full(shape, -1)
    for rank, part in enumerate(parts):
        cut = cuts_of(shape, sharding, rank)
        held = part[tuple(slice(0, n) for n in whole[cut].shape)]
        is_new = owner[cut] < 0
        if not np.array_equal(
            whole[cut][~is_new], held[~is_new], equal_nan=held.dtype.kind in "fc"
        ):
            raise StackError(f"copies of a result of type {type_} differ between ranks")
        whole[cut] = held
        owner[cut] = rank
    if (owner < 0).any():
        raise StackError(f"no rank holds a part of a result of type {type_}")
    return whole
