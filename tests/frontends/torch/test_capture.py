"""Capture of modules and functions: order, names, lines, structure, mutation."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_harness import FRONTEND, capture, check, ops, run

from stack.demos import models, models_torch
from stack.errors import StackError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", [models_torch.make_llama_block, models_torch.make_gpt2_block])
def test_demo_blocks(make: Any) -> None:
    sizes = {"width": 32, "heads": 4, "ffn": 64, "seq": 8}
    is_llama = make is models_torch.make_llama_block
    cfg = models.LlamaConfig(kv_heads=2, **sizes) if is_llama else models.GPT2Config(**sizes)
    module, args = make(cfg)
    captured = check(module, *args)
    assert "opaque" not in ops(captured.func)
    names = [p.attrs["name"] for p in captured.func.params]
    assert names[-1] == "x"
    weights = [n for n, _ in (*module.named_parameters(), *module.named_buffers())]
    assert names[:-1] == weights
    assert all(a is b for a, b in zip(captured.bound, [*module.parameters(), *module.buffers()]))


def test_demo_language_model() -> None:
    module, args = models_torch.make_gpt2(models.TINY_GPT2)
    captured = check(module, *args)
    assert "opaque" not in ops(captured.func)
    assert "embedding: tokens is between 0 and 127" in captured.notes["checked indices"]


def test_products_keep_batch_axes_apart() -> None:
    """No flattening to [b * s, k] around a linear layer."""
    captured = check(nn.Linear(4, 5), torch.randn(2, 3, 4))
    assert "reshape" not in ops(captured.func)
    (dot,) = [n for n in captured.func.nodes if n.op == "dot"]
    assert dot.shape == (2, 3, 5)


def test_source_lines_name_file_line_and_module() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Inner()])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks[0](x) + 1.0

    line = Inner.forward.__code__.co_firstlineno + 1
    captured = check(Outer(), X)
    (sine,) = [n for n in captured.func.nodes if n.op == "sin"]
    assert captured.func.body.locs[sine] == (f"test_capture.py:{line} blocks.0",)


def test_unused_and_nested_arguments() -> None:
    def f(a: torch.Tensor, b: dict[str, Any], c: torch.Tensor) -> torch.Tensor:
        return a + b["inner"][0] * b["n"]

    captured = check(f, X, {"inner": [Y], "n": 3}, torch.ones(2))
    assert [p.attrs["name"] for p in captured.func.params] == ["a", "b.inner.0", "c"]


def test_keywords_bind_by_signature() -> None:
    captured = capture(lambda a, b: a - b, X, Y)
    torch.testing.assert_close(run(captured, b=Y, a=X), X - Y)
    with pytest.raises(TypeError):
        captured.flatten(X, b=Y, c=Y)


def test_one_tensor_twice_is_two_parameters() -> None:
    captured = capture(lambda a, b: a * 2 + b, X, X)
    torch.testing.assert_close(run(captured, X, Y), X * 2 + Y)


def test_closed_over_tensors_are_bound() -> None:
    weight = torch.randn(4, 2)
    captured = check(lambda x: x @ weight, X)
    assert len(captured.bound) == 1
    assert captured.bound[0] is weight


def test_method_of_a_module() -> None:
    module, (tokens, _) = models_torch.make_gpt2(models.TINY_GPT2)
    check(module.logits, tokens)


def test_callables_without_code_of_their_own() -> None:
    x = torch.tensor([float("nan"), -0.0, 0.0, 1.5, -2.0, float("inf")])
    check(torch.sign, x)
    check(functools.partial(torch.add, alpha=2), X, Y)
    assert check(torch.sin, X).func.name == "sin"


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: int


def test_structures_come_back() -> None:
    def f(x: torch.Tensor) -> dict[str, Any]:
        return {"a": (x + 1, [x * 2]), "same": x, "n": 3, "none": None}

    captured = capture(f, X)
    out = run(captured, X)
    assert out["same"] is X
    assert out["n"] == 3
    assert out["none"] is None
    torch.testing.assert_close(out["a"], (X + 1, [X * 2]))


def test_unknown_structures_are_refused() -> None:
    with pytest.raises(StackError, match="Pair"):
        capture(lambda x: Pair(x + 1, 2), X)


# ---- mutation


def test_in_place_on_locals_and_views() -> None:
    check(_in_place, X)


def _in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y[0] = 0
    y[:, 1:3].mul_(2)
    view = y.view(2, 6)
    view.relu_()
    return y.t()


def test_arguments_are_written_back() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    captured = capture(f, X.clone(), Y)
    mine, eager = X.clone(), X.clone()
    torch.testing.assert_close(run(captured, mine, Y), f(eager, Y))
    torch.testing.assert_close(mine, eager)


def test_buffers_are_written_back() -> None:
    module = nn.BatchNorm1d(4).train()
    twin = nn.BatchNorm1d(4).train()
    captured = capture(module, X)
    for _ in range(2):
        torch.testing.assert_close(run(captured, X), twin(X).detach())
    torch.testing.assert_close(module.running_mean, twin.running_mean)
    torch.testing.assert_close(module.running_var, twin.running_var)
    assert module.num_batches_tracked == 2


def test_tracing_leaves_the_module_alone() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.seen.add_(1)
            return x + self.seen

    module = Counter()
    captured = capture(module, X)
    assert module.calls == 0
    assert module.seen == 0
    torch.testing.assert_close(run(captured, X), X + 1)
    torch.testing.assert_close(run(captured, X), X + 2)


# ---- bad calls


def test_wrong_shapes_and_dtypes_name_the_argument() -> None:
    captured = capture(nn.Linear(4, 2), X)
    with pytest.raises(ValueError, match="'input'"):
        captured.flatten(torch.randn(3, 5))
    with pytest.raises(TypeError, match="'input'"):
        captured.flatten(X.double())
    with pytest.raises(TypeError):
        captured.flatten(X, X)
    with pytest.raises(TypeError, match="'input'"):
        captured.flatten(3.0)


def test_other_numbers_are_refused() -> None:
    captured = capture(lambda x, n: x * n, X, 2)
    with pytest.raises(TypeError, match="'n' was 2"):
        captured.flatten(X, 3)


@pytest.mark.parametrize("bad", [-1, 10])
def test_bad_embedding_index(bad: int) -> None:
    table = nn.Embedding(10, 4)
    captured = capture(table, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="'input'"):
        run(captured, torch.tensor([1, bad]))


def test_ignored_target_is_no_bad_index() -> None:
    captured = capture(F.cross_entropy, X, torch.tensor([0, 1, 2]))
    target = torch.tensor([0, -100, 3])
    torch.testing.assert_close(run(captured, X, target), F.cross_entropy(X, target))
    with pytest.raises(IndexError):
        run(captured, X, torch.tensor([0, 1, 4]))


def test_negative_positions_count_from_the_end() -> None:
    check(lambda x, i: x[i], X, torch.tensor([0, -1, -3]))


def test_computed_index_is_looked_at_after_the_run() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i * 2]

    captured = check(f, X, torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="index"):
        run(captured, X, torch.tensor([0, 2]))


def test_known_ranges_cost_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[torch.arange(3), x.argmax(1)]

    captured = check(f, X)
    assert len(captured.func.results) == 1
    assert "checked indices" not in captured.notes


def test_a_break_is_an_error_with_its_reason() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(StackError, match=r"(?s)backend='stack'.*[Dd]ata-dependent"):
        capture(f, X)


def test_nothing_to_compile() -> None:
    with pytest.raises(StackError, match="no work"):
        FRONTEND.capture(lambda x: 3, (X,))


# ---- text and notes


def test_text_and_notes() -> None:
    captured = capture(nn.Linear(4, 2), X)
    assert "torch.ops.aten" in captured.text
    assert "TENSOR_MATCH" in captured.notes["guards"]
    assert "def " in captured.notes["decompiled"]
    assert set(dict(captured.notes.items())) == {"guards", "decompiled"}


def test_accepts() -> None:
    assert FRONTEND.accepts(nn.Linear(2, 2), ())
    assert FRONTEND.accepts(lambda x: x, ({"a": X},))
    assert not FRONTEND.accepts(lambda x: x, (1, 2.0))


# ---- unusual inputs


@pytest.mark.parametrize(
    "x",
    [
        X.t(), X[:, ::2], X[1:, 1:], X.expand(2, 3, 4), torch.zeros(0, 4), torch.tensor(2.5),
        torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0]), X.double(), X.bfloat16(),
        X.half(),
    ],
    ids=["t", "step", "offset", "expand", "empty", "scalar", "special", "f64", "bf16", "f16"],
)  # fmt: skip
def test_unusual_tensors(x: torch.Tensor) -> None:
    loose = 1e-2 if x.element_size() == 2 else 1e-5
    check(lambda v: F.gelu(v * 0.5 + 1.0) - v.exp(), x, rtol=loose, atol=loose)
    check(lambda v: (v.sum(), v.relu(), v > 0), x, rtol=loose, atol=loose)


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_small_losses_keep_their_gradient(reduction: int) -> None:
    """sigmoid(20) - 1 has no digit left; the gradient has all."""
    x, y = torch.tensor([20.0, -15.0, 0.5, -0.5]), torch.tensor([1.0, -1.0, 1.0, 1.0])
    grad = torch.ones(4) if reduction == 0 else torch.tensor(1.0)

    def slope(g: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.soft_margin_loss_backward(g, a, b, reduction)

    check(slope, grad, x, y, rtol=1e-6, atol=0)


def test_norms_of_one_element_are_its_size() -> None:
    x = torch.tensor([[-8.4784], [1e30], [0.0]])
    check(lambda v: torch.linalg.vector_norm(v, 6, dim=1), x, rtol=0, atol=0)
    check(lambda v: torch.linalg.vector_norm(v, 0, dim=1), x, rtol=0, atol=0)


CHECKS = """
import stack, torch
from stack.frameworks.torch_private import get_effect
before = get_effect("aten::_linalg_check_errors")
print(stack.trace(torch.linalg.inv, torch.eye(3)))
print(before == get_effect("aten::_linalg_check_errors"))
"""


def test_the_checks_of_linear_algebra_are_ops_in_a_first_trace() -> None:
    """Torch orders them like effects, and does so again after the trace, for other compilers."""
    done = subprocess.run([sys.executable, "-c", CHECKS], capture_output=True, text=True)
    assert "linalg_inv_ex" in done.stdout, done.stderr
    assert done.stdout.endswith("True\n")


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_and_bools(dtype: torch.dtype) -> None:
    a = torch.tensor([[0, 1, 1], [1, 0, 5]]).to(dtype)
    b = torch.tensor([1, 3, 2]).to(dtype)
    check(lambda x, y: (x & y, x | y, x ^ y, ~x, x == y, x * y, x + y), a, b)
    check(lambda x: (x.sum(), x.any(), x.all(0), x.max(), x.float().mean()), a)
    if dtype is not torch.bool:
        check(lambda x, y: (x // y, x % y, -x, x - y, x / y, x**2, x << 1, x.clamp(1, 3)), a, b)


def test_sixteen_bit_scalars_are_not_rounded_first() -> None:
    x = torch.tensor([3.0, 100.0, 1e4]).bfloat16()
    check(lambda v: v * 0.1, x, rtol=0, atol=0)
    check(lambda v: v.add(v, alpha=0.1), x, rtol=0, atol=0)
