"""The contract of the pass manager: text of pipelines, blame, cycles, fuel, numerical checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import stack.plugins as plugins
from stack.errors import UsageError, VerifyError
from stack.ir import Block, Builder, Func, Node, parse, tensor
from stack.rewrite import CheckError, CycleError, Fuel, Log, Pass, Pipeline, Scope, on, rewrite


def adds() -> Func:
    b = Builder()
    func = parse("func @f(%x: f32[4], %y: f32[4]) -> (f32[4]) at tensor {\n  return %x\n}\n")
    x, y = func.params
    b.loc = ("block.py:7 Attn.wq",)
    total = b.add(x, y, named="total")
    b.loc = ("block.py:8",)
    return b.func("main", [x, y], [b.mul(total, x, named="out")])


# ---- text


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("canonicalize", "canonicalize"),
        (" canonicalize , fold ", "canonicalize,fold"),
        ("fuse{max_inputs=8}", "fuse{max_inputs=8}"),
        ("fold{max_work=5,max_elements=2},unfuse", "fold{max_elements=2, max_work=5},unfuse"),
        ("tile{refuse=[exp, log]}", "tile{refuse=[exp, log]}"),
        ("fuse{max_inputs=32}", "fuse"),
        ("", ""),
    ],
)
def test_text_round_trip(text: str, same_as: str) -> None:
    pipeline = Pipeline(text)
    assert str(pipeline) == same_as
    assert Pipeline(str(pipeline)) == pipeline
    assert Pipeline(list(pipeline.passes)) == pipeline
    assert hash(Pipeline(str(pipeline))) == hash(pipeline)


@pytest.mark.parametrize("name", plugins.names("stack.passes"))
def test_every_pass_has_its_name(name: str) -> None:
    (one,) = Pipeline(name).passes
    assert one.name == name
    assert Pipeline(str(one)).passes == (one,)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("canonicalise", ["canonicalise", "did you mean 'canonicalize'", "`stackc passes`"]),
        ("fuse{inputs=8}", ["no option 'inputs'", "max_inputs=32"]),
        ("fold{max_elements=many}", ["'max_elements'", "int", "'many'"]),
        ("canonicalize{a=1}", ["no option 'a'", "none"]),
        ("fold,,fuse", ["cannot read ',fuse'", "expected name{option=value, ...}"]),
        ("fuse{max_inputs=8", ["cannot read 'fuse{max_inputs=8'"]),
        ("fold,fuse{max_inputs}", ["cannot read 'fuse{max_inputs}'"]),
        ("fuse}", ["cannot read 'fuse}'"]),
    ],
)
def test_errors_list_what_exists(text: str, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        Pipeline(text)
    for part in parts:
        assert part in str(caught.value)


# ---- blame


@dataclass(frozen=True)
class Broken(Pass):
    """Breaks what `how` says."""

    name: ClassVar[str] = "broken"
    how: str = "type"

    def run(self, func: Func, log: Log) -> Func:
        x, y = func.params
        (out,) = func.results
        body = func.body
        if self.how == "type":
            bad = Node("add", (x, y), {}, tensor("f32", 5))
            end = Node("mul", (out.args[0], bad), {}, tensor("f32", 4))
            return Func(func.name, Block(body.params, [end], body.names, {end: ("block.py:8",)}))
        if self.how == "results":
            return Func(func.name, Block(body.params, [out, out], body.names, body.locs))
        return Func(func.name, Block((x,), [Builder().neg(x)]))


def test_the_verifier_blames_the_pass() -> None:
    with pytest.raises(VerifyError) as caught:
        Pipeline(["canonicalize", Broken()]).run(adds())
    error = caught.value
    assert error.after == "broken"
    assert "add" in error.node and "f32[5]" in error.node
    assert "f32[4]" in error.rule
    assert "after pass 'broken'" in str(error)


@pytest.mark.parametrize(("how", "what"), [("results", "results"), ("params", "parameters")])
def test_signatures_are_kept(how: str, what: str) -> None:
    with pytest.raises(VerifyError, match=what) as caught:
        Pipeline([Broken(how=how)]).run(adds())
    assert caught.value.after == f"broken{{how={how}}}"


@on("add")
def _wrong_type(node: Node, op: Builder, scope: Scope) -> Node | None:
    return op.cast(node, type=node.tensor.with_dtype(tensor("f64").dtype))


@on("add")
def _bad_node(node: Node, op: Builder, scope: Scope) -> Node | None:
    return op.reduce(node, kind="sum", axes=(3,))


@dataclass(frozen=True)
class Rules(Pass):
    """Runs rules of the test."""

    name: ClassVar[str] = "rules"
    which: str = ""

    def run(self, func: Func, log: Log) -> Func:
        return rewrite(func, TABLE[self.which], log, limit=60)


@pytest.mark.parametrize("which", ["wrong_type", "bad_node"])
def test_a_bad_rule_is_named_with_node_and_line(which: str) -> None:
    with pytest.raises(VerifyError) as caught:
        Pipeline([Rules(which)]).run(adds())
    text = str(caught.value)
    for part in ("rules", which, "%total = add(%x, %y)", "block.py:7 Attn.wq"):
        assert part in text


# ---- cycles


@on("add")
def _turn(node: Node, op: Builder, scope: Scope) -> Node | None:
    return op.sub(node.args[0], op.neg(node.args[1]))


@on("sub")
def _back(node: Node, op: Builder, scope: Scope) -> Node | None:
    if node.args[1].op != "neg":
        return None
    return op.add(node.args[0], node.args[1].args[0])


@on("mul")
def _grow(node: Node, op: Builder, scope: Scope) -> Node | None:
    return op.mul(op.neg(node.args[0]), op.neg(node.args[1]))


@on("add")
def _swap(node: Node, op: Builder, scope: Scope) -> Node | None:
    return op.mul(node.args[0], node.args[1])


TABLE = {
    "wrong_type": (_wrong_type,),
    "bad_node": (_bad_node,),
    "cycle": (_turn, _back),
    "grow": (_grow,),
    "swap": (_swap,),
}


def test_rules_that_chase_each_other_are_named() -> None:
    with pytest.raises(CycleError) as caught:
        Pipeline([Rules("cycle")]).run(adds())
    assert set(caught.value.rules) == {"turn", "back"}


def test_growth_without_end_is_named() -> None:
    with pytest.raises(CycleError, match="did not terminate") as caught:
        Pipeline([Rules("grow")]).run(adds())
    assert caught.value.rules == ("grow",)


# ---- fuel


CHAIN = """func @main(%x: f32[4]) -> (f32[4]) at tensor {
  %a = neg(%x) : f32[4]
  %b = neg(%a) : f32[4]
  %c = mul(%b, 1.0:f32) : f32[4]
  %d = abs(%c) : f32[4]
  %e = abs(%d) : f32[4]
  %f = div(%e, 4.0:f32) : f32[4]
  return %f
}
"""


def test_names_of_a_rule_that_gives_nothing_are_forgotten() -> None:
    """Names noted by a rule that then gives up do not name a node of the next rule."""

    @on("add")
    def gives_up(node: Node, op: Builder, scope: Scope) -> Node | None:
        op.exp(op.exp(node.args[0], named="wrong"), named="wrong")
        return None

    @on("mul")
    def square(node: Node, op: Builder, scope: Scope) -> Node | None:
        return op.exp(op.exp(scope.block.params[0]), named="right")

    block = rewrite(adds(), (gives_up, square), Log()).body
    assert "wrong" not in block.names.values()


def test_fuel_stops_after_so_many_rewrites() -> None:
    func = parse(CHAIN)
    whole = Pipeline("canonicalize").run(func)
    (record,) = whole.records
    total = len(record.rewrites)
    assert total >= 4
    assert Pipeline("canonicalize").run(func, fuel=0).func is func
    for fuel in range(total + 1):
        result = Pipeline("canonicalize").run(func, fuel=fuel, check=True)
        assert len(result.records[0].rewrites) == fuel
    assert result.func is whole.func


def test_fuel_is_shared_by_the_passes() -> None:
    tank = Fuel(3)
    result = Pipeline("canonicalize,canonicalize,fuse").run(parse(CHAIN), fuel=tank)
    assert sum(len(r.rewrites) for r in result.records) == 3
    assert tank.left == 0


def test_fuel_finds_the_rewrite_that_breaks() -> None:
    pipeline = Pipeline(["canonicalize", Rules("swap")])
    low, high = 0, 50
    while high - low > 1:
        middle = (low + high) // 2
        try:
            pipeline.run(adds(), fuel=middle, check=True)
            low = middle
        except CheckError:
            high = middle
    result = pipeline.run(adds(), fuel=high)
    last = [w for r in result.records for w in r.rewrites][-1]
    assert last.rule == "swap"
    assert last.source == ("block.py:7 Attn.wq",)


# ---- checks and dumps


def test_check_catches_changed_values_and_names_the_pass() -> None:
    Pipeline([Rules("swap")]).run(adds())
    with pytest.raises(CheckError, match=r"after pass .rules\{which=swap\}"):
        Pipeline(["canonicalize", Rules("swap")]).run(adds(), check=True)


def test_check_passes_what_is_right() -> None:
    result = Pipeline("canonicalize,fuse").run(parse(CHAIN), check=True)
    assert all(r.error is None or r.error < 1e-6 for r in result.records)


def test_only_what_changed_is_dumped(tmp_path: Path) -> None:
    Pipeline("canonicalize,canonicalize,fuse").run(parse(CHAIN), dump_dir=tmp_path)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["00_input.ir", "01_canonicalize.ir", "03_fuse.ir"]
    assert all(parse(p.read_text()) for p in tmp_path.iterdir())
