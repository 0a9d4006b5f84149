"""Products with a diagonal matrix are no products; others stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

V, B = "%v: f32[6]", "%b: f32[6, 4]"
LINES = (
    "%i = iota() {axis=0} : i64[6]\n%r = broadcast(%i) {axes=[0]} : i64[6, 6]\n"
    "%c = broadcast(%i) {axes=[1]} : i64[6, 6]\n%q = eq(%r, %c) : bool[6, 6]\n"
)
MATRIX = LINES + (
    "%w = broadcast(%v) {axes=[1]} : f32[6, 6]\n%d = select(%q, %w, 0.0:f32) : f32[6, 6]\n"
)
ROWS = '%z = dot(%d, %b) {rule="i k, k n -> i n"} : f32[6, 4]'

REWRITES: Rewrites = {
    "rows": (
        f"{V}, {B}",
        MATRIX + ROWS,
        "%w = broadcast(%v) {axes=[0]} : f32[6, 4]\n%z = mul(%w, %b) : f32[6, 4]",
    ),
    "rows, by values of the other axis": (
        f"{V}, {B}",
        MATRIX.replace("%w = broadcast(%v) {axes=[1]}", "%w = broadcast(%v) {axes=[0]}") + ROWS,
        "%w = broadcast(%v) {axes=[0]} : f32[6, 4]\n%z = mul(%w, %b) : f32[6, 4]",
    ),
    "columns": (
        f"{V}, %b: f32[4, 6]",
        MATRIX + '%z = dot(%b, %d) {rule="m k, k i -> m i"} : f32[4, 6]',
        "%w = broadcast(%v) {axes=[1]} : f32[4, 6]\n%z = mul(%w, %b) : f32[4, 6]",
    ),
    "the result in another order": (
        f"{V}, {B}",
        MATRIX + ROWS.replace("-> i n", "-> n i").replace("f32[6, 4]", "f32[4, 6]"),
        "%w = broadcast(%v) {axes=[1]} : f32[4, 6]\n"
        "%t = transpose(%b) {perm=[1, 0]} : f32[4, 6]\n%z = mul(%w, %t) : f32[4, 6]",
    ),
    "a vector": (
        f"{V}, %b: f32[6]",
        MATRIX + '%z = dot(%d, %b) {rule="i k, k -> i"} : f32[6]',
        "%z = mul(%v, %b) : f32[6]",
    ),
    "ones": (B, LINES + "%d = cast(%q) : f32[6, 6]\n" + ROWS, "%b"),
    "a batch": (
        "%v: f32[3, 6], %b: f32[3, 6, 4]",
        LINES + "%p = broadcast(%q) {axes=[1, 2]} : bool[3, 6, 6]\n"
        "%w = broadcast(%v) {axes=[0, 2]} : f32[3, 6, 6]\n"
        "%d = select(%p, %w, 0.0:f32) : f32[3, 6, 6]\n"
        '%z = dot(%d, %b) {rule="a i k, a k n -> a i n"} : f32[3, 6, 4]',
        "%w = broadcast(%v) {axes=[0, 1]} : f32[3, 6, 4]\n%z = mul(%w, %b) : f32[3, 6, 4]",
    ),
}
KEPT: Kept = {
    "a triangle": (f"{V}, {B}", MATRIX.replace("eq(", "ge(") + ROWS),
    "a diagonal beside the main one": (
        f"{V}, {B}",
        MATRIX.replace("%q = eq(%r,", "%o = add(%r, 1:i64) : i64[6, 6]\n%q = eq(%o,") + ROWS,
    ),
    "ones beside the diagonal": (f"{V}, {B}", MATRIX.replace("0.0:f32", "1.0:f32") + ROWS),
    "values of both axes": (
        f"%v: f32[6, 6], {B}",
        LINES + "%d = select(%q, %v, 0.0:f32) : f32[6, 6]\n" + ROWS,
    ),
    "an index that is data": (
        f"{V}, {B}, %i: i64[6]",
        MATRIX.replace("%i = iota() {axis=0} : i64[6]\n", "").replace(
            "%c = broadcast(%i)", "%u = iota() {axis=0} : i64[6]\n%c = broadcast(%u)"
        )
        + ROWS,
    ),
    "small integers, which wrap": (f"{V}, {B}", MATRIX.replace("i64", "i8") + ROWS),
}


@pytest.mark.parametrize("name", REWRITES)
def test_scales(name: str) -> None:
    params, before, after = REWRITES[name]
    # what is off the diagonal counts as nothing, of infinities and nan too
    check_rewrite("decompose,canonicalize", (params, before, after), ("plain", "ties"))


@pytest.mark.parametrize("name", KEPT)
def test_stays_a_product(name: str) -> None:
    check_kept("decompose", KEPT[name])
