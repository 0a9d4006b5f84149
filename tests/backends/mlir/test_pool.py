"""The pool of threads: every iteration once, whoever calls, even if threads are gone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stack.backends.mlir import elf, jit, pool, portable_pool, threads
from stack.run.cache import Cache

pytest.importorskip("torch_mlir")
needs_loader = pytest.mark.skipif(not elf.IS_SUPPORTED, reason="there is no pool here")

# Adds one to x[i] and counts the piece in table[1].
BODY = """
  %x = llvm.load %table : !llvm.ptr -> !llvm.ptr
  %pieces = llvm.getelementptr %table[1] : (!llvm.ptr) -> !llvm.ptr, i64
  %one = arith.constant 1 : i64
  %before = llvm.atomicrmw add %pieces, %one monotonic : !llvm.ptr, i64
  scf.for %i = %lo to %hi step %one : i64 {
    %p = llvm.getelementptr %x[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %old = llvm.load %p : !llvm.ptr -> i64
    %new = arith.addi %old, %one : i64
    llvm.store %new, %p : i64, !llvm.ptr
  }
  llvm.return
}
"""


def module(count: int, grain: int = 1, body: str = BODY) -> str:
    entry = threads.entry("fill", "fill_body", count, grain)
    return threads.DECLARATION + entry + threads.body("fill_body") + body


# The pool's function itself, for counts and grains that need no kernel each.
ANY = (
    threads.DECLARATION
    + f"""
llvm.func @any(%table: !llvm.ptr) {{
  %body = llvm.mlir.addressof @any_body : !llvm.ptr
  %count_at = llvm.getelementptr %table[2] : (!llvm.ptr) -> !llvm.ptr, i64
  %grain_at = llvm.getelementptr %table[3] : (!llvm.ptr) -> !llvm.ptr, i64
  %count = llvm.load %count_at : !llvm.ptr -> i64
  %grain = llvm.load %grain_at : !llvm.ptr -> i64
  llvm.call @{threads.SYMBOL}(%body, %table, %count, %grain)
    : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  llvm.return
}}
"""
    + threads.body("any_body")
    + BODY
)


@pytest.fixture(scope="module")
def fill() -> Callable[..., tuple[np.ndarray, int]]:
    """Runs `times` times over [0, count); the visits of each index, and the number of pieces."""
    kernel = jit.build(ANY, ["any"])["any"]

    def run(count: int, grain: int = 1, times: int = 1) -> tuple[np.ndarray, int]:
        visits = np.zeros(count + 1, np.int64)
        slots = jit.table([visits.ctypes.data, 0, count, grain])
        for _ in range(times):
            kernel.raw(ctypes.addressof(slots))
        assert visits[count] == 0
        return visits[:count], slots[1]

    return run


@pytest.fixture
def limit() -> Iterator[Callable[[int | None], None]]:
    found = pool.pool()
    if found is None:
        pytest.skip("there is no pool here")
    yield found.limit
    found.limit(None)


Fill = Callable[..., tuple[np.ndarray, int]]
COUNTS = [0, 1, 2, 3, 7, 64, 1000, 65535, 65536, 65537, 1_000_003]


@pytest.mark.parametrize("team", [1, 2, 3, 9])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("grain", [0, 1, 3, 1000, 10**12])
def test_every_iteration_once(fill: Fill, limit, team: int, count: int, grain: int) -> None:
    limit(team)
    visits, pieces = fill(count, grain)
    assert (visits == 1).all()
    assert pieces <= max(-(-count // max(grain, 1)), 1)
    if team == 1:
        assert pieces == 1


def test_many_dispatches_one_after_another(fill: Fill, limit) -> None:
    for team in (2, 5):
        limit(team)
        for count in (2, 50, 3000):
            visits, _ = fill(count, times=5000)
            assert (visits == 5000).all()


def test_dispatches_to_sleeping_workers(fill: Fill, limit) -> None:
    limit(4)
    for pause in np.linspace(0, 1e-4, 200):
        threading.Event().wait(pause)
        assert (fill(500)[0] == 1).all()


def test_a_smaller_team_than_there_are_workers(fill: Fill, limit) -> None:
    limit(8)
    fill(10_000, times=20)
    limit(2)
    assert (fill(10_000, times=200)[0] == 200).all()
    limit(1)
    assert fill(10_000)[1] == 1


def test_python_threads_at_once(fill: Fill, limit) -> None:
    limit(3)
    wrong: list[int] = []

    def call(count: int) -> None:
        for _ in range(100):
            if not (fill(count, times=10)[0] == 10).all():
                wrong.append(count)

    callers = [threading.Thread(target=call, args=(n,)) for n in (17, 900, 4001)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_body_that_shares_work_itself(limit) -> None:
    """The inner job runs where it was called: there is one at a time."""
    limit(2)
    call = f"""
  %body = llvm.mlir.addressof @inner_body : !llvm.ptr
  %ten = arith.constant 10 : i64
  %first = arith.constant 1 : i64
  scf.for %j = %lo to %hi step %first : i64 {{
    llvm.call @{threads.SYMBOL}(%body, %table, %ten, %first)
      : (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
  }}
  llvm.return
}}
"""
    atomic = """
  %x = llvm.load %table : !llvm.ptr -> !llvm.ptr
  %one = arith.constant 1 : i64
  scf.for %i = %lo to %hi step %one : i64 {
    %p = llvm.getelementptr %x[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
    %old = llvm.atomicrmw add %p, %one monotonic : !llvm.ptr, i64
  }
  llvm.return
}
"""
    text = module(100, body=call) + threads.body("inner_body") + atomic
    visits = np.zeros(10, np.int64)
    jit.build(text, ["fill"])["fill"](visits.ctypes.data)
    assert (visits == 100).all()


@needs_loader
def test_a_forked_child_starts_its_own_threads(fill: Fill, limit) -> None:
    limit(3)
    fill(1000, times=10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        good = (fill(1000, times=500)[0] == 500).all()
        found = pool.pool()
        started = found is not None and found.state[pool.SLOTS["started"]] == 2
        os._exit(0 if good and started else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (fill(1000, times=10)[0] == 10).all()


def run_alone(code: str, **variables: str) -> str:
    head = f"""
