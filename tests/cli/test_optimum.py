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
