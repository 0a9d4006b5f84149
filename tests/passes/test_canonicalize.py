"""canonicalize, rule by rule: what it rewrites, and the nearest thing that it must leave alone."""

from __future__ import annotations

import pytest

from stack.ir import Func, parse
from stack.rewrite import Pipeline

F, I, B = "f32[4]", "i32[4]", "bool[4]"


def func(case_type: str, lines: str) -> Func:
    """`%z` of lines `%z = ...`; x and y are parameters."""
    result = lines.rstrip().splitlines()[-1]
    name, _, rest = result.strip().partition(" = ")
    body = "".join(f"  {line.strip()}\n" for line in lines.strip().splitlines())
    kind = rest.rsplit(" : ", 1)[1] if rest else case_type
    text = f"func @main(%x: {case_type}, %y: {case_type}) -> ({kind}) at tensor {{\n"
    return parse(f"{text}{body if rest else ''}  return {name}\n}}\n")


REWRITES: dict[str, tuple[str, str, str]] = {
    "constant_right": (
        F,
        f"%z = add(2.0:f32, %x) : {F}",
        f"%z = add(%x, 2.0:f32) : {F}",
    ),
    "times one": (F, f"%z = mul(%x, 1.0:f32) : {F}", "%x"),
    "plus negative zero": (F, f"%z = add(%x, -0.0:f32) : {F}", "%x"),
    "minus zero": (F, f"%z = sub(%x, 0.0:f32) : {F}", "%x"),
    "integer plus zero": (I, f"%z = add(%x, 0:i32) : {I}", "%x"),
    "integer divided by one": (I, f"%z = div(%x, 1:i32) : {I}", "%x"),
    "times minus one": (F, f"%z = mul(%x, -1.0:f32) : {F}", f"%z = neg(%x) : {F}"),
    "divide by a power of two": (
        F,
        f"%z = div(%x, 8.0:f32) : {F}",
        f"%z = mul(%x, 0.125:f32) : {F}",
    ),
    "neg twice": (F, f"%a = neg(%x) : {F}\n%z = neg(%a) : {F}", "%x"),
    "abs of neg": (F, f"%a = neg(%x) : {F}\n%z = abs(%a) : {F}", f"%z = abs(%x) : {F}"),
    "floor of floor": (
        F,
        f"%z = floor(%x) : {F}\n%w = floor(%z) : {F}",
        f"%z = floor(%x) : {F}",
    ),
    "max of equals": (F, f"%z = max(%x, %x) : {F}", "%x"),
    "minus negative": (
        F,
        f"%a = neg(%y) : {F}\n%z = sub(%x, %a) : {F}",
        f"%z = add(%x, %y) : {F}",
    ),
    "plus negative": (
        F,
        f"%a = neg(%y) : {F}\n%z = add(%x, %a) : {F}",
        f"%z = sub(%x, %y) : {F}",
    ),
    "select on not": (
        F,
        f"%t = lt(%x, %y) : {B}\n%n = not(%t) : {B}\n%z = select(%n, %x, %y) : {F}",
        f"%t = lt(%x, %y) : {B}\n%z = select(%t, %y, %x) : {F}",
    ),
    "select of equals": (F, f"%t = lt(%x, %y) : {B}\n%z = select(%t, %x, %x) : {F}", "%x"),
    "cast to the same": (F, f"%z = cast(%x) : {F}", "%x"),
    "cast through wider": (F, f"%a = cast(%x) : f64[4]\n%z = cast(%a) : {F}", "%x"),
    "max over two axes": (
        "i32[4, 3]",
        '%a = reduce(%x) {axes=[1], kind="sum"} : i32[4]\n'
        '%z = reduce(%a) {axes=[0], kind="sum"} : i32[]',
        '%z = reduce(%x) {axes=[0, 1], kind="sum"} : i32[]',
    ),
}
KEPT: dict[str, tuple[str, str]] = {
    "-0.0 + 0.0 is 0.0": (F, f"%z = add(%x, 0.0:f32) : {F}"),
    "-0.0 - -0.0 is 0.0": (F, f"%z = sub(%x, -0.0:f32) : {F}"),
    "nan times zero": (F, f"%z = mul(%x, 0.0:f32) : {F}"),
    "nan minus nan": (F, f"%z = sub(%x, %x) : {F}"),
    "nan equals nan": (F, f"%z = eq(%x, %x) : {B}"),
    "a third has no exact inverse": (F, f"%z = div(%x, 3.0:f32) : {F}"),
    "the inverse is subnormal": (F, f"%z = div(%x, {2.0**127!r}:f32) : {F}"),
    "integer division is no product": (I, f"%z = div(%x, 8:i32) : {I}"),
    "one divided by x": (F, f"%z = div(1.0:f32, %x) : {F}"),
    "zero minus x": (F, f"%z = sub(0.0:f32, %x) : {F}"),
    "abs of neg, unsigned": ("u8[4]", "%a = neg(%x) : u8[4]\n%z = abs(%a) : u8[4]"),
    "rounding after sign": (F, f"%a = neg(%x) : {F}\n%z = floor(%a) : {F}"),
    "max of others": (F, f"%z = max(%x, %y) : {F}"),
    "cast through narrower": (F, f"%a = cast(%x) : f16[4]\n%z = cast(%a) : {F}"),
    "cast through integers": (F, f"%a = cast(%x) : i64[4]\n%z = cast(%a) : {F}"),
    "a sum of floats keeps its order": (
        "f32[4, 3]",
        '%a = reduce(%x) {axes=[1], kind="sum"} : f32[4]\n'
        '%z = reduce(%a) {axes=[0], kind="sum"} : f32[]',
    ),
    "max of a sum": (
        "i32[4, 3]",
        '%a = reduce(%x) {axes=[1], kind="sum"} : i32[4]\n'
        '%z = reduce(%a) {axes=[0], kind="max"} : i32[]',
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    kind, before, after = REWRITES[name]
    result = Pipeline("canonicalize").run(func(kind, before), check=True)
    want = func(kind, after)
    assert result.func.results == want.results, f"{result.func}\n{want}"
    again = Pipeline("canonicalize").run(result.func)
    assert again.func is result.func


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    kind, lines = KEPT[name]
    before = func(kind, lines)
    result = Pipeline("canonicalize").run(before)
    assert result.func is before, str(result.func)


NEAR: dict[str, str] = {
    "-0.0 + 0.0 is 0.0": "it makes 0.0 of -0.0",
    "nan times zero": "0 times an infinity is a nan, and 0 times -1 is -0.0",
    "nan minus nan": "an infinity minus itself is a nan",
    "nan equals nan": "a nan is not equal to itself",
    "a third has no exact inverse": "1 / 3 is no float: a product rounds twice",
    "cast through integers": "i64 cannot represent every value of f32",
    "a sum of floats keeps its order": "a sum of f32 depends on its order",
}


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_say_why(name: str) -> None:
    kind, lines = KEPT[name]
    (record,) = Pipeline("canonicalize").run(func(kind, lines), verbose=True).records
    assert NEAR[name] in {miss.reason for miss in record.misses}
