"""A mixture of experts end to end, what capacity drops, and bad input by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stack
from stack.errors import RuleError
from stack.hosted import find
from stack.ops.moe import combine, dispatch, grouped_gemm, grouped_gemm_fp8, plan, top_k

T, D, E = 24, 16, 4
RNG = np.random.default_rng(0)
X, ROUTER = RNG.standard_normal((T, D)), RNG.standard_normal((D, E))
UP, DOWN = RNG.standard_normal((E, 32, D)) / 4, RNG.standard_normal((E, D, 32)) / 6


def mixture(
    x: Any, router: Any, up: Any, down: Any, queue: Any, relu: Any, capacity: int = 0
) -> Any:
    """A layer of experts, on arrays of any framework."""
    gates = top_k(x @ router, top=2)
    tokens, sizes = plan(gates, queue, capacity=capacity)
    rows = grouped_gemm(relu(grouped_gemm(dispatch(x, tokens), up, sizes)), down, sizes)
    return combine(rows, gates, tokens, sizes)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def by_hand(dropped: frozenset[tuple[int, int]] = frozenset()) -> np.ndarray:
    """Every token through its experts, one by one; pairs that were dropped add nothing."""
    scores = X @ ROUTER
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    out = np.zeros_like(X)
    for token, share in enumerate(shares):
        best = np.argsort(-share)[:2]
        for expert in best:
            if (token, expert) not in dropped:
                inner = relu(X[token] @ UP[expert].T)
                out[token] += share[expert] / share[best].sum() * (inner @ DOWN[expert].T)
    return out


def queue(rows: int) -> np.ndarray:
    return np.full(rows, -1, np.int32)


def test_no_token_is_dropped_where_there_is_room() -> None:
    found = mixture(X, ROUTER, UP, DOWN, queue(2 * T), relu)
    np.testing.assert_allclose(found, by_hand(), rtol=1e-10, atol=1e-12)


def test_past_its_capacity_an_expert_drops_the_last_tokens() -> None:
    chosen = top_k(X @ ROUTER, top=2) != 0
    late = np.argwhere(chosen & (np.cumsum(chosen, 0) > 8))
    assert len(late)
    found = mixture(X, ROUTER, UP, DOWN, queue(2 * T), relu, capacity=8)
    dropped = frozenset((int(t), int(e)) for t, e in late)
    np.testing.assert_allclose(found, by_hand(dropped), rtol=1e-10, atol=1e-12)
    tokens, sizes = plan(top_k(X @ ROUTER, top=2), queue(2 * T), capacity=8)
    assert sizes.max() == 8 and (tokens >= 0).sum() == sizes.sum() == 2 * T - len(late)


def test_torch_eager_compiled_and_its_gradients() -> None:
    torch = pytest.importorskip("torch")
    held = [torch.from_numpy(a).float() for a in (X, ROUTER, UP, DOWN)]
    rows = torch.from_numpy(queue(2 * T))
    run = lambda *ts: mixture(*ts, rows, torch.relu)
    expected = torch.from_numpy(by_hand()).float()
    torch.testing.assert_close(run(*held), expected, rtol=1e-4, atol=1e-4)
    compiled = stack.compile(run, *held, strict=True)
    torch.testing.assert_close(compiled(*held), expected, rtol=1e-4, atol=1e-4)
    assert compiled.run.coverage["hosted"] == 6 and compiled.run.coverage["fallback"] == 0
    double = [t.double().requires_grad_() for t in held]
    torch.autograd.gradcheck(run, double, fast_mode=True)


def test_jax_under_jit_and_its_gradients() -> None:
    jax = pytest.importorskip("jax")
    held = [jax.numpy.asarray(a, "float32") for a in (X, ROUTER, UP, DOWN)]
    rows = jax.numpy.asarray(queue(2 * T))
    run = lambda *xs: mixture(*xs, rows, jax.nn.relu)
    np.testing.assert_allclose(jax.jit(run)(*held), by_hand(), rtol=1e-3, atol=1e-4)
    slopes = jax.jit(jax.grad(lambda *xs: (run(*xs) ** 2).sum(), 3))(*held)
    step = np.zeros_like(DOWN)
    step[1, 2, 3] = 1e-6
    rise = [
        (mixture(X, ROUTER, UP, DOWN + s * step, queue(2 * T), relu) ** 2).sum() for s in (1, -1)
    ]
    np.testing.assert_allclose(slopes[1, 2, 3], (rise[0] - rise[1]) / 2e-6, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(100, 0, 300, 7, 128, 0), (0, 0), (513,)], ids=str)
def test_products_by_expert_on_a_gpu(sizes: tuple[int, ...]) -> None:
    """Experts without rows, tiles in part, and rows of nobody, which are 0."""
    torch = pytest.importorskip("torch")
    rows, count, columns, depth = sum(sizes) + 200, len(sizes), 136, 208
    x = torch.randn(rows, depth, device="cuda")
    weight = torch.randn(count, columns, depth, device="cuda")
    scales = torch.rand(rows, device="cuda"), torch.rand(count, columns, device="cuda")
    each = torch.tensor(sizes, dtype=torch.int32, device="cuda")
    narrow = [t.to(torch.float8_e4m3fn).view(torch.uint8) for t in (x, weight)]
    for op, operands in (
        (grouped_gemm, (x.bfloat16(), weight.bfloat16(), each)),
        (grouped_gemm_fp8, (*narrow, *scales, each)),
    ):
        exact = op(*(o.double().cpu() if o.is_floating_point() else o.cpu() for o in operands))
        found = op(*operands).double().cpu()
        assert torch.equal(found[sum(sizes) :], torch.zeros(200, columns).double())
        assert float((found - exact).norm()) <= 5e-3 * float(exact.norm())


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "told"),
    [
        ("top_k", [(3, 4)], {"top": 5}, "'top' is 5, but 'scores' has 4 experts"),
        ("plan", [(3, 4), (6,)], {"capacity": -1}, "'capacity' is -1"),
        ("dispatch", [(3, 4), (6, 1)], {}, "'tokens' has 2 axes"),
        ("combine", [(6, 4), (3, 2), (6,), (3,)], {}, "axis 'e'.*'sizes'"),
        ("combine", [(6, 4), (3, 2), (5,), (2,)], {}, "axis 's'.*'tokens'"),
        ("grouped_gemm", [(6, 4), (2, 5, 3), (2,)], {}, "axis 'k'.*'weight'"),
        ("grouped_gemm", [(6, 4), (2, 5, 4), (3,)], {}, "axis 'e'.*'sizes'"),
        ("grouped_gemm_fp8", [(6, 4), (2, 5, 4), (6,), (2, 4), (2,)], {}, "'weight_scale'"),
        (
            "grouped_gemm_fp8",
            [(6, 4), (2, 5, 4), (6,), (2, 5), (2,)],
            {"format": "e2m1"},
            "'format'",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], told: str
) -> None:
    op = find(f"moe.{name}")
    kinds = {"queue": "i4", "tokens": "i4", "sizes": "i4"}
    narrow = {"x": "u1", "weight": "u1"} if name.endswith("fp8") else {}
    arrays = [
        np.zeros(s, {**kinds, **narrow}.get(n, "f4"))
        for n, s in zip(op.operands, shapes, strict=True)
    ]
    with pytest.raises(RuleError, match=told):
        op(*arrays, **attributes)
