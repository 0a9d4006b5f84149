"""The work of one gloo process of the tests; started by `torch.multiprocessing`."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from stack.errors import StackError, UsageError
from stack.ops.collectives import build
from stack.ops.collectives.execute import run
from stack.ops.collectives.norms import all_reduce_norm, scattered_norm
from stack.ops.norm import add_rms_norm

LIMIT = timedelta(seconds=30)


def join(rank: int, ranks: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=LIMIT
    )


def value(rank: int, elements: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    drawn = torch.randn(elements, generator=torch.Generator().manual_seed(rank))
    return (drawn * 8).round().to(dtype)  # sums are exact


def torchs_own(collective: str, x: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    if collective == "all_reduce":
        made = x.clone()
        dist.all_reduce(made)
        return made
    if collective == "all_gather":
        parts = [torch.empty_like(x) for _ in range(ranks)]
        dist.all_gather(parts, x)
        return torch.cat([p.reshape(-1) for p in parts])
    if collective == "reduce_scatter":
        made = x.clone()  # gloo has none
        dist.all_reduce(made)
        return made.reshape(-1).chunk(ranks)[rank]
    if collective == "all_to_all":
        made = torch.empty_like(x)
        dist.all_to_all_single(made, x)
        return made
    if collective == "broadcast":
        made = x.clone()
        dist.broadcast(made, 0)
        return made
    parts = [torch.empty_like(x) for _ in range(ranks)]
    dist.all_gather(parts, x)
    return parts[(rank - 1) % ranks]


def counted() -> list[int]:
    """Bytes of every message that this process sends from now on."""
    found: list[int] = []
    plain = dist.batch_isend_irecv

    def counting(messages: list[dist.P2POp]) -> list[dist.Work]:
        found.extend(m.tensor.nbytes for m in messages if m.op is dist.isend)
        return plain(messages)

    dist.batch_isend_irecv = counting
    return found


def compare(rank: int, ranks: int, store: str, names: list[tuple[str, str]]) -> None:
    """All algorithms against torch's own, bytes against formulas; raises where one differs.

    Then norms of sums.
    """
    join(rank, ranks, store)
    sent = counted()
    for collective, algorithm in names:
        schedule = build(collective, algorithm, ranks)
        for elements in (ranks, 1000 * ranks):
            for dtype in (torch.float64, torch.bfloat16 if elements == ranks else torch.int32):
                x = value(rank, elements, dtype)
                before = x.clone()
                sent.clear()
                found = run(schedule, x)
                wanted = torchs_own(collective, x, ranks, rank)
                at = f"{collective} {algorithm} of {elements} on rank {rank}"
                assert torch.equal(found.reshape(-1), wanted.reshape(-1)), at
                assert torch.equal(x, before), at
                part = -(-elements // schedule.chunks) * x.element_size()
                assert sum(sent) == schedule.sent[rank] * part, at
    norms(rank, ranks)
    dist.destroy_process_group()


def misuse(rank: int, ranks: int, store: str, kinds: list[str], folder: str) -> None:
    """The last rank does something else, in these ways; writes the error of each rank."""
    join(rank, ranks, store)
    is_odd = rank == ranks - 1
    told = [_misused(kind, rank, ranks, is_odd) for kind in kinds]
    Path(folder, str(rank)).write_text("\n".join(told))
    os._exit(0)  # a broken group has nothing to say any more


def _misused(kind: str, rank: int, ranks: int, is_odd: bool) -> str:
    x = value(rank, 8 if is_odd and kind == "shape" else 12)
    if is_odd and kind == "dies":
        os._exit(3)
    if is_odd and kind == "skips":
        time.sleep(5)
        return "skipped"
    if is_odd and kind == "dtype":
        x = x.float()
    algorithm = "two_shot" if is_odd and kind == "algorithm" else "ring"
    agrees = kind not in ("dies", "skips")
    try:
        run(build("all_reduce", algorithm, ranks), x, limit=timedelta(seconds=3), agrees=agrees)
    except (UsageError, StackError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def norms(rank: int, ranks: int) -> None:
    """A norm of what all ranks have, against the whole in NumPy; raises where one differs."""
    rows, width = 2 * ranks, 24
    inputs = [value(r, rows * width).view(rows, width) for r in range(ranks)]
    residual, weight = value(50, rows * width).view(rows, width), value(51, width)
    whole = sum(x.numpy() for x in inputs)
    wanted = add_rms_norm(whole, residual.numpy(), weight.numpy(), eps=1e-3)
    given = inputs[rank].float(), residual.float(), weight.float()
    for algorithm in ("one_shot", "two_shot", "ring"):
        found = all_reduce_norm(*given, eps=1e-3, algorithm=algorithm)
        for one, other in zip(found, wanted, strict=True):
            assert np.abs(one.numpy() - other).max() < 1e-5, f"{algorithm} on rank {rank}"
    own = given[1].chunk(ranks)[rank]
    y, added = scattered_norm(given[0], own, given[2], eps=1e-3)
    assert np.abs(y.numpy() - wanted[0]).max() < 1e-5
    assert np.abs(added.numpy() - np.split(wanted[1], ranks)[rank]).max() < 1e-5
    try:
        scattered_norm(given[0][1:], own, given[2])
    except UsageError as error:
        assert f"divide by {ranks} ranks" in str(error)
    else:
        raise AssertionError("rows that do not divide are taken")
