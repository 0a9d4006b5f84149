"""coalesce: neighbouring axes of a group become one, if every access treats them as one."""

from __future__ import annotations

import pytest

from stack.ir import Func, parse
from stack.rewrite import Pipeline

TYPES = str.maketrans({"X": "bf16[3, 5, 8]", "V": "bf16[15, 8]", "W": "bf16[4, 8]", "B": "bf16[4]"})
LINEAR = """func @f(%x: X, %w: W, %b: B) -> (bf16[3, 5, 4]) at tensor {
  %y = fusion(%x, %w, %b) {kind="gemm", name="linear"} : bf16[3, 5, 4] {(%p0: X, %p1: W, %p2: B)
    %d = dot(%p0, %p1) {rule="a b k, n k -> a b n"} : f32[3, 5, 4]
    %c = cast(%p2) : f32[4]
    %v = broadcast(%c) {axes=[2]} : f32[3, 5, 4]
    %s = add(%d, %v) : f32[3, 5, 4]
    %r = reduce(%s) {axes=[2], kind="max"} : f32[3, 5]
    %u = broadcast(%r) {axes=[0, 1]} : f32[3, 5, 4]
    %t = sub(%s, %u) : f32[3, 5, 4]
    %y = cast(%t) : bf16[3, 5, 4]
    return %y
  }
  %z = exp(%y) : bf16[3, 5, 4]
  return %z
}
""".translate(TYPES)
COLLAPSED = """func @f(%x: X, %w: W, %b: B) -> (bf16[3, 5, 4]) at tensor {
  %reshape = reshape(%x) : V
  %y = fusion(%reshape, %w, %b) {kind="gemm", name="linear"} : bf16[15, 4] {(%p0: V, %p1: W, %p2: B)
    %d = dot(%p0, %p1) {rule="a k, n k -> a n"} : f32[15, 4]
    %c = cast(%p2) : f32[4]
    %v = broadcast(%c) {axes=[1]} : f32[15, 4]
    %s = add(%d, %v) : f32[15, 4]
    %r = reduce(%s) {axes=[1], kind="max"} : f32[15]
    %u = broadcast(%r) {axes=[0]} : f32[15, 4]
    %t = sub(%s, %u) : f32[15, 4]
    %y = cast(%t) : bf16[15, 4]
    return %y
  }
  %y_1 = reshape(%y) : bf16[3, 5, 4]
  %z = exp(%y_1) : bf16[3, 5, 4]
  return %z
}
""".translate(TYPES)


def coalesced(text: str) -> Func:
    return Pipeline("coalesce").run(parse(text), check=True).func


def test_rows_of_all_sequences_are_one_axis() -> None:
    made = coalesced(LINEAR)
    assert str(made) == COLLAPSED
    assert Pipeline("coalesce").run(made).func is made


def dots(types: str, rule: str, result: str) -> str:
    return f"""func @f({types}) -> ({result}) at tensor {{
      %y = dot(%x, %w) {{rule="{rule}"}} : {result}
      return %y
    }}"""


@pytest.mark.parametrize(
    ("types", "rule", "result", "merged"),
    [
        ("%x: f32[3, 5, 8], %w: f32[3, 5, 7]", "a b k, a b n -> k n", "f32[8, 7]",
         "a k, a n -> k n"),
        ("%x: f32[2, 3, 5, 8], %w: f32[2, 3, 8, 4]", "a b m k, a b k n -> a b m n",
         "f32[2, 3, 5, 4]", "a m k, a k n -> a m n"),
        ("%x: f32[1, 5, 8], %w: f32[8, 4]", "a b k, k n -> a b n", "f32[1, 5, 4]",
         "a k, k n -> a n"),
        ("%x: f32[0, 5, 8], %w: f32[8, 4]", "a b k, k n -> a b n", "f32[0, 5, 4]",
         "a k, k n -> a n"),
    ],
)  # fmt: skip
def test_axes_of_a_bare_dot(types: str, rule: str, result: str, merged: str) -> None:
    made = coalesced(dots(types, rule, result))
    assert f'rule="{merged}"' in str(made)


