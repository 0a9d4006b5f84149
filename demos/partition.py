"""A function on a mesh of devices, by the passes that shard programs."""

from __future__ import annotations

from dataclasses import dataclass

from stack.ir.func import Func
from stack.passes.annotate import Annotate
from stack.passes.propagate import Propagate
from stack.passes.reshard import Reshard
from stack.passes.spmd import Spmd
from stack.rewrite import Pipeline


@dataclass(frozen=True)
class Partitioned:
    """A program on a mesh: sharded whole values, the program of one rank, and the reasons."""

    placed: Func
    local: Func
    notes: tuple[str, ...]


def partition(func: Func, mesh: str, shard: tuple[str, ...]) -> Partitioned:
    """Shards a function: `shard` has texts such as "x: dp, -"; the passes derive the rest."""
    result = Pipeline([Annotate(mesh, shard), Propagate(), Reshard()]).run(func)
    notes = tuple(note for record in result.records for note in record.notes)
    return Partitioned(result.func, Pipeline([Spmd()]).run(result.func).func, notes)
