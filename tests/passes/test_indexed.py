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


PADDED = "%l = iota() {axis=0} : i64[44]\n%m = sub(%l, 2:i64) : i64[44]\n"
CLAMPED = PADDED + "%n = max(%m, 0:i64) : i64[44]\n%i = min(%n, 39:i64) : i64[44]\n"
REFLECTED = PADDED + (
    "%p = abs(%m) : i64[44]\n%q = sub(39:i64, %p) : i64[44]\n%r = abs(%q) : i64[44]\n"
    "%i = sub(39:i64, %r) : i64[44]\n"
)
IN_10 = "%n = max(%j, 0:i64) : i64[4]\n%i = min(%n, 9:i64) : i64[4]\n"
PICKED = '%z = gather(%c, %i) {rule="a! b, k -> k b"} : f32[4, 3]'
COLUMNS = '%z = gather(%x, %i) {rule="a b!, k -> a k"} : f32[4, 44]'


def columns(name: str, start: int, limit: int) -> str:
    ends = f"limit=[4, {limit}], start=[0, {start}], step=[1, 1]"
    return f"%{name} = slice(%x) {{{ends}}} : f32[4, {limit - start}]\n"


REWRITES: Rewrites = {
    "a pad by reflection": (
        "%x: f32[4, 40]",
        REFLECTED + COLUMNS,
        columns("a", 0, 3)
        + "%b = reverse(%a) {axes=[1]} : f32[4, 3]\n"
        + columns("c", 1, 40)
        + columns("d", 37, 39)
        + "%e = reverse(%d) {axes=[1]} : f32[4, 2]\n"
        "%z = concat(%b, %c, %e) {axis=1} : f32[4, 44]",
    ),
    "a pad by replication": (
        "%x: f32[4, 40]",
        CLAMPED + COLUMNS,
        columns("a", 0, 1) + "%b = reshape(%a) : f32[4]\n"
        "%c = broadcast(%b) {axes=[0]} : f32[4, 3]\n"
        + columns("d", 1, 40)
        + columns("e", 39, 40)
        + "%f = reshape(%e) : f32[4]\n"
        "%g = broadcast(%f) {axes=[0]} : f32[4, 2]\n"
        "%z = concat(%c, %d, %g) {axis=1} : f32[4, 44]",
    ),
    "constant indices of one number, transposed": (
        "%x: f32[]",
        "%t = transpose(%x) {perm=[]} : f32[]\n%y = broadcast(%t) {axes=[]} : f32[4, 40]\n"
        + CLAMPED
        + COLUMNS.replace("%x", "%y"),
        "%a = broadcast(%x) {axes=[]} : f32[4, 3]\n%b = broadcast(%x) {axes=[]} : f32[4, 39]\n"
        "%c = broadcast(%x) {axes=[]} : f32[4, 2]\n%z = concat(%a, %b, %c) {axis=1} : f32[4, 44]",
    ),
    "every other place": (
        "%x: f32[4, 80]",
        "%l = iota() {axis=0} : i64[40]\n%i = mul(%l, 2:i64) : i64[40]\n"
        '%z = gather(%x, %i) {rule="a b!, k -> a k"} : f32[4, 40]',
        "%z = slice(%x) {limit=[4, 79], start=[0, 0], step=[1, 2]} : f32[4, 40]",
    ),
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
    "copies of one array": (
        "%x: f32[5, 3], %j: i64[4]",
        IN_10 + "%c = concat(%x, %x) {axis=0} : f32[10, 3]\n" + PICKED,
        IN_10 + "%r = rem(%i, 5:i64) : i64[4]\n" + PICKED.replace("%c, %i", "%x, %r"),
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
    "constant indices of rows": (
        "%x: f32[40, 4]",
        CLAMPED + '%z = gather(%x, %i) {rule="a! b, k -> k b"} : f32[44, 4]',
    ),
    "constant indices along strided rows": (
        "%x: f32[40, 4]",
        CLAMPED + "%t = transpose(%x) {perm=[1, 0]} : f32[4, 40]\n"
        '%z = gather(%t, %i) {rule="a b!, k -> a k"} : f32[4, 44]',
    ),
    "constant indices in runs that fill no vector": (
        "%x: u8[4, 40]",
        "%l = iota() {axis=0} : i64[6]\n%i = min(%l, 3:i64) : i64[6]\n"
        '%z = gather(%x, %i) {rule="a b!, k -> a k"} : u8[4, 6]',
    ),
    "constant indices in many runs": (
        "%x: f32[4, 40]",
        "%l = iota() {axis=0} : i64[80]\n%i = div(%l, 2:i64) : i64[80]\n"
        '%z = gather(%x, %i) {rule="a b!, k -> a k"} : f32[4, 80]',
    ),
    "parts of two arrays": (
        "%x: f32[5, 3], %y: f32[5, 3], %j: i64[4]",
        IN_10 + "%c = concat(%x, %y) {axis=0} : f32[10, 3]\n" + PICKED,
    ),
    "copies along another axis": (
        "%x: f32[10, 2], %j: i64[4]",
        IN_10 + "%c = concat(%x, %x) {axis=1} : f32[10, 4]\n" + PICKED.replace("3]", "4]"),
    ),
    "places of data": (
        "%x: f32[4, 40], %j: i64[44]",
        "%n = max(%j, 0:i64) : i64[44]\n%i = min(%n, 39:i64) : i64[44]\n" + COLUMNS,
    ),
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
