"""Propagation in both directions: priorities, marks, regions, choices and refusals."""

from __future__ import annotations

import pytest

from stack.errors import StackError, UsageError
from stack.ir import Func, parse
from stack.passes.annotate import Annotate
from stack.passes.propagate import Propagate
from stack.rewrite import Pipeline

CHAIN = """func @f(%x: f32[8, 16], %w: f32[16, 32]) -> (f32[8, 32]) at tensor {
  %h = dot(%x, %w) {rule="m k, k n -> m n"} : f32[8, 32]
  %e = exp(%h) : f32[8, 32]
  %t = transpose(%e) {perm=[1, 0]} : f32[32, 8]
  %y = transpose(%t) {perm=[1, 0]} : f32[8, 32]
  return %y
}
"""
LOOP = """func @f(%x: f32[8, 4], %n: i64[]) -> (f32[8, 4]) at tensor {
  %w = while(%x, %n) : (f32[8, 4], i64[]) {(%a: f32[8, 4], %i: i64[])
    %more = gt(%i, 0:i64) : bool[]
    return %more
  } {(%a: f32[8, 4], %i: i64[])
    %b = exp(%a) : f32[8, 4]
    %j = sub(%i, 1:i64) : i64[]
    return %b, %j
  }
  %y = item(%w) {index=0} : f32[8, 4]
  return %y
}
"""
SPLIT = """func @f(%x: f32[4, 6]) -> (f32[4, 2, 3]) at tensor {
  %y = reshape(%x) : f32[4, 2, 3]
  return %y
}
"""


def propagated(text: str, *shard: str, mesh: str = "dp=2, tp=4", strict: bool = False) -> Func:
    passes = [Annotate(mesh, shard), Propagate(strict)]
    return Pipeline(passes).run(parse(text)).func


def lies(func: Func, name: str) -> str:
    named = {str(p.attrs["name"]): p for p in func.params}
    named |= {found: node for node, found in func.body.names.items()}
    return str(named[name].type)


def test_forward_and_backward() -> None:
    func = propagated(CHAIN, "x: dp", "t: tp, ?")
    assert lies(func, "h") == lies(func, "y") == "f32[8{dp}, 32{tp}] @m"
    assert lies(func, "t") == "f32[32{tp}, 8{dp}] @m"
    assert lies(func, "w") == "f32[16, 32{tp}] @m"


def test_closed_dims_and_replicated_axes_stay() -> None:
    assert lies(propagated(CHAIN, "x: dp", "e: -, ?"), "e") == "f32[8, 32] @m"
    text = CHAIN.replace("(%x: f32[8, 16], ", "<@m(dp=2, tp=4)>(%x: f32[8{dp}, 16] @m, ")
    text = text.replace("exp(%h) : f32[8, 32]", "exp(%h) : f32[8{?}, 32{?}] @m + replicated(dp)")
    func = Pipeline([Propagate()]).run(parse(text)).func
    assert lies(func, "h") == "f32[8{dp}, 32] @m" and lies(func, "e") == "f32[8, 32] @m"


def test_users_priorities_come_first() -> None:
    """If two values want an axis on the same value, the lower priority number wins."""
    first = propagated(CHAIN, "x: {tp, ?}p0", "w: -, {tp, ?}p1")
    assert lies(first, "h") == "f32[8{tp}, 32] @m"
    second = propagated(CHAIN, "x: {tp, ?}p1", "w: -, {tp, ?}p0")
    assert lies(second, "h") == "f32[8, 32{tp}] @m"


def test_parts_of_axes_through_splits_and_merges() -> None:
    func = propagated(SPLIT, "x: -, {a, b}", mesh="a=2, b=3")
    assert lies(func, "y") == "f32[4, 2{a}, 3{b}] @m"
    func = propagated(SPLIT, "y: tp, ?, ?", "x: ?, ?")
    assert lies(func, "x") == "f32[4{tp}, 6] @m"
    wide = SPLIT.replace("6]", "8]").replace("2, 3]", "2, 4]")
    func = propagated(wide, "x: -, tp")
    assert lies(func, "y") == "f32[4, 2{tp:(1)2}, 4{tp:(2)2}] @m"
    assert lies(propagated(SPLIT, "x: -, tp"), "y") == "f32[4, 2{tp:(1)2}, 3] @m"


def test_what_a_loop_carries_lies_in_one_way() -> None:
    func = propagated(LOOP, "x: dp, ?")
    (loop,) = [node for node in func.nodes if node.op == "while"]
    for block in loop.blocks:
        assert str(block.params[0].type) == "f32[8{dp}, 4] @m"
    assert lies(func, "y") == "f32[8{dp}, 4] @m"
    back = propagated(LOOP, "y: -, tp")
    assert str(back.params[0].type) == "f32[8, 4{tp}] @m"


