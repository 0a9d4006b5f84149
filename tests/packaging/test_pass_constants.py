"""Numbers of a machine are in its target: passes have few numeric constants, and no more."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.target import as_cpu, as_gpu
from stack.target.files import groups_of, numbers_of

ROOT = Path(__file__).resolve().parents[2]
PASSES = ROOT / "passes"
# search limits, sample sizes, mathematics, and ratios of work that hold for any machine
MOST = 39


def is_number(value: ast.expr) -> bool:
    """True for a number, and for arithmetic on numbers."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float) and not isinstance(value.value, bool)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.BinOp) and is_number(value.left) and is_number(value.right)


def constants(tree: ast.Module) -> Iterator[str]:
    """The module-level names of numbers, those of `A, B = 1, 2` too."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        yield from (ast.unparse(name) for name, value in pairs if is_number(value))


def test_constants_are_found() -> None:
    text = "A = 1\nB: float = -2.0\nC, D = 1 << 4, 'd'\nE = 2 * A\nF = True\nG = [1]\n"
    assert list(constants(ast.parse(text))) == ["A", "B", "C"]


def test_passes_have_no_more_numeric_constants() -> None:
    found = [
        f"{path.relative_to(PASSES)}: {name}"
        for path in sorted(PASSES.rglob("*.py"))
        for name in constants(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert len(found) <= MOST, "\n".join(["a number of a machine goes to stack/target:", *found])


@pytest.mark.parametrize("target", [as_cpu(None), as_gpu(None)], ids=lambda t: t.name)
def test_every_tuned_number_is_read(target: object) -> None:
    files = [*PASSES.rglob("*.py"), ROOT / "stack/target/record.py"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    read = {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for name, group in groups_of(type(target)).items():
        assert {name, *numbers_of(type(group))} <= read