@pytest.mark.parametrize(
    ("types", "rule", "result"),
    [
        ("%x: f32[3, 5, 8], %w: f32[8, 4]", "a b k, k n -> b a n", "f32[5, 3, 4]"),
        ("%x: f32[3, 5, 8], %w: f32[3, 8, 4]", "a b k, a k n -> a b n", "f32[3, 5, 4]"),
        ("%x: f32[3, 5, 8], %w: f32[5, 3, 4]", "a b k, b a n -> k n", "f32[8, 4]"),
        ("%x: f32[3, 5, 8], %w: f32[8, 4]", "a b k, k n -> a n b", "f32[3, 4, 5]"),
        ("%x: f32[5, 8], %w: f32[8, 4]", "a k, k n -> a n", "f32[5, 4]"),
    ],
)
def test_axes_that_part_somewhere_stay(types: str, rule: str, result: str) -> None:
    func = parse(dots(types, rule, result))
    assert Pipeline("coalesce").run(func).func is func


LOOP = """func @f(%x: X, %m: f32[{size}], %y: X) -> ({type}) at tensor {{
  %z = fusion(%x, %m, %y) {{kind="loop", name="f"}} : {type} {{(%p0: X, %p1: f32[{size}], %p2: X)
    {lines}
    return %z
  }}
  return %z
}}""".replace("X", "f32[3, 5, 8]")


@pytest.mark.parametrize(
    ("size", "type_", "lines", "space"),
    [
        # a mask of columns, of rows, of both outer axes
        (8, "f32[3, 5, 8]", "%b = broadcast(%p1) {axes=[2]} : f32[3, 5, 8]\n"
         "%c = mul(%p0, %b) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", "[15, 8]"),
        (3, "f32[3, 5, 8]", "%b = broadcast(%p1) {axes=[0]} : f32[3, 5, 8]\n"
         "%c = mul(%p0, %b) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", "[3, 40]"),
        ("3, 5, 8", "f32[3, 5, 8]", "%c = mul(%p0, %p1) : f32[3, 5, 8]\n"
         "%z = add(%c, %p2) : f32[3, 5, 8]", "[120]"),
        # an axis that differs from both neighbours
        (5, "f32[3, 5, 8]", "%b = broadcast(%p1) {axes=[1]} : f32[3, 5, 8]\n"
         "%c = mul(%p0, %b) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", ""),
        # transposed, reduced in parts
        ("5, 3, 8", "f32[3, 5, 8]", "%b = transpose(%p1) {perm=[1, 0, 2]} : f32[3, 5, 8]\n"
         "%c = mul(%p0, %b) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", ""),
        (8, "f32[3, 5]", '%z = reduce(%p0) {axes=[2], kind="sum"} : f32[3, 5]', "[15, 8]"),
        (8, "f32[3]", '%z = reduce(%p0) {axes=[1, 2], kind="sum"} : f32[3]', "[3, 40]"),
        (8, "f32[5, 8]", '%z = reduce(%p0) {axes=[0], kind="sum"} : f32[5, 8]', "[3, 40]"),
        # positions along the first axis, the last one, the axis between
        (8, "f32[3, 5, 8]", "%i = iota() {axis=0} : f32[3, 5, 8]\n"
         "%c = add(%p0, %i) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", "[3, 40]"),
        (8, "f32[3, 5, 8]", "%i = iota() {axis=2} : f32[3, 5, 8]\n"
         "%c = add(%p0, %i) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", "[15, 8]"),
        (8, "f32[3, 5, 8]", "%i = iota() {axis=1} : f32[3, 5, 8]\n"
         "%c = add(%p0, %i) : f32[3, 5, 8]\n%z = add(%c, %p2) : f32[3, 5, 8]", ""),
    ],
)  # fmt: skip
def test_loops_and_reductions(size: object, type_: str, lines: str, space: str) -> None:
    func = parse(LOOP.format(size=size, type=type_, lines=lines))
    made = Pipeline("coalesce").run(func, check=True).func
    if not space:
        assert made is func
    else:
        (group,) = (n for n in made.nodes if n.op == "fusion")
        assert str(group.blocks[0].params[0].type) == f"f32{space}"


WINDOW = """func @f(%x: {type}) -> ({made}) at tensor {{
  %z = fusion(%x) {{kind="loop", name="f"}} : {made} {{(%p0: {type})
    {lines}
    return %z
  }}
  return %z
}}"""
PADDED = (
    "%e = exp(%p0) : f32[2, 4, 5, 3]\n%z = pad(%e, 0.5:f32) {high=[0, 2, 0, 0],"
    " interior=[0, 0, 0, 0], low=[0, 0, 1, 0]} : f32[2, 6, 6, 3]"
)


