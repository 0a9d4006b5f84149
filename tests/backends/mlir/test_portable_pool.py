"""The portable pool: every iteration once, on several threads, whoever calls."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest

from stack.backends.mlir import elf, pool, portable_pool, threads

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def shared(count: int, grain: int = 1, pause: float = 0.0) -> tuple[np.ndarray, set[int]]:
    """The visits of each iteration, and the threads that made them."""
    visits, seen = np.zeros(count + 1, np.int64), set[int]()

    @BODY
    def body(table: int, lo: int, hi: int) -> None:
        assert table == 77
        visits[lo:hi] += 1
        seen.add(threading.get_ident())
        time.sleep(pause)

    portable_pool.dispatch(ctypes.cast(body, ctypes.c_void_p), 77, count, grain)
    assert visits[-1] == 0
    return visits[:-1], seen


@pytest.mark.parametrize("limit", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("count", "grain"), [(0, 1), (1, 1), (7, 3), (64, 64), (65, 64), (1009, 1)]
)
def test_every_iteration_runs_once(
    limit: int, count: int, grain: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACK_NUM_THREADS", str(limit))
    visits, _ = shared(count, grain)
    assert (visits == 1).all()


@pytest.mark.skipif(threads.cores() < 2, reason="one core runs one thread")
def test_several_threads_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACK_NUM_THREADS", "2")
    _, seen = shared(64, pause=0.01)
    assert len(seen) == 2


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize(("count", "grain"), [(1, 1), (10, 4), (100, 1), (100, 101)])
def test_pieces_cover_the_range_and_keep_the_grain(limit: int, count: int, grain: int) -> None:
    found = portable_pool.ranges(count, grain, limit)
    assert [lo for lo, _ in found] == [0, *(hi for _, hi in found[:-1])]
    assert found[-1][1] == count
    assert all(hi - lo >= grain for lo, hi in found[:-1])


def test_kernels_that_run_at_once_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STACK_NUM_THREADS", "2")
    found: list[np.ndarray] = []
    callers = [threading.Thread(target=lambda: found.append(shared(500)[0])) for _ in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(found) == 6
    assert all((visits == 1).all() for visits in found)


def test_a_machine_without_the_native_pool_computes_with_this_one(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_mlir")
    import stack

    monkeypatch.setattr(elf, "IS_SUPPORTED", False)
    monkeypatch.setattr(pool, "_pools", [])
    handed = []
    monkeypatch.setattr(portable_pool, "_submitted", lambda *job: handed.append(job) or [])
    monkeypatch.setenv("STACK_NUM_THREADS", "2")
    x, w = (torch.from_numpy(rng.normal(size=(256, 256))) for _ in range(2))
    compiled = stack.compile(torch.matmul, x, w, cache=False)
    torch.testing.assert_close(compiled(x, w), x @ w)
    assert handed
