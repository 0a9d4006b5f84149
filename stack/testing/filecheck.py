"""Tests as IR text: a function with the expected output of passes in comments.

    // RUN: canonicalize,fuse{max_inputs=4}
    // CHECK: %z = neg(%x)
    // CHECK-NEXT: return
    // CHECK-NOT: exp
    func @f(%x: f32[8]) -> (f32[8]) at tensor { ... }

As in LLVM's FileCheck, CHECK finds the next line with the text, CHECK-NEXT requires it on the next
line, and CHECK-NOT forbids it up to the next match. Runs of blanks count as one, `{{...}}` is a
pattern. To have pytest collect `*.stack` files, import the hook in a `conftest.py`:

    from stack.testing.filecheck import pytest_collect_file
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stack.errors import StackError, UsageError
from stack.explore.diff import without_lines
from stack.ir.parser import parse
from stack.rewrite.pipeline import Pipeline

if TYPE_CHECKING:
    import pytest

_DIRECTIVE = re.compile(r"^\s*//\s*(RUN|CHECK|CHECK-NEXT|CHECK-NOT):\s*(.*?)\s*$")
_PATTERN = re.compile(r"\{\{(.*?)\}\}")


class CheckFailed(StackError):
    """A check of a file failed; names the line of the file."""


@dataclass(frozen=True)
class Directive:
    """One comment of a test file that checks output: its keyword, the expected text, and its line
    in the file.
    """

    word: str
    text: str
    line: int

    def matches(self, found: str) -> bool:
        """True if a line of text contains the expected text."""
        parts = _PATTERN.split(" ".join(self.text.split()))
        pattern = "".join(p if i % 2 else re.escape(p) for i, p in enumerate(parts))
        return re.search(pattern, " ".join(found.split())) is not None


def check_file(path: str | Path) -> None:
    """Runs the checks of a `.stack` file. Raises CheckFailed, and the errors of its passes."""
    check_text(Path(path).read_text(encoding="utf-8"), str(path))


def check_text(text: str, name: str = "text") -> None:
    """Like `check_file`, for a text."""
    directives = list(_directives(text))
    runs = [d.text for d in directives if d.word == "RUN"]
    checks = [d for d in directives if d.word != "RUN"]
    if not runs or not checks:
        raise UsageError(f"{name} has no `// RUN: PIPELINE` or no `// CHECK: TEXT`")
    func = parse(text)
    for pipeline in runs:
        func = Pipeline(pipeline).run(func, check=True).func
    _follow(checks, without_lines(str(func)).splitlines(), name)


def _directives(text: str) -> Iterator[Directive]:
    for number, line in enumerate(text.splitlines(), 1):
        match = _DIRECTIVE.match(line)
        if match is not None:
            yield Directive(match[1], match[2], number)


def _follow(checks: list[Directive], lines: list[str], name: str) -> None:
    at = 0
    forbidden: list[Directive] = []
    for check in checks:
        if check.word == "CHECK-NOT":
            forbidden.append(check)
            continue
        near = lines[at : at + 1] if check.word == "CHECK-NEXT" else lines[at:]
        found = next((i for i, line in enumerate(near) if check.matches(line)), None)
        if found is None:
            raise _failed(name, check, lines, at)
        _refuse(forbidden, lines[at : at + found], name, lines, at)
        forbidden.clear()
        at += found + 1
    _refuse(forbidden, lines[at:], name, lines, at)


def _refuse(
    forbidden: list[Directive], between: list[str], name: str, lines: list[str], at: int
) -> None:
    for check in forbidden:
        if any(check.matches(line) for line in between):
            raise _failed(name, check, lines, at)


def _failed(name: str, check: Directive, lines: list[str], at: int) -> CheckFailed:
    shown = "\n".join(f"  {line}" for line in lines[max(0, at - 1) : at + 6])
    return CheckFailed(f"{name}:{check.line}: {check.word}: {check.text}\nlooked from:\n{shown}")


def pytest_collect_file(file_path: Path, parent: Any) -> Any:
    """Pytest hook: a `.stack` file with a RUN line is a test."""
    if file_path.suffix != ".stack" or "// RUN:" not in file_path.read_text(encoding="utf-8"):
        return None
    return _file_class().from_parent(parent, path=file_path)  # pyright: ignore[reportUnknownMemberType]


def _file_class() -> type[pytest.File]:
    import pytest

    class StackItem(pytest.Item):
        def runtest(self) -> None:
            check_file(self.path)

        def repr_failure(self, excinfo: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
            return f"{type(excinfo.value).__name__}: {excinfo.value}"

        def reportinfo(self) -> tuple[Path, int, str]:
            return self.path, 0, self.name

    class StackFile(pytest.File):
        def collect(self) -> Iterator[pytest.Item]:
            yield StackItem.from_parent(self, name=self.path.stem)  # pyright: ignore[reportUnknownMemberType]

    return StackFile
