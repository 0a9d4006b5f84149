"""Kernels over peer memory in Triton's interpreter, which must be chosen before import.

Ranks are processes that share memory, as GPUs do, and run at once. The last rank leaves before the
last call, which the others have to say. Prints the largest errors on any rank as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

import torch
import triton.language as tl

from stack.backends.triton import interpreter
from stack.errors import StackError
from stack.ops.collectives import peer_memory, peer_triton
from stack.ops.collectives.peer_memory import WAYS, PeerMemory

interpreter.mend()
HALF = 1 << 14
ROWS, WIDTH = 3, 12


def memory(world: int) -> list[PeerMemory]:
    """The memory of all ranks, as each of them sees it."""
    shared = {"data": (2 * HALF, torch.uint8), "words": (1 << 12, torch.int64)}
    shared["flags"] = (2 * peer_triton.MOST.value * world, torch.int32)
    held = [
        [torch.zeros(size, dtype=dtype).share_memory_() for _ in range(world)]
        for size, dtype in shared.values()
    ]
    found: list[PeerMemory] = []
    for rank in range(world):
        peers = object.__new__(PeerMemory)
        peers.rank, peers.world, peers.half, peers.patience = rank, world, HALF, 1 << 30
        peers.tables = [torch.tensor([t.data_ptr() for t in parts]) for parts in held]
        peers.turns = torch.zeros(2 * peer_triton.MOST.value, dtype=torch.int32)
        peers.failed = torch.zeros(1, dtype=torch.int32)
        peers.held = [t for parts in held for t in parts]
        found.append(peers)
    return found


def wanted(collective: str, inputs: list[torch.Tensor], rank: int) -> torch.Tensor:
    total = torch.stack(inputs).sum(0)
    return {
        "all_reduce": total,
        "reduce_scatter": total.chunk(len(inputs))[rank],
        "all_gather": torch.cat(inputs),
        "all_to_all": torch.cat([x.chunk(len(inputs))[rank] for x in inputs]),
    }[collective]


def errors(peers: PeerMemory, turn: int) -> dict[str, float]:
    """Errors of all collectives and algorithms, on inputs that differ in each call."""
    drawn, own = torch.Generator().manual_seed(turn), peers.rank
    size = (8, 40, 300)[turn % 3] * peers.world
    inputs = [torch.randn(size, generator=drawn) for _ in range(peers.world)]
    found = {
        f"{collective} {way}": getattr(peers, collective)(inputs[own], way)
        - wanted(collective, inputs, own)
        for collective, ways in WAYS.items()
        for way in ways
    }
    shape = ROWS * peers.world, WIDTH
    inputs = [torch.randn(shape, generator=drawn) for _ in range(peers.world)]
    residual, weight = torch.randn(shape, generator=drawn), torch.randn(WIDTH, generator=drawn)
    total = torch.stack([*inputs, residual]).sum(0)
    norm = torch.nn.functional.rms_norm(total, (WIDTH,), weight, 1e-5)
    for way in WAYS["all_reduce"]:
        y, added = peers.all_reduce_norm(inputs[own], residual, weight, eps=1e-5, way=way)
        found[f"norm {way}"] = torch.cat([y - norm, added - total])
    return {name: float(error.abs().max()) for name, error in found.items()}


def take_part(peers: PeerMemory, told: Any) -> None:
    torch.set_num_threads(1)
    peer_memory.PROGRAMS, peer_memory.DEPTH = 4, 1  # several chunks
    peer_memory.PUSHED = 1 << 10
    peer_memory.LANE = peer_memory.PUSH_LANE = 1
    found = [errors(peers, turn) for turn in range(2)]
    worst = {name: max(f[name] for f in found) for name in found[0]}
    peer_triton.LOOK = tl.constexpr(1)
    peers.patience = 16
    if peers.rank < peers.world - 1:
        worst["said"] = float("inf")
        x = torch.ones(8)
        try:
            peers.all_reduce(x, "push")
            peers.all_reduce(x, "push")
        except StackError:
            worst["said"] = 0.0
    told.put(worst)


def main() -> None:
    world = int(sys.argv[1])
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    ranks = [context.Process(target=take_part, args=(p, told)) for p in memory(world)]
    for process in ranks:
        process.start()
    found = [told.get(timeout=300) for _ in ranks]
    print(json.dumps({name: max(f.get(name, 0.0) for f in found) for f in found for name in f}))


if __name__ == "__main__":
    main()
