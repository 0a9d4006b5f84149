"""exchange: sums of products in another order, and which sums have none."""

from __future__ import annotations

import pytest
from rule_cases import check_kept, check_rewrite

FINITE = ("plain", "ties")  # another order of a sum: infinities meet where they did not
P = "%p: f32[3, 5, 7], %b: f32[3, 5, 4], %c: f32[3, 7, 4]"
SUM = '{axes=[2], kind="sum"} : f32[3, 5]'
TABLE = '%t = dot(%b, %c) {rule="a m n, a k n -> a m k"} : f32[3, 5, 7]\n'
MEAN = '%o = dot(%p, %c) {rule="a m k, a k n -> a m n"} : f32[3, 5, 4]\n'
ROWS = '%l = reduce(%o) {axes=[2], kind="sum"} : f32[3, 5]\n'
BOTH = "%z = add(%s, %l) : f32[3, 5]"
SWAPPED = "%v = mul(%b, %o) : f32[3, 5, 4]\n%s = reduce(%v) " + SUM + "\n"

EXCHANGED = {
    "plain": (
        P,
        MEAN + TABLE + f"%u = mul(%p, %t) : f32[3, 5, 7]\n%s = reduce(%u) {SUM}\n" + ROWS + BOTH,
        MEAN + SWAPPED + ROWS + BOTH,
    ),
    "the table first, and its right operand transposed in memory": (
        P,
        MEAN
        + "%x = transpose(%c) {perm=[0, 2, 1]} : f32[3, 4, 7]\n"
        + '%t = dot(%b, %x) {rule="a m n, a n k -> a m k"} : f32[3, 5, 7]\n'
        + f"%u = mul(%t, %p) : f32[3, 5, 7]\n%s = reduce(%u) {SUM}\n"
        + ROWS
        + BOTH,
        MEAN + SWAPPED + ROWS + BOTH,
    ),
    "axes of the other product in another order": (
        P,
        '%o = dot(%p, %c) {rule="a m k, a k n -> m n a"} : f32[5, 4, 3]\n'
        + TABLE
        + f"%u = mul(%p, %t) : f32[3, 5, 7]\n%s = reduce(%u) {SUM}\n"
        + '%k = reduce(%o) {axes=[1], kind="sum"} : f32[5, 3]\n'
        + "%l = transpose(%k) {perm=[1, 0]} : f32[3, 5]\n"
        + BOTH,
        '%o = dot(%p, %c) {rule="a m k, a k n -> m n a"} : f32[5, 4, 3]\n'
        + "%y = transpose(%o) {perm=[2, 0, 1]} : f32[3, 5, 4]\n"
        + f"%v = mul(%b, %y) : f32[3, 5, 4]\n%s = reduce(%v) {SUM}\n"
        + '%k = reduce(%o) {axes=[1], kind="sum"} : f32[5, 3]\n'
        + "%l = transpose(%k) {perm=[1, 0]} : f32[3, 5]\n"
        + BOTH,
    ),
}
EXCHANGED["axes of one element"] = (
    "%p: f32[3, 1, 5, 7], %b: f32[3, 5, 1, 4], %c: f32[3, 7, 4]",
    "%q = reshape(%p) : f32[3, 5, 7]\n"
    "%d = reshape(%b) : f32[3, 5, 4]\n"
    '%o = dot(%q, %c) {rule="a m k, a k n -> a m n"} : f32[3, 5, 4]\n'
    '%t = dot(%d, %c) {rule="a m n, a k n -> a m k"} : f32[3, 5, 7]\n'
    "%w = reshape(%t) : f32[3, 1, 5, 7]\n"
    "%u = mul(%p, %w) : f32[3, 1, 5, 7]\n"
    '%s = reduce(%u) {axes=[3], kind="sum"} : f32[3, 1, 5]\n'
    '%l = reduce(%o) {axes=[2], kind="sum"} : f32[3, 5]\n'
    "%r = reshape(%l) : f32[3, 1, 5]\n"
    "%z = add(%s, %r) : f32[3, 1, 5]",
    "%q = reshape(%p) : f32[3, 5, 7]\n"
    '%o = dot(%q, %c) {rule="a m k, a k n -> a m n"} : f32[3, 5, 4]\n'
    "%d = reshape(%b) : f32[3, 5, 4]\n"
    "%v = mul(%d, %o) : f32[3, 5, 4]\n"
    '%s = reduce(%v) {axes=[2], kind="sum"} : f32[3, 5]\n'
    "%w = reshape(%s) : f32[3, 1, 5]\n"
    '%l = reduce(%o) {axes=[2], kind="sum"} : f32[3, 5]\n'
    "%r = reshape(%l) : f32[3, 1, 5]\n"
    "%z = add(%w, %r) : f32[3, 1, 5]",
)
# two heads of queries for each head of keys, which lie in one line
SHARED = (
    "%k = reshape(%c) : f32[7, 2, 4]\n"
    "%t = transpose(%k) {perm=[1, 0, 2]} : f32[2, 7, 4]\n"
    "%e = broadcast(%t) {axes=[0, 2, 3]} : f32[2, 2, 7, 4]\n"
    "%h = reshape(%e) : f32[4, 7, 4]\n"
    '%o = dot(%p, %h) {rule="a m k, a k n -> a m n"} : f32[4, 5, 4]\n'
)
HEADS = '{axes=[2], kind="sum"} : f32[4, 5]'
EXCHANGED["heads that share an operand"] = (
    "%p: f32[4, 5, 7], %b: f32[4, 5, 4], %c: f32[7, 8]",
    SHARED
    + '%x = dot(%b, %h) {rule="a m n, a k n -> a m k"} : f32[4, 5, 7]\n'
    + f"%u = mul(%p, %x) : f32[4, 5, 7]\n%s = reduce(%u) {HEADS}\n%l = reduce(%o) {HEADS}\n"
    + "%z = add(%s, %l) : f32[4, 5]",
    SHARED
    + f"%v = mul(%b, %o) : f32[4, 5, 4]\n%s = reduce(%v) {HEADS}\n%l = reduce(%o) {HEADS}\n"
    + "%z = add(%s, %l) : f32[4, 5]",
)
STAYS = {
    "no product of the weights": (
        P,
        TABLE + f"%u = mul(%p, %t) : f32[3, 5, 7]\n%z = reduce(%u) {SUM}",
    ),
    "a product of other weights": (
        P,
        "%q = exp(%p) : f32[3, 5, 7]\n"
        + '%o = dot(%q, %c) {rule="a m k, a k n -> a m n"} : f32[3, 5, 4]\n'
        + TABLE
        + f"%u = mul(%p, %t) : f32[3, 5, 7]\n%s = reduce(%u) {SUM}\n"
        + ROWS
        + BOTH,
    ),
    "a sum along the other axis": (
        "%p: f32[3, 5, 5], %b: f32[3, 5, 4], %c: f32[3, 5, 4]",
        '%o = dot(%p, %c) {rule="a m k, a k n -> a m n"} : f32[3, 5, 4]\n'
        + '%t = dot(%b, %c) {rule="a m n, a k n -> a m k"} : f32[3, 5, 5]\n'
        + '%u = mul(%p, %t) : f32[3, 5, 5]\n%s = reduce(%u) {axes=[1], kind="sum"} : f32[3, 5]\n'
        + ROWS
        + BOTH,
    ),
    "rows no shorter than those of the table": (
        "%p: f32[3, 5, 4], %b: f32[3, 5, 4], %c: f32[3, 4, 4]",
        MEAN
        + '%t = dot(%b, %c) {rule="a m n, a k n -> a m k"} : f32[3, 5, 4]\n'
        + f"%u = mul(%p, %t) : f32[3, 5, 4]\n%s = reduce(%u) {SUM}\n"
        + ROWS
        + BOTH,
    ),
    "a maximum": (
        P,
        MEAN
        + TABLE
        + '%u = mul(%p, %t) : f32[3, 5, 7]\n%s = reduce(%u) {axes=[2], kind="max"} : f32[3, 5]\n'
        + ROWS
        + BOTH,
    ),
}

