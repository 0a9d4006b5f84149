"""All-reduce + residual + RMSNorm by messages, the steps after a row-parallel matmul of a block.

`PeerMemory.all_reduce_norm` does the same in one kernel. As rows are normalized independently, the
ranks may also split them: each rank sums and normalizes some rows, which are then gathered
(sequence parallelism: Korthikanti et al., "Reducing activation recomputation in large transformer
models", 2022).
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from stack.errors import UsageError
from stack.ops.collectives.algorithms import build
from stack.ops.collectives.execute import run
from stack.ops.norm import add_rms_norm


def all_reduce_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    algorithm: str = "two_shot",
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """`norm.add_rms_norm` of the sum over all ranks of `x [..., d]`.

    `residual [..., d]` and `weight [d]` are the same on all ranks, and so are the two results. Runs
    on any device that the group's backend supports. Raises as `execute.run` does.
    """
    schedule = build("all_reduce", algorithm, dist.get_world_size(group))
    return add_rms_norm(run(schedule, x, group), residual, weight, eps=eps)


def scattered_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    group: dist.ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the normalized rows of all ranks, and the sums of this rank's own rows.

    `x [rows, d]`; `residual [rows / ranks, d]` has this rank's rows, as has the second result.
    Raises UsageError if rows do not divide by the ranks, and as `execute.run` does.
    """
    ranks = dist.get_world_size(group)
    if x.dim() != 2 or x.shape[0] % ranks:
        raise UsageError(f"x {list(x.shape)}: the rows must divide by {ranks} ranks")
    own = run(build("reduce_scatter", "direct", ranks), x, group).view(-1, x.shape[1])
    made: Any = add_rms_norm(own, residual, weight, eps=eps)
    return run(build("all_gather", "direct", ranks), made[0], group).view_as(x), made[1]
