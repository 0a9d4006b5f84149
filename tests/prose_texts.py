"""The texts that readers see: docstrings, comments and sentences of Python files, and pages."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# a block of comments, or a string. Python 3.11 has no nested quotes of one kind.
TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*(?:\n[ \t]*\#[^\n]*)*)
    |[a-zA-Z]{0,2}(?:\"{3}(?P<long>(?:[^\"\\]|\\.|\"(?!\"\"))*)\"{3}
    |'{3}(?P<quoted>(?:[^'\\]|\\.|'(?!''))*)'{3}
    |\"(?P<short>(?:[^\"\\\n]|\\.)*)\"
    |'(?P<single>(?:[^'\\\n]|\\.)*)')""",
    re.VERBOSE | re.DOTALL,
)
SENTENCE = re.compile(r"[a-z]\w*[,;:]? \w+ \w+|[a-z]\w* \w+[,;:]? \w*[a-z]")


@dataclass(frozen=True)
class Text:
    """A text of a file.

    Attributes:
        path: the file, relative to the root of the repository.
        line: number of its first line.
        kind: "docstring", "comment", "string" or "page".
        text: the characters, without quotes and `#`.
    """

    path: str
    line: int
    kind: str
    text: str

    def line_at(self, offset: int) -> int:
        """The line of the file that contains a character of the text."""
        return self.line + self.text.count("\n", 0, offset)


def python_texts(path: str, source: str) -> Iterator[Text]:
    """The docstrings, comments and sentences of a Python file."""
    line, seen = 1, 0
    comment_start = comment_end = -1
    for found in TOKEN.finditer(source):
        line += source.count("\n", seen, found.start())
        seen = found.start()
        if (comment := found["comment"]) is not None:
            comment_start, comment_end = found.span()
            yield Text(path, line, "comment", re.sub(r"(?m)^\s*#+ ?", "", comment))
            continue
        text = found[found.lastgroup or 0]
        if found.lastgroup == "long" and _is_first(source, seen, (comment_start, comment_end)):
            yield Text(path, line, "docstring", text)
        elif SENTENCE.search(text):
            yield Text(path, line, "string", re.sub(r"\{[^{}]*\}", "{}", text))


def _is_first(source: str, at: int, comment: tuple[int, int]) -> bool:
    """True if a string is the first statement of a block. `comment`: the last one before it."""
    end = len(source[max(0, at - 200) : at].rstrip()) + max(0, at - 200)
    if end == comment[1]:
        end = len(source[: comment[0]].rstrip())
    return not end or (source[end - 1] == ":" and "\n" in source[end:at])


def files() -> list[str]:
    """The tracked Python files and pages; links to folders are left out."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in set(names.splitlines()) if (ROOT / name).is_file())


def texts(path: str) -> Iterator[Text]:
    """The texts of a file."""
    source = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        yield Text(path, 1, "page", source)
    else:
        yield from python_texts(path, source)
