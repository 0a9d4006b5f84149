"""Adjacent axes of a reduction become one before streams are looked for."""

from __future__ import annotations

import numpy as np
import pytest
from rule_cases import func

from stack.ir import parse
from stack.passes.streaming.reduced_axes import merge_reduced_axes
from stack.target import as_gpu

torch = pytest.importorskip("torch")
GPU = as_gpu(None)
ROW = 32769


def merged(params: str, lines: str) -> tuple[bool, str]:
    before = func(params, lines)
    block = merge_reduced_axes(before.body, GPU, ROW, lambda _: True)
    return block is not before.body, str(type(before)(before.name, block, before.level))


REWRITES = {
    "an image": (
        "%x: f32[7168, 512, 512]",
        '%z = reduce(%x) {axes=[1, 2], kind="sum"} : f32[7168]',
        """%r = reshape(%x) : f32[7168, 262144]
        %z = reduce(%r) {axes=[1], kind="sum"} : f32[7168]""",
    ),
    "values of the same elements": (
        "%x: f32[7168, 512, 512]",
        """%e = exp(%x) : f32[7168, 512, 512]
        %z = reduce(%e) {axes=[1, 2], kind="sum"} : f32[7168]""",
        """%r = reshape(%x) : f32[7168, 262144]
        %e = exp(%r) : f32[7168, 262144]
        %z = reduce(%e) {axes=[1], kind="sum"} : f32[7168]""",
    ),
    "columns": (
        "%x: f32[16, 512, 512, 64]",
        '%z = reduce(%x) {axes=[1, 2], kind="max"} : f32[16, 64]',
        """%r = reshape(%x) : f32[16, 262144, 64]
        %z = reduce(%r) {axes=[1], kind="max"} : f32[16, 64]""",
    ),
    "an axis of one element between": (
        "%x: f32[7168, 512, 1, 512]",
        '%z = reduce(%x) {axes=[1, 3], kind="sum"} : f32[7168, 1]',
        """%r = reshape(%x) : f32[7168, 262144]
        %y = reduce(%r) {axes=[1], kind="sum"} : f32[7168]
        %z = reshape(%y) : f32[7168, 1]""",
    ),
}
KEPT = {
    "axes that are not adjacent": (
        "%x: f32[512, 7168, 512]",
        '%z = reduce(%x) {axes=[0, 2], kind="sum"} : f32[7168]',
    ),
    "a row that registers hold": (
        "%x: f32[7168, 16, 16]",
        '%z = reduce(%x) {axes=[1, 2], kind="sum"} : f32[7168]',
    ),
    "one axis": ("%x: f32[16, 262144]", '%z = reduce(%x) {axes=[1], kind="sum"} : f32[16]'),
    "all axes": ("%x: f32[512, 512]", '%z = reduce(%x) {axes=[0, 1], kind="sum"} : f32[]'),
}


@pytest.mark.parametrize("name", REWRITES)
def test_merged(name: str) -> None:
    params, before, after = REWRITES[name]
    changed, text = merged(params, before)
    assert changed
    assert parse(text).results == func(params, after).results, text


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    params, lines = KEPT[name]
    changed, text = merged(params, lines)
    assert not changed, text


def test_without_leave_nothing_is_merged() -> None:
    before = func(*REWRITES["an image"][:2])
    assert merge_reduced_axes(before.body, GPU, ROW, lambda _: False) is before.body


def test_values_stay(rng: np.random.Generator) -> None:
    before = func(
        "%x: f32[3, 256, 256]",
        """%m = reduce(%x) {axes=[1, 2], kind="max"} : f32[3]
        %b = broadcast(%m) {axes=[0]} : f32[3, 256, 256]
        %s = sub(%x, %b) : f32[3, 256, 256]
        %z = exp(%s) : f32[3, 256, 256]""",
    )
    block = merge_reduced_axes(before.body, GPU, ROW, lambda _: True)
    assert block is not before.body
    after = type(before)(before.name, block, before.level)
    x = rng.standard_normal((3, 256, 256)).astype(np.float32)
    np.testing.assert_array_equal(after.interpret(x), before.interpret(x))