E = "%e: f32[5, 7], %d: f32[5]"
ROW = "%r = broadcast(%d) {axes=[0]} : f32[5, 7]\n"
ALONG = '{axes=[1], kind="sum"} : f32[5]'
TOTAL = f"%l = reduce(%e) {ALONG}\n"
END = "%z = add(%s, %l) : f32[5]"
MULTIPLES = {
    "of each row": (
        E,
        TOTAL + ROW + f"%u = mul(%r, %e) : f32[5, 7]\n%s = reduce(%u) {ALONG}\n" + END,
        TOTAL + "%s = mul(%l, %d) : f32[5]\n" + END,
    ),
    "negative": (
        E,
        TOTAL
        + ROW
        + f"%u = mul(%e, %r) : f32[5, 7]\n%n = neg(%u) : f32[5, 7]\n%s = reduce(%n) {ALONG}\n"
        + END,
        TOTAL + "%m = mul(%l, %d) : f32[5]\n%s = neg(%m) : f32[5]\n" + END,
    ),
    "of a number": (
        "%e: f32[5, 7], %d: f32[]",
        TOTAL + f"%u = mul(%e, %d) : f32[5, 7]\n%s = reduce(%u) {ALONG}\n" + END,
        TOTAL + "%s = mul(%l, %d) : f32[5]\n" + END,
    ),
}
NO_MULTIPLES = {
    "that change along the sum": (
        "%e: f32[5, 7], %d: f32[7]",
        TOTAL
        + "%r = broadcast(%d) {axes=[1]} : f32[5, 7]\n"
        + f"%u = mul(%r, %e) : f32[5, 7]\n%s = reduce(%u) {ALONG}\n"
        + END,
    ),
    "of another array": (
        E,
        TOTAL
        + ROW
        + f"%f = exp(%e) : f32[5, 7]\n%u = mul(%r, %f) : f32[5, 7]\n%s = reduce(%u) {ALONG}\n"
        + END,
    ),
    "of a sum along another axis": (
        "%e: f32[5, 5], %d: f32[5]",
        '%l = reduce(%e) {axes=[0], kind="sum"} : f32[5]\n'
        + "%r = broadcast(%d) {axes=[0]} : f32[5, 5]\n"
        + '%u = mul(%r, %e) : f32[5, 5]\n%s = reduce(%u) {axes=[1], kind="sum"} : f32[5]\n'
        + END,
    ),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_a_sum_of_a_table_is_one_of_rows(name: str) -> None:
    check_rewrite("exchange", EXCHANGED[name], FINITE)


@pytest.mark.parametrize("name", STAYS)
def test_a_sum_that_has_no_other_order_stays(name: str) -> None:
    check_kept("exchange", STAYS[name])


@pytest.mark.parametrize("name", MULTIPLES)
def test_multiples_of_a_sum(name: str) -> None:
    check_rewrite("exchange", MULTIPLES[name], FINITE)


@pytest.mark.parametrize("name", NO_MULTIPLES)
def test_no_multiples_of_a_sum(name: str) -> None:
    check_kept("exchange", NO_MULTIPLES[name])
