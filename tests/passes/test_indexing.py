"""The rules of canonicalize about gather and scatter, each with its near miss."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

from stack.ir import parse
from stack.rewrite import Pipeline

ROWS = "%x: bf16[4, 50]"
ONE = "%u: f32[4], %v: f32[4, 1]"
# indices have to be in range, for the numerical check too: the places of a line
LINE = "%i = iota() {axis=0} : i64[4]\n"
FILL = "%o = broadcast(%c) {axes=[]} : f32[4, 50]\n"
HERE = """%i = iota() {axis=0} : i64[4]
%p = cast(%i) : i32[4]
%b = broadcast(%p) {axes=[0]} : i32[4, 50]
%l = iota() {axis=0} : i32[50]
%q = broadcast(%l) {axes=[1]} : i32[4, 50]
%e = eq(%b, %q) : bool[4, 50]
"""


def scatter(kind: str, index: str = "%j", updates: str = "%v") -> str:
    return (
        f"%j = reshape(%i) : i64[4, 1]\n%z = scatter(%o, {index}, {updates})"
        f' {{kind="{kind}", rule="a b!, a k, a k -> a b!"}} : f32[4, 50]'
    )


REWRITES: Rewrites = {
    "a cast of what is picked": (
        ROWS,
        LINE + '%w = cast(%x) : f32[4, 50]\n%z = gather(%w, %i) {rule="a b!, a -> a"} : f32[4]',
        LINE + '%g = gather(%x, %i) {rule="a b!, a -> a"} : bf16[4]\n%z = cast(%g) : f32[4]',
    ),
    "a chain with numbers": (
        "%x: f32[4, 50], %s: f32[]",
        LINE + "%w = mul(%x, %s) : f32[4, 50]\n%y = exp(%w) : f32[4, 50]\n"
        '%z = gather(%y, %i) {rule="a b!, a -> a"} : f32[4]',
        LINE + '%g = gather(%x, %i) {rule="a b!, a -> a"} : f32[4]\n'
        "%w = mul(%g, %s) : f32[4]\n%z = exp(%w) : f32[4]",
    ),
    "one update for each row": (
        f"%c: f32[], {ONE}",
        LINE + FILL + scatter("set"),
        HERE + "%r = reshape(%v) : f32[4]\n%d = broadcast(%r) {axes=[0]} : f32[4, 50]\n"
        "%z = select(%e, %d, %c) : f32[4, 50]",
    ),
    "an update that is added": (
        f"%c: f32[], {ONE}",
        LINE + FILL + scatter("add"),
        HERE + "%t = add(%c, %v) : f32[4, 1]\n%r = reshape(%t) : f32[4]\n"
        "%d = broadcast(%r) {axes=[0]} : f32[4, 50]\n%z = select(%e, %d, %c) : f32[4, 50]",
    ),
    "the indexed axis comes first": (
        "%c: f32[], %u: f32[4]",
        LINE + "%o = broadcast(%c) {axes=[]} : f32[50, 4]\n"
        '%z = scatter(%o, %i, %u) {kind="max", rule="b! a, a, a -> b! a"} : f32[50, 4]',
        """%i = iota() {axis=0} : i64[4]
