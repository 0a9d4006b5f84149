"""Hosted operators against the cases that the ONNX package generates, with its expected outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stack.ops.attention import attention, rope, with_bias
from stack.ops.loss import cross_entropy
from stack.ops.norm import layer_norm, rms_norm, softmax
from stack.ops.scan import exclusive, gated, inclusive, linear_attention

pytest.importorskip("onnx")

import onnx
from onnx.backend.test.case.node import collect_testcases

Array = np.ndarray
At = dict[str, Any]


def flat(x: Array, axis: int) -> Array:
    """The axes from `axis` on as one."""
    return x.reshape(*x.shape[: axis % x.ndim], -1)


def of_rms(at: At, x: Array, weight: Array) -> Array:
    axis = at.get("axis", -1)
    made = rms_norm(flat(x, axis), weight.reshape(-1), eps=at.get("epsilon", 1e-5))
    return made.reshape(x.shape)


def of_layer(at: At, x: Array, weight: Array, bias: Array) -> Array:
    axis = at.get("axis", -1)
    operands = flat(x, axis), weight.reshape(-1), bias.reshape(-1)
    return layer_norm(*operands, eps=at.get("epsilon", 1e-5)).reshape(x.shape)


def of_softmax(at: At, x: Array) -> Array:
    axis = at.get("axis", -1)
    return np.moveaxis(softmax(np.moveaxis(x, axis, -1)), -1, axis)


def of_sums(at: At, x: Array, axis: Array) -> Array:
    run = exclusive if at.get("exclusive") else inclusive
    turn = (lambda v: np.flip(v, -1)) if at.get("reverse") else (lambda v: v)
    rows = turn(np.moveaxis(x, int(axis), -1))
    return np.moveaxis(turn(run(rows)), -1, int(axis))


def of_loss(at: At, scores: Array, labels: Array) -> Array:
    ignored = at.get("ignore_index", -100)
    losses = cross_entropy(np.moveaxis(scores, 1, -1), labels, ignore_index=ignored)
    kind = at.get("reduction", b"mean").decode()
    if kind == "none":
        return losses
    return losses.sum() / ((labels != ignored).sum() if kind == "mean" else 1)


def of_rope(at: At, x: Array, cos: Array, sin: Array, place: Array | None = None) -> Array:
    """Tables have a row for each position; features may be packed into one axis."""
    if place is not None:
        cos, sin = cos[place], sin[place]
    packed = x.ndim == 3
    heads = unpacked(x, at["num_heads"]) if packed else x
    made = rope(heads, cos, sin, interleaved=bool(at.get("interleaved")))
    return as_packed(made) if packed else made


def unpacked(x: Array, heads: int) -> Array:
    """[b, n, h d] as [b, h, n, d]."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def as_packed(x: Array) -> Array:
    """The way back."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def of_recurrence(
    at: At,
    q: Array,
    k: Array,
    v: Array,
    past: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> tuple[Array, Array]:
    """Features of heads are packed into one axis; a step may have one rate for all heads."""
    h, g = at["q_num_heads"], at["kv_num_heads"]
    q, k, v = unpacked(q, h), unpacked(k, g), unpacked(v, g)
    steps = k.shape[:-1]
    first = past if past is not None else np.zeros((*steps[:2], k.shape[-1], v.shape[-1]), q.dtype)
    by_step = np.zeros((*steps, 1), q.dtype) if decay is None else unpacked(decay, g)
    rate = np.ones(steps, q.dtype)
    if beta is not None:
        rate = np.broadcast_to(beta.swapaxes(1, 2), steps).astype(q.dtype)
    rule = at.get("update_rule", b"gated_delta").decode()
    call = lambda run: run(
        q, k, v, by_step, rate, first, delta="delta" in rule, scale=at.get("scale", 0.0)
    )
    out, last = call(linear_attention)
    chunked = call(lambda *xs, **at: linear_attention.decomposition(np, *xs, chunk=2, **at))
    for found, expected in zip(chunked, (out, last), strict=True):
        np.testing.assert_allclose(
            found, expected, rtol=1e-2, atol=1e-2 if q.itemsize < 4 else 1e-5
        )
    return as_packed(out), last


def of_attention(
    at: At,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_k: Array | None = None,
    past_v: Array | None = None,
    lengths: Array | None = None,
) -> Array:
    """Masks of all kinds as numbers that are added to scores; past keys come before the others."""
    packed = q.ndim == 3
    if packed:
        groups = at["kv_num_heads"]
        q, k, v = unpacked(q, at["q_num_heads"]), unpacked(k, groups), unpacked(v, groups)
    past = 0
    if past_k is not None and past_v is not None:
        past = past_k.shape[2]
        k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    shape = (*q.shape[:3], k.shape[2])
    known = {"scale": at.get("scale", 0.0), "softcap": at.get("softcap", 0.0)}
    made = with_bias(q, k, v, bias_of(at, mask, shape, past, lengths).astype(q.dtype), **known)
    return as_packed(made) if packed else made


def bias_of(
    at: At, mask: Array | None, shape: tuple[int, ...], past: int, lengths: Array | None
) -> Array:
    """The mask that is added to scores; queries follow the past, or are the last filled keys."""
    bias = np.zeros(shape)
    if mask is not None:
        added = np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask.astype(np.float64)
        room = shape[-1] - added.shape[-1]
        bias = bias + np.pad(added, [(0, 0)] * (added.ndim - 1) + [(0, room)])
    row, column = np.arange(shape[2])[:, None] + past, np.arange(shape[3])
    if lengths is not None:
        row = row + (lengths - shape[2])[:, None, None, None]
        bias = np.where(column < lengths[:, None, None, None], bias, -np.inf)
    left, right = at.get("left_window_size", -1), at.get("right_window_size", -1)
    right = 0 if at.get("is_causal") else right
    hidden = np.zeros(np.broadcast_shapes(row.shape, column.shape), bool)
    if right >= 0:
        hidden = hidden | (column > row + right)
    if left >= 0:
        hidden = hidden | (column < row - left)
    return np.where(hidden, -np.inf, bias)


def of_plain_attention(at: At, q: Array, k: Array, v: Array) -> Array:
    known = {"scale": at.get("scale", 0.0), "softcap": at.get("softcap", 0.0)}
    return attention(q, k, v, causal=bool(at.get("is_causal")), **known)


def is_plain(at: At, inputs: list[Array | None]) -> bool:
    """Heads on an axis of their own; a causal mask of as many keys as queries, where all agree."""
    if len(inputs) != 3 or not at.keys() <= {"is_causal", "scale", "softcap"}:
        return False
    q, k, _ = inputs
    return q.ndim == 4 and (not at.get("is_causal") or q.shape[-2] == k.shape[-2])


MEANINGS: dict[str, Callable[..., Any]] = {
    "Attention": of_attention,
    "CumSum": of_sums,
    "LayerNormalization": of_layer,
    "LinearAttention": of_recurrence,
    "RMSNormalization": of_rms,
    "RotaryEmbedding": of_rope,
    "Softmax": of_softmax,
    "SoftmaxCrossEntropyLoss": of_loss,
}
# how many cases there are at least: without them nothing would be tested
COUNTS = {
    "Attention": 90,
    "CumSum": 7,
    "LayerNormalization": 15,
    "LinearAttention": 14,
    "RMSNormalization": 15,
    "RotaryEmbedding": 8,
    "Softmax": 5,
    "SoftmaxCrossEntropyLoss": 8,
}
NARROW = {"float16": 1e-2, "bfloat16": 2e-2}


def cases(op: str) -> Iterator[tuple[Any, At, list[Array | None], list[Array]]]:
    """The tests of one node whose features the operator has, with attributes and outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    takes = MEANINGS[op].__code__.co_argcount - 1
    for case in found:
        node = case.model.graph.node[0]
        if node.op_type != op or len(case.model.graph.node) > 1 or len(node.input) > takes:
            continue
        inputs, outputs = case.data_sets[0]
        held = iter(inputs)
        at = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        yield case, at, [next(held) if name else None for name in node.input], outputs


