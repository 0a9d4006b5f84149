"""Low-rank additions are what they add up to: a merged weight, adapters by row, weights in NF4."""

from __future__ import annotations

import numpy as np
import pytest

from stack.errors import RuleError
from stack.hosted import find
from stack.ops.lora import linear, multi, qlora
from stack.ops.qgemm import nf4, pack

RNG = np.random.default_rng(0)
X, WEIGHT = RNG.standard_normal((6, 64)), RNG.standard_normal((8, 64))
A, B = RNG.standard_normal((3, 4, 64)), RNG.standard_normal((3, 8, 4))


def test_an_addition_is_a_merged_weight() -> None:
    merged = WEIGHT + 0.5 * B[0] @ A[0]
    np.testing.assert_allclose(linear(X, WEIGHT, A[0], B[0], scale=0.5), X @ merged.T, atol=1e-10)


def test_rows_take_their_own_adapter_or_none() -> None:
    adapter = np.array([0, 2, -1, 1, 0, -1], np.int32)
    found = multi(X, WEIGHT, A, B, adapter, scale=2.0)
    for row, which in enumerate(adapter):
        weight = WEIGHT + (2 * B[which] @ A[which] if which >= 0 else 0)
        np.testing.assert_allclose(found[row], X[row] @ weight.T, atol=1e-10)


def test_weights_in_nf4_with_an_addition() -> None:
    packed = pack.nf4(WEIGHT, 32)
    expected = nf4(X, *packed) + 0.5 * X @ A[0].T @ B[0].T
    np.testing.assert_allclose(qlora(X, *packed, A[0], B[0], scale=0.5), expected, atol=1e-10)


def test_what_learns_is_the_addition() -> None:
    """A start of b = 0 adds nothing, and has a derivative."""
    torch = pytest.importorskip("torch")
    packed, absmax = map(torch.from_numpy, pack.nf4(WEIGHT, 32))
    x, a, b = torch.from_numpy(X), torch.from_numpy(A[0]), torch.zeros(8, 4, dtype=torch.float64)
    for t in (a, b):
        t.requires_grad_()
    found = qlora(x, packed, absmax, a, b)
    torch.testing.assert_close(found, nf4(*(x, packed, absmax)))
    by_a, by_b = torch.autograd.grad((found**2).sum(), [a, b])
    assert not by_a.any() and by_b.abs().min() > 0


@pytest.mark.parametrize(
    ("name", "shapes", "told"),
    [
        ("linear", [(2, 8), (4, 8), (3, 7), (4, 3)], "axis 'k'.*'a'"),
        ("linear", [(2, 8), (4, 8), (3, 8), (4, 2)], "axis 'r'.*'b'"),
        ("multi", [(2, 8), (4, 8), (3, 2, 8), (2, 4, 2), (2,)], "axis 'l'.*'b'"),
        ("multi", [(2, 8), (4, 8), (3, 2, 8), (3, 4, 2), (3,)], "axis 't'.*'adapter'"),
        ("qlora", [(2, 8), (4, 3), (4, 2), (3, 8), (4, 3)], "'packed' has 6 weights"),
        ("qlora", [(2, 8), (4, 4), (4, 3), (3, 8), (4, 3)], "'absmax' has 3 groups"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    name: str, shapes: list[tuple[int, ...]], told: str
) -> None:
    op = find(f"lora.{name}")
    kinds = {"adapter": "i4", "packed": "u1"}
    arrays = [np.zeros(s, kinds.get(n, "f4")) for n, s in zip(op.operands, shapes, strict=True)]
    with pytest.raises(RuleError, match=told):
        op(*arrays)
