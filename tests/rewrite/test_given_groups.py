"""Given groups: formed as they are, split where they are not legal, and nothing else joins."""

from __future__ import annotations

import pytest

import stack.plugins as plugins
from stack.errors import UsageError
from stack.ir import Func, Node, parse
from stack.rewrite import Pipeline
from stack.rewrite.given_groups import GivenGroups
from stack.rewrite.log import Log
from stack.rewrite.pipeline import Record

SOFTMAX = """func @main(%x: f32[8, 16]) -> (f32[8, 16]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[8]
  %mb = broadcast(%m) {axes=[0]} : f32[8, 16]
  %d = sub(%x, %mb) : f32[8, 16]
  %e = exp(%d) : f32[8, 16]
  %s = reduce(%e) {axes=[1], kind="sum"} : f32[8]
  %sb = broadcast(%s) {axes=[0]} : f32[8, 16]
  %z = div(%e, %sb) : f32[8, 16]
  return %z
}
"""
TWO_DOTS = """func @main(%x: f32[8, 8], %w: f32[8, 8], %v: f32[8, 8]) -> (f32[8, 8]) at tensor {
  %a = dot(%x, %w) {rule="m k, k n -> m n"} : f32[8, 8]
  %r = tanh(%a) : f32[8, 8]
  %b = dot(%r, %v) {rule="m k, k n -> m n"} : f32[8, 8]
  %z = exp(%b) : f32[8, 8]
  return %z
}
"""
SIBLINGS = """func @main(%x: f32[8, 16], %y: f32[5]) -> (f32[8, 16], f32[8, 16], f32[5]) at tensor {
  %a = exp(%x) : f32[8, 16]
  %b = tanh(%x) : f32[8, 16]
  %c = tanh(%y) : f32[5]
  return %a, %b, %c
}
"""
AROUND_A_SORT = """func @main(%x: f32[16, 16]) -> (f32[16, 16]) at tensor {
  %early = exp(%x) : f32[16, 16]
  %sort = sort(%early) {axis=0, descending=false, num_keys=1} : (f32[16, 16])
  %sorted = item(%sort) {index=0} : f32[16, 16]
  %late = add(%early, %sorted) : f32[16, 16]
  %z = tanh(%late) : f32[16, 16]
  return %z
}
"""


def run(text: str, *groups: str, check: bool = True) -> Record:
    given = ", ".join(f'"{g}"' for g in groups)
    return Pipeline(f"fuse{{groups=[{given}]}}").run(parse(text), check=check).records[0]


def ops(func: Func) -> list[list[str]]:
    """The ops of each step, without views of broadcasts."""
    found: list[list[str]] = []
    for step in func.nodes:
        inner: tuple[Node, ...] = step.blocks[0].nodes if step.op == "fusion" else (step,)
        names = [n.op for n in inner if n.op not in ("broadcast", "item", "param")]
        found += [names] if names else []
    return found


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (
            ("%m %d %e %s %z",),
            [["reduce", "sub", "exp", "reduce", "div"]],
        ),
        (
            ("%m", "%d %e %s", "%z"),
            [["reduce"], ["sub", "exp", "reduce"], ["div"]],
        ),
        (("%d %e",), [["reduce"], ["sub", "exp"], ["reduce"], ["div"]]),
        (("",), [["reduce"], ["sub"], ["exp"], ["reduce"], ["div"]]),
    ],
)
def test_the_groups_are_those_that_are_given(
    groups: tuple[str, ...], expected: list[list[str]]
) -> None:
    record = run(SOFTMAX, *groups)
    assert ops(record.after) == expected
    assert all(r.kind == "given" for r in record.refused)


def test_without_groups_it_is_greedy_as_before() -> None:
    record = Pipeline("fuse").run(parse(SOFTMAX)).records[0]
    assert len(ops(record.after)) == 1
    assert not record.refused


def test_a_value_of_two_groups_is_computed_in_both() -> None:
    text = """func @main(%x: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) at tensor {
  %a = neg(%x) : f32[64, 64]
  %b = mul(%a, %x) : f32[64, 64]
  %c = tanh(%b) : f32[64, 64]
  %d = exp(%b) : f32[64, 64]
  return %c, %d
}
"""
    found = ops(run(text, "%b %c", "%b %d").after)
    assert [names[-1] for names in found] == ["tanh", "exp"]
    assert all("mul" in names for names in found)


