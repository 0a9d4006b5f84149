"""All-reduce + residual + RMSNorm by messages: what follows a row-parallel product of a block.

`PeerMemory.all_reduce_norm` is the same in one kernel. Rows are normed alone, so the ranks may as
well share them out: each sums some, norms these, and the rows are gathered (sequence parallelism:
Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022).
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

    `residual [..., d]` and `weight [d]` are the same on all ranks, and so are the two results; any
    device of the group's backend. Raises as `execute.run` does.
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
    """The normed rows of all ranks, and the sums of this rank's own.

    `x [rows, d]`; `residual [rows / ranks, d]` is of this rank's rows, as is the second result.
    Raises UsageError for rows that do not divide, and as `execute.run` does.
    """
    ranks = dist.get_world_size(group)
    if x.dim() != 2 or x.shape[0] % ranks:
        raise UsageError(f"x {list(x.shape)}: rows that divide by {ranks} ranks")
    own = run(build("reduce_scatter", "direct", ranks), x, group).view(-1, x.shape[1])
    made: Any = add_rms_norm(own, residual, weight, eps=eps)
    return run(build("all_gather", "direct", ranks), made[0], group).view_as(x), made[1]
