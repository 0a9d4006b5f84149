"""Every name of a framework that the code reads exists in the release that is installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest
from framework_names import FRAMEWORKS, ROOT, chain, exists, files, installed

ABSENT = ("AttributeError", "ImportError", "ModuleNotFoundError")  # what guards an absent name


def names_read(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of each thing of a framework that is imported or read off a module.

    Names whose absence the code answers, by `try` with a handler or by `hasattr`, are left out.
    """
    known: dict[str, str] = {}
    rebound: set[str] = set()
    answered: set[int] = set()
    reads: list[ast.Attribute] = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    known[local] = alias.name if alias.asname else local
            case ast.ImportFrom(module=str(module), level=0):
                for alias in node.names:
                    known[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Try():
                if any(
                    name in ast.dump(h.type) for h in node.handlers if h.type for name in ABSENT
                ):
                    answered.update(id(inner) for part in node.body for inner in ast.walk(part))
            case ast.If() | ast.IfExp():
                if "hasattr" in ast.dump(node.test):
                    answered.update(id(inner) for inner in ast.walk(node))
            case ast.Attribute():
                reads.append(node)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                rebound.add(name)
            case _:
                pass
    for node in ast.walk(tree):
        if id(node) in answered:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    for node in reads:
        head, *rest = chain(node)
        if id(node) not in answered and head in known and head not in rebound:
            yield node.lineno, ".".join((known[head], *rest))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_names_of_the_framework_exist(framework: str) -> None:
    if not installed(framework):
        pytest.skip(f"{framework} is not installed")
    missing = [
        f"{place}: {name}"
        for place, name in all_reads()
        if name.partition(".")[0] == framework and not exists(name)
    ]
    assert not missing, "this release lacks:\n" + "\n".join(missing)


@cache
def all_reads() -> list[tuple[str, str]]:
    """Place and dotted name of everything of a framework that the project's files read."""
    found: list[tuple[str, str]] = []
    for path in files():
        text = path.read_text(encoding="utf-8")
        if any(framework in text for framework in FRAMEWORKS):
            place = path.relative_to(ROOT)
            found += ((f"{place}:{line}", name) for line, name in names_read(ast.parse(text)))
    return found


def test_an_absent_name_is_found() -> None:
    code = "import torch.fx._symbolic_trace as trace\nif trace.never_there:\n    pass\n"
    assert [name for _, name in names_read(ast.parse(code))] == [
        "torch.fx._symbolic_trace",
        "torch.fx._symbolic_trace.never_there",
    ]
    if installed("torch"):
        assert not exists("torch.fx._symbolic_trace.never_there")


def test_a_name_with_an_answer_for_its_absence_is_left_out() -> None:
    code = "try:\n    from torch import never_there\nexcept ImportError:\n    never_there = None\n"
    assert not list(names_read(ast.parse(code)))