@pytest.mark.parametrize(
    ("made", "lines", "attrs"),
    [
        ("f32[2, 6, 6, 3]", PADDED, "{high=[0, 2, 0], interior=[0, 0, 0], low=[0, 0, 3]}"
         " : f32[2, 6, 18]"),
        ("f32[2, 6, 5, 3]", "%z = pad(%p0, 0.5:f32) {high=[0, 1, 0, 0], interior=[0, 0, 0, 0],"
         " low=[0, 1, 0, 0]} : f32[2, 6, 5, 3]", "{high=[0, 15], interior=[0, 0], low=[0, 15]}"
         " : f32[2, 90]"),
        ("f32[2, 4, 2, 3]", "%z = slice(%p0) {limit=[2, 4, 3, 3], start=[0, 0, 1, 0],"
         " step=[1, 1, 1, 1]} : f32[2, 4, 2, 3]", "{limit=[8, 9], start=[0, 3], step=[1, 1]}"
         " : f32[8, 6]"),
        # two windows in a row, and what both axes of one are added to
        ("f32[2, 4, 5, 3]", "%a = pad(%p0, 0.0:f32) {high=[0, 0, 2, 0], interior=[0, 0, 0, 0],"
         " low=[0, 0, 0, 0]} : f32[2, 4, 7, 3]\n%s = slice(%a) {limit=[2, 4, 7, 3],"
         " start=[0, 0, 2, 0], step=[1, 1, 1, 1]} : f32[2, 4, 5, 3]\n"
         "%z = add(%s, %p0) : f32[2, 4, 5, 3]", "{limit=[8, 21], start=[0, 6], step=[1, 1]}"
         " : f32[8, 15]"),
    ],
)  # fmt: skip
def test_a_window_takes_the_axis_behind_it(made: str, lines: str, attrs: str) -> None:
    func = parse(WINDOW.format(type="f32[2, 4, 5, 3]", made=made, lines=lines))
    result = Pipeline("coalesce").run(func, check=True).func
    assert attrs in str(result)
    assert Pipeline("coalesce").run(result).func is result


@pytest.mark.parametrize(
    ("made", "lines"),
    [
        # gaps, a step; the axis behind is padded, too, or separate on one side
        ("f32[4, 9, 3]", "%z = pad(%p0, 0.0:f32) {high=[0, 0, 0], interior=[0, 1, 0],"
         " low=[0, 0, 0]} : f32[4, 9, 3]"),
        ("f32[4, 3, 3]", "%z = slice(%p0) {limit=[4, 5, 3], start=[0, 0, 0], step=[1, 2, 1]}"
         " : f32[4, 3, 3]"),
        ("f32[1, 5]", "%z = slice(%p0) {limit=[1, 5], start=[0, 0], step=[2, 1]} : f32[1, 5]"),
        ("f32[6, 6, 4]", "%z = pad(%p0, 0.0:f32) {high=[2, 0, 1], interior=[0, 0, 0],"
         " low=[0, 1, 0]} : f32[6, 6, 4]"),
        ("f32[6, 6]", "%a = pad(%p0, 0.0:f32) {high=[2, 0, 0], interior=[0, 0, 0],"
         " low=[0, 1, 0]} : f32[6, 6, 3]\n"
         '%z = reduce(%a) {axes=[2], kind="sum"} : f32[6, 6]'),
        ("f32[4, 3, 3]", "%a = pad(%p0, 0.0:f32) {high=[0, 1, 0], interior=[0, 0, 0],"
         " low=[0, 0, 0]} : f32[4, 6, 3]\n%z = slice(%a) {limit=[4, 6, 3], start=[0, 0, 0],"
         " step=[1, 2, 1]} : f32[4, 3, 3]"),
    ],
)  # fmt: skip
def test_windows_that_take_none(made: str, lines: str) -> None:
    type_ = made if made == "f32[1, 5]" else "f32[4, 5, 3]"
    func = parse(WINDOW.format(type=type_, made=made, lines=lines))
    assert Pipeline("coalesce").run(func, check=True).func is func


