"""Numbers of passes: each says what it counts; numbers of a machine are in its target."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PASSES = Path(__file__).resolve().parents[2] / "passes"


def is_numeric(value: ast.expr) -> bool:
    """True if an expression consists of numbers."""
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    if isinstance(value, ast.UnaryOp):
        return is_numeric(value.operand)
    if isinstance(value, ast.BinOp):
        return is_numeric(value.left) and is_numeric(value.right)
    if isinstance(value, ast.Tuple):
        return any(map(is_numeric, value.elts))
    if isinstance(value, ast.Dict):
        return any(map(is_numeric, value.values))
    return isinstance(value, ast.Call) and any(map(is_numeric, value.args))


def numbers(text: str) -> Iterator[tuple[str, bool]]:
    """The names of a module's numbers, and whether a comment is beside them or above their run."""
    lines = text.splitlines()
    is_said = False
    end = 0
    for statement in ast.parse(text).body:
        if statement.lineno > end + 1:  # a comment or nothing is between them
            is_said = lines[statement.lineno - 2].startswith("#")
        end = statement.end_lineno or statement.lineno
        if isinstance(statement, ast.Assign) and is_numeric(statement.value):
            name = ast.unparse(statement.targets[0])
            yield name, is_said or "# " in lines[statement.lineno - 1]


def test_what_counts() -> None:
    text = "A = 8  # rows\nB = (1, 2)\nC = 'a'\n# of a tile\nD = 2 << 3\nE = {4: 1.0}\n"
    assert dict(numbers(text)) == {"A": True, "B": False, "D": True, "E": True}
    assert dict(numbers("x = y\n\nF = -1.5\n")) == {"F": False}


def test_every_number_says_what_it_counts() -> None:
    found = [
        (f"{path.relative_to(PASSES)}: {name}", is_said)
        for path in sorted(PASSES.rglob("*.py"))
        for name, is_said in numbers(path.read_text(encoding="utf-8"))
    ]
    assert len(found) < 136, "a number of a machine belongs to stack/target"
    assert not [name for name, is_said in found if not is_said]
