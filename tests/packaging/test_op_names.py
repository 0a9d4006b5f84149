"""Passes and backends ask traits of an op's record; few compare its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import stack.ir.builder  # noqa: F401  (enters the ops in the table)
from stack.ir.ops import OPS, load_tables

ROOT = Path(__file__).resolve().parents[2]
load_tables()  # else names of a mesh's ops count only after other tests


def compared(tree: ast.AST) -> Iterator[str]:
    """Comparisons of `op` or `x.op` with names of ops, or membership in a table of them."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        left = ast.unparse(node.left)
        if left != "op" and not left.endswith(".op"):
            continue
        inner = (c for p in node.comparators for c in ast.walk(p))
        words = {c.value for c in inner if isinstance(c, ast.Constant)}
        in_table = isinstance(node.ops[0], ast.In | ast.NotIn) and any(
            isinstance(p, ast.Name | ast.Attribute) for p in node.comparators
        )
        if words & set(OPS) or in_table:
            yield ast.unparse(node)


def test_what_counts() -> None:
    text = 'a = n.op == "add"; b = n.op in ("max", "min"); c = op not in TABLE; d = n.op == m.op'
    assert len(list(compared(ast.parse(text)))) == 3


@pytest.mark.parametrize(("folder", "most"), [("passes", 150), ("backends", 120)])
def test_few_names_are_compared(folder: str, most: int) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / folder).rglob("*.py")
        for text in compared(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert len(found) < most, "\n".join(sorted(found))
