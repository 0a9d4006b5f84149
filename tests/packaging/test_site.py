"""The documentation site: all pages are in it, the reference is complete, MkDocs builds it."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import documents
import pytest

from stack.explore import inventory
from stack.target import names

ROOT = documents.ROOT


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [str(p.relative_to(ROOT / "docs")) for p in documents.SITE[1:]]
    assert [page for page in pages if f": {page}\n" not in listed] == []


def test_reference_has_every_pass_op_and_target() -> None:
    made = runpy.run_path(str(ROOT / "docs/reference.py"))["pages"]()
    assert len(made) == 9
    for page, found in (
        ("passes", [row["name"] for row in inventory.passes()]),
        ("targets", names()),
        ("backends", [row["name"] for row in inventory.backends()]),
    ):
        heads = re.findall(r"^## (\S+)$", made[f"reference/{page}.md"], re.M)
        assert heads == list(found), page
    for row in inventory.ops():
        page = "operators" if row["kind"] == "hosted" else "ops"
        assert f"| `{row['name']}` |" in made[f"reference/{page}.md"], row["name"]
    for row in inventory.glossary():
        assert f"| `{row['name']}` |" in made["reference/glossary.md"], row["name"]
    assert "usage: stackc dump" in made["reference/commands.md"]
    assert "stack.compile(fn: Any" in made["reference/api.md"]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_site_builds_strictly_and_loads_nothing_from_the_network(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=\"([^\"]*)", text
        )
        assert not [url for url in loaded if url.startswith(("http:", "https:", "//"))], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*['\"]?(https?:)?//", sheet.read_text()), sheet
    search = site / "search"
    entries = json.loads((search / "index.js").read_text("utf-8")[len("var searchIndex = ") : -2])
    assert {"Write a fusion pass", "stackc dump", "canonicalize"} <= {e["title"] for e in entries}
    assert (search / "main.js").read_text("utf-8") == (ROOT / "docs/search.js").read_text("utf-8")
    pages = {entry["location"].partition("#")[0] for entry in entries}
    assert all((site / page).is_file() for page in pages) and len(pages) > 30