def test_annotations_of_one_loop_that_disagree() -> None:
    """The error names both values and what was said of them."""
    text = LOOP.replace("@f(", "@f<@m(dp=2, tp=4)>(").replace(
        "(%a: f32[8, 4],", "(%a: f32[8{dp}, 4] @m,", 1
    )
    text = text.replace("(%a: f32[8, 4],", "(%a: f32[8{tp}, 4] @m,", 1)
    with pytest.raises(StackError, match=r"%a and %a are one value of a loop.*dp.*tp.*choose one"):
        Pipeline([Propagate()]).run(parse(text))


def test_every_decision_has_its_reason() -> None:
    passes = [Annotate("dp=2, tp=4", ("x: dp", "w: -, tp")), Propagate()]
    notes = Pipeline(passes).run(parse(CHAIN)).records[1].notes
    assert "%h: dim 0 on dp, from %x through factor m of dot" in notes
    assert "%h: dim 1 on tp, from %w through factor n of dot" in notes


def test_a_choice_is_told_and_refused_where_strict() -> None:
    places = ("x: tp", "w: -, tp")
    passes = [Annotate("dp=2, tp=4", places), Propagate()]
    notes = Pipeline(passes).run(parse(CHAIN)).records[1].notes
    told = [note for note in notes if "bytes" in note]
    assert len(told) == 1 and told[0].startswith("%h = dot (no source line): tp on n, of ")
    with pytest.raises(
        StackError, match=r"%h = dot .* along tp in several ways: n \(\d+ bytes\), m \("
    ) as e:
        propagated(CHAIN, *places, strict=True)
    assert "annotate it to choose" in str(e.value)
    assert lies(propagated(CHAIN, *places, "h: tp", strict=True), "h") == "f32[8{tp}, 32] @m"


def test_text_is_lossless_and_places_follow_again() -> None:
    func = propagated(CHAIN, "x: dp", "t: tp, ?")
    assert parse(str(func)) is func
    assert Pipeline([Propagate()]).run(func).func is func


@pytest.mark.parametrize(
    ("shard", "told"),
    [
        ("x: ep", "has no axis 'ep'"),
        ("x: dp, dp", "used twice"),
        ("y2: dp", "did you mean 'y'"),
        ("x: dp, -, -", "3 entries for %x of type"),
        ("x: {dp", "for each dim"),
        ("return 1: dp", "1 result"),
        ("x dp", "'x: dp, -'"),
        ("w: -, {dp, tp}p1x", "for each dim"),
    ],
)
def test_what_cannot_be_understood(shard: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        propagated(CHAIN, shard)


def test_a_mesh_that_is_too_large() -> None:
    """The error names the value, where it comes from, and the axes that fit."""
    told = r"'h: \{dp, tp\}': %h \(m.py:3\): dim 0 has 8 element\(s\) for 32 parts.*: dp \(8\), tp"
    with pytest.raises(UsageError, match=told):
        text = CHAIN.replace(": f32[8, 32]\n", ': f32[8, 32] from "m.py:3"\n', 1)
        propagated(text, "h: {dp, tp}", mesh="dp=8, tp=4")


def test_annotations_that_contradict_each_other() -> None:
    told = r"%w has two shardings, '\*: dp' and 'w: tp': keep one"
    with pytest.raises(UsageError, match=told):
        propagated(CHAIN, "*: dp", "w: tp")
    assert lies(propagated(CHAIN, "w: tp", "w: tp, -"), "w").startswith("f32[16{tp}")


def test_of_axes_whose_last_is_wanted_elsewhere_the_others_stay() -> None:
    """Experts take `ep`, so the batch keeps `dp`."""
    text = """func @f(%x: f32[16, 8, 4], %w: f32[4, 4, 4]) -> (f32[4, 16, 8, 4]) at tensor {
  %y = dot(%x, %w) {rule="b s d, e d f -> e b s f"} : f32[4, 16, 8, 4]
  return %y
}"""
    func = propagated(text, "x: {dp, ep}", "w: ep", "return: ep", mesh="dp=2, ep=4")
    assert lies(func, "y") == "f32[4{ep}, 16{dp}, 8, 4] @m"


@pytest.mark.parametrize(
    "op",
    [
        'scan(%x) {axis=1, kind="sum", reverse=false} : f32[8, 6]',
        "concat(%x, %x) {axis=1} : f32[8, 12]",
    ],
)
def test_what_runs_along_one_dim_leaves_the_others_where_they_are(op: str) -> None:
    kind = op.rpartition(": ")[2]
    text = f"func @f(%x: f32[8, 6]) -> ({kind}) at tensor {{\n  %y = {op}\n  return %y\n}}"
    passes = [Annotate("dp=4", ("x: dp",)), *Pipeline("propagate,reshard,spmd").passes]
    local = Pipeline(passes).run(parse(text)).func
    assert [n.op for n in local.nodes] == [op.partition("(")[0]]
    assert [r.shape[0] for r in local.results] == [2]
