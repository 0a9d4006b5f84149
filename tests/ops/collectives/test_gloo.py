"""Schedules on gloo processes: torch's own results, and errors in place of hangs."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.multiprocessing as mp  # noqa: E402
from gloo_ranks import compare, misuse  # noqa: E402

from stack.ops.collectives import ALGORITHMS  # noqa: E402

# A server imports torch once, and each rank is its fork.
multiprocessing.set_forkserver_preload(["torch.distributed", "stack.ops.norm"])


def start(work: Callable[..., None], args: tuple[Any, ...], ranks: int, join: bool = True) -> Any:
    return mp.start_processes(work, args, ranks, join=join, start_method="forkserver")


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(8, marks=pytest.mark.slow)]
)
def test_results_are_those_of_torch_and_norms_of_sums_those_of_numpy(
    ranks: int, tmp_path: Path
) -> None:
    start(compare, (ranks, str(tmp_path / "store"), sorted(ALGORITHMS)), ranks)


SAID = {
    "shape": r"with different arguments.*rank 2: all_reduce ring of torch.float64\[8\]",
    "dtype": r"with different arguments.*rank 2: all_reduce ring of torch.float32",
    "algorithm": r"with different arguments.*rank 2: all_reduce two_shot",
    "dies": r"StackError: all_reduce ring, step .* in vain",
    "skips": r"StackError: all_reduce ring, step .* in vain",
}


@pytest.mark.every(2)
@pytest.mark.parametrize("kinds", [["shape", "dtype", "algorithm"], ["dies"], ["skips"]])
def test_a_rank_that_does_something_else_is_named_and_nobody_hangs(
    kinds: list[str], tmp_path: Path
) -> None:
    args = (3, str(tmp_path / "store"), kinds, str(tmp_path))
    context = start(misuse, args, 3, join=False)
    for process in context.processes:
        process.join(600)  # ends a hang, and leaves a loaded machine its time
        assert process.exitcode is not None, "a rank hangs"
    is_apart = kinds in (["dies"], ["skips"])
    for rank in range(2 if is_apart else 3):
        told = (tmp_path / str(rank)).read_text().splitlines()
        for kind, line in zip(kinds, told, strict=True):
            assert re.search(SAID[kind], line), line
