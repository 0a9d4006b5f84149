"""All-reduce + residual + RMSNorm on the GPUs of one host, in one kernel, against NCCL and torch.

    torchrun --nproc-per-node 2 -m stack.demos.norm_race [OUT]

This follows a row-parallel matmul in a tensor-parallel Llama (row G19 of the bench). Values are
checked against float64. Times are medians of CUDA graph replays on the slowest rank; systems
alternate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from stack.demos import rank
from stack.frameworks.torch_private import symmetric_memory
from stack.ops.collectives.peer_memory import PeerMemory, predicted
from stack.ops.norm.rows_triton import add_rms_norm

TOKENS = (1, 16, 128, 1024, 8192)
WIDTHS = (4096, 8192)
EPS = 1e-6
Results = tuple[Tensor, Tensor]
Call = Callable[[], Results]


def formula(x: Tensor, residual: Tensor, weight: Tensor) -> Results:
    """Computes a weighted RMS norm of a sum: Inductor's source; in float64 the reference."""
    added = x + residual
    wide = added if added.dtype == torch.float64 else added.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype), added


class Race:
    """Calls of all systems, and memory that GPUs share."""

    def __init__(self, device: torch.device) -> None:
        self.device, size = device, 2 * max(TOKENS) * max(WIDTHS)
        memory = symmetric_memory()
        self.peers = PeerMemory(size)
        self.theirs = memory.empty(size // 2, dtype=torch.bfloat16, device=device)
        memory.rendezvous(self.theirs, group=dist.group.WORLD)
        self.inductor = torch.compile(formula, dynamic=False)

    def shared(self, x: Tensor) -> Tensor:
        """Copies `x` to memory that all GPUs can access, and returns the copy."""
        return self.theirs[: x.numel()].view_as(x).copy_(x)

    def calls(self, x: Tensor, residual: Tensor, weight: Tensor) -> dict[str, Call]:
        """Returns each system's call by name. NCCL's and torch's sum in place, in `theirs`."""
        group = dist.group.WORLD.group_name  # type: ignore[union-attr]
        shared = self.shared(x)
        symmetric: Any = torch.ops.symm_mem
        own = partial(self.peers.all_reduce_norm, x, residual, weight, eps=EPS)
        ways = list(predicted("all_reduce", self.peers.world, x.nbytes))
        if len(x) % self.peers.world:
            ways.remove("two_shot")

        def nccl(norm: Callable[..., Results]) -> Results:
            dist.all_reduce(shared)
            return norm(shared, residual, weight)

        def torchs() -> Results:
            symmetric.two_shot_all_reduce_(shared, "sum", group)
            return self.inductor(shared, residual, weight)

        return {
            "NCCL + Inductor": partial(nccl, self.inductor),
            "NCCL + norm.add_rms_norm": partial(nccl, partial(add_rms_norm, eps=EPS)),
            "torch two_shot + Inductor": torchs,
            "ours": own,
            **{f"ours {way}": partial(own, way=way) for way in ways},
        }

    def rows(self, tokens: int, width: int) -> Iterable[rank.Row]:
        """Yields the result row of each system for one number of tokens and one width."""
        draw = partial(torch.randn, device=self.device)
        x = draw(tokens, width).bfloat16()
        residual = torch.linspace(-2, 2, tokens * width, device=self.device).bfloat16()
        weight = torch.linspace(0.5, 1.5, width, device=self.device).bfloat16()
        residual = residual.view_as(x)
        total = x.double()
        dist.all_reduce(total)
        wanted = formula(total, residual.double(), weight.double())
        torch.compiler.reset()
        known = self.calls(x, residual, weight)
        errors: list[float] = []
        for call in known.values():
            self.shared(x)
            errors.append(max(map(_error, call(), wanted)))
        times = rank.race(list(known.values()), x.nbytes, self.device)
        for system, error, taken in zip(known, errors, times, strict=True):
            row = {"row": "G19", "tokens": tokens, "width": width, "system": system}
            row["error"] = error
            if isinstance(taken, str):
                yield row | {"note": taken}
            else:
                yield row | {"us": taken[0] * 1e6, "spread": taken[1]}


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


def measured(device: torch.device) -> Iterable[rank.Row]:
    """Yields rows of all widths and numbers of tokens."""
    race = Race(device)
    for width in WIDTHS:
        for tokens in TOKENS:
            yield from race.rows(tokens, width)


if __name__ == "__main__":
    rank.measure("norm_race", measured)
