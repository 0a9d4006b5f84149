"""`%` and `//` in decompositions: NumPy's signs in NumPy, torch, JAX and compiled code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack
from stack.hosted import op
from stack.ops.attention import Program, variant

torch = pytest.importorskip("torch")

INF, NAN = np.inf, np.nan
FLOATS = (
    np.array([-4, -1, 2, 5, -0.0, 0.0, 7.5, -7.5, INF, -INF, NAN, 1e8, -3, 3, 0.3, -0.3]),
    np.array([3, -3, -0.5, 2.5, 3, -3, 0.0, -0.0, 2, 2, 1, 0.1, 3, -3, 0.1, 0.1]),
)
INTEGERS = (
    np.array([-7, 7, -7, 7, 0, 5, -8, 6, -128, 1]),
    np.array([3, -3, -3, 3, -2, 0, 2, -2, -1, 7]),
)
KINDS = ("float32", "float64", "int32", "int64", "int8", "uint8")


@op("rest.pairs", rule="... a: any, ... a: any -> ... a, ... a, ... a, ... a, ... a")
def pairs(np: Any, x: Any, y: Any) -> Any:
    """The pairs of elements of two arrays."""
    return (x % y, x // y, *divmod(x, y), np.fmod(x, y))


@op("rest.numbers", rule="... a: any -> ... a, ... a, ... a, ... a, ... a")
def numbers(np: Any, x: Any) -> Any:
    """Beside a number."""
    return x % 3, 7 % x, x // 3, 7 // x, divmod(7, x)[1]


def operands(kind: str) -> list[np.ndarray]:
    given = FLOATS if kind.startswith("float") else INTEGERS
    return [(np.abs(a) if kind == "uint8" else a).astype(kind) for a in given]


def same(found: Any, want: np.ndarray) -> None:
    found = np.asarray(found)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)
    known = ~np.isnan(want) if want.dtype.kind == "f" else np.zeros(want.shape, bool)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(want[known]))


@pytest.mark.each
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("declared", [pairs, numbers], ids=lambda d: d.name)
def test_signs_are_numpys(declared: Any, kind: str) -> None:
    arrays = operands(kind)[: 2 if declared is pairs else 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = declared.decomposition(np, *arrays)
    tensors = [torch.tensor(a) for a in arrays]
    calls: list[Callable[[], Any]] = [
        lambda: declared(*tensors),
        lambda: stack.compile(lambda *t: declared(*t), *tensors)(*tensors),
    ]
    for call in calls:
        for found, expected in zip(call(), want, strict=True):
            same(found.numpy(), expected)
    if not kind.endswith("64"):
        jnp = pytest.importorskip("jax.numpy")
        for found, expected in zip(declared(*map(jnp.asarray, arrays)), want, strict=True):
            same(found, expected)


def test_gradients_of_remainders() -> None:
    @op("rest.scaled", rule="... a -> ... a")
    def scaled(np: Any, x: Any) -> Any:
        """A remainder that is scaled."""
        return (x % 3.0) * 2.0

    x = torch.tensor([-4.0, -1.0, 2.0, 5.0], requires_grad=True)
    scaled(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 4


def test_masks_by_remainders() -> None:
    """Distances before the query are negative: every third key is hidden on both sides."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    line = torch.arange(16)
    distance = line[:, None] - line
    masks: list[tuple[str, Any, Any]] = [
        ("rem", lambda np, p: (p.row - p.column) % 3 != 1, distance % 3 != 1),
        ("div", lambda np, p: (p.row - p.column) // 4 == -1, distance // 4 == -1),
        ("minus", lambda np, p: (p.row - p.column) % -3 == -2, distance % -3 == -2),
    ]
    for name, mask, seen in masks:
        attend = variant(f"rest.by_{name}", Program(mask=mask), name)
        scores = (q.double() @ k.double().mT / 8**0.5).masked_fill(~seen, -torch.inf)
        want = (scores.softmax(-1).nan_to_num(0.0) @ v.double()).float()
        torch.testing.assert_close(attend(q, k, v), want)
        found = stack.compile(lambda *t, attend=attend: attend(*t), q, k, v)(q, k, v)
        torch.testing.assert_close(found, want)
