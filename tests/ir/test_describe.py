"""The reference of ops: complete, and every example is a sound node."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.explore.op_table import EXAMPLES, op_rows, reference
from stack.ir import Builder
from stack.ir.ops import OPS
from stack.wings import missing

NO_MESH = missing("mesh") is not None


def test_rows_cover_the_table() -> None:
    rows = {row["name"]: row for row in op_rows()}
    assert list(rows) == list(OPS)
    for name, op in OPS.items():
        row = rows[name]
        assert row["doc"] and row["kind"] and row["levels"], name
        assert bool(row["rule"]) == (op.rule is not None), name
        pure = op.kind in ("elementwise", "movement", "reduction", "contraction")
        if pure and "tensor" in op.levels:
            assert row["example"].startswith(f"%{name} = {name}("), name
            assert row["reads"], name
    assert rows["dot"]["rule"] == "m k, k n -> m n"
    assert rows["gather"]["reads"] == "data or whole axis"
    assert rows["pad"]["reads"] == "window"
    assert rows["add"]["reads"] == "rule"
    assert rows["concat"]["operands"] == "1 or more"
    assert rows["fusion"]["attributes"][:2] == ["kind: str", "name?"]


def test_examples_are_named_after_their_op() -> None:
    for name, make in EXAMPLES.items():
        if NO_MESH and name not in OPS:
            continue
        node = make()
        assert node.op == name
        Builder().func("f", [a for a in node.args if a.op == "param"], [])


def test_page() -> None:
    page = reference()
    for name in OPS:
        assert f"| `{name}` |" in page
    assert "needed whole in one place" in page
    assert page.count("\n## ") == len({op.kind for op in OPS.values()})


@pytest.mark.skipif(NO_MESH, reason="the page has ops of the wing `mesh`")
def test_the_page_in_the_repository_is_that_of_the_records() -> None:
    path = Path(__file__).resolve().parents[2] / "stack" / "ir" / "ops.md"
    told = "run: stackc ops --markdown > stack/ir/ops.md"
    assert path.read_text(encoding="utf-8").rstrip() == reference().rstrip(), told
