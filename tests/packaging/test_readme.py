"""The example of the README runs unchanged, and does what the text around it says."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    found = re.findall(r"<!-- example -->\n```python\n(.*?)```\n<!-- /example -->", README, re.S)
    assert len(found) == 1
    path = tmp_path / "example.py"
    path.write_text(found[0], encoding="utf-8")
    space: dict[str, Any] = runpy.run_path(str(path))
    before, result = space["func"], space["result"]
    assert [n.op for n in result.func.body.nodes] == ["fusion", "fusion"]
    assert [n.attrs["kind"] for n in result.func.body.nodes] == ["reduction", "loop"]
    assert "reduce" in [n.op for n in before.body.nodes]
    assert [str(r.name) for r in result.records] == ["canonicalize", "fuse-inputs{max_inputs=4}"]
    assert all(r.error is not None for r in result.records)  # the numerical check ran
    assert capsys.readouterr().out.strip() == str(result.func).strip()


def test_pyproject_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["readme"] == "README.md"
