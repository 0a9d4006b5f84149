"""Commands and code that documents show: found, read as their programs read them, and followed.

A fenced block is followed by a test, line by line, as a reader would. A block that is marked
`parsed` (```` ```sh parsed ````: it does not end, needs a GPU, or takes minutes) is only read, and
so are commands in a sentence or indented. In docs/ and the README, a block of `text` is output of
the commands before it. `text measured` has numbers that differ each time; `text parsed` is not
checked.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from stack.cli import build_parser, main
from stack.demos.course.__main__ import main as course
from stack.demos.course.notebook import cells

ROOT = Path(__file__).resolve().parents[2]
SITE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LESSONS = sorted((ROOT / "demos/course/lessons").glob("lesson_*.py"))
# what was true of a version stays in the list of changes
DOCUMENTS = [p for p in sorted(ROOT.rglob("*.md")) if p.name != "CHANGELOG.md"]
DOCUMENTS = [p for p in DOCUMENTS if not any(part.startswith(".") for part in p.parts)]
PROGRAMS = ("stackc", ".venv/bin/stackc", "python", "make", "pytest", "cd", ".")
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(
    r"`((?:stackc|python -m|make) [^`\n]+)`|^    ((?:stackc|python|make|pytest) .+)$", re.MULTILINE
)
# words of commands whose exit code 1 tells what they found
SAYS_NO = {"diff", "grade", "--first-nan", "check-rule"} | {
    f"reduce_sub_exp_div=hand.py:{name}" for name in ("wrong", "remembers")
}


@dataclass(frozen=True)
class Block:
    """A fenced block: "python" or "sh", and whether it is marked as one that is only read."""

    kind: str
    is_parsed: bool
    text: str

    @property
    def file(self) -> str:
        """The file that a reader is to write, by its first line; "" for code that is run."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named and self.kind == "python" else ""

    @property
    def commands(self) -> list[str]:
        """The lines of a shell, those that a backslash continues joined."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.kind == "sh" else []
        return [line for line in lines if line.strip() and not line.startswith("#")]


def text_of(path: Path) -> str:
    """A document's text; of a lesson, that of its markdown cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return "\n\n".join(body for kind, body in cells(text) if kind == "markdown")


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a text that are no plain text."""
    found = [(head.split(), body) for head, body in _FENCE.findall(text)]
    return [
        Block(head[0], "parsed" in head[1:], textwrap.dedent(body))
        for head, body in found
        if head and head[0] != "text"
    ]


def unprinted(text: str, printed: str) -> list[str]:
    """Lines of the `text` blocks that commands did not print; numbers may differ if `measured`."""
    exact = {line.rstrip() for line in printed.splitlines()}
    measured = {_without_numbers(line) for line in exact}
    left: list[str] = []
    for head, body in _FENCE.findall(text):
        kind, *marks = head.split() or [""]
        if kind != "text" or "parsed" in marks:
            continue
        for line in filter(None, map(str.rstrip, body.splitlines())):
            known = _without_numbers(line) in measured if "measured" in marks else line in exact
            left += [] if known else [line]
    return left


def _without_numbers(line: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "#", line))


def commands(text: str) -> Iterator[str]:
    """Every command of a text, in fences, indented and in its sentences."""
    for block in blocks(text):
        yield from block.commands
    for inline, indented in _SHOWN.findall(_FENCE.sub("", text)):
        # wide spaces separate words from a command; `...` is for what is not shown
        yield re.split(r"\s{3,}", (inline or indented).strip())[0]


def read(command: str) -> None:
    """Read a command as its program would; fails with what is wrong."""
    program, *argv = shlex.split(command, comments=True)
    assert program in PROGRAMS, command
    if program.endswith("stackc"):
        _read_stackc(argv)
    elif program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert {word for word in argv if "=" not in word} <= set(targets), command
    elif program == "python" and argv[0] == "-m":
        assert importlib.util.find_spec(argv[1]) is not None, command


_parser = cache(build_parser)


def _read_stackc(argv: list[str]) -> None:
    """A whole command parses; of one that is only named the name and the options exist."""
    parser = _parser()
    (actions,) = (a.choices for a in parser._actions if isinstance(a.choices, dict))
    command = actions[argv[0]]
    try:
        parser.parse_args([word for word in argv if word != "..."])
    except SystemExit:
        known = {option for action in command._actions for option in action.option_strings}
        assert {word.partition("=")[0] for word in argv if word.startswith("--")} <= known, argv


def follow(text: str, patch: pytest.MonkeyPatch) -> list[str]:
    """Do what a text says in the current directory; gives the programs and commands that ran.

    Commands of ours run in this process: one of its own would take seconds for each.
    """
    ran: list[str] = []
    for block in blocks(text):
        if block.is_parsed:
            if block.kind == "python":
                ast.parse(block.text)
            continue
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":  # what it declares is not for the tests after this one
            subprocess.run([sys.executable, "-c", block.text], check=True)
        for line in block.commands:
            ran.append(_run(line, patch))
    return ran


def _run(line: str, patch: pytest.MonkeyPatch) -> str:
    match shlex.split(line, comments=True):
        case ["cd", folder]:
            patch.chdir(folder)
            return "cd"
        case ["stackc", *argv]:
            code, name = main(argv), argv[0]
        case ["python", "-m", "stack.demos.course", *argv]:
            code, name = course(argv), argv[0]
        case ["python", "-m", module, *argv]:
            command = [sys.executable, "-m", module, *argv]
            code, name = subprocess.run(command, check=False).returncode, module
        case ["python", file]:
            code, name = subprocess.run([sys.executable, file], check=False).returncode, file
        case other:
            raise AssertionError(f"nobody runs {other}")
    assert code == 0 or (code == 1 and not SAYS_NO.isdisjoint(shlex.split(line))), line
    return name
