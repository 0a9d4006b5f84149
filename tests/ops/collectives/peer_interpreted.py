"""Kernels over peer memory in Triton's interpreter, which must be chosen before import.

Ranks run one after the other in one process: flags say that all have come, and what ranks put into
each other's memory is there from the second time on. Prints the largest errors as JSON.
"""

from __future__ import annotations

import json

import torch
import triton_interpreter  # noqa: F401

from stack.ops.collectives.peer_triton import MOST, PeerMemory

HALF = 1 << 15


def memory(world: int) -> list[PeerMemory]:
    """The memory of all ranks, as each of them sees it."""
    data = [torch.zeros(2 * HALF, dtype=torch.uint8) for _ in range(world)]
    flags = [torch.full((2 * MOST.value * world,), 1 << 20, dtype=torch.int32) for _ in data]
    tables = [torch.tensor([t.data_ptr() for t in held]) for held in (data, flags)]
    found: list[PeerMemory] = []
    for rank in range(world):
        peers = object.__new__(PeerMemory)
        peers.rank, peers.world, peers.half, peers.tables = rank, world, HALF, tables
        peers.turns = torch.zeros(MOST.value, dtype=torch.int32)
        peers.data, peers.flags = data[rank], flags[rank]
        found.append(peers)
    return found


def twice(ranks: list[PeerMemory], call: str, operands: list[tuple[torch.Tensor, ...]]):
    """What each rank gets when all others have put what they had."""
    for _ in range(2):
        made = []
        for peers, own in zip(ranks, operands, strict=True):
            peers.turns.zero_()
            made.append(getattr(peers, call)(*own))
            assert int(peers.turns.min()) == int(peers.turns.max()) == 1, (
                "halves alternate together"
            )
    return made


def main() -> None:
    torch.manual_seed(0)
    found: dict[str, float] = {}
    for world in (1, 3):
        ranks = memory(world)
        x = [torch.randn(64 * world) for _ in ranks]
        for call in ("one_shot_all_reduce", "two_shot_all_reduce"):
            made = twice(ranks, call, [(a,) for a in x])
            found[f"{call} {world}"] = float(max((y - sum(x)).abs().max() for y in made))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
