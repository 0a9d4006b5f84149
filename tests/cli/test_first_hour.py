"""Mistakes of the first hour with `stackc`: each is answered without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

import stack
from stack.cli import main

SOFTMAX = """func @net(%x: f32[8, 100]) -> (f32[8, 100]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[8] from "net.py:3"
  %b = broadcast(%m) {axes=[0]} : f32[8, 100] from "net.py:3"
  %y = sub(%x, %b) : f32[8, 100] from "net.py:4"
  return %y
}
"""
MATMUL = """func @net(%x: f32[512, 512], %w: f32[512, 512]) -> (f32[512, 512]) at tensor {
  %c = dot(%x, %w) {rule="a k, k n -> a n"} : f32[512, 512] from "net.py:3"
  return %c
}
"""
NO_FUNC = """
from dataclasses import dataclass
from typing import ClassVar
from stack.rewrite import Pass


@dataclass(frozen=True)
class Lost(Pass):
    name: ClassVar[str] = "lost"

    def run(self, func, log):
        return None
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.stack").write_text(SOFTMAX)
    Path("matmul.stack").write_text(MATMUL)
    Path("lost.py").write_text(NO_FUNC)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err


def test_a_run_replaces_the_stages_of_the_run_before_and_leaves_other_files(here: Path) -> None:
    assert main(["dump", "matmul.stack", "--target", "avx2", "-o", "r1"]) == 0
    before = {path.name for path in Path("r1").glob("*-*")}
    (kernel,) = Path("r1/kernels").iterdir()
    Path("r1/09-mine.mlir").write_text("// edited by hand")
    assert main(["dump", "net.stack", "--to", "imported", "-o", "r1"]) == 0
    assert {path.name for path in Path("r1").glob("*-*")} == {
        *("00-captured.txt", "01-imported.stack", "09-mine.mlir")
    }
    assert "05-fused.stack" in before and not kernel.exists()


def test_a_damaged_manifest_removes_nothing(here: Path) -> None:
    Path("r1").mkdir()
    Path("kept.txt").write_text("")
    listed = '{"stages": [{"file": "../kept.txt"}], "kernels": []}'
    for text in (listed, "[1]", "{", '{"stages": 3, "kernels": [1]}'):
        Path("r1/manifest.json").write_text(text)
        assert main(["dump", "net.stack", "--to", "imported", "-o", "r1"]) == 0
    assert Path("kept.txt").exists()


def test_an_output_that_cannot_be_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "dump", "net.stack", "--to", "imported", "-o", "net.stack/r1")
    assert "-o takes a folder; net.stack/r1: Not a directory" in said
    assert "cannot create net.stack/mine" in refused(
        capsys, "new", "pass", "mine", "-o", "net.stack"
    )


