"""`F.scaled_dot_product_attention`: what eager gives, in the kernels of what is written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import stack
import stack.plugins as plugins
from stack.calls.training import train_runs
from stack.explore.lowering import Settings
from stack.explore.target import ExampleCall
from stack.rewrite import Pipeline

Inputs = tuple[Tensor, ...]
SIZE = 128


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def repeated(x: Tensor, count: int) -> Tensor:
    """As Hugging Face's models repeat heads."""
    b, h, n, d = x.shape
    return x[:, :, None].expand(b, h, count, n, d).reshape(b, h * count, n, d)


def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    if mask is None:
        row, column = (torch.arange(n) for n in scores.shape[-2:])
        mask = column <= row[:, None]
    scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -math.inf)
    return torch.softmax(scores, -1) @ v


def by_repeated(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda q, k, v: call(q, repeated(k, 4), repeated(v, 4))


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rows(heads: int, dtype: torch.dtype, length: int = SIZE, width: int = 64) -> Tensor:
    return torch.randn(1, heads, length, width).to(dtype)


def own_and_written(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor], Inputs]:
    q, k, v = (rows(4, torch.bfloat16, 2048) for _ in range(3))
    if name == "causal":
        return causal, written, (q, k, v)
    if name in ("grouped", "repeated"):
        own = grouped if name == "grouped" else by_repeated(causal)
        return own, by_repeated(written), (q, k[:, :1], v[:, :1])
    mask = torch.randn(1, 1, 2048, 2048) > 0
    given = mask if name == "bool" else mask.bfloat16()
    return F.scaled_dot_product_attention, written, (q, k, v, given)


STAGES = ",".join(p for _, p in plugins.load("stack.backends", "triton").lowering.stages[:-1])


def kernels(func: stack.Func) -> list[list[str]]:
    """The products, powers and reductions in each kernel for a GPU."""
    heavy = {"dot", "exp", "reduce"}
    made = [n for n in Pipeline(STAGES).run(func).func.nodes if n.blocks or n.op in heavy]
    inner = [[m.op for b in n.blocks for m in b.nodes] or [n.op] for n in made]
    return sorted(sorted(op for op in ops if op in heavy) for ops in inner)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["causal", "bool", "float", "grouped", "repeated"])
def test_kernels_are_those_of_what_is_written_out(name: str) -> None:
    own, plain, given = own_and_written(name)
    mine = kernels(stack.trace(own, *given))
    assert ["dot", "dot", "exp", "exp", "reduce", "reduce"] in mine
    assert mine == kernels(stack.trace(plain, *given))


def trained(fn: Callable[..., Tensor], given: Inputs) -> dict[str, list[list[str]]]:
    args = tuple(t.requires_grad_(t.is_floating_point()) for t in given)
    runs = train_runs(ExampleCall("program", fn, args, "torch"), Settings(backend="triton"))
    return {r: kernels(stack.parse(runs[r]["imported"].text)) for r in ("forward", "backward")}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["causal", "bool", "grouped"])
def test_training_has_no_kernel_more_than_what_is_written_out(name: str) -> None:
    own, plain, given = own_and_written(name)
    mine, written_out = trained(own, given), trained(plain, given)
    assert mine["forward"] == written_out["forward"]
    assert len(mine["backward"]) <= len(written_out["backward"])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_models_are_what_their_written_attention_makes_of_them(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    }  # fmt: skip
    tokens = torch.arange(512)[None] % 64
    found = []
    for attention in ("sdpa", "eager"):
        config = getattr(transformers, f"{name}Config")(**sizes, attn_implementation=attention)
        module = getattr(transformers, f"{name}Model")(config).to(torch.bfloat16).eval()
        found.append(kernels(stack.trace(lambda t, m=module: m(t, use_cache=False)[0], tokens)))
    assert found[0] == found[1]


# ---- values


