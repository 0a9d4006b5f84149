"""The runtime on a GPU: library programs, CUDA graphs, streams, arrays that never leave it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NoReturn

import numpy as np
import pytest
import torch
from device_backend import compile_program, with_stages

import stack.plugins as plugins
from stack.backends.calls.replay import Replays
from stack.backends.device.executable import executable
from stack.backends.device.torch_device import TorchDevice
from stack.backends.runtime.program import BlockProgram
from stack.calls.graph import CompiledGraph
from stack.errors import StackError
from stack.frontends.torch import FRONTEND
from stack.ir import Builder, Func, param, tensor
from stack.ir.node import Node
from stack.rewrite.pipeline import Pipeline
from stack.run import compile as run_compile
from stack.run.compile import compile_func

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

# every op is a library call: nothing here waits for a kernel in the interpreter
LIBRARY = with_stages((("canonical", "canonicalize"), ("tiled", "library,memory")))


def no_kernel(node: Node) -> NoReturn:
    raise AssertionError("no kernels here")


def mlp(rows: int = 64) -> Func:
    b = Builder()
    x = param("x", tensor("bf16", rows, 32))
    v, w = param("v", tensor("bf16", 48, 32)), param("w", tensor("bf16", 24, 48))
    h = b.tanh(b.dot(x, v, rule="m k, n k -> m n"))
    return b.func("main", [x, v, w], [b.dot(h, w, rule="m k, n k -> m n"), h])


def lowered(func: Func) -> Func:
    for _, spec in LIBRARY.lowering.stages:
        func = Pipeline(spec).run(func).func
    return func


def inputs(func: Func) -> list[torch.Tensor]:
    return [torch.randn(*p.shape, device="cuda").to(torch.bfloat16) for p in func.params]


def expected(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    h = torch.tanh(x @ v.T)
    return [h @ w.T, h]


def assert_same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i32", "i64", "u8"])
@pytest.mark.parametrize(
    ("rule", "left", "right"),
    [
        ("m k, k n -> m n", (33, 65), (65, 17)),
        ("k m, n k -> n m", (65, 33), (17, 65)),
        ("b m h k, b n h k -> b h m n", (2, 5, 3, 4), (2, 6, 3, 4)),
        ("m k, k -> m", (5, 7), (7,)),
        ("m k, k n -> m n", (5, 0), (0, 3)),
    ],
)
def test_dots(rule: str, left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    b = Builder()
    x, y = param("x", tensor(dtype, *left)), param("y", tensor(dtype, *right))
    results = [b.dot(x, y, rule=rule)]
    if dtype in ("bf16", "f16"):
        results.append(b.dot(x, y, rule=rule, type=results[0].tensor.with_dtype(F32)))
    func = b.func("main", [x, y], results)
    rng = np.random.default_rng(0)
    draw = rng.standard_normal if dtype[0] in "fb" else lambda s: rng.integers(0, 7, s)
    kind = "float32" if dtype == "bf16" else x.dtype.numpy
    arrays = [np.asarray(draw(p.shape)).astype(kind) for p in (x, y)]
    run = compile_func(func, LIBRARY, options={"device": "cuda"})
    types = [p.tensor for p in func.params]
    from stack.ir.data import decode, encode

    found = run.run([encode(a, t.dtype) for a, t in zip(arrays, types, strict=True)])
    held = [decode(encode(a, t.dtype), t.dtype) for a, t in zip(arrays, types, strict=True)]
    wanted = func.interpret(*held)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for have, want, node in zip(found, wanted, func.results, strict=True):
        tolerance = 2e-2 if node.dtype.bits == 16 else 1e-4
        np.testing.assert_allclose(
            decode(have, node.dtype), want, rtol=tolerance, atol=tolerance * 8
        )


F32 = tensor("f32").dtype


def test_graphs_are_captured_and_results_stay_the_callers() -> None:
    func = lowered(mlp())
    program = BlockProgram(func.body, TorchDevice("cuda"), no_kernel)
    assert program.capturable
    runner = Replays(program)
    args = inputs(func)
    kept = []
    for _ in range(8):
        args[0].copy_(torch.randn_like(args[0]))
        kept.append((expected(*args), runner.run(args)))
    assert not runner.problem
    torch.cuda.synchronize()
    for wanted, found in kept:
        assert_same(found, wanted)
    del found
    kept.clear()
    graphs = next(iter(runner.known.values()))[1]
    assert [g.private for g in graphs] == [False, False, True]
    assert all(g.is_free for g in graphs)
    for _ in range(20):
        args[0].copy_(torch.randn_like(args[0]))
        assert_same(runner.run(args), expected(*args))


def test_our_program_inside_of_somebody_elses_graph() -> None:
    func = lowered(mlp())
    run = executable(func, BlockProgram(func.body, TorchDevice("cuda"), no_kernel), [], {})
    assert run.call is not None
    args = inputs(func)
    for _ in range(3):
        run.call(args)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        found = run.call(args)
    args[0].copy_(torch.randn_like(args[0]))
    graph.replay()
    assert_same(found, expected(*args))


def test_streams_take_turns_with_the_arena() -> None:
    func = lowered(mlp(4096))
    program = BlockProgram(func.body, TorchDevice("cuda"), no_kernel)
    streams = [torch.cuda.Stream() for _ in range(3)]
    sets = [inputs(func) for _ in streams]
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        for stream, args in zip(streams, sets, strict=True):
            with torch.cuda.stream(stream):
                found.append((args, program.run(args)))
    torch.cuda.synchronize()
    for args, results in found:
        assert_same(results, expected(*args))


def test_times_and_memory_of_steps() -> None:
    func = lowered(mlp(4096))
    program = BlockProgram(func.body, TorchDevice("cuda"), no_kernel)
    times = program.profile(inputs(func))
    assert len(times) == len(program.steps) == 3
    assert all(0 < t < 1 for t in times)


def test_memory_that_is_not_there() -> None:
    b = Builder()
    x = param("x", tensor("f32", 4))
    shape = tensor("f32", 1 << 20, 1 << 18, 4)
    func = lowered(b.func("main", [x], [b.broadcast(x, axes=(2,), type=shape)]))
    program = BlockProgram(func.body, TorchDevice("cuda"), no_kernel)
    with pytest.raises(StackError, match=rf"needs {4 << 40} bytes; \d+ of \d+ are free"):
        program.run([torch.ones(4, device="cuda")])
    small = lowered(mlp())
    args = inputs(small)
    assert_same(BlockProgram(small.body, TorchDevice("cuda"), no_kernel).run(args), expected(*args))


@pytest.fixture
def library_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = plugins.load
    found = replace(LIBRARY, name="device-test", compile=compile_program)
    monkeypatch.setattr(plugins, "load", lambda g, n: found if n == "device-test" else inner(g, n))
    monkeypatch.setattr(run_compile, "DEVICE_BACKEND", "device-test")


def no_host(*_: object) -> None:
    raise AssertionError("an array went through host memory")


@pytest.mark.usefixtures("library_backend")
def test_a_module_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FRONTEND, "to_numpy", no_host, raising=False)
    monkeypatch.setattr(FRONTEND, "from_numpy", no_host, raising=False)
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32))
    module = module.cuda()
    captured = FRONTEND.capture(module, (torch.randn(8, 16, device="cuda"),))
    assert captured.device == "cuda:0"
    graph = CompiledGraph(captured, FRONTEND)
    for _ in range(5):
        x = torch.randn(8, 16, device="cuda")
        torch.testing.assert_close(graph(x), module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("library_backend")
def test_training_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FRONTEND, "to_numpy", no_host, raising=False)
    torch._dynamo.reset()
    module = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
    module = module.cuda()
    compiled = torch.compile(module, backend="stack")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(6):
        x, y = torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda")
        wanted = torch.autograd.grad(((module(x) - y) ** 2).mean(), list(module.parameters()))
        optimizer.zero_grad()
        ((compiled(x) - y) ** 2).mean().backward()
        for want, p in zip(wanted, module.parameters(), strict=True):
            torch.testing.assert_close(p.grad, want, rtol=1e-3, atol=1e-4)
        optimizer.step()


@pytest.mark.usefixtures("library_backend")
def test_jax_arrays_on_the_gpu() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    from stack.frontends.jax import FRONTEND as JAX

    def fn(x, y):  # type: ignore[no-untyped-def]
        return jax.numpy.tanh(x @ y), (x > 0).sum()

    args = (jax.numpy.ones((64, 32)) / 3, jax.numpy.ones((32, 16)))
    captured = JAX.capture(fn, args)
    assert captured.device == "cuda:0"
    graph = CompiledGraph(captured, JAX)
    for _ in range(5):
        for want, got in zip(fn(*args), graph(*args), strict=True):
            assert got.devices() == want.devices()
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4)


@pytest.mark.parametrize("peer", ["eager", "inductor", "xla"])
def test_peers_take_the_device(peer: str) -> None:
    backend = plugins.load("stack.backends", peer)
    if backend.missing() is not None:
        pytest.skip(str(backend.missing()))
    func = mlp()
    run = backend.compile(func, {"device": "cuda"})
    args = inputs(func)
    found = run.call(run.accept(args))
    run.wait()
    held = [torch.from_dlpack(f) for f in found]
    assert all(h.is_cuda for h in held)
    assert_same(held, expected(*args))


def test_hand_written_kernels_at_real_sizes() -> None:
    pytest.importorskip("triton")
    from stack.ops.attention import flash_triton
    from stack.ops.gemm import persistent_triton

    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("written for Hopper")
    for length, width, causal in ((512, 128, True), (1000, 128, False), (777, 64, True)):
        q, k, v = (torch.randn(2, 4, length, width, device="cuda").bfloat16() for _ in range(3))
        wanted = flash_triton.reference(q, k, v, causal).float()
        for config in flash_triton.CONFIGS:
            found = flash_triton.attention(q, k, v, causal, config)
            torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=2e-2)
    for m, n, k_ in ((16, 4096, 4096), (1000, 776, 520), (2048, 4096, 1024)):
        x = torch.randn(m, k_, device="cuda").bfloat16()
        w = torch.randn(n, k_, device="cuda").bfloat16() * k_**-0.5
        wanted = persistent_triton.reference(x, w).float()
        found = persistent_triton.matmul(x, w)
        torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=3e-2)