@pytest.mark.every(2)
@pytest.mark.parametrize("op", MEANINGS)
def test_values_that_onnx_expects(op: str) -> None:
    count = 0
    for case, at, inputs, outputs in cases(op):
        if inputs[0].dtype.kind in "iu":
            continue
        check(case, MEANINGS[op](at, *inputs), outputs)
        if op == "Attention" and is_plain(at, inputs):
            check(case, of_plain_attention(at, *inputs), outputs)
        count += 1
    assert count >= COUNTS[op]


def check(case: Any, found: Any, outputs: list[Array]) -> None:
    """Results one after the other, as many as the operator has."""
    for made, expected in zip(found if isinstance(found, tuple) else (found,), outputs):
        narrow = NARROW.get(expected.dtype.name, 0)
        np.testing.assert_allclose(
            made.astype(np.float64),
            expected.astype(np.float64),
            rtol=max(case.rtol, narrow),
            atol=max(case.atol, narrow, 1e-6),
            err_msg=case.name,
        )
        assert not math.isnan(float(np.sum(made.astype(np.float64))))


def test_sums_that_the_recurrent_scan_of_onnx_expects() -> None:
    """Cases of `Scan` whose body is a sum: it carries the running sum from a first value."""
    count = 0
    for case in collect_testcases(None):
        if case.name not in ("test_scan9_sum", "test_scan9_scalar"):
            continue
        (initial, x), (last, sums) = case.data_sets[0]
        found = inclusive(np.concatenate([initial[None], x]).reshape(len(x) + 1, -1).T).T[1:]
        np.testing.assert_allclose(found.reshape(sums.shape), sums, rtol=case.rtol)
        np.testing.assert_allclose(found[-1].reshape(last.shape), last, rtol=case.rtol)
        gate = np.ones((len(x), initial.size), x.dtype)
        carried = gated(gate, x.reshape(len(x), -1), initial.reshape(-1))
        np.testing.assert_allclose(carried.reshape(sums.shape), sums, rtol=case.rtol)
        count += 1
    assert count == 2
