"""Calls by address: the values of the long way, fresh memory; other tensors go the long way."""

from __future__ import annotations

import threading
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import pytest

import stack
from stack.calls.graph import CompiledGraph
from stack.frontends.torch.compile.guarded_calls import TorchCalls
from stack.frontends.torch.program.compiled_graph import Graph

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


def function(x: Any, gain: Any) -> Any:
    total = (x * gain).sum(-1)
    return total, x > gain, torch.tanh(x)


def draw(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    made = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(made).to(dtype or torch.float32)


def direct_of(compiled: Any) -> Any:
    return compiled.graph.direct


@pytest.mark.each
@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (0, 5), (3, 0)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values_and_layout_are_those_of_the_long_way(shape: tuple[int, int], dtype: str) -> None:
    args = (
        draw(*shape, dtype=getattr(torch, dtype)),
        draw(shape[1], seed=1, dtype=getattr(torch, dtype)),
    )
    compiled = stack.compile(function, *args)
    assert direct_of(compiled) is None
    first = compiled(*args)
    if min(shape):
        assert direct_of(compiled) is not None
    second, eager = compiled(*args), function(*args)
    for a, b, wanted in zip(first, second, eager, strict=True):
        assert (b.dtype, b.shape) == (wanted.dtype, wanted.shape)
        assert not b.numel() or b.stride() == wanted.stride()
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_call_by_address_is_one_native_function() -> None:
    args = draw(7, 13), draw(13, seed=1)
    compiled = stack.compile(function, *args)
    compiled(*args)
    assert isinstance(direct_of(compiled), BuiltinFunctionType)


def test_results_of_a_call_outlive_the_next() -> None:
    first, second, gain = draw(7, 13), draw(7, 13, seed=2), draw(13, seed=1)
    compiled = stack.compile(function, first, gain)
    compiled(first, gain)
    kept = compiled(first, gain)[2]
    other = compiled(second, gain)[2]
    wide = np.tanh(first.numpy().astype(np.float64))
    np.testing.assert_allclose(kept.numpy(), wide, rtol=1e-6)
    assert kept.data_ptr() != other.data_ptr()


def test_tensors_of_another_kind_go_the_long_way() -> None:
    x = draw(6, 6)
    compiled = stack.compile(function, x, draw(6, seed=1))
    compiled(x, draw(6, seed=1))
    call = direct_of(compiled)
    whole = draw(6, 12)
    others = [
        whole[:, ::2], x.T, x.double(), draw(5, 6), torch.ones(6, 6, requires_grad=True),
        torch.zeros(6, 6, dtype=torch.complex64).conj().imag,
    ]  # fmt: skip
    assert call([x, draw(6, seed=1)]) is not None
    assert all(call([other, draw(6, seed=1)]) is None for other in others)


def test_strided_arguments_are_right_in_every_call() -> None:
    x, gain = draw(6, 12)[:, ::2], draw(6, seed=1)
    compiled = stack.compile(torch.mul, x, gain)
    wide = x.numpy().astype(np.float64) * gain.numpy()
    for _ in range(3):
        np.testing.assert_allclose(compiled(x, gain).numpy(), wide, rtol=1e-6)


def test_indices_are_checked_in_calls_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    embed = torch.nn.functional.embedding
    table, found = draw(10, 4), torch.tensor([3, 1])
    compiled = stack.compile(lambda found, table: embed(found, table) * 2, found, table)
    compiled(found, table)
    monkeypatch.setattr(Graph, "_called", lambda *_: pytest.fail("not by address"))
    for places in ([0, 9], [9, 0], [4, 4]):
        given = torch.tensor(places)
        torch.testing.assert_close(compiled(given, table), embed(given, table) * 2)
        given[1] = 10
        with pytest.raises(IndexError, match="'found'"):
            compiled(given, table)


def test_conditions_are_checked_in_calls_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices that the program computes from data, on backends that take addresses and tensors."""

    def rows(x: Any, table: Any) -> Any:
        return table[x.abs().long()] * 2, x + 1

    x, table = torch.tensor([0.5, -3.2, 9.9]), draw(10, 4)
    compiled = torch.compile(rows, backend="stack")
    compiled(x, table)
    monkeypatch.setattr(Graph, "_called", lambda *_: pytest.fail("not by address"))
    for given in (x, x.flip(0), x * 0):
        for found, wanted in zip(compiled(given, table), rows(given, table), strict=True):
            torch.testing.assert_close(found, wanted)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(x + 1, table)
    torch.testing.assert_close(compiled(x, table), rows(x, table))


def test_results_apart_in_memory_are_returned_by_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a computed array that no other result shares: eager's strides have gaps."""

    def parts(x: Any) -> Any:
        return torch.tanh(x)[:, 1:].mT, (x * 2)[::2], x + 1

    x = draw(4, 6, 5)
    compiled = torch.compile(parts, backend="stack")
    compiled(x)
    monkeypatch.setattr(Graph, "_called", lambda *_: pytest.fail("not by address"))
    for given in (x, x - 1):
        for found, wanted in zip(compiled(given), parts(given), strict=True):
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
        assert not any(f.data_ptr() == given.data_ptr() for f in compiled(given))


def test_each_size_has_its_fast_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of symbolic sizes converts no arrays for sizes that it has met."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    compiled = torch.compile(net, backend="stack", dynamic=True)
    inputs = [draw(n, 4) for n in (3, 5, 8)]
    for x in inputs:
        compiled(x)
    monkeypatch.setattr(CompiledGraph, "_called", lambda *_: pytest.fail("arrays are converted"))
    for x in (*inputs, *reversed(inputs)):
        torch.testing.assert_close(compiled(x), net(x))
    with pytest.raises(pytest.fail.Exception, match="converted"):
        compiled(draw(9, 4))


def test_fast_calls_of_programs_that_take_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: dense tensors are passed on, others are converted."""
    calls: list[int] = []

    def call_dense(at: list[int], array: Any) -> list[Any]:
        calls.append(len(at))
        return [torch.tanh(array(0)) + array(1)]

    monkeypatch.setattr(CompiledGraph, "by_address", lambda *_: (None, None))
    monkeypatch.setattr(CompiledGraph, "call_dense", lambda *_: call_dense)
    compiled = torch.compile(lambda x, y: torch.tanh(x) + y, backend="stack", dynamic=True)
    x, y = draw(3, 4), draw(3, 4, seed=1)
    for number in range(4):
        torch.testing.assert_close(compiled(x, y), torch.tanh(x) + y)
        assert len(calls) == number
    large = draw(5, 8)[:, ::2]
    torch.testing.assert_close(compiled(large, large), torch.tanh(large) + large)
    assert len(calls) == 3


def test_functions_of_torch_skip_dynamo_too(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = torch.nn.Linear(8, 4), draw(3, 8)
    for fn in (torch.nn.functional.normalize, net.forward, torch.tanh, function):
        args = (x, draw(8, seed=1)) if fn is function else (x,)
        compiled = stack.compile(fn, *args)
        compiled(*args)
        with monkeypatch.context() as patch:
            patch.setattr(TorchCalls, "_called", lambda *_, **__: pytest.fail("called by Dynamo"))
            torch.testing.assert_close(compiled(*args), fn(*args))


def test_axes_in_another_order_are_no_copy() -> None:
    x = draw(2, 5, 3, 4).to(memory_format=torch.channels_last)
    compiled = stack.compile(lambda x: torch.tanh(x) * 2, x)
    for _ in range(2):
        found = compiled(x)
        assert found.stride() == x.stride()
        np.testing.assert_allclose(found.numpy(), 2 * np.tanh(x.numpy()), rtol=1e-6)
    assert direct_of(compiled) is not None


def test_a_result_that_nothing_computes_is_a_copy_of_its_own() -> None:
    """A sum of one element is a view of its argument."""
    x = draw(5, 1)
    compiled = stack.compile(lambda x: (x.sum(1), torch.tanh(x)), x)
    for _ in range(3):
        found, _ = compiled(x)
        found += 1
        np.testing.assert_array_equal(found.numpy(), x.numpy()[:, 0] + 1)
    assert direct_of(compiled) is not None


def test_results_by_address_that_are_one_value_or_an_argument() -> None:
    func = stack.parse(
        "func @f(%x: f32[4], %w: f32[2, 2]) -> (f32[4], f32[4], f32[2, 2]) at tensor {\n"
        "  %y = tanh(%x) : f32[4]\n"
        "  %r = reshape(%y) : f32[2, 2]\n"
        "  return %x, %y, %r\n}"
    )
    given = [np.arange(4, dtype=np.float32), np.ones((2, 2), np.float32)]
    compiled = stack.compile(func, *given)
    program = compiled.graph.executable_for(given).by_address()
    assert program is not None
    found = [np.full(4, -1, np.float32) for _ in range(3)]
    program.call([a.ctypes.data for a in (*given, *found)])
    wanted = np.tanh(given[0].astype(np.float64))
    np.testing.assert_array_equal(found[0], given[0])
    for result in found[1:]:
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_a_program_that_returns_a_constant_needs_arrays() -> None:
    func = stack.parse(
        "func @f(%x: f32[4]) -> (f32[4], f32[2]) at tensor {\n"
        "  %y = tanh(%x) : f32[4]\n"
        "  %c = const() {value=data<f32[2], [1.0, 2.0]>} : f32[2]\n"
        "  return %y, %c\n}"
    )
    compiled = stack.compile(func, np.ones(4, np.float32))
    ready = [np.ones(4, np.float32)]
    assert compiled.graph.executable_for(ready).by_address() is None


def test_threads_do_not_write_each_others_results() -> None:
    gain = draw(13, seed=1)
    inputs = [draw(7, 13, seed=seed) for seed in range(2)]
    compiled = stack.compile(function, inputs[0], gain)
    compiled(inputs[0], gain)
    wrong: list[int] = []

    def work(number: int) -> None:
        x = inputs[number]
        for _ in range(200):
            with torch.no_grad():
                found = compiled(x, gain)[2]
            if not np.allclose(found.numpy(), np.tanh(x.numpy()), rtol=1e-5):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_kernels_than_one() -> None:
    x, w = draw(33, 65), draw(65, 17, seed=1)
    compiled = stack.compile(lambda x, w: torch.softmax(x @ w, -1).sum(0), x, w)
    product = x.numpy().astype(np.float64) @ w.numpy()
    parts = np.exp(product - product.max(-1, keepdims=True))
    wanted = (parts / parts.sum(-1, keepdims=True)).sum(0)
    for _ in range(3):
        np.testing.assert_allclose(compiled(x, w).numpy(), wanted, rtol=1e-4)
    assert direct_of(compiled) is not None


def test_large_weights_cross_by_address_and_a_backward_pass_lets_go_of_its_tensors() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    x = draw(200, 256)
    compiled = stack.compile(net, x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    assert direct_of(compiled) is not None
    with torch.enable_grad():
        trained = stack.compile(net, x)
        for _ in range(2):
            trained(x).sum().backward()
    (backward,) = trained.gradients
    (made,) = backward.executables.values()
    program = made.by_address()
    assert program is not None
    assert program.frees
    assert backward.direct is None