def test_an_array_that_meets_itself_keeps_its_axes() -> None:
    """x x^T: the rows of the one operand are the columns of the result."""
    func = parse(
        """func @f(%x: f32[3, 5, 3, 5]) -> (f32[3, 5, 3, 5]) at tensor {
          %t = fusion(%x) {kind="loop", name="f"} : f32[3, 5, 3, 5] {(%p0: f32[3, 5, 3, 5])
            %s = transpose(%p0) {perm=[2, 3, 0, 1]} : f32[3, 5, 3, 5]
            %t = add(%p0, %s) : f32[3, 5, 3, 5]
            return %t
          }
          return %t
        }"""
    )
    assert Pipeline("coalesce").run(func, check=True).func is func


def test_an_array_that_meets_itself_merges_its_other_axes() -> None:
    """Positions of rows and of columns may be one array, as in a causal mask."""
    made = coalesced(
        """func @f(%x: f32[3, 3, 5, 2]) -> (f32[3, 3, 5, 2]) at tensor {
          %t = fusion(%x) {kind="loop", name="f"} : f32[3, 3, 5, 2] {(%p0: f32[3, 3, 5, 2])
            %s = transpose(%p0) {perm=[1, 0, 2, 3]} : f32[3, 3, 5, 2]
            %t = add(%p0, %s) : f32[3, 3, 5, 2]
            return %t
          }
          return %t
        }"""
    )
    (group,) = [n for n in made.nodes if n.op == "fusion"]
    assert group.blocks[0].params[0].shape == (3, 3, 10)


# sums of both operands, one array, beside which another axis is shared
MET = """func @f(%x: f32[3, 20]) -> (f32[T]) at tensor {
  %y = fusion(%x) {kind="gemm", name="y"} : f32[T] {(%p0: f32[3, 20])
    %dot = dot(%p0, %p0) {rule="R"} : f32[T]
    %y = exp(%dot) : f32[T]
    return %y
  }
  return %y
}
"""


@pytest.mark.parametrize(
    ("rule", "result", "shape"),
    [
        ("m b, a b -> ", "", (3, 20)),
        ("b m, b a -> ", "", (3, 20)),
        ("m b, m a -> m", "3", (3, 20)),
        ("m b, m b -> ", "", (60,)),
    ],
)
def test_axes_that_meet_only_in_sums_stay(rule: str, result: str, shape: tuple[int, ...]) -> None:
    text = MET.replace("T", result).replace("R", rule)
    (group,) = [n for n in coalesced(text).nodes if n.op == "fusion"]
    assert group.blocks[0].params[0].shape == shape


def test_several_results() -> None:
    made = coalesced(
        """func @f(%x: X) -> (X, f32[3, 5]) at tensor {
          %g = fusion(%x) {kind="reduction", name="f"} : (X, f32[3, 5]) {(%p0: X)
            %e = exp(%p0) : X
            %s = reduce(%e) {axes=[2], kind="sum"} : f32[3, 5]
            return %e, %s
          }
          %a = item(%g) {index=0} : X
          %b = item(%g) {index=1} : f32[3, 5]
          return %a, %b
        }""".replace("X", "f32[3, 5, 8]")
    )
    (group,) = (n for n in made.nodes if n.op == "fusion")
    assert str(group.type) == "(f32[15, 8], f32[15])"


ARGMAX = """func @f(%x: f32[3, 5, 8]) -> (i64[SHAPE]) at tensor {
  %y = argreduce(%x) {axis=AXIS, kind="max"} : i64[SHAPE]
  return %y
}
"""


@pytest.mark.parametrize(("axis", "shape", "inner"), [(0, "5, 8", (3, 40)), (2, "3, 5", (15, 8))])
def test_positions_of_extremes(axis: int, shape: str, inner: tuple[int, ...]) -> None:
    made = coalesced(ARGMAX.replace("AXIS", str(axis)).replace("SHAPE", shape))
    (group,) = (n for n in made.nodes if n.op == "fusion")
    assert group.blocks[0].params[0].shape == inner


def test_positions_of_extremes_between_two_axes_stay() -> None:
    func = parse(ARGMAX.replace("AXIS", "1").replace("SHAPE", "3, 8"))
    assert Pipeline("coalesce").run(func).func is func


