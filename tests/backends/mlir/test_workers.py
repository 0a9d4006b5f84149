"""Threads that compile beside the calling one: what forks find, and what is begun ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest

from stack.backends.mlir import elf, jit, llvm, pool, threads

pytest.importorskip("torch_mlir")


def test_a_result_or_error_is_the_callers() -> None:
    assert threads.submit(pow, 2, 5).result() == 32
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result()


def test_a_thread_keeps_what_mlir_loaded_for_it() -> None:
    def mine() -> tuple[int, int]:
        return threading.get_ident(), id(llvm.context())

    seen = {threads.submit(mine).result() for _ in range(20)}
    assert len(seen) == len({thread for thread, _ in seen})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_waits_and_a_child_has_threads_of_its_own() -> None:
    lock, held = threading.Lock(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(0.1)

    done = threads.submit(hold)
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks with threads
        child = os.fork()
    if child == 0:
        is_free = lock.acquire(timeout=5)
        made = threads.submit(pow, 3, 3).result(timeout=5)
        os._exit(0 if is_free and made == 27 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert done.done()


AT_THE_END = """
import atexit
from stack.backends.mlir import threads

def last():
    print(threads.submit(pow, 2, 5).result(), type(threads.submit(divmod, 1, 0).exception()))

atexit.register(last)
"""


def test_python_may_be_about_to_end() -> None:
    command = [sys.executable, "-c", AT_THE_END]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "32 <class 'ZeroDivisionError'>"


POOLS = """
import sys
import stack
from stack.backends.mlir import pool
from stack.ir import Builder, param, tensor
b, x = Builder(), param("x", tensor("f32", int(sys.argv[1]), 64))
stack.compile(b.func("main", [x], [b.exp(x)]))
print(len(pool._pools))
"""


@pytest.mark.skipif(not elf.IS_SUPPORTED, reason="there is no pool here")
@pytest.mark.parametrize("rows, count", [(1 << 14, 1), (1, 0)])
def test_the_pool_is_there_if_a_kernel_asks_for_it(rows: int, count: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", POOLS, str(rows)]
    environment = {**os.environ, "STACK_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == str(count)


@pytest.mark.skipif(not elf.IS_SUPPORTED, reason="there is no pool here")
def test_kernels_are_compiled_without_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled beside them: only who loads them waits for it."""

    def address(*_: object) -> int:
        raise AssertionError

    monkeypatch.setattr(pool, "address", address)
    text = threads.DECLARATION + threads.entry("f", "g", 9) + threads.body("g")
    assert jit.compile_object(text + "  llvm.return\n}\n")
