"""`stackc run` from a stage on, against what the program was, and with code by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack.cli import main
from stack.explore.resume import executable_from
from stack.ir.files import load
from stack.run.record import Run

TEXT = """func @f(%x: f32[16, 16], %w: f32[16]) -> (f32[16, 16]) at tensor {
  %wide = broadcast(%w) {axes=[1]} : f32[16, 16] from "m.py:3"
  %y = mul(%x, %wide) : f32[16, 16] from "m.py:3"
  %e = exp(%y) : f32[16, 16] from "m.py:5"
  return %e
}
"""
HAND = """
import numpy as np

def right(x, w):
    return np.exp(x * w)

def wrong(x, w):
    return x * w
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("run")
    (made / "f.stack").write_text(TEXT)
    (made / "hand.py").write_text(HAND)
    assert main(["dump", str(made / "f.stack"), "-o", str(made / "r")]) == 0
    return made


def stage_file(folder: Path, stage: str) -> Path:
    stages = json.loads((folder / "r" / "manifest.json").read_text())["stages"]
    return folder / "r" / next(s["file"] for s in stages if s["name"] == stage)


def test_only_what_follows_the_stage_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(stage_file(folder, "fused"))
    record = Run()
    executable_from(load(Path(file)), "fused", "mlir", record)
    assert record.stages[:3] == ["scheduled", "tiled", "loop"]
    assert main(["run", file, "--stage", "fused", "--backend", "mlir"]) == 0
    assert main(["run", "--from", file, "--stage", "fused", "--backend", "mlir"]) == 0
    assert main(["run", "--stage", "fused"]) == 2
    assert "give a FILE to run" in capsys.readouterr().err
    assert main(["run", file, "--stage", "fusde", "--backend", "mlir"]) == 2
    assert "did you mean 'fused'" in capsys.readouterr().err


def test_an_edit_is_compared_with_what_the_program_was(folder: Path) -> None:
    edited = folder / "edited.stack"
    text = stage_file(folder, "canonical").read_text()
    edited.write_text(text)
    against = ["--against", f"{folder / 'r'}:imported"]
    assert main(["run", str(edited), *against]) == 0
    assert main(["run", str(edited), "--stage", "canonical", "--backend", "mlir", *against]) == 0
    edited.write_text(text.replace(" = exp(", " = tanh("))
    assert main(["run", str(edited), *against]) == 1


def test_the_other_stage_may_leave_out_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", f"{folder / 'r'}:fused", "--against", "canonical", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert "error" in row
    assert main(["run", f"{folder / 'r'}:fused", "--against", "canonicla"]) == 2
    assert "no stage 'canonicla'; did you mean 'canonical'?" in capsys.readouterr().err


def test_an_edit_that_does_not_verify_is_told_by_line_and_column(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = folder / "broken.stack"
    edited.write_text(TEXT.replace("%e = exp(%y) : f32[16, 16]", "%e = exp(%y) : f32[16, 15]"))
    assert main(["run", str(edited), "--stage", "imported", "--backend", "mlir"]) == 2
    said = capsys.readouterr()
    assert "line 4, column 8" in said.err
    assert "broken.stack" in said.err
    assert not said.out


@pytest.mark.parametrize("stage", ["mlir", "llvm"])
def test_kernels_are_taken_from_an_edited_file(
    folder: Path, capsys: pytest.CaptureFixture[str], stage: str
) -> None:
    """As it was printed it computes what it did; edited, what is written there."""
    file = stage_file(folder, stage)
    argv = ["run", "--stage", stage, "--seed", "3"]
    assert main([*argv, str(file)]) == 0
    edited = folder / f"edited.{stage}"
    text = file.read_text()
    multiply = "arith.mulf %x, %wide" if stage == "mlir" else "llvm.fmul"
    assert multiply in text
    edited.write_text(text.replace(multiply, multiply.replace("mul", "sub"), 1))
    assert main([*argv, str(edited)]) == 2
    assert "add --against RUN:STAGE" in capsys.readouterr().err
    assert main([*argv, str(edited), "--against", f"{folder / 'r'}:imported"]) == 1
    said = capsys.readouterr()
    assert "disagree" in said.err


def test_kernel_text_that_is_wrong_is_told_by_line_and_column(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stage_file(folder, "mlir").read_text()
    argv = ["--stage", "mlir", "--against", f"{folder / 'r'}:imported"]
    number, line = next((i, x) for i, x in enumerate(text.splitlines(), 1) if "arith.mulf" in x)
    broken = folder / "broken.mlir"
    broken.write_text(text.replace(line, line.replace("mulf %x", "mulf %nobody")))
    assert main(["run", str(broken), *argv]) == 2
    said = capsys.readouterr()
    column = line.index("%x") + 1
    assert f"line {number}, column {column}: use of undeclared SSA value name" in said.err
    assert f"in {broken}" in said.err
    assert not said.out
    broken.write_text(text.replace("// ---- ", "// ---- un", 1))
    assert main(["run", str(broken), *argv]) == 2
    assert "has no kernel" in capsys.readouterr().err
    asm = str(stage_file(folder, "asm"))
    assert main(["run", asm, "--stage", "asm"]) == 2
    assert "cannot resume from kernel text at 'asm'" in capsys.readouterr().err


def test_kernel_text_for_another_cpu_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = stage_file(folder, "mlir").read_text()
    head, asked = "(%table: !llvm.ptr) {", '#llvm.target_features<["+no-such-thing"]>'
    assert head in text
    other = folder / "other.mlir"
    other.write_text(text.replace(head, f"{head[:-1]}attributes {{target_features = {asked}}} {{"))
    argv = ["--stage", "mlir", "--against", f"{folder / 'r'}:imported"]
    assert main(["run", str(other), *argv]) == 2
    assert "does not run the kernel: it has no no-such-thing" in capsys.readouterr().err


def test_code_by_hand_is_checked_and_timed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kernel,) = json.loads((folder / "r" / "manifest.json").read_text())["kernels"]
    spec = f"{kernel['name']}={folder / 'hand.py'}"
    assert main(["run", str(folder / "r"), "--kernel", f"{spec}:right"]) == 0
    out = capsys.readouterr().out
    assert f"us of {kernel['name']}:" in out
    assert "hand.py:right:" in out
    assert main(["run", str(folder / "r"), "--kernel", f"{spec}:wrong"]) == 1
    assert main(["run", str(folder / "r"), "--kernel", f"{spec}:rigth"]) == 2
    assert "did you mean 'right'" in capsys.readouterr().err
    assert main(["run", str(folder / "r"), "--kernel", f"k9={folder / 'hand.py'}:right"]) == 2
    assert main(["run", str(folder / "r"), "--kernel", "right"]) == 2
