"""What a person gets wrong: the nearest names, runs of other versions, narrow terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stack.cli import main
from stack.explore.table import listing, table

TEXT = """func @f(%x: f32[8]) -> (f32[8]) at tensor {
  %y = exp(%x) : f32[8] from "m.py:1"
  return %y
}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


@pytest.mark.parametrize(
    ("argv", "near"),
    [
        (["opt", "FILE", "--pass-pipeline=canonicalise"], "canonicalize"),
        (["opt", "FILE", "--pass-pipeline=fuse{max_input=3}"], "max_inputs"),
        (["dump", "FILE", "--to", "canoncal"], "canonical"),
        (["dump", "FILE", "--passes", "default,-fus"], "fuse"),
        (["dump", "FILE", "--passes", "default,+fold@fusd"], "fused"),
        (["run", "FILE", "--stage", "tield", "--backend", "mlir"], "tiled"),
        (["run", "FILE", "--backend", "mlri"], "mlir"),
        (["ops", "expp"], "exp"),
        (["passes", "fsue"], "fuse"),
        (["dump", "FILE", "--frontend", "troch"], "torch"),
        (["new", "pass", "mine", "--kind", "patern"], "pattern"),
        (["bisect", "FILE", "--passes", "default,+fold@laid-oot"], "laid-out"),
    ],
)
def test_the_nearest_name_is_told(
    argv: list[str], near: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([file if a == "FILE" else a for a in argv]) == 2
    said = capsys.readouterr().err
    assert f"{near!r}" in said or f"there is: {near}" in said
    assert len(said.splitlines()) <= 10


def test_the_nearest_command_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["dmup", "net.py:net"])
    assert "no command 'dmup'; did you mean 'dump'" in capsys.readouterr().err


def test_a_stage_of_a_run_that_is_not_there(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", file, "-o", str(tmp_path / "r")]) == 0
    run = str(tmp_path / "r")
    for argv, near in (
        (["show", run, "fusde"], "fused"),
        (["diff", f"{run}:canonicl", f"{run}:fused"], "canonical"),
        (["where", run, "m.py:2"], "m.py:1"),
        (["explain", run, "--kernel", "epx"], "exp"),
    ):
        assert main(argv) == 2
        assert f"did you mean {near!r}" in capsys.readouterr().err
    assert main(["explain", run, "--tile", "exp"]) == 2
    assert "exp had one schedule, by rule" in capsys.readouterr().err


def test_a_run_of_another_version_is_told_with_what_still_works(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "r"
    assert main(["dump", file, "-o", str(folder)]) == 0
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["schema"] = "stack.run/7"
    manifest["versions"]["stack-compiler"] = "9.9"
    path.write_text(json.dumps(manifest))
    capsys.readouterr()
    assert main(["show", str(folder)]) == 2
    said = capsys.readouterr().err
    assert "stack-compiler 9.9" in said
    assert "'stack.run/7'" in said
    first = folder / "01-imported.stack"
    assert f"stackc show {first}" in said
    assert main(["show", str(first)]) == 0  # and it does


HEAD = ["kernel", "kind", "source"]
ROWS = [["mul_reduce_rsqrt_add", "generated", "block.py:40,41,42 mlp.py:7,8,9"], ["dot", "-", ""]]


def test_a_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = table(HEAD, ROWS)
    assert wide.splitlines()[1].startswith("-----")
    monkeypatch.setenv("COLUMNS", "40")
    narrow = table(HEAD, ROWS)
    assert max(map(len, narrow.splitlines())) <= 40
    assert [line.split()[0] for line in narrow.splitlines()[2:4]] == ["mul_reduce_rsqrt_add", "dot"]
    assert narrow.splitlines()[-1] == "hidden: source"
    monkeypatch.setenv("COLUMNS", "200")
    assert table(HEAD, ROWS) == wide


def test_a_listing_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("kernel", "dot (generated)"), ("reads", "%weights 16.4 kB, %h 8.19 kB, %bias 256 B")]
    wide = listing(rows)
    assert [line.index(" ") for line in wide.splitlines()] == [7, 6]
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, listing(rows).splitlines())) <= 40


WITHOUT = """
import sys


class Without:
    def __init__(self, inner):
        self.inner = inner

    def find_spec(self, name, path=None, target=None):
        gone = name.partition(".")[0] in ("torch", "jax")
        return None if gone else self.inner.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.inner, name)


sys.meta_path[:] = map(Without, sys.meta_path)
import numpy as np
import stack

x = np.ones(3, "f4")
for call in (
    lambda: stack.compile(abs, x),
    lambda: stack.compile(abs, x, frontend="torch"),
    lambda: stack.jit(abs)(x),
):
    try:
        call()
    except stack.errors.UsageError as error:
        print(error)
from stack.cli import main

main(["dump", sys.argv[1] + ":net", "-i", "f32[3]"])
"""


def test_without_torch_and_jax_the_extra_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n\n\ndef net(x):\n    return x\n")
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "model.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    auto, torch, jax = done.stdout.splitlines()
    for said in (auto, torch, done.stderr):
        assert "pip install '.[torch]'" in said
    for said in (auto, jax):
        assert "pip install '.[jax]'" in said


def test_a_pipe_gets_plain_text(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", file]) == 0
    assert "\x1b" not in capsys.readouterr().out
