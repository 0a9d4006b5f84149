"""layout: transposes that go, by cancelling or into a dot, and those that must stay."""

from __future__ import annotations

import pytest
from rule_cases import Kept, Rewrites, check_kept, check_rewrite

from stack.ir import parse
from stack.passes import layout
from stack.passes.rules.transposes import SINK_RULES
from stack.rewrite import Pipeline
from stack.rewrite.engine import rewrite
from stack.rewrite.log import Log

M, CUBE = "%x: f32[4, 6]", "%x: f32[2, 3, 4]"
T = "%t = transpose(%x) {perm=[1, 0]} : f32[6, 4]\n"

REWRITES: Rewrites = {
    "cancel": (M, T + "%z = transpose(%t) {perm=[1, 0]} : f32[4, 6]", "%x"),
    "through elementwise": (
        M,
        T + "%e = exp(%t) : f32[6, 4]\n%z = transpose(%e) {perm=[1, 0]} : f32[4, 6]",
        "%z = exp(%x) : f32[4, 6]",
    ),
    "through elementwise with a line": (
        "%x: f32[4, 6], %y: f32[6]",
        T + "%b = broadcast(%y) {axes=[0]} : f32[6, 4]\n%e = add(%t, %b) : f32[6, 4]\n"
        "%z = transpose(%e) {perm=[1, 0]} : f32[4, 6]",
        "%b = broadcast(%y) {axes=[1]} : f32[4, 6]\n%z = add(%x, %b) : f32[4, 6]",
    ),
    "through a slice": (
        M,
        T + "%e = slice(%t) {limit=[6, 3], start=[2, 0], step=[1, 1]} : f32[4, 3]\n"
        "%z = transpose(%e) {perm=[1, 0]} : f32[3, 4]",
        "%z = slice(%x) {limit=[3, 6], start=[0, 2], step=[1, 1]} : f32[3, 4]",
    ),
    "through pieces put side by side along a new axis, before and behind another": (
        CUBE,
        "%t = transpose(%x) {perm=[0, 2, 1]} : f32[2, 4, 3]\n"
        "%u = reshape(%t) : f32[2, 4, 1, 3]\n%e = exp(%u) : f32[2, 4, 1, 3]\n"
        "%c = concat(%u, %e) {axis=2} : f32[2, 4, 2, 3]\n"
        "%z = transpose(%c) {perm=[0, 2, 3, 1]} : f32[2, 2, 3, 4]",
        "%u = reshape(%x) : f32[2, 1, 3, 4]\n%e = exp(%u) : f32[2, 1, 3, 4]\n"
        "%z = concat(%u, %e) {axis=1} : f32[2, 2, 3, 4]",
    ),
    "through pieces put side by side along a new last axis": (
        CUBE,
        "%t = transpose(%x) {perm=[0, 2, 1]} : f32[2, 4, 3]\n"
        "%u = reshape(%t) : f32[2, 4, 3, 1]\n%e = exp(%u) : f32[2, 4, 3, 1]\n"
        "%c = concat(%u, %e) {axis=3} : f32[2, 4, 3, 2]\n"
        "%z = transpose(%c) {perm=[0, 2, 3, 1]} : f32[2, 3, 2, 4]",
        "%u = reshape(%x) : f32[2, 3, 1, 4]\n%e = exp(%u) : f32[2, 3, 1, 4]\n"
        "%z = concat(%u, %e) {axis=2} : f32[2, 3, 2, 4]",
    ),
    "through a sum of images of one, whose axis goes": (
        "%x: f32[1, 3, 4], %y: f32[3, 4]",
        "%t = transpose(%x) {perm=[2, 0, 1]} : f32[4, 1, 3]\n"
        "%u = reshape(%t) : f32[4, 3]\n%v = transpose(%y) {perm=[1, 0]} : f32[4, 3]\n"
        "%a = add(%u, %v) : f32[4, 3]\n%z = transpose(%a) {perm=[1, 0]} : f32[3, 4]",
        "%u = reshape(%x) : f32[3, 4]\n%z = add(%u, %y) : f32[3, 4]",
    ),
    "through an axis cut in two, of a batch of one": (
        "%x: f32[1, 6, 4]",
        "%t = transpose(%x) {perm=[0, 2, 1]} : f32[1, 4, 6]\n"
        "%r = reshape(%t) : f32[1, 2, 2, 6]\n%e = exp(%r) : f32[1, 2, 2, 6]\n"
        "%q = reshape(%e) : f32[1, 4, 6]\n%z = transpose(%q) {perm=[0, 2, 1]} : f32[1, 6, 4]",
        "%r = reshape(%x) : f32[6, 1, 2, 2]\n%e = exp(%r) : f32[6, 1, 2, 2]\n"
        "%z = reshape(%e) : f32[1, 6, 4]",
    ),
    "through a reduction over part of an axis, of a batch of one": (
        "%x: f32[1, 6, 4]",
        "%t = transpose(%x) {perm=[0, 2, 1]} : f32[1, 4, 6]\n"
        "%r = reshape(%t) : f32[1, 2, 2, 6]\n"
        '%z = reduce(%r) {axes=[2, 3], kind="sum"} : f32[1, 2]',
        '%r = reshape(%x) : f32[6, 1, 2, 2]\n%z = reduce(%r) {axes=[0, 3], kind="sum"} : f32[1, 2]',
    ),
    "through a reduction": (
        M,
        T + '%z = reduce(%t) {axes=[1], kind="sum"} : f32[6]',
        '%z = reduce(%x) {axes=[0], kind="sum"} : f32[6]',
    ),
    "through a reduction that leaves two axes": (
        CUBE,
        "%t = transpose(%x) {perm=[2, 1, 0]} : f32[4, 3, 2]\n"
        '%z = reduce(%t) {axes=[1], kind="sum"} : f32[4, 2]',
        '%r = reduce(%x) {axes=[1], kind="sum"} : f32[2, 4]\n'
        "%z = transpose(%r) {perm=[1, 0]} : f32[4, 2]",
    ),
    "operand of a dot in a cycle": (
        "%x: f32[3, 4, 5], %y: f32[4, 6, 5]",
        "%t = transpose(%x) {perm=[1, 2, 0]} : f32[4, 5, 3]\n"
        '%z = dot(%t, %y) {rule="b k m, b n k -> b m n"} : f32[4, 3, 6]',
        '%z = dot(%x, %y) {rule="m b k, b n k -> b m n"} : f32[4, 3, 6]',
    ),
    "result of a dot in a cycle": (
        "%x: f32[2, 3, 5], %y: f32[2, 4, 5]",
        '%d = dot(%x, %y) {rule="b m k, b n k -> b m n"} : f32[2, 3, 4]\n'
        "%z = transpose(%d) {perm=[2, 0, 1]} : f32[4, 2, 3]",
        '%z = dot(%x, %y) {rule="b m k, b n k -> n b m"} : f32[4, 2, 3]',
    ),
    "through a broadcast": (
        M,
        T + "%b = broadcast(%t) {axes=[0, 2]} : f32[6, 2, 4]\n"
        "%z = transpose(%b) {perm=[2, 1, 0]} : f32[4, 2, 6]",
        "%z = broadcast(%x) {axes=[0, 2]} : f32[4, 2, 6]",
    ),
    "through a reshape that merges neighbours": (
        CUBE,
        "%t = transpose(%x) {perm=[2, 0, 1]} : f32[4, 2, 3]\n%r = reshape(%t) : f32[4, 6]\n"
        "%z = transpose(%r) {perm=[1, 0]} : f32[6, 4]",
        "%z = reshape(%x) : f32[6, 4]",
    ),
    "operand of a dot": (
        "%x: f32[4, 6], %y: f32[4, 5]",
        T + '%z = dot(%t, %y) {rule="m k, k n -> m n"} : f32[6, 5]',
        '%z = dot(%x, %y) {rule="k m, k n -> m n"} : f32[6, 5]',
    ),
    "operand of a dot past an axis of size 1": (
        "%x: f32[8, 6, 5], %y: f32[1, 4, 6]",
        "%u = reshape(%x) : f32[8, 6, 5, 1]\n"
        "%t = transpose(%u) {perm=[1, 0, 2, 3]} : f32[6, 8, 5, 1]\n"
        "%w = reshape(%t) : f32[1, 6, 8, 5]\n"
        '%z = dot(%y, %w) {rule="a m k, a k b c -> a m b c"} : f32[1, 4, 8, 5]',
        '%z = dot(%y, %x) {rule="a m k, b k c -> a m b c"} : f32[1, 4, 8, 5]',
    ),
    "result of a dot past an axis of size 1": (
        "%x: f32[4, 6], %y: f32[6, 5]",
        '%d = dot(%x, %y) {rule="m k, k n -> m n"} : f32[4, 5]\n'
        "%u = reshape(%d) : f32[4, 1, 5]\n"
        "%z = transpose(%u) {perm=[2, 1, 0]} : f32[5, 1, 4]",
        '%d = dot(%x, %y) {rule="m k, k n -> n m"} : f32[5, 4]\n%z = reshape(%d) : f32[5, 1, 4]',
    ),
    "result of a dot": (
        "%x: f32[4, 6], %y: f32[6, 5]",
        '%d = dot(%x, %y) {rule="m k, k n -> m n"} : f32[4, 5]\n'
        "%z = transpose(%d) {perm=[1, 0]} : f32[5, 4]",
        '%z = dot(%x, %y) {rule="m k, k n -> n m"} : f32[5, 4]',
    ),
    "repeated operand of a dot": (
        "%x: f32[4, 6], %y: f32[2, 6, 5]",
        "%b = broadcast(%x) {axes=[1, 2]} : f32[2, 4, 6]\n"
        '%z = dot(%b, %y) {rule="b m k, b k n -> b m n"} : f32[2, 4, 5]',
        '%z = dot(%x, %y) {rule="m k, b k n -> b m n"} : f32[2, 4, 5]',
    ),
    "merged rows of a dot": (
        "%x: f32[2, 3, 4], %y: f32[4, 5]",
        "%a = reshape(%x) : f32[6, 4]\n"
        '%d = dot(%a, %y) {rule="m k, k n -> m n"} : f32[6, 5]\n'
        "%z = reshape(%d) : f32[2, 3, 5]",
        '%z = dot(%x, %y) {rule="a b k, k n -> a b n"} : f32[2, 3, 5]',
    ),
}
KEPT: Kept = {
    "the result is a transpose": (M, T + "%z = neg(%t) : f32[6, 4]"),
    "a reduction across lines of memory": (
        M,
        T + '%r = reduce(%t) {axes=[1], kind="max"} : f32[6]\n'
        "%b = broadcast(%r) {axes=[0]} : f32[6, 4]\n%z = sub(%t, %b) : f32[6, 4]",
    ),
    "a reduction of the axis that stays last": (
        CUBE,
        "%t = transpose(%x) {perm=[1, 0, 2]} : f32[3, 2, 4]\n"
        '%r = reduce(%t) {axes=[2], kind="max"} : f32[3, 2]\n'
        "%b = broadcast(%r) {axes=[0, 1]} : f32[3, 2, 4]\n%z = sub(%t, %b) : f32[3, 2, 4]",
    ),
    "the other operand would move": (
        "%x: f32[4, 6], %y: f32[6, 4]",
        T + "%z = add(%t, %y) : f32[6, 4]",
    ),
    "the other operand has a new axis elsewhere, and would move": (
        "%x: f32[2, 3, 4], %y: f32[2, 4, 1, 3]",
        "%t = transpose(%x) {perm=[0, 2, 1]} : f32[2, 4, 3]\n"
        "%u = reshape(%t) : f32[2, 4, 1, 3]\n%z = add(%u, %y) : f32[2, 4, 1, 3]",
    ),
    "a reshape that merges others": (
        CUBE,
        "%t = transpose(%x) {perm=[1, 0, 2]} : f32[3, 2, 4]\n%z = reshape(%t) : f32[6, 4]",
    ),
    "a reshape that merges others, of a batch of one": (
        "%x: f32[1, 2, 3, 4]",
        "%t = transpose(%x) {perm=[0, 2, 1, 3]} : f32[1, 3, 2, 4]\n%z = reshape(%t) : f32[1, 6, 4]",
    ),
    "a repeated axis that is summed": (
        "%x: f32[4], %y: f32[6, 5]",
        "%b = broadcast(%x) {axes=[0]} : f32[4, 6]\n"
        '%z = dot(%b, %y) {rule="m k, k n -> m n"} : f32[4, 5]',
    ),
    "merged axes that are summed": (
        "%x: f32[4, 2, 3], %y: f32[6, 5]",
        '%a = reshape(%x) : f32[4, 6]\n%z = dot(%a, %y) {rule="m k, k n -> m n"} : f32[4, 5]',
    ),
}


