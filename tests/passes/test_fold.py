"""fold: what is computed at compile time, and what stays a formula."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

P = "%x: f32[2]"
C = "%c = const() {value=data<f32[2], [1.0, 2.0]>} : f32[2]\n"
D = "%d = const() {value=data<f32[2], [3.0, 5.0]>} : f32[2]\n"

REWRITES: Rewrites = {
    "constant arrays": (
        P,
        C + D + "%z = add(%c, %d) : f32[2]",
        "%z = const() {value=data<f32[2], [4.0, 7.0]>} : f32[2]",
    ),
    "a scalar": (
        P,
        "%z = exp(0.0:f32) : f32[]",
        "%z = const() {value=data<f32[], [1.0]>} : f32[]",
    ),
    "a reduction": (
        P,
        C + '%z = reduce(%c) {axes=[0], kind="sum"} : f32[]',
        "%z = const() {value=data<f32[], [3.0]>} : f32[]",
    ),
    "through a broadcast": (
        P,
        C + "%b = broadcast(2.0:f32) {axes=[]} : f32[2]\n%z = mul(%c, %b) : f32[2]",
        "%z = const() {value=data<f32[2], [2.0, 4.0]>} : f32[2]",
    ),
    "a short iota": (
        P,
        "%i = iota() {axis=0} : i64[4]\n%z = mul(%i, 2:i64) : i64[4]",
        "%z = const() {value=data<i64[4], [0, 2, 4, 6]>} : i64[4]",
    ),
    "no elements": (
        "%p: f32[0, 3]",
        "%z = add(%p, %p) : f32[0, 3]",
        "%z = const() {value=data<f32[0, 3], []>} : f32[0, 3]",
    ),
    "an iota of none": (
        P,
        "%z = iota() {axis=0} : i32[0]",
        "%z = const() {value=data<i32[0], []>} : i32[0]",
    ),
    "padding around no elements": (
        "%p: f32[0, 3], %v: f32[]",
        "%z = pad(%p, %v) {high=[1, 0], interior=[1, 0], low=[2, 1]} : f32[3, 4]",
        "%z = broadcast(%v) {axes=[]} : f32[3, 4]",
    ),
    "the largest of none": (
        "%p: f32[0, 3]",
        '%z = reduce(%p) {axes=[0], kind="max"} : f32[3]',
        "%z = broadcast(-inf:f32) {axes=[]} : f32[3]",
    ),
    "a sum of none": (
        "%p: i32[0]",
        '%z = reduce(%p) {axes=[0], kind="sum"} : i32[]',
        "%z = const() {value=data<i32[], [0]>} : i32[]",
    ),
    "a product over none": (
        "%p: f32[2, 0], %q: f32[0, 3]",
        '%z = dot(%p, %q) {rule="m k, k n -> m n"} : f32[2, 3]',
        "%z = broadcast(0.0:f32) {axes=[]} : f32[2, 3]",
    ),
    "a concatenation with none": (
        "%x: f32[2], %p: f32[0], %y: f32[3]",
        "%z = concat(%x, %p, %y) {axis=0} : f32[5]",
        "%z = concat(%x, %y) {axis=0} : f32[5]",
    ),
    "one other part": (
        "%p: f32[0], %y: f32[3]",
        "%c = concat(%p, %y) {axis=0} : f32[3]\n%z = neg(%c) : f32[3]",
        "%z = neg(%y) : f32[3]",
    ),
    "updates of none": (
        "%x: f32[4, 3], %i: i64[0], %u: f32[0, 3]",
        '%s = scatter(%x, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[4, 3]\n'
        "%z = neg(%s) : f32[4, 3]",
        "%z = neg(%x) : f32[4, 3]",
    ),
}
KEPT: Kept = {
    "padding around one element": (
        "%x: f32[1]",
        "%z = pad(%x, 0.0:f32) {high=[1], interior=[0], low=[0]} : f32[2]",
    ),
    "parts with elements": ("%x: f32[2], %y: f32[1]", "%z = concat(%x, %y) {axis=0} : f32[3]"),
    "a sum of one": ("%x: f32[1, 3]", '%z = reduce(%x) {axes=[0], kind="sum"} : f32[3]'),
    "a parameter": (P, C + "%z = add(%x, %c) : f32[2]"),
    "a table computed from an iota": (
        P,
        "%i = iota() {axis=0} : i64[1000]\n%z = mul(%i, 2:i64) : i64[1000]",
    ),
    "a result larger than its operands": (
        P,
        C + "%z = pad(%c, 0.0:f32) {high=[998], interior=[0], low=[0]} : f32[1000]",
    ),
    "a broadcast": (P, "%z = broadcast(2.0:f32) {axes=[]} : f32[2]"),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("fold", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_kept("fold", KEPT[name])


def test_max_elements() -> None:
    params, before, _ = REWRITES["a short iota"]
    check_kept("fold{max_elements=3}", (params, before))
    # no larger than the arrays that it is computed from
    check_rewrite("fold{max_elements=1}", REWRITES["constant arrays"])


def test_max_work() -> None:
    params, before, _ = REWRITES["constant arrays"]
    check_kept("fold{max_work=3}", (params, before))
    check_rewrite("fold{max_work=4}", REWRITES["constant arrays"])