STREAMED = """func @f(%x: X, %w: f32[6, 4], %v: f32[3, 6]) -> (f32[2, 3, 5, 3]) at tensor {
  %d = dot(%x, %w) {rule="a b s k, n k -> a b s n"} : f32[2, 3, 5, 6]
  %e = exp(%d) : f32[2, 3, 5, 6]
  %y = dot(%e, %v) {rule="a b s n, o n -> a b s o"} : f32[2, 3, 5, 3]
  %z = neg(%y) : f32[2, 3, 5, 3]
  return %z
}
""".replace("X", "f32[2, 3, 5, 4]")


@pytest.mark.parametrize(
    ("old", "new", "shape"),
    [
        ("", "", (30, 3)),
        # heads that keys have too stay an axis of their own
        ("%w: f32[6, 4]", "%w: f32[2, 6, 4]", (2, 15, 3)),
    ],
    ids=["rows", "batches"],
)
def test_rows_of_a_stream(old: str, new: str, shape: tuple[int, ...]) -> None:
    text = STREAMED.replace(old, new) if old else STREAMED
    text = text.replace("a b s k, n k", "a b s k, a n k") if old else text
    result = Pipeline("stream{min_axis=2},coalesce").run(parse(text), check=True).func
    (stream,) = (n for n in result.nodes if n.op == "stream")
    assert stream.shape == shape
    assert result.results[0].shape == (2, 3, 5, 3)
    assert Pipeline("coalesce").run(result).func is result


KEPT_AXES = """func @f(%x: f32[2, 3, 4, 5]) -> (f32[2, 3, 1, 1]) at tensor {
  %y = fusion(%x) {kind="reduction", name="mean"} : f32[2, 3, 1, 1] {(%p0: f32[2, 3, 4, 5])
    %r = reduce(%p0) {axes=[2, 3], kind="sum"} : f32[2, 3]
    %v = reshape(%r) : f32[2, 3, 1, 1]
    %y = div(%v, 20.0:f32) : f32[2, 3, 1, 1]
    return %y
  }
  return %y
}
"""


def test_axes_of_one_element_divide_nothing() -> None:
    """Axes that a reduction keeps."""
    (group,) = [n for n in coalesced(KEPT_AXES).nodes if n.op == "fusion"]
    assert [p.shape for p in group.blocks[0].params] == [(6, 20)]
    assert group.shape == (6, 1)


def test_axes_that_a_view_cuts_or_joins_stay_and_others_merge() -> None:
    text = KEPT_AXES.replace("[2, 3, 1, 1]", "[3, 2, 1, 1]")
    (group,) = [n for n in coalesced(text).nodes if n.op == "fusion"]
    assert group.blocks[0].params[0].shape == (2, 3, 20)
    assert group.shape == (3, 2, 1)


SPLIT_AXIS = """func @f(%x: f32[4, 5, 6, 7], %s: f32[2, 2]) -> (f32[4, 5, 6, 7]) at tensor {
  %y = fusion(%x, %s) {kind="loop", name="scale"} : f32[4, 5, 6, 7] {(%p0: X, %p1: f32[2, 2])
    %v = reshape(%p1) : f32[4]
    %b = broadcast(%v) {axes=[0]} : f32[4, 5, 6, 7]
    %y = mul(%p0, %b) : f32[4, 5, 6, 7]
    return %y
  }
  return %y
}
""".replace("X", "f32[4, 5, 6, 7]")


def test_a_view_of_one_operand_keeps_no_axis_that_it_does_not_have() -> None:
    """Such as the scale of each channel of each image in instance norm."""
    (group,) = [n for n in coalesced(SPLIT_AXIS).nodes if n.op == "fusion"]
    assert [p.shape for p in group.blocks[0].params] == [(4, 210), (2, 2)]
    assert group.shape == (4, 210)


def test_an_axis_that_a_view_cuts_takes_no_other() -> None:
    """Even if they are neighbours in the view that both have."""
    text = SPLIT_AXIS.replace("f32[2, 2]", "f32[2, 2, 5]").replace(": f32[4]\n", ": f32[4, 5]\n")
    text = text.replace("axes=[0]", "axes=[0, 1]")
    (group,) = [n for n in coalesced(text).nodes if n.op == "fusion"]
    assert [p.shape for p in group.blocks[0].params] == [(4, 5, 42), (2, 2, 5)]
