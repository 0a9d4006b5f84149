"""`stackc dump --mesh` and `explain --sharding` on a file of IR text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.cli import main

TEXT = """func @f(%x: f32[8, 16], %up: f32[16, 32], %down: f32[32, 16]) -> (f32[8, 16]) at tensor {
  %h = dot(%x, %up) {rule="m k, k n -> m n"} : f32[8, 32] from "m.py:3"
  %y = dot(%h, %down) {rule="m k, k n -> m n"} : f32[8, 16] from "m.py:4"
  return %y
}
"""
PLACES = ("--mesh", "dp=2,tp=4", "--shard", "x: dp", "--shard", "up: -, tp")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


def test_dump_has_the_stages_and_the_pieces(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["dump", file, *PLACES, "-o", str(out)]) == 0
    told = capsys.readouterr().out
    assert "%down     f32[32{tp}, 16] @m  f32[8, 16]" in told
    assert "%y.at  all_reduce  tp           384  m.py:4" in told
    stages = [s["name"] for s in json.loads((out / "manifest.json").read_text())["stages"]]
    assert stages[-4:] == ["annotated", "propagated", "resharded", "partitioned"]
    drawn = (out / "notes" / "mesh.txt").read_text()
    assert "  0 1 2 3\n  4 5 6 7\n" in drawn
    assert "  [2 of 4, :]  ranks 2 6" in drawn
    assert main(["explain", str(out), "--sharding", "%down"]) == 0
    told = capsys.readouterr().out
    first, head, *drawn = told.splitlines()
    assert first == "propagated: %down: dim 0 on tp, from %h through factor k of dot, m.py:4"
    assert head == "%down: f32[32{tp}, 16] @m, f32[8, 16] on each rank"
    assert drawn[2] == "  [2 of 4, :]  ranks 2 6"
    assert main(["explain", str(out), "--sharding", "%x"]) == 0
    assert "%x has the sharding that was given" in capsys.readouterr().out
    assert main(["explain", str(out), "--sharding", "nix"]) == 2
    assert "@f has no value 'nix'; there are: down, h, up, x, y" in capsys.readouterr().err


def test_json_lists_the_collectives(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", file, *PLACES, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["collectives"]
    assert row["op"] == "all_reduce" and row["bytes"] == 384 and row["source"] == ["m.py:4"]


@pytest.mark.parametrize(
    ("mesh", "shard", "told"),
    [
        ("dp=2, tp", (), "a mesh is written as 'dp=2, tp=4', not 'dp=2, tp'"),
        ("dp=2, dp=4", (), "mesh m(dp=2, dp=4) names an axis twice"),
        ("dp=2", ("h: tp",), "'h: tp': %h (m.py:3): 'tp': mesh m(dp=2) has no axis 'tp'"),
        (
            "dp=2, tp=4",
            ("h: dp, dp",),
            "'h: dp, dp': %h (m.py:3): axis 'dp' of mesh m(dp=2, tp=4) is used twice;"
            " axes that are free: tp",
        ),
        (
            "dp=16, tp=4",
            ("h: dp",),
            "%h (m.py:3): dim 0 has 8 element(s) for 16 parts (dp); axes that fit: tp (4)",
        ),
        (
            "dp=2",
            ("h: dp", "h: -, dp"),
            "%h (m.py:3) has two shardings, 'h: dp' and 'h: -, dp': keep one",
        ),
        ("dp=2", ("z: dp",), "@f has no value 'z'; there are: down, h, up, x, y"),
    ],
)
def test_a_wrong_annotation_is_told_with_its_value_line_and_choices(
    file: str, mesh: str, shard: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [word for text in shard for word in ("--shard", text)]
    assert main(["dump", file, "--mesh", mesh, *texts]) == 2
    assert told in capsys.readouterr().err


def test_a_strict_run_lists_the_choices_with_their_bytes(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ("--shard", "x: tp", "--shard", "up: -, tp")
    assert main(["dump", file, "--mesh", "tp=4", *texts, "--strict"]) == 2
    told = capsys.readouterr().err
    assert "%h = dot (m.py:3) can be split along tp in several ways: n (" in told
    assert "bytes); annotate it to choose" in told


@pytest.mark.parametrize(
    "wrong",
    [
        ["--shard", "x: dp"],
        ["--mesh", "dp"],
        ["--mesh", "dp=2", "--shard", "x: tp"],
        ["--mesh", "dp=16", "--shard", "x: dp"],
        ["--mesh", "dp=2", "--shard", "z: dp"],
        ["--mesh", "dp=2", "--shard", "x: dp", "--profile"],
    ],
)
def test_what_cannot_be_understood(file: str, wrong: list[str]) -> None:
    assert main(["dump", file, *wrong]) == 2
