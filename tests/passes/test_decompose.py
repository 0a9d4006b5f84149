"""decompose, rule by rule: rare forms spelled with common ops, and forms that stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

X, DOT = "%x: f32[4]", "%x: f32[4, 3], %y: f32[3, 5]"
IMAGE = "%x: f32[1, 3, 8, 8], %w: f32[5, 3, 4, 4]"


def conv(
    shape: str, w: str = "%w", stride: int = 4, low: int = 0, groups: int = 1, dilation: int = 1
) -> str:
    return (
        f"%z = conv(%x, {w}) {{groups={groups}, high=[0, 0], lhs_dilation=[1, 1],"
        f" low=[{low}, {low}], rhs_dilation=[{dilation}, {dilation}],"
        f" stride=[{stride}, {stride}]}} : {shape}"
    )


REWRITES: Rewrites = {
    "x ** 0": (
        X,
        "%z = pow(%x, 0.0:f32) : f32[4]",
        "%z = broadcast(1.0:f32) {axes=[]} : f32[4]",
    ),
    "x ** 1": (X, "%z = pow(%x, 1.0:f32) : f32[4]", "%x"),
    "x ** 2": (X, "%z = pow(%x, 2.0:f32) : f32[4]", "%z = mul(%x, %x) : f32[4]"),
    "x ** 3": (
        X,
        "%z = pow(%x, 3.0:f32) : f32[4]",
        "%a = mul(%x, %x) : f32[4]\n%z = mul(%a, %x) : f32[4]",
    ),
    "x ** -1": (
        X,
        "%z = pow(%x, -1.0:f32) : f32[4]",
        "%a = broadcast(1.0:f32) {axes=[]} : f32[4]\n%z = div(%a, %x) : f32[4]",
    ),
    "isnan": (X, "%z = isnan(%x) : bool[4]", "%z = ne(%x, %x) : bool[4]"),
    "1 + tanh(x)": (
        X,
        "%t = tanh(%x) : f32[4]\n%z = add(%t, 1.0:f32) : f32[4]",
        "%a = mul(%x, 2.0:f32) : f32[4]\n%s = sigmoid(%a) : f32[4]\n%z = mul(%s, 2.0:f32) : f32[4]",
    ),
    "an axis of one operand alone": (
        "%x: f32[4, 2, 3], %y: f32[3, 5]",
        '%z = dot(%x, %y) {rule="a b c, c m -> a m"} : f32[4, 5]',
        '%a = reduce(%x) {axes=[1], kind="sum"} : f32[4, 3]\n'
        '%z = dot(%a, %y) {rule="a c, c m -> a m"} : f32[4, 5]',
    ),
    "an outer product": (
        "%x: f32[4], %y: f32[3]",
        '%z = dot(%x, %y) {rule="a, b -> a b"} : f32[4, 3]',
        "%a = broadcast(%x) {axes=[0]} : f32[4, 3]\n"
        "%b = broadcast(%y) {axes=[1]} : f32[4, 3]\n"
        "%z = mul(%a, %b) : f32[4, 3]",
    ),
    "a product by element": (
        "%x: f32[4, 3], %y: f32[3, 4]",
        '%z = dot(%x, %y) {rule="a b, b a -> a b"} : f32[4, 3]',
        "%a = transpose(%y) {perm=[1, 0]} : f32[4, 3]\n%z = mul(%x, %a) : f32[4, 3]",
    ),
    "updates of 16 bits that may collide": (
        "%x: bf16[4, 3], %i: i64[5], %u: bf16[5, 3]",
        '%z = scatter(%x, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : bf16[4, 3]',
        "%a = cast(%x) : f32[4, 3]\n"
        "%b = cast(%u) : f32[5, 3]\n"
        '%c = scatter(%a, %i, %b) {kind="add", rule="v! d, n, n d -> v! d"} : f32[4, 3]\n'
        "%z = cast(%c) : bf16[4, 3]",
    ),
    "patches": (
        IMAGE,
        conv("f32[1, 5, 2, 2]"),
        "%a = reshape(%x) : f32[1, 3, 2, 4, 2, 4]\n"
        '%z = dot(%a, %w) {rule="n c p0 t0 p1 t1, o c t0 t1 -> n o p0 p1"} : f32[1, 5, 2, 2]',
    ),
}
KEPT: Kept = {
    "updates of 32 bits": (
        "%x: f32[4, 3], %i: i64[5], %u: f32[5, 3]",
        '%z = scatter(%x, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[4, 3]',
    ),
    "the largest of 16 bits": (
        "%x: bf16[4, 3], %i: i64[5], %u: bf16[5, 3]",
        '%z = scatter(%x, %i, %u) {kind="max", rule="v! d, n, n d -> v! d"} : bf16[4, 3]',
    ),
    "2 + tanh(x)": (X, "%t = tanh(%x) : f32[4]\n%z = add(%t, 2.0:f32) : f32[4]"),
    "a tanh that more read": (
        X,
        "%t = tanh(%x) : f32[4]\n%a = add(%t, 1.0:f32) : f32[4]\n%z = mul(%a, %t) : f32[4]",
    ),
    "1 + tanh of 16 bits": (
        "%x: bf16[4]",
        "%t = tanh(%x) : bf16[4]\n%z = add(%t, 1.0:bf16) : bf16[4]",
    ),
    "x ** 4": (X, "%z = pow(%x, 4.0:f32) : f32[4]"),
    "x ** 0.5": (X, "%z = pow(%x, 0.5:f32) : f32[4]"),
    "x ** y": ("%x: f32[4], %y: f32[4]", "%z = pow(%x, %y) : f32[4]"),
    "2 ** x": (X, "%z = pow(2.0:f32, %x) : f32[4]"),
    "integer ** -1": ("%x: i32[4]", "%z = pow(%x, -1:i32) : i32[4]"),
    "a plain dot": (DOT, '%z = dot(%x, %y) {rule="a c, c m -> a m"} : f32[4, 5]'),
    "a sum that 16 bits would round": (
        "%x: bf16[4, 2, 3], %y: bf16[3, 5]",
        '%z = dot(%x, %y) {rule="a b c, c m -> a m"} : bf16[4, 5]',
    ),
    "an outer product into a wider type": (
        "%x: bf16[4], %y: bf16[3]",
        '%z = dot(%x, %y) {rule="a, b -> a b"} : f32[4, 3]',
    ),
    "windows overlap": (IMAGE, conv("f32[1, 5, 3, 3]", stride=2)),
    "padded": (
        "%x: f32[1, 3, 8, 8], %w: f32[5, 3, 3, 3]",
        conv("f32[1, 5, 3, 3]", stride=3, low=1),
    ),
    "a rest at the border": (
        "%x: f32[1, 3, 9, 9], %w: f32[5, 3, 4, 4]",
        conv("f32[1, 5, 2, 2]"),
    ),
    "groups": ("%x: f32[1, 4, 8, 8], %w: f32[6, 2, 4, 4]", conv("f32[1, 6, 2, 2]", groups=2)),
    "holes in the window": (
        "%x: f32[1, 3, 8, 8], %w: f32[5, 3, 2, 2]",
        conv("f32[1, 5, 3, 3]", stride=2, dilation=2),
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("decompose", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_kept("decompose", KEPT[name])
