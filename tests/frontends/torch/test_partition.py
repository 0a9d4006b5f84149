"""Values and arrays that a training step keeps for its backward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import stack
from stack.frontends.torch.compile import dynamo_backend
from stack.frontends.torch.compile.dynamo_backend import GRAPHS
from stack.frontends.torch.training.joint_graph import JOINTS
from stack.rewrite import Pipeline

Tensor = torch.Tensor


def weights(q: Tensor, k: Tensor) -> Tensor:
    line = torch.arange(q.shape[-2])
    return torch.softmax((q @ k.mT).masked_fill(line > line[:, None], float("-inf")), dim=-1)


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weights(q, k) @ v


def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.sigmoid(q @ k.mT).relu() @ v


def shown(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    table = weights(q, k)
    return table @ v, table


def sorted_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).sort(dim=-1).values @ v


def shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return mixed(q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1))


def train(
    fn: Callable[..., Tensor | tuple[Tensor, ...]], width: int, balance: float, groups: int = 2
) -> list[tuple[int, ...]]:
    """Shapes of what the backward pass reads; the gradients have been compared."""
    length = 2 * width + 19
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: balance)
        torch._dynamo.reset()
        call = torch.compile(fn, backend="stack", options={"backend": "interpreter"})
        exact = [torch.randn(2, h, length, width, dtype=torch.float64) for h in (2, groups, groups)]
        leaves = [x.float().requires_grad_() for x in exact]
        (result, *_) = out if isinstance(out := call(*leaves), tuple) else (out,)
        seed = torch.randn(result.shape)
        result.backward(seed)
    wanted = [x.float().double().requires_grad_() for x in exact]
    (result, *_) = out if isinstance(out := fn(*wanted), tuple) else (out,)
    result.backward(seed.double())
    for got, want in zip(leaves, wanted, strict=True):
        assert got.grad is not None
        assert want.grad is not None
        assert torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-4)
    assert GRAPHS[-1].target.endswith("backward")
    return [tuple(map(int, p.shape)) for p in GRAPHS[-1].func.params]


def tables(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [s for s in shapes if len(s) > 1 and s[-1] == s[-2] > 1]


@pytest.mark.parametrize("fn", [mixed, gated, shared], ids=lambda f: f.__name__)
def test_a_table_is_computed_again(fn: Callable[..., Tensor]) -> None:
    shapes = train(fn, 8, 150.0, 1 if fn is shared else 2)
    assert not tables(shapes)
    rows = [s for s in shapes if len(s) == 3]
    assert len(rows) == (0 if fn is gated else 2)  # max and sum of each row are kept


def test_operands_are_kept_as_they_are() -> None:
    """Not the repeated ones, and no transposed copies."""
    shapes = train(shared, 8, 150.0, 1)
    held = sorted(s for s in shapes if len(s) > 3)
    own = [(2, 1, 35, 8), (2, 1, 35, 8), (2, 2, 35, 8), (2, 2, 35, 8)]
    assert held == [*own, (2, 2, 35, 8)]  # and the result, for the sum of a row


@pytest.mark.parametrize("fn", [mixed, gated], ids=lambda f: f.__name__)
def test_flops_that_cost_more_than_bytes_are_not_repeated(fn: Callable[..., Tensor]) -> None:
    assert tables(train(fn, 32, 150.0)) == []
    assert tables(train(fn, 32, 2.0))  # 64 flops for an element against 4 bytes, twice
    assert tables(train(fn, 8, 0.0))


def entropy(x: Tensor, target: Tensor) -> Tensor:
    top = x.amax(-1, keepdim=True)
    total = (x - top).exp().sum(-1).log() + top[:, 0]
    return (total - x.gather(-1, target[:, None])[:, 0]).mean()


def gradient(fn: Callable[[Tensor, Tensor], Tensor], size: int) -> int:
    """The number of large arrays besides the logits that the backward pass reads; checks values."""
    target = torch.randint(0, size, (16,))
    exact = torch.randn(16, size, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: 150.0)
        torch._dynamo.reset()
        call = torch.compile(fn, backend="stack", options={"backend": "interpreter"})
        leaf = exact.float().requires_grad_()
        call(leaf, target).backward()
    wanted = leaf.detach().double().requires_grad_()
    fn(wanted, target).backward()
    assert leaf.grad is not None
    assert wanted.grad is not None
    assert torch.allclose(leaf.grad.double(), wanted.grad, rtol=1e-4, atol=1e-6)
    sizes = [int(torch.Size(map(int, p.shape)).numel()) for p in GRAPHS[-1].func.params]
    return sum(s > 16 * size // 4 for s in sizes) - 1


def test_exponentials_of_logits_are_computed_again() -> None:
    assert gradient(entropy, 20000) == 0
    assert gradient(torch.nn.functional.cross_entropy, 20000) == 0  # it makes zeros of that shape
    assert gradient(entropy, 3000) == 0


@pytest.mark.parametrize("fn", [shown, sorted_rows], ids=lambda f: f.__name__)
def test_what_is_in_memory_anyway_is_kept(fn: Callable[..., Tensor]) -> None:
    assert tables(train(fn, 8, 150.0))


def table_sums() -> int:
    """Reductions of tables in the newest backward pass."""
    func = GRAPHS[-1].func
    return sum(n.op == "reduce" and n.args[0].shape[-1] == 35 for n in func.nodes)


def test_a_sum_of_a_table_is_one_of_rows() -> None:
    """sum_k p (g v^T) of the gradient is sum_n g (p v)."""
    train(mixed, 8, 150.0)
    assert table_sums() == 0
    train(shared, 8, 150.0, 1)
    assert table_sums() == 0
    train(mixed, 8, 0.0)
    assert table_sums() == 1


def other(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (weights(q, k) - 0.5 * weights(k, q)) @ v


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    table = weights(q, k)
    return (table * table) @ v


@pytest.mark.parametrize("fn", [other, scaled], ids=lambda f: f.__name__)
def test_a_sum_that_has_no_other_order_stays(fn: Callable[..., Tensor]) -> None:
    train(fn, 8, 150.0)
    assert table_sums() >= 1


def experts(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Torch multiplies by a copy of `up` with its axes permuted and merged."""
    return ((x[None] @ up).relu() @ down).sum(0)


