"""Smoke tests that need NumPy alone: IR text, the interpreter, passes, commands and their hints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stack
from stack.cli import build_parser, main
from stack.releases import TESTED, ReleaseRange

TEXT = """func @f(%x: f32[4, 8], %w: f32[8]) -> (f32[4, 8]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[4, 8]
  %y = mul(%x, %wide) : f32[4, 8]
  %e = exp(%y) : f32[4, 8]
  return %e
}
"""


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


def test_text_is_parsed_interpreted_and_passed_on(rng: np.random.Generator) -> None:
    x, w = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    func = stack.Pipeline("canonicalize,fuse").run(stack.parse(TEXT), check=True).func
    np.testing.assert_allclose(func.interpret(x, w), np.exp(x * w), rtol=1e-6)


@pytest.mark.parametrize(
    "command",
    [
        ["env"],
        ["passes"],
        ["stages"],
        ["ops"],
        ["backends"],
        ["glossary", "fuse"],
        ["targets"],
        ["targets", "sm_90"],
        ["show", "{text}"],
        ["opt", "{text}", "--pass-pipeline=canonicalize,fuse"],
        ["run", "{text}"],
    ],
    ids=lambda command: " ".join(command[:1]),
)
def test_a_command_works(command: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([part.format(text=text) for part in command]) == 0
    assert capsys.readouterr().out.strip()


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in build_parser()._subparsers._group_actions[0].choices:  # pyright: ignore
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        assert "usage: stackc" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.11.0", True),
        ("2.14.1+cu130", True),
        ("2.10.9", False),
        ("2.15.0a0", False),
        ("3", False),
    ],
)
def test_a_release_is_tested_or_not(version: str, expected: bool) -> None:
    assert ReleaseRange("torch", "2.11", "2.14").holds(version) is expected


def test_an_untested_release_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from stack import releases

    releases.warn_if_untested.cache_clear()
    monkeypatch.setitem(TESTED, "numpy", ReleaseRange("numpy", "0.1", "0.2"))
    with pytest.warns(UserWarning, match=r"tested with numpy 0\.1 to 0\.2 and continues with"):
        releases.warn_if_untested("numpy")
    releases.warn_if_untested("numpy")  # a second warning would be an error here
    releases.warn_if_untested("no_such_module")
