"""indexed: gathers before what they read is computed, scattered sums into what they go to."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

# indices have to be in range, for the numerical check too: the places of a line
LINE = "%i = iota() {axis=0} : i64[4]\n"
PICK = '{rule="a b!, a -> a"}'
ZEROS = "%o = broadcast(0.0:f32) {axes=[]} : f32[9, 3]\n"
ROWS = '{kind="add", rule="a! b, k, k b -> a! b"}'
ROWS_OF = "%u: f32[4, 3], %y: f32[9, 3]"

SORT = "%s = sort(%x, %y) {axis=1, descending=true, num_keys=1"
BOTH = "%v = item(%s) {index=0} : f32[4, 50]\n%w = item(%s) {index=1} : f32[4, 50]\n"
WHOLE = SORT + "} : (f32[4, 50], f32[4, 50])\n" + BOTH
PAIR = "%x: f32[4, 50], %y: f32[4, 50]"


def few(name: str, of: str, start: int, limit: int) -> str:
    ends = f"limit=[4, {limit}], start=[0, {start}], step=[1, 1]"
    return f"%{name} = slice(%{of}) {{{ends}}} : f32[4, {limit - start}]\n"


REWRITES: Rewrites = {
    "the first of a sort": (
        PAIR,
        WHOLE + few("a", "v", 0, 3) + few("b", "w", 1, 2) + "%d = reshape(%b) : f32[4]\n"
        "%e = broadcast(%d) {axes=[0]} : f32[4, 3]\n%z = add(%a, %e) : f32[4, 3]",
        SORT + ", first=3} : (f32[4, 3], f32[4, 3])\n"
        "%a = item(%s) {index=0} : f32[4, 3]\n%w = item(%s) {index=1} : f32[4, 3]\n"
        + few("b", "w", 1, 2)
        + "%d = reshape(%b) : f32[4]\n%e = broadcast(%d) {axes=[0]} : f32[4, 3]\n"
        "%z = add(%a, %e) : f32[4, 3]",
    ),
    "the middle of a sort": (
        PAIR,
        WHOLE + few("a", "v", 24, 26) + few("b", "w", 25, 26) + "%d = reshape(%b) : f32[4]\n"
        "%e = broadcast(%d) {axes=[0]} : f32[4, 2]\n%z = add(%a, %e) : f32[4, 2]",
        SORT + ", first=26, start=24} : (f32[4, 2], f32[4, 2])\n"
        "%a = item(%s) {index=0} : f32[4, 2]\n%w = item(%s) {index=1} : f32[4, 2]\n"
        + few("b", "w", 1, 2)
        + "%d = reshape(%b) : f32[4]\n%e = broadcast(%d) {axes=[0]} : f32[4, 2]\n"
        "%z = add(%a, %e) : f32[4, 2]",
    ),
    "a logarithm of each row": (
        "%x: f32[4, 50], %m: f32[4]",
        LINE + "%b = broadcast(%m) {axes=[0]} : f32[4, 50]\n%s = sub(%x, %b) : f32[4, 50]\n"
        f"%z = gather(%s, %i) {PICK} : f32[4]",
        LINE + f"%g = gather(%x, %i) {PICK} : f32[4]\n%z = sub(%g, %m) : f32[4]",
    ),
    "of axes in another order": (
        "%x: f32[4, 50, 3], %m: f32[4, 3]",
        LINE + "%b = broadcast(%m) {axes=[0, 2]} : f32[4, 50, 3]\n"
        "%s = mul(%b, %x) : f32[4, 50, 3]\n"
        '%z = gather(%s, %i) {rule="a b! c, k -> c k a"} : f32[3, 4, 4]',
        LINE + '%g = gather(%x, %i) {rule="a b! c, k -> c k a"} : f32[3, 4, 4]\n'
        "%t = transpose(%m) {perm=[1, 0]} : f32[3, 4]\n"
        "%b = broadcast(%t) {axes=[0, 2]} : f32[3, 4, 4]\n%z = mul(%b, %g) : f32[3, 4, 4]",
    ),
    "rows that are added to an array": (
        ROWS_OF,
        LINE + ZEROS + f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n%z = add(%y, %s) : f32[9, 3]",
        LINE + f"%z = scatter(%y, %i, %u) {ROWS} : f32[9, 3]",
    ),
    "rows that an array is added to": (
        ROWS_OF,
        LINE + ZEROS + f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n%z = add(%s, %y) : f32[9, 3]",
        LINE + f"%z = scatter(%y, %i, %u) {ROWS} : f32[9, 3]",
    ),
    "rows of one array twice": (
        "%u: f32[4, 3]",
        LINE + ZEROS + "%v = neg(%u) : f32[4, 3]\n"
        f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n"
        f"%t = scatter(%o, %i, %v) {ROWS} : f32[9, 3]\n%z = add(%s, %t) : f32[9, 3]",
        LINE + ZEROS + f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n"
        f"%v = neg(%u) : f32[4, 3]\n%z = scatter(%s, %i, %v) {ROWS} : f32[9, 3]",
    ),
}

KEPT: Kept = {
    "a sort that is read whole, too": (
        PAIR,
        WHOLE + few("a", "v", 0, 3) + '%b = reduce(%w) {axes=[1], kind="max"} : f32[4]\n'
        "%e = broadcast(%b) {axes=[0]} : f32[4, 3]\n%z = add(%a, %e) : f32[4, 3]",
    ),
    "a sort that is read to its end": (
        PAIR,
        WHOLE + few("a", "v", 47, 50) + few("b", "w", 0, 3) + "%z = add(%a, %b) : f32[4, 3]",
    ),
    "more is picked than there is": (
        "%x: f32[2, 3], %m: f32[3]",
        "%i = iota() {axis=0} : i64[2]\n%b = broadcast(%m) {axes=[1]} : f32[2, 3]\n"
        "%s = sub(%x, %b) : f32[2, 3]\n"
        '%z = gather(%s, %i) {rule="a! b, k -> k b"} : f32[2, 3]',
    ),
    "two arrays": (
        "%x: f32[4, 50], %m: f32[50]",
        LINE + "%b = broadcast(%m) {axes=[1]} : f32[4, 50]\n%s = sub(%x, %b) : f32[4, 50]\n"
        f"%z = gather(%s, %i) {PICK} : f32[4]",
    ),
    "a scatter into an array": (
        "%o: f32[9, 3], %u: f32[4, 3], %y: f32[9, 3]",
        LINE + f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n%z = add(%y, %s) : f32[9, 3]",
    ),
    "the last of several": (
        ROWS_OF,
        LINE + ZEROS + f"%s = scatter(%o, %i, %u) {ROWS.replace('add', 'max')} : f32[9, 3]\n"
        "%z = add(%y, %s) : f32[9, 3]",
    ),
    "sums that are read twice": (
        ROWS_OF,
        LINE + ZEROS + f"%s = scatter(%o, %i, %u) {ROWS} : f32[9, 3]\n"
        "%a = add(%y, %s) : f32[9, 3]\n%z = mul(%a, %s) : f32[9, 3]",
    ),
    "sums in 16 bits": (
        "%u: bf16[4, 3], %y: bf16[9, 3]",
        LINE + ZEROS.replace("f32", "bf16") + f"%s = scatter(%o, %i, %u) {ROWS} : bf16[9, 3]\n"
        "%z = add(%y, %s) : bf16[9, 3]",
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("indexed,canonicalize", REWRITES[name])


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    check_kept("indexed", KEPT[name])
