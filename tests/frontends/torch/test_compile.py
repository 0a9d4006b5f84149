"""torch.compile(backend="stack"): training, breaks, new shapes, symbolic sizes, mutation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stack.demos import models, models_torch
from stack.frontends import torch as frontend

OPTIONS = {"backend": "interpreter"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    frontend.clear_runs()


def compiled(fn: Any, **more: Any) -> Any:
    return torch.compile(fn, backend="stack", options=OPTIONS, **more)


def coverage() -> dict[str, int]:
    total: dict[str, int] = {}
    for run in frontend.runs():
        for key in ("ops", "native", "fallback"):
            total[key] = total.get(key, 0) + run.coverage[key]
    return total


def losses(module: nn.Module, call: Any, batches: list[Any], steps: int) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found: list[float] = []
    for tokens, targets in batches[:steps]:
        optimizer.zero_grad()
        loss = call(tokens, targets)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_gpt2_trains_as_eager() -> None:
    cfg = models.GPT2Config(width=32, heads=2, ffn=64, seq=16, batch=2, layers=2, vocab=64)
    module, _ = models_torch.make_gpt2(cfg)
    twin = copy.deepcopy(module)
    stream = models.token_batches(cfg)
    batches = [tuple(map(torch.from_numpy, next(stream))) for _ in range(20)]
    mine = losses(module, compiled(module), batches, 20)
    eager = losses(twin, twin, batches, 20)
    assert mine[-1] < mine[0]
    torch.testing.assert_close(mine, eager, rtol=0, atol=1e-4)
    assert coverage()["fallback"] == 0
    roles = [run.target.split()[-1] for run in frontend.runs()]
    assert roles == ["forward", "backward"]


def test_parameters_keep_their_names() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    compiled(module)(torch.randn(2, 4)).sum().backward()
    text = frontend.runs()[0]["imported"].text
    assert "%0.weight: f32[3, 4]" in text
    assert 'from "linear.py' not in text


def test_batch_norm_trains() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    twin = copy.deepcopy(module)
    x = torch.randn(2, 3, 6, 6)
    for call, params in ((compiled(module), module), (twin, twin)):
        call(x).square().mean().backward()
        params[1].running_mean.mul_(1.0)
    torch.testing.assert_close(module.state_dict(), twin.state_dict())
    for mine, eager in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-4, atol=1e-5)


def test_each_part_between_breaks_is_compiled() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if y.sum() > 0:
            return y.cos() + 1
        return y - 1

    call = compiled(f)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(call(x), f(x))
    assert len(frontend.runs()) >= 3
    reasons = [run.notes["graph break"] for run in frontend.runs() if "graph break" in run.notes]
    assert reasons
    assert "data-dependent" in reasons[0].lower() or "jump" in reasons[0].lower()
    assert "test_compile.py" in reasons[0]


def test_guards_and_code_are_noted() -> None:
    compiled(lambda x: x + 1)(torch.ones(3))
    notes = frontend.runs()[0].notes
    assert "TENSOR_MATCH" in notes["guards"]
    assert "__compiled_fn" in notes["decompiled"]


def test_new_shapes_become_symbolic() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1))
    call = compiled(module)
    with torch.no_grad():
        for rows in (2, 3, 5, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(call(x), module(x))
    texts = [run["imported"].text for run in frontend.runs()]
    assert len(texts) == 2
    assert "f32[s0, 4]" in texts[1]


def test_static_recompiles() -> None:
    call = compiled(lambda x: x * 2, dynamic=False)
    for size in (2, 3):
        torch.testing.assert_close(call(torch.ones(size)), 2 * torch.ones(size))
    assert len(frontend.runs()) == 2


def test_symbolic_training() -> None:
    module = nn.Linear(4, 3).double()
    twin = copy.deepcopy(module)
    call = compiled(module, dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 4, dtype=torch.float64)
        for f, owner in ((call, module), (twin, twin)):
            owner.zero_grad()
            (f(x) * x.shape[0]).square().sum().backward()
        torch.testing.assert_close(module.weight.grad, twin.weight.grad)


def test_numbers_that_are_sizes() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.cat([x, torch.ones(n)]) * n

    call = compiled(f, dynamic=True)
    for n in (2, 3, 6):
        torch.testing.assert_close(call(torch.ones(4), n), f(torch.ones(4), n))


def test_mutation_and_aliases() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x.view(-1)[:2], x * 2

    call = compiled(f)
    mine, eager = torch.zeros(2, 3), torch.zeros(2, 3)
    view, _ = call(mine)
    f(eager)
    torch.testing.assert_close(mine, eager)
    view.fill_(9)
    assert mine[0, 0] == 9


def test_bad_index_raises_as_eager() -> None:
    table = nn.Embedding(10, 4)
    call = compiled(table)
    call(torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        call(torch.tensor([1, 10]))


def test_unsupported_ops_fall_back_and_are_counted() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x + 1).R * 2

    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(f)(x), f(x))
    (run,) = frontend.runs()
    assert run.coverage["fallback_ops"] == {"torch:aten.linalg_qr.default": 1}


def test_fallbacks_of_a_backward_pass_are_named_too() -> None:
    def sampled(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, at, align_corners=False)

    x, at = torch.randn(1, 2, 4, 4, 4, requires_grad=True), torch.rand(1, 3, 3, 3, 3)
    torch.compile(sampled, backend="stack")(x, at).sum().backward()
    run = frontend.runs()[-1]
    left = [name.removeprefix("torch:") for name in run.coverage["fallback_ops"]]
    assert run.target.endswith("backward") and left
    assert [row.partition(": ")[0] for row in run.notes["fallbacks"].splitlines()] == left


def test_dropout_is_random_and_scaled() -> None:
    call = compiled(lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.5))
    out = call(torch.ones(1000))
    assert set(out.unique().tolist()) == {0.0, 2.0, 4.0}


def test_no_results() -> None:
    def f(x: torch.Tensor) -> None:
        x.mul_(2)

    x = torch.ones(3)
    compiled(f)(x)
    assert x.tolist() == [2, 2, 2]


def test_mlir_backend_runs_a_graph() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    x = torch.randn(4, 8)
    try:
        call = torch.compile(module, backend="stack")
        out = call(x)
    except Exception as error:
        if "BackendMissing" in str(type(error.__cause__ or error)) or "not available" in str(error):
            pytest.skip("the mlir backend is not installed")
        raise
    torch.testing.assert_close(out, module(x), rtol=1e-5, atol=1e-5)
    out.sum().backward()
    assert module[0].weight.grad is not None
