"""Eight threads compile at once: different programs and the same one, from torch and from JAX."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack

COUNT = 8


def all_at_once(work: Callable[[int], None]) -> None:
    """Raise what a thread raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(COUNT)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert gc.isenabled()


def torch_program(number: int) -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(number)

    def f(x: Any) -> Any:
        return torch.softmax(x @ x.T * (number + 1), -1).cumsum(1)

    return f, torch.randn(4, 8 + number, generator=generator)


def jax_program(number: int) -> tuple[Any, Any]:
    jax = pytest.importorskip("jax")

    def f(x: Any) -> Any:
        return jax.nn.softmax(jax.numpy.sin(x) @ x.T * (number + 1), -1).cumsum(0)

    rows = np.random.default_rng(number).standard_normal((4, 8 + number))
    return f, jax.numpy.asarray(rows.astype(np.float32))


def check(fn: Any, x: Any) -> None:
    found = stack.compile(fn, x)(x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(fn(x)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("programs", [torch_program, jax_program])
def test_different_programs(programs: Any) -> None:
    made = [programs(i) for i in range(COUNT)]
    all_at_once(lambda i: check(*made[i]))


@pytest.mark.parametrize("programs", [torch_program, jax_program])
def test_the_same_program(programs: Any) -> None:
    fn, x = programs(0)
    all_at_once(lambda _: check(fn, x))


def test_both_frameworks() -> None:
    made = [(torch_program if i % 2 else jax_program)(i) for i in range(COUNT)]
    all_at_once(lambda i: check(*made[i]))


def test_traces() -> None:
    fn, x = torch_program(0)
    texts: list[str] = []
    all_at_once(lambda _: texts.append(str(stack.trace(fn, x))))
    assert len(set(texts)) == 1


def test_one_compiled_program_runs_in_all() -> None:
    fn, x = torch_program(0)
    compiled, want = stack.compile(fn, x), fn(x)

    def work(_: int) -> None:
        for _ in range(20):
            np.testing.assert_allclose(compiled(x), want, rtol=1e-4, atol=1e-5)

    all_at_once(work)


def test_torch_compile_and_its_gradients() -> None:
    torch = pytest.importorskip("torch")
    # torch enters a backend by its name without a lock
    torch._dynamo.lookup_backend("stack")
    made = [torch_program(i) for i in range(COUNT)]

    def work(number: int) -> None:
        fn, x = made[number]
        given, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
        torch.compile(fn, backend="stack")(given)[0, 0].backward()
        fn(plain)[0, 0].backward()
        torch.testing.assert_close(given.grad, plain.grad, rtol=1e-3, atol=1e-4)

    all_at_once(work)


def test_a_call_inside_of_a_call_leaves_the_lock_to_others() -> None:
    torch = pytest.importorskip("torch")
    from stack.frameworks.torch_private import compile_lock

    calls: list[Any] = []

    def nested(x: Any) -> Any:
        return x + 1 if len(x) < 3 else calls[0](x[:2].clone()).sum() + x

    schema = "(Tensor x) -> Tensor"
    again = torch.library.custom_op("stack_tests::again", nested, mutates_args=(), schema=schema)
    again.register_fake(torch.empty_like)
    calls.append(stack.compile(lambda x: again(x) * 2, torch.ones(4), frontend="torch"))
    with torch.no_grad():
        assert calls[0](torch.ones(4)).tolist() == [18.0] * 4
    taken: list[bool] = []

    def take() -> None:
        lock = compile_lock()
        taken.append(lock.acquire(timeout=2))
        if taken[0]:
            lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    assert taken == [True]


def test_a_guard_that_fails_in_somebody_elses_call_takes_no_lock() -> None:
    torch = pytest.importorskip("torch")
    from stack.frameworks.torch_private import compile_lock
    from stack.frontends.torch.compile.guarded_calls import TorchCalls

    calls = TorchCalls(lambda x: x + 1, False, {})
    assert calls(torch.ones(3)).tolist() == [2.0] * 3
    calls._failed(None)  # as Dynamo does where other callers run the same code
    assert not compile_lock()._is_owned()
