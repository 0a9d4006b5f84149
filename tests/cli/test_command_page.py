"""The commands that the documentation lists exist as they are written, and work on a model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stack.cli import build_parser, main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/howto/command_line.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| `stackc ([^`]+)`", PAGE, re.MULTILINE)
PARSER = build_parser()
WALK = ("dump", "show", "show", "diff", "where", "explain", "opt", "run")


def argv_of(command: str, target: str = "model.py:net") -> list[str]:
    shown = re.sub(r"\[(\w+)\]$", r"\1", command).replace("TARGET", target).replace(" ...", "")
    return shlex.split(shown)


def test_every_command_is_shown() -> None:
    (action,) = [a for a in PARSER._actions if hasattr(a, "choices") and a.choices]
    assert {argv_of(c)[0] for c in COMMANDS} >= set(action.choices or ()) - {
        *("stages", "ops", "backends", "env"),
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command: str) -> None:
    PARSER.parse_args(argv_of(command))


def test_the_walk_through_works_on_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.softmax(torch.tanh(x) * 2, dim=-1)\n\n\n"
        "net = Net()\n"
    )
    monkeypatch.chdir(tmp_path)
    walked: list[str] = []
    for command in COMMANDS:
        words = argv_of(command, "models.py:net")
        argv = [a.replace("models_torch.py:139", "models.py:6") for a in words]
        if argv[0] not in WALK or {"--first-nan", "--against"}.intersection(argv):
            continue  # these two have tests of their own
        if argv[0] == "dump":
            argv += ["-i", "f32[4,8]"]
        code = main(argv)
        out = capsys.readouterr()
        # diff says by its code that the stages differ
        assert code == (1 if argv[0] == "diff" else 0), (command, out.err)
        assert out.out
        walked.append(argv[0])
    assert sorted(walked) == sorted(WALK)