def test_copies_of_inputs_are_not_kept() -> None:
    exact = [torch.randn(s, dtype=torch.float64) for s in ((6, 16), (5, 16, 24), (5, 24, 16))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: 150.0)
        torch._dynamo.reset()
        call = torch.compile(experts, backend="stack", options={"backend": "interpreter"})
        leaves = [a.float().requires_grad_() for a in exact]
        call(*leaves).sum().backward()
    wanted = [a.clone().requires_grad_() for a in exact]
    experts(*wanted).sum().backward()
    for got, want in zip(leaves, wanted, strict=True):
        assert got.grad is not None
        assert want.grad is not None
        assert torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-3)
    results = {tuple(map(int, r.shape)) for r in GRAPHS[-2].func.results}
    assert not {(5, 24, 16), (120, 16)} & results
    assert (5, 16, 24) in {tuple(map(int, p.shape)) for p in GRAPHS[-1].func.params}


def by_distance(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scores with what a table, here a column of q, holds for the distance of two positions."""
    line = torch.arange(q.shape[-2])
    table = torch.cat([q[0, 0, :, 0], k[0, 0, 1:, 0]])
    distance = line - line[:, None] + q.shape[-2] - 1
    return torch.softmax(q @ k.mT + table[distance], dim=-1) @ v


@pytest.mark.parametrize("balance", [150.0, 2.0])
def test_tables_of_positions_are_known(balance: float) -> None:
    """They are no data of the backward pass, and its gradient needs no scatter."""
    train(by_distance, 8, balance)
    func = GRAPHS[-1].func
    assert not any(p.dtype.kind == "i" for p in func.params)
    passes = "inline,canonicalize,fold,decompose,scatter_to_reduce"
    before, after = (Pipeline(p).run(func).func for p in ("canonicalize", passes))
    assert any(n.op == "scatter" for n in before.nodes)
    assert not any(n.op == "scatter" for n in after.nodes)


def total(x: Tensor, weight: Tensor) -> Tensor:
    """The maximum has a gradient too, shared out among ties."""
    top = x.amax(-1, keepdim=True)
    return (((x - top).exp().sum(-1).log() + top[:, 0]) * weight[:, 0]).sum()


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """The sums of its gradient have the incoming gradients in them."""
    return (torch.softmax(x, -1) * weight).sum(-1).exp().sum()


def rows(fn: Callable[[Tensor, Tensor], Tensor], width: int, balance: float) -> tuple[int, int]:
    """Sums and maxima of rows in the forward and the backward pass; gradients are compared."""
    exact = [torch.randn(16, width).mul(2).round().double(), torch.randn(16, width).double()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamo_backend, "_balance", lambda options, device: balance)
        torch._dynamo.reset()
        call = torch.compile(fn, backend="stack", options={"backend": "interpreter"})
        leaves = [x.float().requires_grad_() for x in exact]
        call(*leaves).backward()
    wanted = [x.clone().requires_grad_() for x in exact]
    fn(*wanted).backward()
    for got, want in zip(leaves, wanted, strict=True):
        assert got.grad is not None
        assert want.grad is not None
        assert torch.allclose(got.grad.double(), want.grad, rtol=1e-4, atol=1e-5)
    counts = [
        sum(n.op == "reduce" and n.args[0].shape[-1] == width for n in g.func.nodes)
        for g in (GRAPHS[-2], GRAPHS[-1])
    ]
    return counts[0], counts[1]


def test_ties_are_counted_in_the_forward_pass() -> None:
    assert rows(total, 2000, 150.0) == (3, 0)


def test_sums_of_incoming_gradients_stay() -> None:
    forward, backward = rows(weighted, 2000, 150.0)
    assert forward == 3
    assert backward >= 1


def checkpointed(x: Tensor, weight: Tensor) -> Tensor:
    def layer(x: Tensor) -> Tensor:
        return torch.dropout((x @ weight).tanh(), 0.5, True) @ weight

    return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sum()


def test_a_checkpoint_keeps_its_inputs_and_what_was_drawn() -> None:
    torch._dynamo.reset()
    call = torch.compile(checkpointed, backend="stack", options={"backend": "interpreter"})
    leaves = [torch.randn(6, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)]
    torch.manual_seed(0)
    call(*leaves).backward()
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    torch.manual_seed(0)
    checkpointed(*twins).backward()
    for got, want in zip(leaves, twins, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-5, atol=1e-5)
    backward = GRAPHS[-1].func
    shapes = [tuple(map(int, p.shape)) for p in backward.params]
    assert shapes.count((6, 8)) == 2  # the input and the draw
    assert not any(n.op == "opaque" for n in backward.nodes)


@pytest.mark.parametrize("make", [nn.LayerNorm, lambda n: nn.Linear(n, n)])
def test_a_checkpoint_makes_values_that_nothing_reads(make: Callable[[int], nn.Module]) -> None:
    """A mean that the backward pass computes again, a view of a weight: they have no names."""
    torch._dynamo.reset()
    layer, x = make(8), torch.randn(2, 6, 8, requires_grad=True)

    def checkpointed(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).sin().sum()

    leaves = [x, *layer.parameters()]
    want = torch.autograd.grad(checkpointed(x), leaves)
    call = torch.compile(checkpointed, backend="stack", options={"backend": "interpreter"})
    got = torch.autograd.grad(call(x), leaves)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_what_is_not_for_us_is_cut_by_torch() -> None:
    torch._dynamo.reset()
    call = torch.compile(
        lambda x: x.sin() * x, backend="stack", dynamic=True, options={"backend": "interpreter"}
    )
    x = torch.randn(5, 3, requires_grad=True)
    call(x).sum().backward()
    torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())
    assert JOINTS[-1]["captured"].notes == ["cut by torch: primals_1 is a SymInt"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_forward_pass_of_a_whole_program_keeps_nothing(dynamic: bool) -> None:
    x = torch.randn(5, 3, requires_grad=True)
    compiled = stack.compile(lambda x: x.sin().cos() * 2, x, dynamic=dynamic, backend="mlir")
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, -2 * x.sin().sin().detach() * x.cos().detach())
    assert len(compiled.func.results) == 1


@pytest.mark.parametrize("whole", [False, True])
def test_what_has_the_shape_of_a_tangent_alone_is_kept(whole: bool) -> None:
    """Torch counts with ones of a gradient's shape; ours see that no gradient is in them."""
    places = torch.tensor([[0, 2, 4], [1, 0, 3], [4, 4, 4]])

    def mean(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, places, source, "mean")

    torch._dynamo.reset()
    leaves = [torch.randn(s, requires_grad=True) for s in ((3, 5), (3, 3))]
    twins = [x.detach().clone().requires_grad_() for x in leaves]
    call: Callable[..., Tensor] = (
        stack.compile(mean, *leaves) if whole else torch.compile(mean, backend="stack")
    )
    call(*leaves).cos().sum().backward()
    mean(*twins).cos().sum().backward()
    for got, want in zip(leaves, twins, strict=True):
        torch.testing.assert_close(got.grad, want.grad)


class Momentum(torch.nn.Module):
    """An encoder, and an average of its weights that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for ours, average in zip(self.query.parameters(), self.key.parameters(), strict=True):
                average.mul_(0.9).add_(ours, alpha=0.1)
        return (self.query(x) * self.key(x).detach()).sum()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_parameter_updated_without_gradients_has_none(dynamic: bool) -> None:
    torch._dynamo.reset()
    module = Momentum()
    twin = copy.deepcopy(module)
    call = torch.compile(module, backend="stack", dynamic=dynamic)
    for size in (3, 5):
        x = torch.linspace(-1, 1, 4 * size).reshape(size, 4)
        for net, step in ((module, call), (twin, twin)):
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.5)
            optimizer.zero_grad()
            step(x).backward()
            optimizer.step()
        assert all(p.grad is None for p in module.key.parameters())
        for found, expected in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(found, expected)
