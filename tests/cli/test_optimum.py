"""`stackc opt --against optimum`: a fusion pass beside the best of all legal fusings."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.cli import main

TEXT = """func @f(%x: f32[64, 32]) -> (f32[64, 32]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[64]
  %mb = broadcast(%m) {axes=[0]} : f32[64, 32]
  %d = sub(%x, %mb) : f32[64, 32]
  %e = exp(%d) : f32[64, 32]
  return %e
}
"""
MINE = """
from dataclasses import dataclass
from typing import ClassVar
from stack.ir.func import Func
from stack.rewrite.fusion import FusionRule, Grouping, Limits
from stack.rewrite.outline import outline
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Ok, Why


class IntoReductions(FusionRule):
    def legal(self, producer, consumer, maps):
        return Why("a reduction ends its kernel") if producer.reduces else Ok


@dataclass(frozen=True)
class Mine(Pass):
    name: ClassVar[str] = "mine"

    def run(self, func, log):
        groups = Grouping(func.body, [IntoReductions()], log, Limits(), frozenset({"reduce"}))
        groups.run(0)
        return Func(func.name, outline(groups), func.level)
"""


@pytest.fixture
def text_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    Path("f.stack").write_text(TEXT)
    return "f.stack"


def rows(out: str, fusing: str) -> list[list[str]]:
    return [
        line.removeprefix(fusing).split() for line in out.splitlines() if line.startswith(fusing)
    ]


def test_the_best_and_the_passes_own_are_measured_and_right(
    text_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", text_file, "--against", "optimum", "--best", "1", "--rounds", "5"]) == 0
    out = capsys.readouterr().out
    assert "3 operations, 6 legal groups, 4 convex cuts, 4 legal fusings" in out
    for name, kernels in (("pass fuse", "1"), ("best", "1"), ("nothing fused", "3")):
        predicted, measured = rows(out, name)
        assert predicted[0] == measured[0] == kernels
        assert measured[-1] == "ok"


def test_a_pass_of_ones_own_is_judged(text_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    passes = "default,-fuse,+mine.py:Mine@fused"
    given = ["--against", "optimum", "--rounds", "0", "--pass-pipeline", passes]
    assert main(["opt", text_file, *given]) == 0
    out = capsys.readouterr().out
    assert rows(out, "pass mine")[0][0] == "2"
    assert rows(out, "best")[0][0] == "1"
    assert "nothing is measured: --rounds 0" in out


def test_a_graph_that_is_too_large_is_searched_in_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"  %e{i} = exp(%x{i}) : f32[{i + 2}]\n" for i in range(17)]
    results = ", ".join(f"%e{i}" for i in range(17))
    types = ", ".join(f"f32[{i + 2}]" for i in range(17))
    typed = ", ".join(f"%x{i}: f32[{i + 2}]" for i in range(17))
    body = "".join(lines)
    text = f"func @wide({typed}) -> ({types}) at tensor {{\n{body}  return {results}\n}}\n"
    (tmp_path / "wide.stack").write_text(text)
    given = ["--against", "optimum", "--target", "avx2", "--plot", str(tmp_path / "land")]
    assert main(["opt", str(tmp_path / "wide.stack"), *given]) == 0
    told = capsys.readouterr()
    out = " ".join(told.out.split())
    assert "17 operations, searched in 2 parts" in out
    assert "more than 50,000 convex cuts" in out
    assert "choose a smaller function" in out
    assert "Parts that are too large stay as they are: 14 operations" in out
    assert rows(told.out, "best in parts")[0][0] == "17"
    assert "searching: part 2 of 2, 3 operations" in told.err
    assert "no picture" in told.err


def test_the_landscape_is_plotted(text_file: str) -> None:
    pytest.importorskip("matplotlib")
    given = ["--against", "optimum", "--target", "avx2", "--plot", "land"]
    assert main(["opt", text_file, *given]) == 0
    assert Path("land.svg").read_text(encoding="utf-8").count("legal fusings")
    assert Path("land.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pass-pipeline", "fuse"], "must start with 'default'"),
        (["--check"], "leave out --check"),
        (["--best", "0"], "--best 0: at least the best fusing is shown"),
        (["--pass-pipeline", "default,-fuse"], "no pass of this pipeline forms groups"),
    ],
)
def test_what_does_not_fit_is_refused(
    text_file: str, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["opt", text_file, "--against", "optimum", *argv]) == 2
    assert message in capsys.readouterr().err
