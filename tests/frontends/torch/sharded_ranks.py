"""The work of one rank of a pool that runs partitioned programs."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch

from stack.errors import UsageError
from stack.frontends.torch.distributed.mesh import join
from stack.frontends.torch.distributed.rank_program import rank_program
from stack.ir import parse
from stack.mesh.meshes import parse_mesh


def run(
    rank: int, ranks: int, store: str, cases: list[Any], backend: str = ""
) -> list[list[np.ndarray]]:
    """Run all cases: this rank's parts of the results."""
    join(rank, ranks, store)
    found = []
    for mesh, text, data, parts in cases:
        program = rank_program(parse_mesh(mesh), parse(text, data), backend=backend)
        results = program(*(torch.from_numpy(part.copy()) for part in parts[rank]))
        found.append([result.contiguous().numpy() for result in results])
    return found


def differ(rank: int, ranks: int, store: str) -> list[str]:
    """The last rank has another program: the error of each rank."""
    join(rank, ranks, store)
    op = "exp" if rank == ranks - 1 else "neg"
    text = f"func @f(%x: f32[2]) -> (f32[2]) at tensor {{\n %y = {op}(%x) : f32[2]\n return %y\n}}"
    told = []
    for mesh in ("tp=4", "tp=3"):
        try:
            rank_program(parse_mesh(mesh), parse(text))
            told.append("nothing")
        except UsageError as error:
            told.append(str(error))
    return told


SUM = """func @f(%x: f32[4]) -> (f32[4]) at tensor {
  %y = all_reduce(%x) {kind="sum", mesh="tp=2", over="tp"} : f32[4]
  return %y
}"""


def misbehave(rank: int, ranks: int, store: str, kind: str, limit: float) -> list[float]:
    """The last rank dies or is late in a sum of all."""
    join(rank, ranks, store, limit)
    program = rank_program(parse_mesh("tp=2"), parse(SUM), limit=limit)
    if rank == ranks - 1 and kind == "dies":
        os._exit(3)
    if rank == ranks - 1 and kind == "late":
        time.sleep(60)
    return program(torch.ones(4))[0].tolist()


def add(rank: int, ranks: int, x: int) -> int:
    """For tests of the pool."""
    if x < 0:
        raise ValueError(f"{x} of rank {rank}")
    return rank * x
