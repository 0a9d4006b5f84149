"""`stackc --version`, `stack.__version__`, and completion scripts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import stack
from stack.cli import main
from stack.commands.completion import SHELLS


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"stackc {stack.__version__}\n"
    assert stack.__version__ == version("stack-compiler")


def test_without_shtab_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert re.search(r"pip install .*\[completion\]", capsys.readouterr().err)


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_name_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "bisect" in out
    assert "pass-pipeline" in out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("du", "dump"), ("dump --ba", "--backend"), ("dump mod", "model.py"), ("completion z", "zsh")],
)
def test_bash_completes(
    words: str,
    wanted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("shtab")
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "model.py").touch()
    (tmp_path / "script").write_text(capsys.readouterr().out, encoding="utf-8")
    typed = f"COMP_WORDS=(stackc {words}); COMP_CWORD={len(words.split())}"
    asked = f'. ./script; {typed}; _shtab_stackc; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert wanted in done.stdout.split()
