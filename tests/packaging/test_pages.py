"""The README and the pages of docs/: code runs and prints what is shown, links lead to files.

Commands of pages are read by tests/packaging/test_documents.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import documents
import pytest

pytest.importorskip("torch")
ROOT = documents.ROOT
LONG = ("README.md", "docs/howto/python.md", "docs/tutorials/schedule.md")  # ten seconds and more
RUN = [page for page in documents.SITE if documents.blocks(documents.text_of(page))]
LINK = re.compile(r"\]\(([^)#\s]+)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=[pytest.mark.slow] if name(p) in LONG else []) for p in RUN],
    ids=name,
)
def test_code_runs_and_prints_what_is_shown(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if "triton" in (text := documents.text_of(page)):
        pytest.importorskip("triton")
    monkeypatch.chdir(tmp_path)
    documents.follow(text, monkeypatch)
    printed = capfd.readouterr()
    left = documents.unprinted(text, printed.out + printed.err)
    assert not left, "\n".join([*left, "---- printed:", printed.out, printed.err])


@pytest.mark.parametrize("page", documents.SITE, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", documents.text_of(page), flags=re.M | re.S)
    for target in LINK.findall(text):
        assert "://" in target or (page.parent / target).is_file(), target


def test_readme_begins_with_two_commands_and_stays_short() -> None:
    text = documents.text_of(ROOT / "README.md")
    assert len(text.encode()) <= 9000
    commands = re.findall(r"^    (\S.*?)\s{3,}", text, re.M)
    assert commands[:2] == ["make demo", "make test"]


@pytest.mark.parametrize("file", ["pipeline.svg", "profile.svg"])
def test_picture_is_small_and_loads_nothing(file: str) -> None:
    picture = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert len(picture) < 150_000
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]


def test_other_output_is_found() -> None:
    page = (
        "```text\nkernel  3\n```\n```text measured\ntook 1.5 ms\n```\n```text parsed\nmore\n```\n"
    )
    assert documents.unprinted(page, "kernel  3\ntook   22 ms\n") == []
    assert documents.unprinted(page, "kernel  4\ntook 22 s\n") == ["kernel  3", "took 1.5 ms"]
