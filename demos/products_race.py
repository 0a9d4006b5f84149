"""All-gather + GEMM and GEMM + reduce-scatter on the GPUs of one host, against NCCL and torch.

    torchrun --nproc-per-node 2 -m stack.demos.products_race [OUT]

The matmuls of a tensor-parallel Llama-3-8B block with rows split over the ranks. Values are checked
against float64. Times are medians of CUDA graph replays on the slowest rank.
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
from stack.ops.collectives.peer_products import PeerProducts

WIDTH, HIDDEN = 4096, 14336
ROWS = (2048, 8192, 16384)  # total over all ranks
Call = Callable[[Tensor, Tensor], Tensor]


def with_nccl(name: str, x: Tensor, w: Tensor) -> Tensor:
    """Runs the collective and the library's matmul one after the other."""
    ranks = dist.get_world_size()
    if name == "gather_gemm":
        whole = x.new_empty(x.shape[0] * ranks, x.shape[1])
        dist.all_gather_into_tensor(whole, x)
        return whole @ w
    made = x @ w
    part = made.new_empty(made.shape[0] // ranks, made.shape[1])
    dist.reduce_scatter_tensor(part, made)
    return part


def with_torch(name: str, x: Tensor, w: Tensor) -> Tensor:
    """Runs torch's fused collective and matmul over symmetric memory."""
    symmetric_memory()
    group = dist.group.WORLD.group_name  # type: ignore[union-attr]
    ops: Any = torch.ops.symm_mem
    if name == "gather_gemm":
        return ops.fused_all_gather_matmul(x, [w], 0, group)[1][0]
    return ops.fused_matmul_reduce_scatter(x, w, "sum", 0, group)


def wanted(name: str, x: Tensor, w: Tensor) -> Tensor:
    """Computes the results of `with_nccl` in float64, as the reference."""
    return with_nccl(name, x.double(), w.double())


def systems(size: int) -> dict[str, Callable[[str], Call]]:
    """Returns all systems by name."""
    ours = PeerProducts(size)
    return {
        "NCCL + matmul": lambda name: partial(with_nccl, name),
        "ours": lambda name: getattr(ours, name),
        "torch": lambda name: partial(with_torch, name),
    }


def measured(device: torch.device) -> Iterable[rank.Row]:
    """Yields a row for each matmul, number of rows, and system."""
    known = systems(max(ROWS) * WIDTH * 2)
    ranks = dist.get_world_size()
    for rows in ROWS:
        cases = {
            "gather_gemm": ((rows // ranks, WIDTH), (WIDTH, 2 * HIDDEN // ranks)),
            "gemm_scatter": ((rows, HIDDEN // ranks), (HIDDEN // ranks, WIDTH)),
        }
        for name, (left, right) in cases.items():
            x, w = (torch.randn(s, device=device).bfloat16() for s in (left, right))
            w *= left[1] ** -0.5
            reference = wanted(name, x, w)
            for system, call_of in known.items():
                row: rank.Row = {"product": name, "rows": rows, "system": system}
                try:
                    call = partial(call_of(name), x, w)
                    found = [call() for _ in range(3)][-1].double()  # memory is reused
                    row["error"] = float((found - reference).norm() / reference.norm())
                    taken = rank.race([call], found.nbytes // 4, device)[0]
                    if isinstance(taken, str):
                        raise RuntimeError(taken)
                    row["us"], row["spread"] = taken[0] * 1e6, taken[1]
                except (RuntimeError, TypeError) as error:  # a peer that refuses
                    row["note"] = str(error).partition("\n")[0]
                yield row


if __name__ == "__main__":
    rank.measure("products_race", measured)
