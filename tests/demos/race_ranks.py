"""The work of one rank of a pool that runs systems of the race."""

from __future__ import annotations

import gc
from functools import partial

import torch

from stack.demos.llama import Llama, Sizes, attended, data
from stack.demos.mesh_ours import Ours, strategies
from stack.frontends.torch.distributed.mesh import join
from stack.sim import machine

TINY = Sizes(1, 64, 128, 4, 2, 64, 32, batch=2)


def held() -> int:
    """Returns the elements of all tensors of this process that have at least those of a weight."""
    found = [o for o in gc.get_objects() if type(o) in (torch.Tensor, torch.nn.Parameter)]
    return sum(t.numel() for t in found if t.numel() >= TINY.width**2)


def held_by_systems(rank: int, ranks: int, store: str, backend: str) -> dict[str, tuple[int, int]]:
    """Returns for each system what it holds after two steps, and what is held after its end."""
    join(rank, ranks, store)
    ours = Ours(partial(Llama, TINY, attended), data(TINY, 1)[0], machine("h200"), backend)
    systems = {name: partial(ours, strategies(ranks)[name]) for name in ("FSDP", "CP ring")}
    found: dict[str, tuple[int, int]] = {}
    for name, make in {**systems, "1F1B": ours.pipelined}.items():
        step, _ = make()
        for _ in range(2):
            step()
        during = held()
        del step
        gc.collect()
        found[name] = during, held()
    return found
