"""decompose, rule by rule: rare forms spelled with common ops, and forms that stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

X, DOT = "%x: f32[4]", "%x: f32[4, 3], %y: f32[3, 5]"
IMAGE = "%x: f32[1, 3, 8, 8], %w: f32[5, 3, 4, 4]"


def conv(
    shape: str,
    w: str = "%w",
    stride: int = 4,
    low: int = 0,
    groups: int = 1,
    dilation: int = 1,
    *,
    x: str = "%x",
    z: str = "%z",
    high: int = 0,
    last: bool = False,
) -> str:
    form = "channels_last=true, " if last else ""
    return (
        f"{z} = conv({x}, {w}) {{{form}groups={groups}, high=[{high}, {high}],"
        f" lhs_dilation=[1, 1], low=[{low}, {low}], rhs_dilation=[{dilation}, {dilation}],"
        f" stride=[{stride}, {stride}]}} : {shape}"
    )


REWRITES: Rewrites = {
    "integers that were widened": (
        "%x: i8[4, 8], %y: i8[6, 8]",
        "%a = cast(%x) : i32[4, 8]\n%b = cast(%y) : i32[6, 8]\n"
        '%z = dot(%a, %b) {rule="m k, n k -> m n"} : i32[4, 6]',
        '%z = dot(%x, %y) {rule="m k, n k -> m n"} : i32[4, 6]',
    ),
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
    "rows by rows": (
        "%x: f32[2, 1, 3], %y: f32[2, 3, 1]",
        '%z = dot(%x, %y) {rule="a m k, a k n -> a m n"} : f32[2, 1, 1]',
        "%a = reshape(%x) : f32[2, 3]\n%b = reshape(%y) : f32[2, 3]\n"
        '%m = mul(%a, %b) : f32[2, 3]\n%s = reduce(%m) {axes=[1], kind="sum"} : f32[2]\n'
        "%z = reshape(%s) : f32[2, 1, 1]",
    ),
    "all axes, with one side transposed": (
        "%x: bf16[4, 3], %y: bf16[3, 4]",
        '%z = dot(%x, %y) {rule="a b, b a ->"} : bf16[]',
        "%t = transpose(%y) {perm=[1, 0]} : bf16[4, 3]\n"
        "%a = cast(%x) : f32[4, 3]\n%b = cast(%t) : f32[4, 3]\n"
        '%m = mul(%a, %b) : f32[4, 3]\n%s = reduce(%m) {axes=[0, 1], kind="sum"} : f32[]\n'
        "%z = cast(%s) : bf16[]",
    ),
    "batches in another order": (
        "%x: f32[4, 5, 3], %y: f32[4, 3, 5]",
        '%z = dot(%x, %y) {rule="a k b, a b k -> b a"} : f32[3, 4]',
        "%t = transpose(%y) {perm=[0, 2, 1]} : f32[4, 5, 3]\n%m = mul(%x, %t) : f32[4, 5, 3]\n"
        '%s = reduce(%m) {axes=[1], kind="sum"} : f32[4, 3]\n'
        "%z = transpose(%s) {perm=[1, 0]} : f32[3, 4]",
    ),
    "patches": (
        IMAGE,
        conv("f32[1, 5, 2, 2]"),
        "%a = reshape(%x) : f32[1, 3, 2, 4, 2, 4]\n"
        '%z = dot(%a, %w) {rule="n c p0 t0 p1 t1, o c t0 t1 -> n o p0 p1"} : f32[1, 5, 2, 2]',
    ),
}
LAST = "%a = transpose(%x) {perm=[0, 2, 3, 1]} : bf16[1, 8, 8, 4]\n"
# what a GPU computes fast
CONVOLUTIONS: Rewrites = {
    "channels last": (
        "%x: bf16[1, 4, 8, 8], %w: bf16[5, 4, 3, 3]",
        conv("bf16[1, 5, 8, 8]", stride=1, low=1, high=1),
        f"{LAST}%b = transpose(%w) {{perm=[0, 2, 3, 1]}} : bf16[5, 3, 3, 4]\n"
        f"{conv('bf16[1, 8, 8, 5]', '%b', x='%a', z='%c', stride=1, low=1, high=1, last=True)}\n"
        "%z = transpose(%c) {perm=[0, 3, 1, 2]} : bf16[1, 5, 8, 8]",
    ),
    "channels last, one place": (
        "%x: bf16[1, 4, 8, 8], %w: bf16[5, 4, 1, 1]",
        conv("bf16[1, 5, 8, 8]", stride=1),
        f"{LAST}%b = transpose(%w) {{perm=[0, 2, 3, 1]}} : bf16[5, 1, 1, 4]\n"
        "%r = reshape(%b) : bf16[5, 4]\n"
        '%c = dot(%a, %r) {rule="n p0 p1 c, o c -> n p0 p1 o"} : bf16[1, 8, 8, 5]\n'
        "%z = transpose(%c) {perm=[0, 3, 1, 2]} : bf16[1, 5, 8, 8]",
    ),
    "as it comes": (
        "%x: f32[1, 8, 8, 4], %w: f32[5, 4, 3, 3]",
        "%a = transpose(%x) {perm=[0, 3, 1, 2]} : f32[1, 4, 8, 8]\n"
        + conv("f32[1, 5, 6, 6]", x="%a", stride=1),
        "%b = transpose(%w) {perm=[0, 2, 3, 1]} : f32[5, 3, 3, 4]\n"
        f"{conv('f32[1, 6, 6, 5]', '%b', z='%c', stride=1, last=True)}\n"
        "%z = transpose(%c) {perm=[0, 3, 1, 2]} : f32[1, 5, 6, 6]",
    ),
    "single channels": (
        "%x: bf16[1, 4, 8], %w: bf16[4, 1, 2]",
        "%z = conv(%x, %w) {groups=4, high=[0], lhs_dilation=[1], low=[1], rhs_dilation=[3],"
        " stride=[2]} : bf16[1, 4, 3]",
        "%p = pad(%x, 0.0:bf16) {high=[0, 0, 0], interior=[0, 0, 0], low=[0, 0, 1]}"
        " : bf16[1, 4, 9]\n"
        "%s0 = slice(%p) {limit=[1, 4, 5], start=[0, 0, 0], step=[1, 1, 2]} : bf16[1, 4, 3]\n"
        "%x0 = cast(%s0) : f32[1, 4, 3]\n"
        "%f = reshape(%w) : bf16[4, 2]\n"
        "%v0 = slice(%f) {limit=[4, 1], start=[0, 0], step=[1, 1]} : bf16[4, 1]\n"
        "%r0 = reshape(%v0) : bf16[4]\n"
        "%c0 = cast(%r0) : f32[4]\n"
        "%w0 = broadcast(%c0) {axes=[1]} : f32[1, 4, 3]\n"
        "%m0 = mul(%x0, %w0) : f32[1, 4, 3]\n"
        "%s1 = slice(%p) {limit=[1, 4, 8], start=[0, 0, 3], step=[1, 1, 2]} : bf16[1, 4, 3]\n"
        "%x1 = cast(%s1) : f32[1, 4, 3]\n"
        "%v1 = slice(%f) {limit=[4, 2], start=[0, 1], step=[1, 1]} : bf16[4, 1]\n"
        "%r1 = reshape(%v1) : bf16[4]\n"
        "%c1 = cast(%r1) : f32[4]\n"
        "%w1 = broadcast(%c1) {axes=[1]} : f32[1, 4, 3]\n"
        "%m1 = mul(%x1, %w1) : f32[1, 4, 3]\n"
        "%t = add(%m0, %m1) : f32[1, 4, 3]\n"
        "%z = cast(%t) : bf16[1, 4, 3]",
    ),
}
ROWS = 'rule="d0! d1, b n, b n d1 -> d0! d1"'
FEW_ROWS: Rewrites = {
    "the gradient of an embedding": (
        "%i: i64[2, 3], %u: f32[2, 3, 4]",
        "%o = broadcast(0.0:f32) {axes=[]} : f32[9, 4]\n"
        f'%s = scatter(%o, %i, %u) {{kind="add", {ROWS}}} : f32[9, 4]\n'
        "%z = cast(%s) : bf16[9, 4]",
        "%n = broadcast(-1:i32) {axes=[]} : i32[9]\n"
        "%f = reshape(%i) : i64[6]\n"
        "%l = iota() {axis=0} : i32[6]\n"
        '%slots = scatter(%n, %f, %l) {kind="set", rule="v!, n, n -> v!"} : i32[9]\n'
        "%there = ge(%slots, 0:i32) : bool[9]\n"
        "%named = broadcast(%there) {axes=[0]} : bool[9, 4]\n"
        "%o = broadcast(0.0:f32) {axes=[]} : f32[6, 4]\n"
        '%g = gather(%slots, %f) {rule="v!, n -> n"} : i32[6]\n'
        "%own = reshape(%g) : i32[2, 3]\n"
        f'%s = scatter(%o, %own, %u) {{kind="add", {ROWS}}} : f32[6, 4]\n'
        "%first = max(%slots, 0:i32) : i32[9]\n"
        '%r = gather(%s, %first) {rule="d0! d1, v -> v d1"} : f32[9, 4]\n'
        "%c = cast(%r) : bf16[9, 4]\n"
        "%z = select(%named, %c, 0.0:bf16) : bf16[9, 4]",
    ),
    "of the rows of one rank": (
        "%i: i64[2, 3], %u: f32[2, 3, 4]",
        "%o = broadcast(0.0:f32) {axes=[]} : f32[9, 4]\n"
        f'%s = scatter(%o, %i, %u) {{drop=true, kind="add", {ROWS}}} : f32[9, 4]\n'
        "%z = cast(%s) : bf16[9, 4]",
        "%n = broadcast(-1:i32) {axes=[]} : i32[9]\n"
        "%f = reshape(%i) : i64[6]\n"
        "%l = iota() {axis=0} : i32[6]\n"
        '%slots = scatter(%n, %f, %l) {drop=true, kind="set", rule="v!, n, n -> v!"} : i32[9]\n'
        "%there = ge(%slots, 0:i32) : bool[9]\n"
        "%named = broadcast(%there) {axes=[0]} : bool[9, 4]\n"
        "%o = broadcast(0.0:f32) {axes=[]} : f32[6, 4]\n"
        "%low = ge(%f, 0:i64) : bool[6]\n"
        "%high = lt(%f, 9:i64) : bool[6]\n"
        "%inside = and(%low, %high) : bool[6]\n"
        "%at = select(%inside, %f, 0:i64) : i64[6]\n"
        '%g = gather(%slots, %at) {rule="v!, n -> n"} : i32[6]\n'
        "%slot = select(%inside, %g, %l) : i32[6]\n"
        "%own = reshape(%slot) : i32[2, 3]\n"
        f'%s = scatter(%o, %own, %u) {{kind="add", {ROWS}}} : f32[6, 4]\n'
        "%first = max(%slots, 0:i32) : i32[9]\n"
        '%r = gather(%s, %first) {rule="d0! d1, v -> v d1"} : f32[9, 4]\n'
        "%c = cast(%r) : bf16[9, 4]\n"
        "%z = select(%named, %c, 0.0:bf16) : bf16[9, 4]",
    ),
}
MANY_ROWS: Kept = {
    "as many rows as places": (
        "%i: i64[9], %u: f32[9, 4]",
        "%o = broadcast(0.0:f32) {axes=[]} : f32[9, 4]\n"
        '%s = scatter(%o, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[9, 4]\n'
        "%z = cast(%s) : bf16[9, 4]",
    ),
    "added to something": (
        "%o: f32[9, 4], %i: i64[2], %u: f32[2, 4]",
        '%s = scatter(%o, %i, %u) {kind="add", rule="v! d, n, n d -> v! d"} : f32[9, 4]\n'
        "%z = cast(%s) : bf16[9, 4]",
    ),
    "elements of rows": (
        "%i: i64[2], %j: i64[2], %u: f32[2]",
        "%o = broadcast(0.0:f32) {axes=[]} : f32[9, 4]\n"
        '%s = scatter(%o, %i, %j, %u) {kind="add", rule="a! b!, n, n, n -> a! b!"} : f32[9, 4]\n'
        "%z = cast(%s) : bf16[9, 4]",
    ),
}
KEPT_CONVOLUTIONS: Kept = {
    "of f32": ("%x: f32[1, 4, 8, 8], %w: f32[5, 4, 3, 3]", conv("f32[1, 5, 6, 6]", stride=1)),
    "products of two channels": (
        "%x: f32[1, 4, 8, 8], %w: f32[4, 2, 3, 3]",
        conv("f32[1, 4, 6, 6]", stride=1, groups=2),
    ),
    "many taps": (
        "%x: f32[1, 4, 8, 8], %w: f32[4, 1, 7, 7]",
        conv("f32[1, 4, 2, 2]", stride=1, groups=4),
    ),
}
KEPT: Kept = {
    "integers of two signs": (
        "%x: i8[4, 8], %y: u8[6, 8]",
        "%a = cast(%x) : i32[4, 8]\n%b = cast(%y) : i32[6, 8]\n"
        '%z = dot(%a, %b) {rule="m k, n k -> m n"} : i32[4, 6]',
    ),
    "rounded to TF32": (
        "%x: f32[1, 3, 8, 8], %w: f32[5, 3, 4, 4]",
        conv("f32[1, 5, 2, 2]").replace("rhs_dilation", 'precision="tf32", rhs_dilation'),
    ),
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
    "two rows": (
        "%x: f32[2, 3], %y: f32[3, 1]",
        '%z = dot(%x, %y) {rule="m k, k n -> m n"} : f32[2, 1]',
    ),
    "a sum of complex products": (
        "%x: c64[3], %y: c64[3]",
        '%z = dot(%x, %y) {rule="k, k ->"} : c64[]',
    ),
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


def test_a_gpu_has_products_of_one_row_by_one_column() -> None:
    params, before, _ = REWRITES["rows by rows"]
    check_kept("decompose{gpu=true}", (params, before))


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_kept("decompose", KEPT[name])


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    check_rewrite("decompose{gpu=true}", CONVOLUTIONS[name])


@pytest.mark.parametrize("name", KEPT_CONVOLUTIONS)
def test_kept_convolutions(name: str) -> None:
    check_kept("decompose{gpu=true}", KEPT_CONVOLUTIONS[name])


@pytest.mark.parametrize("gpu", ["true", "false"])
@pytest.mark.parametrize("name", FEW_ROWS)
def test_sums_of_few_rows(name: str, gpu: str) -> None:
    check_rewrite(f"decompose{{gpu={gpu}}}", FEW_ROWS[name])


@pytest.mark.parametrize("gpu", ["true", "false"])
@pytest.mark.parametrize("name", MANY_ROWS)
def test_sums_of_many_rows(name: str, gpu: str) -> None:
    check_kept(f"decompose{{gpu={gpu}}}", MANY_ROWS[name])