BY_LINES: dict[str, tuple[str, str, str]] = {
    "a reduction along lines of memory, and what it is subtracted from": (
        M,
        T + '%r = reduce(%t) {axes=[0], kind="max"} : f32[4]\n'
        "%b = broadcast(%r) {axes=[1]} : f32[6, 4]\n%z = sub(%t, %b) : f32[6, 4]",
        '%r = reduce(%x) {axes=[1], kind="max"} : f32[4]\n'
        + T
        + "%b = broadcast(%r) {axes=[1]} : f32[6, 4]\n%z = sub(%t, %b) : f32[6, 4]",
    ),
    "a reduction along lines of memory, of what is read again": (
        M,
        T + "%e = exp(%t) : f32[6, 4]\n"
        '%r = reduce(%e) {axes=[0], kind="sum"} : f32[4]\n'
        "%b = broadcast(%r) {axes=[1]} : f32[6, 4]\n%z = add(%e, %b) : f32[6, 4]",
        "%e = exp(%x) : f32[4, 6]\n%u = transpose(%e) {perm=[1, 0]} : f32[6, 4]\n"
        '%r = reduce(%e) {axes=[1], kind="sum"} : f32[4]\n'
        "%b = broadcast(%r) {axes=[1]} : f32[6, 4]\n%z = add(%u, %b) : f32[6, 4]",
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    check_rewrite("layout", REWRITES[name])


@pytest.mark.parametrize("name", BY_LINES)
def test_reductions_across_lines_cost_on_a_cpu(name: str) -> None:
    """A GPU reads blocks of either order equally fast."""
    params, before, _ = BY_LINES[name]
    check_rewrite("layout{loops=cpu}", BY_LINES[name])
    check_kept("layout", (params, before))


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    check_kept("layout", KEPT[name])


def test_a_dot_that_is_read_as_it_is_keeps_its_order() -> None:
    func = parse("""func @main(%x: f32[4, 6], %y: f32[6, 5]) -> (f32[4, 5], f32[5, 4]) at tensor {
  %d = dot(%x, %y) {rule="m k, k n -> m n"} : f32[4, 5]
  %z = transpose(%d) {perm=[1, 0]} : f32[5, 4]
  return %d, %z
}
""")
    record = Pipeline("layout").run(func).records[0]
    assert record.after is func
    assert record.notes == ("plan absorb: 160 bytes of transposes before, 160 after",)


def test_what_a_convolution_wants_anyway_takes_transposes_along() -> None:
    """A residual around a convolution with channels last: its operand is transposed for both."""
    window = (
        "channels_last=true, groups=1, high=[0, 0], lhs_dilation=[1, 1], low=[0, 0],"
        " rhs_dilation=[1, 1], stride=[1, 1]"
    )
    text = f"""func @f(%x: f32[1, 4, 5, 3], %w: f32[4, 1, 1, 4]) -> (f32[1, 5, 3, 4]) at tensor {{
      %a = transpose(%x) {{perm=[0, 2, 3, 1]}} : f32[1, 5, 3, 4]
      %c = conv(%a, %w) {{{window}}} : f32[1, 5, 3, 4]
      %b = transpose(%c) {{perm=[0, 3, 1, 2]}} : f32[1, 4, 5, 3]
      %s = add(%b, %x) : f32[1, 4, 5, 3]
      %t = transpose(%s) {{perm=[0, 2, 3, 1]}} : f32[1, 5, 3, 4]
      %z = conv(%t, %w) {{{window}}} : f32[1, 5, 3, 4]
      return %z
    }}
    """
    result = Pipeline("layout").run(parse(text), check=True).func
    assert [n.op for n in result.nodes] == ["transpose", "conv", "add", "conv"]


def test_repeated_elements_take_a_transpose_along() -> None:
    """As the gradient of a window's maximum is spread: a reshape merges new axes with old ones."""
    func = parse("""func @f(%x: f32[2, 3, 4, 5]) -> (f32[2, 6, 8, 5]) at tensor {
      %a = transpose(%x) {perm=[0, 3, 1, 2]} : f32[2, 5, 3, 4]
      %b = broadcast(%a) {axes=[0, 1, 2, 4]} : f32[2, 5, 3, 2, 4, 2]
      %c = reshape(%b) : f32[2, 5, 6, 8]
      %d = exp(%c) : f32[2, 5, 6, 8]
      %z = transpose(%d) {perm=[0, 2, 3, 1]} : f32[2, 6, 8, 5]
      return %z
    }
    """)
    result = Pipeline("layout").run(func, check=True).func
    assert [n.op for n in result.nodes] == ["broadcast", "reshape", "exp"]


def test_a_number_has_no_axes_to_broadcast_first() -> None:
    func = parse("""func @f(%x: f32[], %y: f32[2, 3]) -> (f32[3, 2], f32[17]) at tensor {
      %s = sort(%y) {axis=0, descending=false, num_keys=1} : (f32[2, 3])
      %i = item(%s) {index=0} : f32[2, 3]
      %t = transpose(%i) {perm=[1, 0]} : f32[3, 2]
      %u = transpose(%x) {perm=[]} : f32[]
      %z = broadcast(%u) {axes=[]} : f32[17]
      return %t, %z
    }
    """)
    result = Pipeline("layout").run(func, check=True).func
    assert result.results[1].shape == (17,)


def _image_first(rest: str, window: tuple[int, int], groups: int, taps: int, out: int) -> str:
    """A convolution of an image and a weight whose channels are last in memory."""
    size, places = window
    wide = groups if groups > 1 else 32
    weight = f"{out}, {taps}, {taps}, {wide // groups}"
    return f"""func @f(%x: f32[1, {size}, {size}, {wide}], %w: f32[{weight}])
      -> (f32[1, {places}, {places}, {out}]) at tensor {{
      %i = transpose(%x) {{perm=[0, 3, 1, 2]}} : f32[1, {wide}, {size}, {size}]
      %v = transpose(%w) {{perm=[0, 3, 1, 2]}} : f32[{out}, {wide // groups}, {taps}, {taps}]
      %c = conv(%i, %v) {{channels_last=false, groups={groups}, lhs_dilation=[1, 1], {rest}}}
        : f32[1, {out}, {places}, {places}]
      %z = transpose(%c) {{perm=[0, 2, 3, 1]}} : f32[1, {places}, {places}, {out}]
      return %z
    }}
    """


PLAIN = "high=[0, 0], low=[0, 0], rhs_dilation=[1, 1]"


@pytest.mark.parametrize(
    "text, expected",
    [
        # windows that touch: the image is read in place
        (
            _image_first(f"{PLAIN}, stride=[2, 2]", (8, 4), 1, 2, 16),
            ["reshape", "dot"],
        ),
        # a place is read by 25 windows
        (
            _image_first(f"{PLAIN}, stride=[1, 1]", (24, 20), 32, 5, 32),
            ["conv"],
        ),
        # by two or three, most of them
        (
            _image_first(f"{PLAIN}, stride=[2, 2]", (41, 20), 32, 3, 32),
            ["conv"],
        ),
    ],
)
def test_an_image_whose_channels_come_last_keeps_them_there(text: str, expected: list[str]) -> None:
    result = Pipeline("layout{loops=cpu}").run(parse(text), check=True).func
    assert [n.op for n in result.nodes if n.op != "const"] == expected


def test_single_readers_of_a_place_are_sums_of_taps() -> None:
    text = _image_first(f"{PLAIN}, stride=[2, 2]", (40, 20), 32, 2, 32)
    result = Pipeline("layout{loops=cpu}").run(parse(text), check=True).func
    ops = {n.op for n in result.nodes}
    assert "conv" not in ops and "transpose" not in ops and "mul" in ops


@pytest.mark.parametrize("taps, is_moved", [((3, 3), False), ((3, 5), False), ((4, 4), True)])
def test_many_taps_of_single_channels_are_worth_copies(
    taps: tuple[int, int], is_moved: bool
) -> None:
    rows, columns = (31 + k for k in taps)
    text = f"""func @f(%x: f32[1, 32, {rows}, {columns}], %w: f32[32, 1, {taps[0]}, {taps[1]}])
      -> (f32[1, 32, 32, 32]) at tensor {{
      %c = conv(%x, %w) {{channels_last=false, groups=32, lhs_dilation=[1, 1], {PLAIN},
        stride=[1, 1]}} : f32[1, 32, 32, 32]
      return %c
    }}
    """
    result = Pipeline("layout{loops=cpu}").run(parse(text), check=True).func
    assert [n.attrs["channels_last"] for n in result.nodes if n.op == "conv"] == [True] * is_moved


@pytest.mark.parametrize("groups", [1, 16])
def test_a_convolution_of_unknown_sizes_stays(groups: int) -> None:
    func = parse(f"""func @f<n in 1..64>(%x: f32[1, 16, 8, n], %w: f32[16, {16 // groups}, 3, 3])
      -> (f32[1, 16, 8, n]) at tensor {{
      %z = conv(%x, %w) {{channels_last=false, groups={groups}, high=[1, 1], lhs_dilation=[1, 1],
        low=[1, 1], rhs_dilation=[1, 1], stride=[1, 1]}} : f32[1, 16, 8, n]
      return %z
    }}
    """)
    assert Pipeline("layout{loops=cpu}").run(func).func is func


def test_a_trial_ends_at_the_first_plan_that_moves_few_enough_bytes() -> None:
    func = parse(
        "func @main(%x: f32[4, 6]) -> (f32[6]) at tensor {\n"
        "  %t = transpose(%x) {perm=[1, 0]} : f32[6, 4]\n"
        "  %e = exp(%t) : f32[6, 4]\n"
        '  %r = reduce(%e) {axes=[1], kind="sum"} : f32[6]\n'
        "  return %r\n}"
    )
    moved = layout.transposed_bytes(func.body)
    for enough, plan, least, plans in (
        (moved, ("absorb",), moved, 1),
        (moved - 1, ("sink",), 0, 2),
        (0, ("sink",), 0, 2),
    ):
        tried: layout._Tried = {}
        assert layout._best(func, Log(), tried, False, enough) == (plan, least)
        assert len(tried) == plans


SUNK = """func @main(%x: f32[2, 4, 8], %w: f32[8, 8], %v: f32[8]) -> (RESULTS) at tensor {
  %t = transpose(%x) {perm=[0, 2, 1]} : f32[2, 8, 4]
  %d = dot(%x, %w) {rule="b s k, n k -> b n s"} : f32[2, 8, 4]
  %b = broadcast(%v) {axes=[1]} : f32[2, 8, 4]
  %m = mul(%d, %b) : f32[2, 8, 4]
  %y = add(%t, %m) : f32[2, 8, 4]
  %z = transpose(%y) {perm=[0, 2, 1]} : f32[2, 4, 8]
  return VALUES
}
"""


@pytest.mark.parametrize(
    ("results", "values", "left"),
    [("f32[2, 4, 8]", "%z", 0), ("f32[2, 4, 8], f32[2, 8, 4]", "%z, %d", 1)],
)
def test_transposes_sink_past_matmuls_that_nothing_else_reads(
    results: str, values: str, left: int
) -> None:
    func = parse(SUNK.replace("RESULTS", results).replace("VALUES", values))
    after = Pipeline("layout,canonicalize").run(func, check=True).func
    assert [n.op for n in after.nodes].count("transpose") == left, str(after)


BATCH = """func @main(%q: f32[2, 3, 5, 8], %k: f32[2, 3, 7, 8], %b: f32[5, 7, 3]) \
-> (f32[2, 3, 5, 7]) at tensor {
  %d = dot(%q, %k) {rule="a h m k, a h n k -> a h m n"} : f32[2, 3, 5, 7]
  %t = transpose(%b) {perm=[2, 0, 1]} : f32[3, 5, 7]
  %c = broadcast(%t) {axes=[1, 2, 3]} : f32[2, 3, 5, 7]
  %y = add(%d, %c) : f32[2, 3, 5, 7]
  return %y
}
"""


@pytest.mark.parametrize(
    ("table", "perm", "shape"),
    [("[5, 7, 3]", "[2, 0, 1]", (2, 3, 5, 7)), ("[3, 7, 5]", "[0, 2, 1]", (2, 3, 7, 5))],
)
def test_elements_of_a_batch_axis_do_not_become_neighbours(
    table: str, perm: str, shape: tuple[int, ...]
) -> None:
    """As the heads of attention scores would, if they took the order of a table of biases. A matmul
    may write its rows as columns.
    """
    source = parse(BATCH.replace("[5, 7, 3]", table).replace("[2, 0, 1]", perm))
    (dot,) = (n for n in rewrite(source, SINK_RULES, Log()).nodes if n.op == "dot")
    assert dot.shape == shape
