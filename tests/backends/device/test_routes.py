"""Arrays of a device go through as they are: "cpu:0" stands for a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_backend import BACKEND

import stack
import stack.plugins as plugins
from stack.calls.compiled_callable import Compiled
from stack.calls.graph import CompiledGraph
from stack.errors import StackError
from stack.frontends.jax import FRONTEND as JAX
from stack.frontends.torch import FRONTEND
from stack.run import compile as run_compile


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test backend by name, and as the default for arrays on a device."""
    inner = plugins.load

    def load(group: str, name: str) -> object:
        return BACKEND if name == BACKEND.name else inner(group, name)

    monkeypatch.setattr(plugins, "load", load)
    monkeypatch.setattr(run_compile, "DEVICE_BACKEND", BACKEND.name)


def no_host(*_: object) -> None:
    raise AssertionError("an array went through host memory")


def test_torch_tensors_pass_straight_through(monkeypatch: pytest.MonkeyPatch) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU())
    captured = FRONTEND.capture(module, (torch.randn(3, 6),))
    assert captured.device == "cpu"
    captured.device = "cpu:0"
    graph = CompiledGraph(captured, FRONTEND)
    assert graph.backend is BACKEND
    monkeypatch.setattr(FRONTEND, "to_numpy", no_host, raising=False)
    monkeypatch.setattr(FRONTEND, "from_numpy", no_host, raising=False)
    for x in (torch.randn(3, 6), torch.randn(6, 3).T, torch.randn(4, 6)[1:]):
        torch.testing.assert_close(graph(x), module(x))
    with pytest.raises(TypeError, match=r"float64"):
        graph(torch.randn(3, 6).double())
    with torch.no_grad():
        module[0].weight.mul_(2)
    torch.testing.assert_close(graph(x), module(x))


def test_several_shapes_and_new_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.frontends.torch.compile import dynamo_backend

    monkeypatch.setattr(dynamo_backend, "device_of", lambda _: "cpu:0")
    monkeypatch.setattr(FRONTEND, "to_numpy", no_host, raising=False)
    compiled = Compiled(lambda x: x.exp() + 1, {"frontend": "torch"})
    for size in (3, 4, 3):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x.exp() + 1)
    assert len(compiled.graphs) == 2


def test_a_backend_of_the_cpu_refuses_arrays_of_a_device() -> None:
    captured = FRONTEND.capture(torch.exp, (torch.randn(3),))
    captured.device = "cuda:0"
    with pytest.raises(StackError, match=r"arrays are on cuda:0.*backend 'mlir' works on cpu"):
        CompiledGraph(captured, FRONTEND, "mlir")


def test_training_goes_through_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack.frontends.torch.compile import dynamo_backend

    monkeypatch.setattr(dynamo_backend, "device_of", lambda _: "cpu:0")
    monkeypatch.setattr(FRONTEND, "to_numpy", no_host, raising=False)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    x, y = torch.randn(7, 6), torch.randn(7, 2)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="stack")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(4):
        expected = torch.autograd.grad(((module(x) - y) ** 2).mean(), list(module.parameters()))
        optimizer.zero_grad()
        loss = ((compiled(x) - y) ** 2).mean()
        loss.backward()
        for want, p in zip(expected, module.parameters(), strict=True):
            torch.testing.assert_close(p.grad, want)
        optimizer.step()


def test_jax_arrays_pass_straight_through(monkeypatch: pytest.MonkeyPatch) -> None:
    jax = pytest.importorskip("jax")

    def fn(x, y):  # type: ignore[no-untyped-def]
        return jax.numpy.tanh(x @ y), (x > 0).sum(), x.astype(jax.numpy.bfloat16)

    args = (jax.numpy.ones((3, 4)) / 3, jax.numpy.ones((4, 5)))
    captured = JAX.capture(fn, args)
    assert captured.device == "cpu"
    captured.device = "cpu"
    expected = fn(*args)
    captured.device = "cpu:0"
    graph = CompiledGraph(captured, JAX)
    monkeypatch.setattr(JAX, "to_numpy", no_host, raising=False)
    monkeypatch.setattr(JAX, "from_numpy", no_host, raising=False)
    monkeypatch.setattr("stack.frontends.jax.capture.device_arrays.device_of", lambda _: "cpu:0")
    waits: list[int] = []
    executable = graph.executable_for(args)
    inner = executable.wait
    executable.wait = lambda: waits.append(1) or inner()  # type: ignore
    found = graph(*args)
    assert waits, "JAX may take its memory back while the device reads it"
    for want, got in zip(expected, found, strict=True):
        assert isinstance(got, jax.Array)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(
            np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=1e-5
        )


def test_host_arrays_go_through_storage() -> None:
    x = torch.randn(3, 6)
    compiled = stack.compile(torch.exp, x, backend=BACKEND.name)
    torch.testing.assert_close(compiled(x), x.exp())


def test_arguments_on_another_device_are_captured_again() -> None:
    captured = FRONTEND.capture(torch.exp, (torch.randn(3),))
    with pytest.raises(TypeError, match=r"was on cpu when it was compiled, it is on meta"):
        captured.flatten(torch.empty(3, device="meta"))


def test_a_captured_result_that_the_program_moves_elsewhere_is_refused() -> None:
    def moved(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).to("meta")

    with pytest.raises(StackError, match="result 0 is moved to meta in a program on cpu"):
        FRONTEND.capture(moved, (torch.randn(3),))
