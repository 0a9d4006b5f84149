"""Every term that the compiler prints is in the glossary; the code gives the list of terms."""

from __future__ import annotations

import inspect
import json
import re

import prose_terms
import pytest

import stack.plugins as plugins
from stack.cli import main
from stack.explore import inventory
from stack.explore.glossary import KINDS, entries, terms
from stack.ir import ops
from stack.ir.kernel_ops import LOOP_KINDS
from stack.ir.types import SPACES
from stack.passes.steps import primitives  # noqa: F401  defines them
from stack.passes.steps.step import STEPS
from stack.rewrite.group import Group
from stack.run.backend import Kernel


def attributes() -> set[str]:
    """Names of attributes, as ops declare them: "axis: int", "part?: int"."""
    declared = [a for op in ops.OPS.values() for a in op.attrs]
    return {re.split("[?:]", a)[0] for a in declared}


def kinds_of_kernels() -> set[str]:
    """The kinds of groups and kernels, parsed from the lines that define them."""
    groups = re.findall(r'(?:return|else) "(\w+)"', inspect.getsource(Group.kind.fget))
    (line,) = re.findall(r"\bkind: str  # (.+)", inspect.getsource(Kernel))
    return {*groups, *re.findall(r'"(\w+)"', line)}


def test_every_pass_is_in_it():
    assert set(plugins.names("stack.passes")) == terms("pass")


def test_every_primitive_of_a_schedule_is_in_it():
    assert set(STEPS) == terms("step")


def test_every_option_of_a_pass_is_in_it():
    assert {name for row in inventory.passes() for name in row["options"]} == terms("option")


def test_every_attribute_is_in_it():
    assert attributes() == terms("attribute")


def test_every_kind_of_loop_memory_and_kernel_is_in_it():
    assert set(LOOP_KINDS) == terms("loop")
    assert set(SPACES) == terms("space")
    assert kinds_of_kernels() == terms("kernel")


def test_every_word_of_a_note_is_everyday_or_in_it():
    said = {word for path in prose_terms.note_files() for word in prose_terms.note_words(path)}
    assert len(said) > 100
    assert not prose_terms.missing(), "explain these in stack/explore/glossary.toml"


def test_entries_are_a_line_and_a_source():
    assert {e.kind for e in entries()} == set(KINDS)
    for entry in entries():
        assert entry.line, entry
        assert "\n" not in entry.line
        assert entry.source, entry


def test_command(capsys: pytest.CaptureFixture[str]):
    assert main(["glossary", "coalesce", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "stack.glossary/1"
    (row,) = document["glossary"]
    assert row["kind"] == "pass"
    assert row["source"]
    assert main(["glossary"]) == 0
    assert "flash" not in capsys.readouterr().err
    assert main(["glossary", "fusee"]) == 2
    assert "fuse" in capsys.readouterr().err
