"""The demo models on a GPU, forward and backward, against f64: `pytest -m gpu tests/demos`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import stack
from stack.demos import models

torch = pytest.importorskip("torch")

from stack.demos import models_torch  # noqa: E402

pytestmark = pytest.mark.gpu
BACKENDS = ["triton", "cuda"]
GPT2 = models.GPT2Config(width=128, heads=4, ffn=512, seq=96, batch=2, layers=2, vocab=128)
LLAMA = models.LlamaConfig(width=128, heads=4, kv_heads=2, ffn=320, seq=96, batch=2)
SIZES: dict[str, dict[str, int]] = {
    "llama3-8b": {"seq": 128, "width": 512},
    "gpt2": {"batch": 2, "seq": 128, "width": 256},
    "bert": {"batch": 2, "seq": 128, "width": 256},
    "vit": {"batch": 2, "seq": 197, "width": 256},
    "moe": {"seq": 128, "width": 256},
    "mamba2": {"batch": 1, "seq": 128, "width": 256},
}


def torch_model(name: str) -> tuple[Any, tuple[Any, ...]]:
    made: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
        "gpt2_block": lambda: models_torch.make_gpt2_block(GPT2),
        "llama_block": lambda: models_torch.make_llama_block(LLAMA),
        "gpt2": lambda: models_torch.make_gpt2(GPT2),
    }
    module, args = made[name]()
    return module.cuda(), tuple(a.cuda() for a in args)


def wide(value: Any) -> Any:
    return value.double() if value.is_floating_point() else value


def gradients(module: Any, call: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """The result and every gradient, for one fixed cotangent."""
    leaves = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    out = call(*leaves)
    generator = torch.Generator(device=out.device).manual_seed(3)
    given = torch.randn(out.shape, generator=generator, device=out.device).to(out.dtype)
    wanted = [*(a for a in leaves if a.requires_grad), *module.parameters()]
    return [out.detach(), *torch.autograd.grad(out, wanted, given)]


def within(ours: Sequence[Any], eager: Sequence[Any], exact: Sequence[Any], times: float) -> None:
    """Errors of every result are at most `times` eager's, or a few roundings of the largest."""
    floor = 4e-6 if ours[0].dtype is torch.float32 else 8e-3
    for number, (mine, theirs, truth) in enumerate(zip(ours, eager, exact, strict=True)):
        scale = float(truth.abs().max()) + 1e-30
        error, allowed = (float((x.double() - truth).abs().max()) / scale for x in (mine, theirs))
        assert error <= max(times * allowed, floor), (number, error, allowed)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gpt2_block", "llama_block", "gpt2"])
def test_torch_models(name: str, backend: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module, args = torch_model(name)
    exact_module = copy.deepcopy(module).double()
    forward = stack.compile(module, *args, backend=backend)
    assert forward.run.coverage["fallback"] == 0
    with torch.no_grad():
        exact = exact_module(*map(wide, args))
        within([forward(*args)], [module(*args)], [exact], 2)
    fast = torch.compile(module, backend="stack", dynamic=False, options={"backend": backend})
    found = [gradients(module, c, args) for c in (fast, module)]
    within(*found, gradients(exact_module, exact_module, list(map(wide, args))), 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", list(SIZES))
def test_blocks_of_the_bench(name: str, backend: str) -> None:
    from stack.demos import gpu_blocks

    torch.manual_seed(0)
    torch._dynamo.reset()
    program = gpu_blocks.block(name, mode="train", **SIZES[name])
    module, args = program.fn, program.args
    exact_module = copy.deepcopy(module).double()
    fast = torch.compile(module, backend="stack", dynamic=False, options={"backend": backend})
    found = [gradients(module, c, args) for c in (fast, module)]
    within(*found, gradients(exact_module, exact_module, list(map(wide, args))), 3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gpt2_block", "llama_block", "gpt2"])
def test_jax_models(name: str, backend: str) -> None:
    jax = pytest.importorskip("jax")
    from stack.demos import models_jax

    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    made = {
        "gpt2_block": lambda: models_jax.make_gpt2_block(GPT2),
        "llama_block": lambda: models_jax.make_llama_block(LLAMA),
        "gpt2": lambda: models_jax.make_gpt2(GPT2),
    }
    fn, args = made[name]()

    def step(params: Any, *rest: Any) -> Any:
        def loss(p: Any) -> Any:
            out = fn(p, *rest)
            line = jax.numpy.sin(jax.numpy.arange(out.size, dtype=out.dtype)).reshape(out.shape)
            return (out * line).sum() if out.ndim else out, out

        return jax.grad(loss, has_aux=True)(params)

    compiled = stack.jit(step, backend=backend)
    ours, eager = compiled(*args), jax.jit(step)(*args)
    assert compiled.run.coverage["fallback"] == 0
    with jax.enable_x64(True):
        exact = jax.jit(step)(*jax.tree.map(as_wide, args))
    found = [[torch.from_dlpack(x) for x in jax.tree.leaves(tree)] for tree in (ours, eager, exact)]
    within(*found, 2)


def as_wide(value: Any) -> Any:
    return value.astype("float64") if value.dtype == "float32" else value