def test_a_wrong_name_of_a_group_lists_those_that_take_steps(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["dump", "net.stack", "--target", "avx2", "--schedule"]
    assert "there are: %y" in refused(capsys, *argv, "nope: split r 8")
    assert main([*argv, "y: split r 8"]) == 0


@pytest.mark.parametrize("text", ["c: microkernel", "c:", "c: ;"])
def test_a_schedule_that_cannot_be_read_names_steps_too(
    here: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    said = refused(capsys, "dump", "matmul.stack", "--target", "avx2", "--schedule", text)
    assert "steps with their operands, as in 'split m 8; unroll m.1'" in said


def test_the_size_of_a_vector_names_its_element_type(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = "c: split k 4096; vectorize k.1"
    said = refused(capsys, "dump", "matmul.stack", "--target", "avx2", "--schedule", steps)
    assert "a vector of 4096 bool has 4096 bytes, all registers 512" in said


def test_opt_schedules_for_the_target(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.txt").write_text("c: split i 8  # rows\n")
    assert main(["opt", "matmul.stack", "--schedule", "mine.txt", "--target", "avx2"]) == 0
    assert 'schedule="split i 8"' in capsys.readouterr().out
    assert main(["opt", "matmul.stack", "--schedule", "mine.txt", "--target", "sm_90"]) == 0
    assert "launch" in capsys.readouterr().out


def test_a_pass_without_a_result_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "opt", "net.stack", "--pass-pipeline", "lost.py:Lost")
    assert "it returns None, not a Func" in said and "in pass 'lost'" in said


def test_a_folder_of_runs_names_them(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("forward", "joint"):
        stack.compile(stack.parse(SOFTMAX)).run.save(f"r3/{name}")
    assert "these are: r3/forward, r3/joint" in refused(capsys, "show", "r3")


def test_wrong_names(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "net.stack", "--target", "avx2", "-o", "r1"]) == 0
    said = refused(capsys, "explain", "r1", "--tile", "nope")
    assert "r1 has no kernel 'nope'; there are: reduce_sub" in said
    assert "there is no file or folder nope" in refused(capsys, "watch", "nope", "--turns", "1")
    assert "`stackc env` has no entry 'nope'" in refused(capsys, "env", "nope")


JAX = """
def decides(x):
    return x if x.sum() > 0 else -x
"""


def test_a_jax_program_that_cannot_be_traced_is_not_one_graph(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    Path("net.py").write_text(f"import jax\n{JAX}")
    assert main(["explain", "net.py:decides", "-i", "f32[4]", "--breaks"]) == 1
    said = capsys.readouterr()
    assert "one graph" not in said.out and "net.py:4: `return x if x.sum() > 0" in said.err


def test_torch_programs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    Path("net.py").write_text(f"import torch\n{JAX}\ndef nothing(x):\n    pass\n")
    assert main(["explain", "net.py:decides", "-i", "f32[4]", "--breaks"]) == 0
    assert "a branch on the data of a tensor" in capsys.readouterr().out
    assert main(["dump", "net.py:nothing", "-i", "f32[4]"]) == 1
    assert "error: the function does no work on tensors" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["dump", "show", "diff"])
def test_steps_are_shown_for_every_backend(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "(triton, cuda)" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("f32[64x1000]", "commas are between sizes"),
        ("float32[64,1000]", "float32 is f32"),
        ("f32[?,1000]", "make sizes symbolic by --dynamic"),
        ("f33[4]", "types are bool, i8, "),
        ("f32", "an element type and sizes in brackets"),
    ],
)
def test_an_input_that_cannot_be_read_says_how_to_write_it(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    said = refused(capsys, "dump", "net.py:f", "-i", text)
    assert why in said
    assert "write it as 'f32[2,16,64]'" in said


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--passes", "+mine.py:Mine@fussed"], "did you mean 'fused'?"),
        (["--passes=-fuze"], "did you mean 'fuse'?"),
        (["--schedule", "y: microkernel"], "steps with their operands"),
    ],
)
def test_settings_are_checked_before_the_program_is_imported(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], why: str
) -> None:
    assert why in refused(capsys, "dump", "missing.py:f", *argv)


def test_run_of_a_program_says_to_dump_it_first(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, "run", "net.py:f", "-i", "f32[4]")
    assert "`stackc dump net.py:f -i 'f32[4]' -o r1`, then name a stage, as r1:imported" in said


def test_names_of_stages_and_steps_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "net.stack", "--target", "avx2", "-o", "r1"]) == 0
    said = refused(capsys, "run", "r1:fused", "--against", "importd")
    assert "r1 has no stage 'importd'; did you mean 'imported'?" in said
    assert "steps are `softmax.step2`" in refused(capsys, "show", "r1", "step2")


def test_opt_lowers_for_the_target_of_the_run(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", "net.stack", "--target", "avx2", "-o", "r1"]) == 0
    capsys.readouterr()
    assert main(["opt", "r1:fused", "--pass-pipeline", "schedule{loops=cpu},tile"]) == 0
    printed = capsys.readouterr().out
    assert "f32<32>" in printed and "f32<64>" not in printed
