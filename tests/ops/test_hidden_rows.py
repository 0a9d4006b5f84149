"""Attention of queries that see no key: 0, and no gradient, in every variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stack
from stack.ops import attention as ops
from stack.ops.attention import Program, variant

torch = pytest.importorskip("torch")

INF = float("inf")
SEES = Program(mask=lambda np, p: p.row >= 3)
late = variant("hidden.mask", SEES, "Queries from the fourth on see keys.")
scored = variant(
    "hidden.score",
    Program(score=lambda np, score, p: np.where(p.row >= 3, score, -np.inf)),
    "The same by scores.",
)
sunk = variant(
    "hidden.sink",
    Program({"sinks": "h"}, mask=lambda np, p, _: p.row >= 3, sink=lambda np, sinks: sinks),
    "The same beside a score of nothing.",
)


def integers(values: Any) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def cases(dtype: Any) -> dict[str, tuple[Any, tuple[Any, ...], list[int]]]:
    """An operator, its operands, and the queries that see nothing."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 7, 4, dtype=dtype) for _ in range(3))
    bias = torch.zeros(1, 2, 7, 7, dtype=dtype)
    bias[:, :, 3] = -INF
    lowest = torch.zeros(1, 2, 7, 7, dtype=dtype)
    lowest[:, :, 3] = torch.finfo(dtype).min  # finite: all keys have the same weight
    few = k[:, :, :5], v[:, :, :5]
    return {
        "prefix": (ops.with_prefix, (q, k[:, :, :1], v[:, :, :1], integers([0])), list(range(6))),
        "prefix of more": (ops.with_prefix, (q, *few, integers([0])), [0, 1]),
        "tree": (ops.with_tree, (q, *few, integers([[5] * 5])), [0, 1]),
        "bias": (ops.with_bias, (q, k, v, bias), [3]),
        "low bias": (ops.with_bias, (q, k, v, lowest), []),
        "documents": (
            ops.with_documents,
            (q, k, v, integers([[1, 1, 2, 5, 3, 3, 3]]), integers([[1, 1, 2, 2, 3, 3, 3]])),
            [3],
        ),
        "mask": (late, (q, k, v), [0, 1, 2]),
        "score": (scored, (q, k, v), [0, 1, 2]),
        "sink": (sunk, (q, k, v, torch.ones(2, dtype=dtype)), [0, 1, 2]),
    }


KINDS = [(name, torch.float32) for name in cases(torch.float32)] + [
    (name, dtype) for name in ("prefix", "mask") for dtype in (torch.float64, torch.bfloat16)
]


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "dtype"), KINDS, ids=str)
def test_what_sees_nothing_is_zero(name: str, dtype: Any) -> None:
    made, operands, hidden = cases(dtype)[name]

    def program(*args: Any) -> Any:
        return made(*args)

    def gradients(call: Callable[..., Any]) -> tuple[Any, list[Any]]:
        given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in operands]
        out = call(*given)
        out.square().sum().backward()
        return out.detach(), [x.grad for x in given if x.is_floating_point()]

    want, grads = gradients(program)
    assert not want[:, :, hidden].any()
    assert want.isfinite().all()
    assert all(g.isfinite().all() for g in grads)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    arrays = [
        x.float() if dtype is torch.bfloat16 and x.is_floating_point() else x for x in operands
    ]
    by_tiles = made.reference(*(a.numpy() for a in arrays), **defaults(made))
    torch.testing.assert_close(want.to(arrays[0].dtype), torch.tensor(by_tiles), **close)
    torch._dynamo.reset()
    found, own = gradients(torch.compile(program, backend="stack", fullgraph=True))
    torch.testing.assert_close(found, want, **close)
    for a, b in zip(own, grads, strict=True):
        torch.testing.assert_close(a, b, **(close or {"rtol": 1e-4, "atol": 1e-5}))
    if name in ("prefix", "bias", "sink"):
        forward = stack.compile(program, *operands)(*operands)
        torch.testing.assert_close(forward, want, **close)


def defaults(made: Any) -> dict[str, Any]:
    causal = made in (ops.with_documents,)
    return {"causal": causal, "window": 0, "softcap": 0.0, "scale": 0.0}


def test_shares_without_keys_merge_to_nothing() -> None:
    outs, lses = torch.zeros(3, 2, 4), torch.full((3, 2), -INF)
    outs[1, 0], lses[1, 0] = 2.0, 0.5
    for call in (ops.merge, stack.compile(lambda *t: ops.merge(*t), outs, lses)):
        out, lse = call(outs, lses)
        assert out.tolist() == [[0.0] * 4, [2.0] * 4, [0.0] * 4]
        assert lse.tolist() == [-INF, 0.5, -INF]
    out, lse = ops.merge(outs.numpy(), lses.numpy())
    assert out.tolist() == [[0.0] * 4, [2.0] * 4, [0.0] * 4]
    assert lse.tolist() == [-INF, 0.5, -INF]
