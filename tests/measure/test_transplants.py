"""Transplants: a peer's groups on our function, what is split, and the values of the program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stack.cli import main
from stack.explore.lowering import Settings, all_stages
from stack.explore.retrace import marked
from stack.ir import Func, parse
from stack.measure.transplants import Transplant, transplant
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Kernel
from stack.run.compile import stages_of

BASE = "default,-stream"
QKV = "%q: f32[4, 16, 8], %k: f32[4, 16, 8], %v: f32[4, 16, 8]"
ATTENTION = (
    f"func @f({QKV}) -> (f32[4, 16, 8]) at tensor {{"
    + """
  %kt = transpose(%k) {perm=[0, 2, 1]} : f32[4, 8, 16] from "m.py:3"
  %s = dot(%q, %kt) {rule="b m k, b k n -> b m n"} : f32[4, 16, 16] from "m.py:3"
  %h = mul(%s, 0.35:f32) : f32[4, 16, 16] from "m.py:3"
  %m = reduce(%h) {axes=[2], kind="max"} : f32[4, 16] from "m.py:4"
  %mb = broadcast(%m) {axes=[0, 1]} : f32[4, 16, 16] from "m.py:4"
  %d = sub(%h, %mb) : f32[4, 16, 16] from "m.py:4"
  %e = exp(%d) : f32[4, 16, 16] from "m.py:4"
  %t = reduce(%e) {axes=[2], kind="sum"} : f32[4, 16] from "m.py:4"
  %tb = broadcast(%t) {axes=[0, 1]} : f32[4, 16, 16] from "m.py:4"
  %w = div(%e, %tb) : f32[4, 16, 16] from "m.py:4"
  %y = dot(%w, %v) {rule="b m n, b n k -> b m k"} : f32[4, 16, 8] from "m.py:5"
  return %y
}
"""
)


def imposed(text: str, *groups: str) -> Transplant:
    func, origins = marked(parse(text))
    stages, machine = all_stages(func, Settings(passes=BASE))
    kernels = [Kernel(f"k{i}", "generated", stage_node=g) for i, g in enumerate(groups)]
    return transplant(kernels, func, origins, stages, machine)


def fused(text: str, found: Transplant, check: bool = True) -> Func:
    """Our function in stage `fused`, with the groups of a peer; values are checked."""
    import stack.plugins as plugins

    func = parse(text)
    stages, _ = stages_of(plugins.load("stack.backends", "mlir"), f"{BASE},{found.edit}")
    for name, spec in stages:
        func = Pipeline(spec).run(func, check=check).func
        if name == "fused":
            break
    return func


def groups_in(func: Func) -> list[Sequence[str]]:
    steps = [n for n in func.nodes if n.op in ("fusion", "dot")]
    bodies = [n.blocks[0].nodes if n.blocks else (n,) for n in steps]
    return [[n.op for n in body if n.op in ("dot", "reduce", "exp", "div")] for body in bodies]


def test_groups_of_a_peer_are_ours() -> None:
    found = imposed(ATTENTION, "kt", "s", "h m", "d e t", "w", "y")
    assert (found.groups, found.split) == (5, ())  # %kt alone is a view
    assert groups_in(fused(ATTENTION, found)) == [
        ["dot"], ["reduce"], ["exp", "reduce"], ["div"], ["dot"]
    ]  # fmt: skip


def test_a_group_that_is_not_legal_is_named_and_split() -> None:
    found = imposed(ATTENTION, "s h m mb d e t tb w y")
    (split,) = found.split
    assert (split.kernel, split.pieces) == ("k0", 3)
    assert split.source[0] == "m.py:3"
    assert any("reads its operands from memory" in reason for reason in split.reasons)
    assert groups_in(fused(ATTENTION, found)) == [
        ["dot"],
        ["reduce", "exp", "reduce", "div"],
        ["dot"],
    ]


def test_nodes_that_a_peer_does_not_name_stay_alone() -> None:
    found = imposed(ATTENTION, "d e")
    assert len(groups_in(fused(ATTENTION, found))) == 7  # 2 dots, mul, 2 reductions, sub exp, div


def test_a_kernel_inside_a_loop_is_counted_and_left_out() -> None:
    found = imposed(ATTENTION, "d e", "another~2")
    assert (found.groups, found.inside) == (1, 1)


TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8] from "m.py:1 net.scale"
  %y = mul(%x, %wide) : f32[4, 8] from "m.py:1 net.scale"
  %e = tanh(%y) : f32[4, 8] from "m.py:2 net"
  return %e
}
"""


@pytest.fixture
def text_file(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["compare", *argv, "--rounds", "5"])
    return code, capsys.readouterr().out


@pytest.mark.usefixtures("third_party")
def test_the_command_times_a_peers_groups_in_our_code(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capsys, text_file, "--transplant", "groupedpeer", "--json")
    found: dict[str, Any] = json.loads(out)
    assert code == 0
    assert found["schema"] == "stack.transplant/1"
    donors = {d["groups_of"]: d for d in found["donors"]}
    assert list(donors) == ["ours", "groupedpeer", "each op alone"]
    assert donors["groupedpeer"]["groups"] == 2
    assert donors["groupedpeer"]["split"] == []
    rows = {(r["system"], r["via"]): r for r in found["rows"]}
    assert rows["ours", "own"]["kernels"] == 1
    assert rows["groupedpeer", "own"]["kernels"] == 2
    assert rows["groupedpeer", "ir"]["kernels"] == 2
    for row in found["rows"]:
        assert row["ok"]
        assert row["max_error"] < 1e-6  # against double precision
        assert row["run_ms"] > 0


@pytest.mark.usefixtures("third_party")
def test_the_table_says_what_is_compared(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(capsys, text_file, "--transplant", "groupedpeer,absentpeer", "--wide")
    assert code == 5
    assert "fused: our code" in out
    assert "coded: own/our" in out
    assert "absentpeer:\n  pip install absent" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--with", "eager"], "without --with"),
        (["--passes", "canonicalize,fuse"], "must start with 'default'"),
        (["--passes", "default,-fuse"], "no pass of this pipeline forms groups"),
    ],
)
def test_what_does_not_fit_is_refused(
    text_file: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", text_file, "--transplant", "eager", *argv]) == 2
    assert message in capsys.readouterr().err