import ctypes, sys
import numpy as np
from stack.backends.mlir import jit, pool
from stack.run.cache import Cache
text = {module(1000)!r}
x = np.zeros(1000, np.int64)
"""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


RUN = """
jit.build(text, ["fill"])["fill"](x.ctypes.data, 0)
assert (x == 1).all()
print(pool.pool().state[pool.SLOTS["started"]] + 1)
"""


@needs_loader
def test_the_process_ends(limit) -> None:
    assert run_alone(RUN, STACK_NUM_THREADS="5") == "5"


@needs_loader
def test_torch_says_how_many() -> None:
    pytest.importorskip("torch")
    if threads.openmp("omp_get_max_threads") == 0:
        pytest.skip("this torch brings no OpenMP that can be asked")
    code = "import torch\ntorch.set_num_threads(1)\n" + RUN
    assert run_alone(code, STACK_NUM_THREADS="") == "1"


# In a child, after torch's loops, from two threads, with one thread: as one process, since the
# import of torch takes longer than all of them.
WITH_TORCH = """
import torch, os, threading
torch.set_num_threads(2)
numbers = torch.ones(1 << 17)
fill = jit.build(text, ["fill"])["fill"]
def fills(times, x):
    for _ in range(times):
        numbers.add(numbers)
        fill(x.ctypes.data, 0)
def entered():
    return pool.pool().state[pool.SLOTS["entered"]]
fills(1, x)
first = entered()
child = os.fork()
if child == 0:
    fill(x.ctypes.data, 0)
    os._exit(0 if (x == 2).all() and entered() == first else 1)
print("in a child:", os.waitpid(child, 0)[1])
fills(199, x)
print("after its loops:", (x == 200).all() and first > 0)
y = x * 0
other = threading.Thread(target=fills, args=(200, y))
other.start()
fills(200, x)
other.join()
print("from two threads:", (x == 400).all() and (y == 200).all())
torch.set_num_threads(1)
first = entered()
fills(9, x)
print("one thread:", (x == 409).all() and entered() == first)
"""


@needs_loader
def test_torchs_threads_help_where_they_are() -> None:
    pytest.importorskip("torch")
    if threads.openmp("GOMP_parallel") == 0 or threads.cores() < 2:
        pytest.skip("no OpenMP of torch's, or one core")
    assert run_alone(WITH_TORCH, STACK_NUM_THREADS="").splitlines() == [
        *("in a child: 0", "after its loops: True", "from two threads: True"),
        "one thread: True",
    ]


@needs_loader
def test_a_cached_kernel_brings_a_cached_pool(tmp_path) -> None:
    jit.build(module(1000), ["fill"], Cache(tmp_path))
    Cache(tmp_path).put(jit.key(pool.text()), jit.compile_object(pool.text()))
    code = f"""
jit.build(text, ["fill"], Cache({str(tmp_path)!r}))["fill"](x.ctypes.data, 0)
assert (x == 1).all()
assert not any(name.split(".")[0] in ("mlir", "torch_mlir") for name in sys.modules)
"""
    run_alone(code)


@pytest.mark.parametrize(("limit", "pieces"), [(1, 1), (2, 2 * portable_pool.PIECES)])
def test_kernels_use_the_portable_pool_where_there_is_no_native_one(
    limit: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACK_NUM_THREADS", str(limit))
    monkeypatch.setattr(elf, "IS_SUPPORTED", False)
    monkeypatch.setattr(pool, "_pools", [])
    visits = np.zeros(1000, np.int64)
    slots = jit.table([visits.ctypes.data, 0])
    kernel = jit.build(module(1000), ["fill"])["fill"]
    kernel.raw(ctypes.addressof(slots))
    assert (visits == 1).all() and slots[1] == pieces


@pytest.mark.parametrize(("value", "want"), [("3", 3), ("0", 1), ("", None), ("many", None)])
def test_chosen(monkeypatch: pytest.MonkeyPatch, value: str, want: int | None) -> None:
    monkeypatch.setenv("STACK_NUM_THREADS", value)
    assert threads.chosen() == want


def test_cores_are_what_this_process_may_use() -> None:
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)
