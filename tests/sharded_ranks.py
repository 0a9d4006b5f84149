"""What one gloo process runs of partitioned programs; started by `torch.multiprocessing`."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from gloo_ranks import join

from stack.errors import UsageError
from stack.frontends.torch_mesh import rank_program
from stack.ir import parse
from stack.ir.mesh import parse_mesh


def run(rank: int, ranks: int, store: str, folder: str) -> None:
    """Run all cases of a folder, and write this rank's parts of the results."""
    join(rank, ranks, store)
    cases = pickle.loads(Path(folder, "cases").read_bytes())
    found = []
    for mesh, text, data, parts in cases:
        program = rank_program(parse_mesh(mesh), parse(text, data))
        results = program(*(torch.from_numpy(part.copy()) for part in parts[rank]))
        found.append([result.contiguous().numpy() for result in results])
    Path(folder, f"results{rank}").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


def differ(rank: int, ranks: int, store: str, folder: str) -> None:
    """The last rank has another program; writes what each rank is told."""
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
    Path(folder, str(rank)).write_text("\n".join(told))
    dist.destroy_process_group()
