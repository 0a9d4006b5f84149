"""The core works without the wings: absent, half installed, or raising on import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from core_alone import ROOT, WINGS, files, wing_of, write_core
from without_wings import NEEDS

import stack.wings as wings

REASONS = {
    "absent": "it is not installed",
    "half installed": "it cannot be imported: ModuleNotFoundError",
    "raising": "it cannot be imported: RuntimeError: out of order",
}
DOORS = (
    *("stack/report/door.py", "stack/measure/door.py", "stack/explore/sharding.py"),
    *(
        "stack/testing/__init__.py",
        "stack/faults/__init__.py",
        "stack/naming/__init__.py",
        "stack/calls/__init__.py",
        "stack/hosted/__init__.py",
    ),
)


def write_entry_points(tree: Path, project: Path) -> None:
    """Writes the entry points of a pyproject.toml into a tree, as pip does beside the packages."""
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    info = tree / "stack_compiler-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stack-compiler\nVersion: 0\n")
    lines: list[str] = []
    for group, points in tomllib.loads(text)["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(
    scope="module",
    params=["absent", pytest.param("half installed", marks=pytest.mark.slow), "raising"],
)
def way(request: pytest.FixtureRequest) -> str:
    """The reason why wings cannot be used."""
    return request.param


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of the core, whose byte code all ways share."""
    return write_core(tmp_path_factory.mktemp("core") / "tree")


@pytest.fixture(scope="module")
def found(way: str, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of `without_wings`, run on a core without wings."""
    pytest.importorskip("torch_mlir")
    folder = tmp_path_factory.mktemp("run")
    write_entry_points(tree, tree if way == "absent" else ROOT)
    for door in DOORS if way == "raising" else ():  # the last way
        (tree / door).parent.mkdir(exist_ok=True)
        (tree / door).write_text("raise RuntimeError('out of order')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/packaging/without_wings.py"), str(tree)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(tree), "STACK_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_core_works(found: dict[str, Any]) -> None:
    assert found["traced"] in ([], ["add", "const", "max"])


def test_env_names_each_wing_and_the_reason(found: dict[str, Any], way: str) -> None:
    rows = {r["name"]: r["value"] for r in json.loads(found["commands"]["env --json"][1])["env"]}
    for name in ("bench", "mesh", "report"):
        assert rows[f"wing {name}"].startswith(REASONS[way])


def test_what_needs_a_wing_says_how_to_get_it(found: dict[str, Any]) -> None:
    for command, name in NEEDS.items():
        error = found["commands"][command][2]
        assert f"the wing {name!r}" in error
        assert "pip install" in error
    for name, error in found["refusals"].items():
        assert f"the wing {name!r}" in error


def test_the_wings_of_the_project_are_those_of_the_table() -> None:
    assert sorted(wings.WINGS) == sorted(WINGS)
    assert {wing_of(file) for file in files()} == {"core", *WINGS}
