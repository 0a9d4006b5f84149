"""Every word that the compiler prints of itself is in the glossary: asked of the code."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

import stack.plugins as plugins
from stack.cli import main
from stack.explore import inventory
from stack.explore.glossary import KINDS, entries, terms
from stack.ir import ops
from stack.ir.kernel_ops import LOOP_KINDS
from stack.ir.types import SPACES
from stack.rewrite.group import Group
from stack.run.backend import Kernel

ROOT = Path(__file__).parents[2]
TELLS = ("note", "miss", "Why", "CannotTile")  # calls whose text passes say something with
EVERYDAY = frozenset((ROOT / "tests/explore/everyday.txt").read_text(encoding="utf-8").split())


def attributes() -> set[str]:
    """Names of attributes, as ops declare them: "axis: int", "part?: int"."""
    declared = [a for op in ops.OPS.values() for a in op.attrs]
    return {re.split("[?:]", a)[0] for a in declared}


def kinds_of_kernels() -> set[str]:
    """What a group and a kernel may be, by the lines that say so."""
    groups = re.findall(r'(?:return|else) "(\w+)"', inspect.getsource(Group.kind.fget))
    (line,) = re.findall(r"\bkind: str  # (.+)", inspect.getsource(Kernel))
    return {*groups, *re.findall(r'"(\w+)"', line)}


def test_every_pass_is_in_it():
    assert set(plugins.names("stack.passes")) == terms("pass")


def test_every_option_of_a_pass_is_in_it():
    assert {name for row in inventory.passes() for name in row["options"]} == terms("option")


def test_every_attribute_is_in_it():
    assert attributes() == terms("attribute")


def test_every_kind_of_loop_memory_and_kernel_is_in_it():
    assert set(LOOP_KINDS) == terms("loop")
    assert set(SPACES) == terms("space")
    assert kinds_of_kernels() == terms("kernel")


def told(path: Path) -> set[str]:
    """Words of what a file tells readers: notes, near misses, refusals."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else None
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name in TELLS:
            parts = [p for a in node.args for p in ast.walk(a) if isinstance(p, ast.Constant)]
            text = " ".join(p.value for p in parts if isinstance(p.value, str))
            found.update(re.findall(r"[a-z]+", text.lower()))
    return found


def singular(word: str) -> str:
    return re.sub("s$", "", re.sub("ies$", "y", re.sub("xes$", "xis", word)))


def test_every_word_of_a_note_is_everyday_or_in_it():
    known = {word for entry in entries() for word in entry.term.split()} | EVERYDAY
    files = [p for folder in ("passes", "stack/rewrite") for p in (ROOT / folder).rglob("*.py")]
    said = {word for path in files for word in told(path)}
    assert len(said) > 100
    new = {w for w in said if w not in known and singular(w) not in known}
    assert not new, "explain these in stack/explore/glossary.toml"


def test_entries_are_a_line_and_a_source():
    assert {e.kind for e in entries()} == set(KINDS)
    for entry in entries():
        assert entry.line, entry
        assert "\n" not in entry.line
        assert entry.source, entry


def test_command(capsys: pytest.CaptureFixture[str]):
    assert main(["glossary", "fuse", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stack.glossary/1"
    (row,) = document["glossary"]
    assert row["kind"] == "pass"
    assert row["source"]
    assert main(["glossary"]) == 0
    assert "flash" not in capsys.readouterr().err
    assert main(["glossary", "fusee"]) == 2
    assert "fuse" in capsys.readouterr().err
