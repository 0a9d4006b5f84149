"""Kernels over peer memory against NCCL, on all GPUs of the host."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs that see each other")
def test_results_are_those_of_nccl(tmp_path: Path) -> None:
    import torch.multiprocessing as mp
    from peer_ranks import compare

    ranks = torch.cuda.device_count()
    mp.start_processes(compare, (ranks, str(tmp_path / "store")), ranks, start_method="spawn")


def test_what_does_not_fit_is_refused() -> None:
    from stack.errors import UsageError
    from stack.ops.collectives.peer_memory import PeerMemory

    peers = object.__new__(PeerMemory)
    peers.half, peers.world, peers.failed = 64, 4, torch.zeros(1, dtype=torch.int32)
    with pytest.raises(UsageError, match="80 bytes do not fit the 64"):
        peers.all_reduce(torch.zeros(20))
    with pytest.raises(UsageError, match=r"axis 0 of \[6\] does not divide by 4"):
        peers.all_to_all(torch.zeros(6))
    with pytest.raises(UsageError, match="dense"):
        peers.all_reduce(torch.zeros(4, 4).T[:, 1:])
