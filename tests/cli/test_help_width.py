"""Help texts fit the terminal, and their commands can still be copied."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from stack.cli import build_parser
from stack.commands.help_text import Help

PARSER = build_parser()
(ACTION,) = [a for a in PARSER._actions if isinstance(a, argparse._SubParsersAction)]
COMMANDS = {"": PARSER, **ACTION.choices}


def examples(text: str) -> list[list[str]]:
    """The words of the commands of a text."""
    lines = re.sub(r" \\\n\s+", " ", text).splitlines()
    shown = [line.strip() for line in lines if line.startswith("  stackc ")]
    return [shlex.split(re.split(r" {2,}", line)[0]) for line in shown]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = COMMANDS[name].format_help()
    words = text.split("\npositional arguments:")[0].partition("\n\n")[2]
    assert max(map(len, words.splitlines())) <= width
    assert examples(words) == examples(COMMANDS[name].description or "")


def test_paragraphs_lists_and_commands_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "42")
    text = """\
A paragraph whose lines are
joined and filled again.

rows:
  G1, G2  what the rows of this name
          measure
  G3      more

examples:
  stackc opt a --pass-pipeline=fold --check --stats   what it does
"""
    parser = argparse.ArgumentParser(prog="x", description=text, formatter_class=Help)
    assert (
        parser.format_help().split("\n\noptions:")[0].partition("\n\n")[2]
        == """\
A paragraph whose lines are joined and
filled again.

rows:
  G1, G2  what the rows of this name
          measure
  G3      more

examples:
  stackc opt a --pass-pipeline=fold \\
      --check --stats
      what it does"""
    )