def case(name: str, kind: torch.dtype) -> tuple[Callable[..., Tensor], list[Tensor]]:
    torch.manual_seed(0)
    draw = lambda *shape: torch.randn(shape).to(kind)
    q, k, v = draw(2, 4, 9, 16), draw(2, 4, 13, 16), draw(2, 4, 13, 8)
    empty = torch.rand(9, 13) > 0.5
    empty[3], empty[5, 1:] = False, False
    added = torch.zeros(9, 13).masked_fill(~empty, -math.inf)
    call = F.scaled_dot_product_attention
    return {
        "full": (call, [q, k, v]),
        "causal": (causal, [q, k, v]),
        "causal, more rows": (causal, [k, q, q]),
        "bool": (lambda q, k, v: call(q, k, v, empty), [q, k, v]),
        "infinite": (lambda q, k, v: call(q, k, v, added.to(q.dtype), scale=0.3), [q, k, v]),
        "learned": (call, [q, k, v, draw(4, 1, 13)]),
        "large": (call, [q * 6, k * 3, v]),
        "grouped": (grouped, [q, k[:, :2], v[:, 1:2]]),
        "one batch axis": (call, [q[0], k[0], v[0]]),
        "no batch axis": (call, [q[0, 0], k[0, 0], v[0, 0]]),
        "vmap": (lambda q, k, v: torch.func.vmap(causal)(q, k, v), [q, k, v]),
        "no keys": (lambda q, k, v: call(q, k, v, empty[:, :0]), [q, k[:, :, :0], v[:, :, :0]]),
    }[name]


CASES = [
    "full", "causal", "causal, more rows", "bool", "infinite", "learned", "large", "grouped",
    "one batch axis", "no batch axis", "vmap", "no keys",
]  # fmt: skip


def run(call: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """The result, and the gradient of each argument."""
    args = [t.detach().clone().requires_grad_() for t in given]
    out = call(*args)
    weight = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), args)]


@pytest.mark.every(5)
@pytest.mark.parametrize(("name", "kind"), product(CASES, (torch.float32, torch.bfloat16)))
def test_values_and_gradients(name: str, kind: torch.dtype) -> None:
    fn, given = case(name, kind)
    mine = run(torch.compile(fn, backend="stack"), given)
    eager = run(fn, given)
    exact = run(fn, [t.double() for t in given])
    for own, other, true in zip(mine, eager, exact, strict=True):
        assert own.dtype == other.dtype and own.shape == other.shape
        unit = torch.finfo(kind).eps * float(true.double().norm())
        allowed = (2 if kind is torch.float32 else 3) * float((other - true).norm()) + unit
        assert float((own - true).norm()) <= allowed


def test_attention_of_a_module_multiplies_what_it_is_given() -> None:
    """Torch's function for `nn.MultiheadAttention` calls for attention itself: no f32 copies."""
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True).to(torch.bfloat16)
    x = torch.randn(2, 16, 64, dtype=torch.bfloat16)

    def run(x: Tensor, y: Tensor) -> Tensor:
        return module(x, y, y, need_weights=False)[0]

    dots = [n for n in stack.trace(run, x, x).nodes if n.op == "dot"]
    assert {a.dtype.name for n in dots for a in n.args} == {"bf16"}
    torch.testing.assert_close(stack.compile(run, x, x)(x, x), run(x, x), rtol=2e-2, atol=2e-3)


def test_what_a_kernel_narrows_is_read_narrow() -> None:
    """The products of queries, keys and values add a bias in f32 and write 16 bits."""
    q, k, v = (torch.nn.Linear(64, 64).to(torch.bfloat16) for _ in range(3))

    def run(x: Tensor) -> Tensor:
        heads = (part(x).unflatten(-1, (4, 16)).transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(*heads)

    func = stack.trace(run, torch.randn(2, 128, 64, dtype=torch.bfloat16))
    spec = "inline,canonicalize,decompose{gpu=true},canonicalize,layout,stream{loops=blocks}"
    (stream,) = (n for n in Pipeline(spec).run(func).func.nodes if n.op == "stream")
    assert {a.dtype.name for a in stream.args} == {"bf16"}


def test_a_model_on_the_meta_device_is_traced() -> None:
    # torch knows no autocast for this device, and raises for questions about it
    q, k, v = (torch.empty(2, 4, 8, 16, device="meta") for _ in range(3))
    func = stack.trace(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v)
    assert [str(r.type) for r in func.results] == ["f32[2, 4, 8, 16]"]