def test_an_illegal_group_is_split_and_the_others_apply() -> None:
    record = run(TWO_DOTS, "%a %r %b %z")
    assert ops(record.after) == [["dot", "tanh"], ["dot", "exp"]]
    (refused,) = record.refused
    assert (refused.producer, refused.consumer) == ("%r", "%z")  # by results of the groups
    assert "reads its operands from memory" in refused.reason


def test_a_cycle_stays_apart() -> None:
    record = run(AROUND_A_SORT, "%early %late %z")
    assert [names for names in ops(record.after) if names != ["sort"]] == [["exp"], ["add", "tanh"]]
    assert [r.kind for r in record.refused] == ["cycle"]


def test_readers_of_one_value_join_only_if_they_are_given() -> None:
    assert ops(run(SIBLINGS, "%a %b").after) == [["exp", "tanh"], ["tanh"]]
    assert len(ops(Pipeline("fuse").run(parse(SIBLINGS)).func)) == 3


def test_values_that_share_nothing_do_not_join() -> None:
    assert len(ops(run(SIBLINGS, "%a %c").after)) == 3


def test_bodies_of_loops_are_fused_as_usual() -> None:
    text = """func @main(%x: f32[8]) -> (f32[8]) at tensor {
  %a = exp(%x) : f32[8]
  %loop = while(0:i64, %a) : (i64[], f32[8]) {(%n: i64[], %v: f32[8])
    %go = lt(%n, 3:i64) : bool[]
    return %go
  } {(%n: i64[], %v: f32[8])
    %next = add(%n, 1:i64) : i64[]
    %t = tanh(%v) : f32[8]
    %u = mul(%t, %t) : f32[8]
    return %next, %u
  }
  %y = item(%loop) {index=1} : f32[8]
  return %y
}
"""
    given = ops_in_bodies(run(text, "%a").after)
    assert given == ops_in_bodies(Pipeline("fuse").run(parse(text)).func)
    assert ["tanh", "mul"] in given


def ops_in_bodies(func: Func) -> list[list[str]]:
    (loop,) = [n for n in func.nodes if n.op == "while"]
    bodies = (Func("body", block) for block in loop.blocks)
    return [names for body in bodies for names in ops(body)]


def test_an_unknown_name_is_refused_with_similar_ones() -> None:
    with pytest.raises(UsageError, match="no value '%mm'"):
        run(SOFTMAX, "%mm %d", check=False)


def test_the_text_of_the_pass_makes_the_same_pass() -> None:
    pipeline = Pipeline('fuse{max_inputs=4, groups=["%d %e", "%z"]}')
    assert Pipeline(str(pipeline)) == pipeline


def test_a_value_that_others_read_too_is_also_computed_on_its_own() -> None:
    text = """func @main(%x: f32[8, 8]) -> (f32[8, 8], f32[8, 8], f32[8]) at tensor {
  %b = exp(%x) : f32[8, 8]
  %c = tanh(%b) : f32[8, 8]
  %n = reduce(%b) {axes=[1], kind="sum"} : f32[8]
  %w = broadcast(%n) {axes=[0]} : f32[8, 8]
  %d = mul(%b, %w) : f32[8, 8]
  %e = mul(%d, %c) : f32[8, 8]
  return %d, %e, %n
}
"""
    found = ops(run(text, "%b %c", "%b %d", "%n", "%e").after)
    assert sum("exp" in names for names in found) == 3  # for %c, for %d, and for %n
    assert all(len([n for n in names if n != "exp"]) <= 1 for names in found)


def test_the_parts_and_reasons_of_a_split_group() -> None:
    func = parse(TWO_DOTS)
    fusion = plugins.load("stack.passes", "fuse")()
    grouping = fusion.grouping(func.body, Log())
    given = GivenGroups(func.body, ["%a %r %b %z"])
    given.form(grouping)
    assert [g.members[-1].op for g in given.pieces(grouping, 0)] == ["tanh", "exp"]
    assert list(given.reasons(grouping, 0)) == ["%r and %z: a dot reads its operands from memory"]
