"""Checks the project's prose: `python tests/prose.py [FILE ...]`, a part of `make lint`.

Reads docstrings, comments and sentences in strings of all Python files, and all pages. Prints
`file:line: rule: "words" (reason)` for every phrase of `prose_rules`, for wrong articles
(`prose_articles`), and for terms that users see and the glossary lacks (`prose_terms`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import prose_articles
import prose_terms
from prose_rules import RULES
from prose_texts import Text, files, texts

# the rules themselves, and their tests
EXAMPLES = ("tests/prose_rules.py", "tests/prose_articles.py", "tests/packaging/test_prose.py")


def problems(text: Text) -> Iterator[str]:
    """The lines to print for one text."""
    for rule in RULES:
        if rule.docstrings and text.kind != "docstring":
            continue
        for found in rule.compiled.finditer(text.text):
            yield _line(text, rule.name, found.start(), found[0], rule.reason)
    for found in prose_articles.wrong(text.text):
        yield _line(text, "article", found.start(), found[0], prose_articles.REASON)


def _line(text: Text, rule: str, offset: int, words: str, reason: str) -> str:
    shown = " ".join(words.split())
    return f'{text.path}:{text.line_at(offset)}: {rule}: "{shown}" ({reason})'


def check(paths: Iterable[str]) -> list[str]:
    """The problems of some files."""
    return [
        problem
        for path in paths
        if path not in EXAMPLES
        for text in texts(path)
        for problem in problems(text)
    ]


def main(arguments: list[str]) -> int:
    """Prints all problems; returns 1 if there are some."""
    found = check(arguments or files())
    if not arguments:
        found += prose_terms.missing()
    print("\n".join(found), end="\n" if found else "")
    if found:
        print(f"{len(found)} problems; see the rules in tests/prose_rules.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
