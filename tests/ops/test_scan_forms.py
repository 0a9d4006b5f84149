"""Forms of a scan, and the chunkwise family against what its steps mean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stack.ops.scan import delta, gated, gla, linear_attention, retention, rwkv7, selective, ssd
from stack.ops.scan.associative import gate_combine, segment_combine
from stack.ops.scan.chunkwise import inverted
from stack.ops.scan.forms import FORMS, Count

Array = np.ndarray


def log_sum(np: Any, earlier: Any, later: Any) -> Any:
    (top1, sum1), (top2, sum2) = earlier, later
    top = np.maximum(top1, top2)
    return top, sum1 * np.exp(top1 - top) + sum2 * np.exp(top2 - top)


def matrices(np: Any, earlier: Any, later: Any) -> Any:
    """2 x 2 matrices of four numbers each: associative, but not commutative."""
    a, b = earlier, later
    return (
        b[0] * a[0] + b[1] * a[2],
        b[0] * a[1] + b[1] * a[3],
        b[2] * a[0] + b[3] * a[2],
        b[2] * a[1] + b[3] * a[3],
    )


COMBINES = {"gated": (gate_combine, 2), "log_sum": (log_sum, 2), "matrices": (matrices, 4)}


@pytest.mark.every(3)
@pytest.mark.parametrize("length", [1, 2, 16, 37, 64, 100])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", COMBINES)
def test_all_forms_give_the_same(name: str, form: str, length: int) -> None:
    combine, count = COMBINES[name]
    values = tuple(np.random.default_rng(0).uniform(-1, 1, (count, 3, length)))
    expected = FORMS["sequential"](combine, values, Count())
    found = FORMS[form](combine, values, Count())
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_a_segmented_sum_in_all_forms() -> None:
    rng = np.random.default_rng(1)
    starts, x = rng.random(50) < 0.2, rng.standard_normal(50)
    expected = FORMS["sequential"](segment_combine, (starts, x), Count())[1]
    for form in FORMS.values():
        np.testing.assert_allclose(form(segment_combine, (starts, x), Count())[1], expected)


def test_forms_cost_what_they_say() -> None:
    n = 1024
    values = tuple(np.random.default_rng(0).uniform(-1, 1, (2, n)))
    counts = {name: Count() for name in FORMS}
    for name, form in FORMS.items():
        form(gate_combine, values, counts[name])
    assert (counts["sequential"].steps, counts["sequential"].combinations) == (n - 1, n - 1)
    assert counts["doubled"].steps == 10
    assert counts["doubled"].combinations == n * 10 - (n - 1)
    assert counts["blelloch"].steps <= 2 * 10
    assert counts["blelloch"].combinations < 2 * n
    assert counts["chunked"].steps == 15 + 6 + 1
    assert counts["chunked"].combinations < 2 * n + 64 * 6


@pytest.mark.parametrize("seed", range(4))
def test_look_back_does_not_depend_on_who_is_first(seed: int) -> None:
    from stack.ops.scan.forms import look_back

    values = tuple(np.random.default_rng(2).uniform(-1, 1, (2, 130)))
    expected = FORMS["sequential"](gate_combine, values, Count())
    found = look_back(gate_combine, values, Count(), tile=8, seed=seed)
    np.testing.assert_allclose(found[1], expected[1])


# ---- the family


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def keys(*shape: int) -> Array:
    """Keys of length 1."""
    made = draw(*shape, seed=7)
    return made / np.linalg.norm(made, axis=-1, keepdims=True)


Q, K, V, FIRST = draw(2, 150, 8), keys(2, 150, 8), draw(2, 150, 5, seed=1), draw(2, 8, 5, seed=2)
GATE, RATE = -np.abs(draw(2, 150, 8, seed=3)), 1 / (1 + np.exp(draw(2, 150, seed=4)))


def members() -> Iterator[tuple[Any, tuple[Array, ...], dict[str, Any]]]:
    shared = (Q, K, V)
    yield gla, (*shared, GATE, FIRST), {}
    yield gla, (*shared, 40 * GATE, FIRST), {}  # forgets at once: exp(-cumsum) would overflow
    yield retention, (*shared, np.array([-0.1, -0.01]), FIRST), {}
    yield delta, (*shared, RATE, FIRST), {}
    yield linear_attention, (*shared, GATE[..., :1], RATE, FIRST), {"delta": True}
    yield linear_attention, (*shared, GATE, RATE, FIRST), {"delta": True, "scale": 1.0}
    yield rwkv7, (Q, GATE, K, V, -K, K * RATE[..., None], FIRST), {}
    x, dt, a = draw(2, 150, 5), np.abs(draw(2, 150, seed=5)), np.array([-1.0, -0.2])
    yield ssd, (x, dt, a, K[0], Q[0], np.ones(2), FIRST), {}


@pytest.mark.parametrize("chunk", [1, 16, 64, 256])
def test_chunks_give_what_steps_give(chunk: int) -> None:
    for op, arrays, attributes in members():
        expected = op(*arrays, **attributes)
        found = op.decomposition(np, *arrays, **{**op.read(attributes), "chunk": chunk})
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                a, b, rtol=1e-8, atol=1e-8 * np.abs(b).max(), err_msg=op.name
            )


def part_of(x: Array, axes: str, part: slice) -> Array:
    """Some of the steps of an operand that has steps."""
    names = axes.split()
    if "n~" not in names:
        return x
    return x[(..., part, *[slice(None)] * names[::-1].index("n~"))]


def test_a_sequence_may_be_cut_anywhere() -> None:
    for op, arrays, attributes in members():
        rules = op.rule.split("->")[0].split(",")
        halves = [
            [part_of(x, n, part) for x, n in zip(arrays, rules, strict=True)][:-1]
            for part in (slice(None, 60), slice(60, None))
        ]
        whole, last = op(*arrays, **attributes)
        head, state = op(*halves[0], FIRST, **attributes)
        tail, end = op(*halves[1], state, **attributes)
        np.testing.assert_allclose(np.concatenate([head, tail], -2), whole, atol=1e-10)
        np.testing.assert_allclose(end, last, atol=1e-10)


def test_the_members_that_meet() -> None:
    """Without decay GLA is linear attention; at rate 1 the delta rule recalls the last value."""
    out, _ = gla(Q, K, V, np.zeros_like(GATE), FIRST, scale=1.0)
    scores = np.tril(Q @ K.swapaxes(1, 2))
    np.testing.assert_allclose(out, scores @ V + Q @ FIRST, atol=1e-10)
    recalled, _ = delta(K, K, V, np.ones_like(RATE), FIRST, scale=1.0)
    np.testing.assert_allclose(recalled, V, atol=1e-9)
    gated_delta, _ = linear_attention(Q, K, V, GATE[..., :1], RATE, FIRST, delta=True)
    by_rwkv, _ = rwkv7(
        Q * 8**-0.5, np.broadcast_to(GATE[..., :1], K.shape), K * RATE[..., None], V,
        K * np.exp(GATE[..., :1]), -K * RATE[..., None], FIRST,
    )  # fmt: skip
    np.testing.assert_allclose(gated_delta, by_rwkv, atol=1e-10)


def test_the_selective_scan_is_a_gated_scan_of_each_state() -> None:
    rng = np.random.default_rng(0)
    x, dt = rng.standard_normal((9, 3)), rng.random((9, 3))
    a, b, c = -rng.random((3, 2)), rng.standard_normal((9, 2)), rng.standard_normal((9, 2))
    first = np.zeros((3, 2))
    gates = np.exp(dt[..., None] * a).reshape(9, 6)
    inputs = ((dt * x)[..., None] * b[:, None]).reshape(9, 6)
    states = gated(gates, inputs, first.reshape(6)).reshape(9, 3, 2)
    out, last = selective(x, dt, a, b, c, np.zeros(3), first)
    np.testing.assert_allclose(out, (states * c[:, None]).sum(-1))
    np.testing.assert_allclose(last, states[-1])


def test_an_inverse_by_blocks() -> None:
    lower = np.tril(np.random.default_rng(0).uniform(-1, 1, (3, 64, 64)), -1)
    identity = np.broadcast_to(np.eye(64), lower.shape)
    np.testing.assert_allclose((identity - lower) @ inverted(np, lower), identity, atol=1e-7)
