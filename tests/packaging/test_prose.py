"""The check of prose: each rule finds its examples, and no ordinary English."""

from __future__ import annotations

import prose
import prose_articles
import prose_terms
import pytest
from prose_rules import RULES, Rule
from prose_texts import ROOT, python_texts, texts


def found(rule: Rule, sentence: str) -> bool:
    return rule.compiled.search(sentence) is not None


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_a_rule_has_hits_and_near_misses(rule: Rule) -> None:
    assert rule.reason and rule.hits and rule.passes
    assert [s for s in rule.hits if not found(rule, s)] == []
    assert [s for s in rule.passes if found(rule, s)] == []


def test_names_of_rules_differ() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("an f32", "a f32"),
        ("a u8", "an u8"),
        ("an i64", "a i64"),
        ("a unit", "an unit"),
        ("an unused value", "a unused value"),
        ("an 8-bit code", "a 8-bit code"),
        ("a 16-bit code", "an 16-bit code"),
        ("an 11th", "a 11th"),
        ("a 110th", "an 110th"),
        ("an MLIR module", "a MLIR module"),
        ("a GPU", "an GPU"),
        ("an hour", "a hour"),
        ("a one-way hash", "an one-way hash"),
        ("an op", "a op"),
        ("a `kernel`", "an `kernel`"),
        ("A user", "An user"),
        ("an\n    axis", "a\n    axis"),
    ],
)
def test_articles_follow_the_sound(right: str, wrong: str) -> None:
    assert not list(prose_articles.wrong(f"It is {right} here."))
    assert list(prose_articles.wrong(f"It is {wrong} here."))


@pytest.mark.parametrize("text", ["a or b", "an ulp", "a ulp", "%a = op", "a    entropy", "x.a is"])
def test_values_called_a_are_no_articles(text: str) -> None:
    assert not list(prose_articles.wrong(text))


SOURCE = '''# one lie
"""A module."""
x = "no docstring, but a sentence"
y = "short"


class A:  # a comment
    """A class that
    lies across."""

    z = ("two", """a string of three words""")


def f() -> None:
    # of two
    # lines
    r"""A function with a \\" quote."""
'''


def test_texts_of_a_file() -> None:
    assert [(t.kind, t.line, t.text.split()[-1]) for t in python_texts("x.py", SOURCE)] == [
        ("comment", 1, "lie"),
        ("docstring", 2, "module."),
        ("string", 3, "sentence"),
        ("comment", 7, "comment"),
        ("docstring", 8, "across."),
        ("string", 11, "words"),
        ("comment", 15, "lines"),
        ("docstring", 17, "quote."),
    ]


def test_problems_name_file_line_rule_and_reason() -> None:
    lines = [p for t in python_texts("x.py", SOURCE) for p in prose.problems(t)]
    assert [line.split(" (")[0] for line in lines] == [
        'x.py:1: lie: "lie"',
        'x.py:9: lie: "lies"',
    ]
    assert all(line.endswith(")") for line in lines)


def test_only_docstrings_have_openings() -> None:
    source = '"""What it is."""\n# What it is\nx = "What it is not"\n'
    lines = [p for t in python_texts("x.py", source) for p in prose.problems(t)]
    assert [line.split(" (")[0] for line in lines] == ['x.py:1: opening: "What"']


def test_pages_are_texts() -> None:
    (page,) = texts("README.md")
    assert page.kind == "page" and page.text == (ROOT / "README.md").read_text(encoding="utf-8")


def test_terms_that_the_glossary_lacks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = dict(prose_terms.glossary())
    terms["pass"] -= {"fuse"}
    terms["option"] -= {"apart"}
    terms["attribute"] -= {"perm"}
    terms["note"] -= {"occupancy", "register"}
    monkeypatch.setattr(prose_terms, "glossary", lambda: terms)
    lines = "\n".join(prose_terms.missing())
    assert "passes/fuse.py" in lines and 'pass "fuse"' in lines
    assert "passes/decompose.py" in lines and 'option "apart"' in lines
    assert "stack/ir/movement_ops.py" in lines and 'attribute "perm"' in lines
    assert 'word "registers"' in lines


def test_the_project_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 0
    assert capsys.readouterr().out == ""
