"""Hosted operators against the cases that the ONNX package generates, with its expected outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stack.ops.attention import attention
from stack.ops.loss import cross_entropy
from stack.ops.norm import layer_norm, rms_norm, softmax
from stack.ops.scan import exclusive, inclusive

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


def of_attention(at: At, q: Array, k: Array, v: Array) -> Array:
    known = {"scale": at.get("scale", 0.0), "softcap": at.get("softcap", 0.0)}
    return attention(q, k, v, causal=bool(at.get("is_causal")), **known)


def is_attention_of_ours(at: At, q: Array, k: Array, v: Array) -> bool:
    """Heads on an axis of their own; a causal mask of as many keys as queries, where all agree."""
    if not at.keys() <= {"is_causal", "scale", "softcap"}:
        return False
    return q.ndim == 4 and (not at.get("is_causal") or q.shape[-2] == k.shape[-2])


MEANINGS: dict[str, Callable[..., Array]] = {
    "Attention": of_attention,
    "CumSum": of_sums,
    "LayerNormalization": of_layer,
    "RMSNormalization": of_rms,
    "Softmax": of_softmax,
    "SoftmaxCrossEntropyLoss": of_loss,
}
# how many cases there are at least: without them nothing would be tested
COUNTS = {
    "Attention": 8,
    "CumSum": 5,
    "LayerNormalization": 15,
    "RMSNormalization": 15,
    "Softmax": 5,
    "SoftmaxCrossEntropyLoss": 8,
}


def cases(op: str) -> Iterator[tuple[Any, At, list[Array], Array]]:
    """Those of one node and as many operands as the operator has, with its attributes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    takes = MEANINGS[op].__code__.co_argcount - 1
    for case in found:
        node = case.model.graph.node[0]
        inputs, outputs = case.data_sets[0]
        if node.op_type != op or len(case.model.graph.node) > 1 or "" in node.input:
            continue
        at = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if len(inputs) != takes or (op == "Attention" and not is_attention_of_ours(at, *inputs)):
            continue
        yield case, at, inputs, outputs[0]


@pytest.mark.parametrize("op", MEANINGS)
def test_values_that_onnx_expects(op: str) -> None:
    count = 0
    for case, at, inputs, expected in cases(op):
        if inputs[0].dtype.kind != "f":
            continue
        narrow = 1e-2 if inputs[0].dtype == np.float16 else 0
        found = MEANINGS[op](at, *inputs)
        tolerance = {"rtol": max(case.rtol, narrow), "atol": max(case.atol, narrow, 1e-6)}
        np.testing.assert_allclose(found, expected, err_msg=case.name, **tolerance)
        assert not math.isnan(float(np.sum(found)))
        count += 1
    assert count >= COUNTS[op]
