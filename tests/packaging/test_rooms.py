"""READMEs of the folders: their commands run, and what they list is what there is."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import stack.plugins as plugins
from stack.rewrite.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
SLOW = pytest.mark.slow  # a process for each command: seconds
ROOMS = ("passes", *(pytest.param(room, marks=SLOW) for room in ("passes/streaming", "frontends")))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = ("mlir", "triton", "cuda")


def text_of(room: str) -> str:
    return (ROOT / room / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_fenced_runs(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python with a file's name in its first line is that file; other Python is run."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []
    shown = ""
    for kind, text in FENCE.findall(text_of(room)):
        named = re.match(r"# (\w+\.py)\n", text)
        if kind == "python" and named is not None:
            Path(named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            pytest.importorskip("jax")
            Path("example.py").write_text(text, encoding="utf-8")
            runpy.run_path("example.py")
        elif kind == "sh":
            for line in text.splitlines():
                program, *argv = shlex.split(line)
                assert program == "stackc"
                # a process of its own, as a reader's: which frameworks are loaded tells it much
                command = [sys.executable, "-m", "stack", *argv]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                assert done.returncode == (argv[0] == "diff"), (line, done.stderr)  # they differ
                shown += done.stdout
                ran.append(argv[0])
        else:
            assert kind == "text"
            left = [row for row in text.splitlines() if row not in shown.splitlines()]
            assert not left, "printed otherwise"
    assert "dump" in ran


def table() -> dict[str, list[list[str]]]:
    """The map of `passes/README.md`: the passes of each backend, by stage."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of("passes").splitlines()
        if line.startswith("| ")
    ]
    head, *body = rows
    assert tuple(head[1:]) == OURS
    return {stage: [re.findall(r"\w+", cell) for cell in cells] for stage, *cells in body}


def test_the_map_of_passes_is_what_pipelines_say() -> None:
    found = table()
    for place, name in enumerate(OURS):
        stages = dict(plugins.load("stack.backends", name).lowering.stages)
        assert stages.keys() <= found.keys()
        for stage, cells in found.items():
            passes = Pipeline(stages[stage]).passes if stage in stages else []
            assert cells[place] == [p.name for p in passes], (name, stage)


def test_every_pass_stands_in_the_map_or_under_it() -> None:
    told = set(re.findall(r"\w+", text_of("passes")))
    assert set(plugins.names("stack.passes")) <= told


def test_every_folder_of_passes_is_drawn() -> None:
    drawn = set(re.findall(r"[├└]─ (\w+)", text_of("passes")))
    assert drawn == {p.parent.name for p in (ROOT / "passes").glob("*/__init__.py")}