%p = cast(%i) : i32[4]
        %b = broadcast(%p) {axes=[1]} : i32[50, 4]
        %l = iota() {axis=0} : i32[50]
        %q = broadcast(%l) {axes=[0]} : i32[50, 4]
        %e = eq(%b, %q) : bool[50, 4]
        %t = max(%c, %u) : f32[4]
        %d = broadcast(%t) {axes=[1]} : f32[50, 4]
        %z = select(%e, %d, %c) : f32[50, 4]""",
    ),
    "a place for each row, repeated along rows": (
        "%o: f32[4, 50], %v: f32[4, 50]",
        LINE + "%j = broadcast(%i) {axes=[0]} : i64[4, 50]\n"
        '%z = scatter(%o, %j, %v) {kind="add", rule="a! b, k b, k b -> a! b"} : f32[4, 50]',
        LINE + '%z = scatter(%o, %i, %v) {kind="add", rule="a! b, k, k b -> a! b"} : f32[4, 50]',
    ),
    "an element of each row, repeated": (
        "%o: f32[4, 50]",
        LINE + "%j = broadcast(%i) {axes=[0]} : i64[4, 50]\n"
        '%z = gather(%o, %j) {rule="a! b, k b -> k b"} : f32[4, 50]',
        LINE + '%z = gather(%o, %i) {rule="a! b, k -> k b"} : f32[4, 50]',
    ),
    "updates of every element": (
        "%o: f32[4, 50], %v: f32[50, 4]",
        '%z = scatter(%o, %v) {kind="max", rule="a b, b a -> a b"} : f32[4, 50]',
        "%t = transpose(%v) {perm=[1, 0]} : f32[4, 50]\n%z = max(%o, %t) : f32[4, 50]",
    ),
    "every element is set, by updates that repeat": (
        "%o: f32[4, 50], %v: f32[50]",
        "%w = broadcast(%v) {axes=[1]} : f32[4, 50]\n"
        '%s = scatter(%o, %w) {kind="set", rule="a b, a b -> a b"} : f32[4, 50]\n'
        "%z = neg(%s) : f32[4, 50]",
        "%n = neg(%v) : f32[50]\n%z = broadcast(%n) {axes=[1]} : f32[4, 50]",
    ),
    "updates of every element that meet": (
        "%o: f32[4, 50], %v: f32[4, 3, 50]",
        '%z = scatter(%o, %v) {kind="add", rule="a b, a n b -> a b"} : f32[4, 50]',
        '%r = reduce(%v) {axes=[1], kind="sum"} : f32[4, 50]\n%z = add(%o, %r) : f32[4, 50]',
    ),
    "the last of the updates that set every element": (
        "%o: f32[4, 50], %v: f32[4, 3, 50]",
        '%z = scatter(%o, %v) {kind="set", rule="a b, a n b -> a b"} : f32[4, 50]',
        "%s = slice(%v) {limit=[4, 3, 50], start=[0, 2, 0], step=[1, 1, 1]} : f32[4, 1, 50]\n"
        "%z = reshape(%s) : f32[4, 50]",
    ),
    "no updates of every element": (
        "%o: f32[4, 50], %v: f32[4, 0, 50]",
        '%s = scatter(%o, %v) {kind="set", rule="a b, a n b -> a b"} : f32[4, 50]\n'
        "%z = neg(%s) : f32[4, 50]",
        "%z = neg(%o) : f32[4, 50]",
    ),
}

KEPT: Kept = {
    "updates that repeat along an axis of the rows": (
        "%o: f32[4, 50], %i: i64[3], %v: f32[3]",
        "%w = broadcast(%v) {axes=[0]} : f32[3, 50]\n"
        '%z = scatter(%o, %i, %w) {kind="set", rule="a! b, k, k b -> a! b"} : f32[4, 50]',
    ),
    "a place that repeats where updates meet": (
        "%o: f32[4, 50], %v: f32[4, 3, 50]",
        LINE + "%j = broadcast(%i) {axes=[0]} : i64[4, 3]\n"
        '%z = scatter(%o, %j, %v) {kind="add", rule="a! b, k n, k n b -> a! b"} : f32[4, 50]',
    ),
    "a place that repeats in the result": (
        "%o: f32[4, 50]",
        LINE + "%j = broadcast(%i) {axes=[0]} : i64[4, 3]\n"
        '%z = gather(%o, %j) {rule="a! b, k n -> k n b"} : f32[4, 3, 50]',
    ),
    "more is picked than there is": (
        "%x: bf16[2, 3]",
        "%i = iota() {axis=0} : i64[2]\n%w = cast(%x) : f32[2, 3]\n"
        '%z = gather(%w, %i) {rule="a! b, k -> k b"} : f32[2, 3]',
    ),
    "two arrays": (
        "%x: f32[4, 50], %y: f32[4, 50]",
        LINE + '%w = mul(%x, %y) : f32[4, 50]\n%z = gather(%w, %i) {rule="a b!, a -> a"} : f32[4]',
    ),
    "two updates for each row": (
        "%c: f32[], %i: i64[4, 2], %v: f32[4, 2]",
        FILL + '%z = scatter(%o, %i, %v) {kind="add", rule="a b!, a k, a k -> a b!"} : f32[4, 50]',
    ),
    "rows that are summed": (
        "%c: f32[], %i: i64[9], %v: f32[9, 50]",
        FILL + '%z = scatter(%o, %i, %v) {kind="add", rule="a! b, k, k b -> a! b"} : f32[4, 50]',
    ),
    "into an array": (
        "%o: f32[4, 50], %i: i64[4], %v: f32[4]",
        '%z = scatter(%o, %i, %v) {kind="add", rule="a b!, a, a -> a b!"} : f32[4, 50]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("canonicalize", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    check_kept("canonicalize", KEPT[name])


def test_keeps_updates_whose_number_a_call_says() -> None:
    text = """func @f<n in 0..9>(%o: f32[4, 50], %v: f32[4, n, 50]) -> (f32[4, 50]) at tensor {
  %z = scatter(%o, %v) {kind="set", rule="a b, a n b -> a b"} : f32[4, 50]
  return %z
}"""
    func = parse(text)
    assert Pipeline("canonicalize").run(func).func.results == func.results
