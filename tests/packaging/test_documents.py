"""Documents show what is there: every command parses, every fenced block is followed."""

from __future__ import annotations

from pathlib import Path

import documents
import pytest

from stack.measure.roofline import Ceilings

pytest.importorskip("torch")
CEILINGS = Ceilings({"f32": 1e12}, {1 << 20: 1e12}, 1, "made up")
SHOWN = [*documents.DOCUMENTS, *documents.LESSONS]
# these check what is printed too: tests/packaging/test_rooms.py; the last one is a program, which
# tests/ops/test_readmes.py runs
ROOMS = (
    *("passes/README.md", "passes/streaming/README.md", "frontends/README.md"),
    "stack/hosted/README.md",
)
FOLLOWED = [
    path
    for path in SHOWN
    if documents.blocks(documents.text_of(path))
    and not str(path).endswith(ROOMS)
    and path not in documents.SITE  # tests/packaging/test_pages.py
]


def name(path: Path) -> str:
    return str(path.relative_to(documents.ROOT))


@pytest.mark.parametrize("path", SHOWN, ids=name)
def test_commands_read(path: Path) -> None:
    for command in documents.commands(documents.text_of(path)):
        documents.read(command)


LONG = ("demos/course/lessons/lesson_03_fusion.py",)  # ten seconds


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if name(p) in LONG else []) for p in FOLLOWED],
    ids=name,
)
def test_what_is_fenced_is_followed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # what a machine can do takes seconds to measure, and nothing here depends on it
    monkeypatch.setattr("stack.measure.bench.measure_ceilings", lambda quick: CEILINGS)
    documents.follow(documents.text_of(path), monkeypatch)
