"""Kernels step by step on the command line: listed, shown, compared, written by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stack.cli import main
from stack.ir import Node, make
from stack.passes.steps.edit import Edit
from stack.passes.steps.vectorize import Vectorize

TEXT = """func @f(%x: f32[6, 40]) -> (f32[6, 40]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[6]
  %w = broadcast(%m) {axes=[0]} : f32[6, 40]
  %s = sub(%x, %w) : f32[6, 40]
  %e = exp(%s) : f32[6, 40]
  %t = reduce(%e) {axes=[1], kind="sum"} : f32[6]
  %v = broadcast(%t) {axes=[0]} : f32[6, 40]
  %y = div(%e, %v) : f32[6, 40]
  return %y
}
"""
GPU = ("--backend", "triton", "--target", "sm_90")


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "f.stack"
    path.write_text(TEXT)
    return str(path)


def dump(program: str, *more: str) -> int:
    return main(["dump", program, *GPU, "--to", "tiled", *more])


def test_steps_are_listed_shown_and_compared(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "r1")
    assert dump(program, "--steps", "-o", run) == 0
    listed = capsys.readouterr().out
    assert "%y\n   0 the plain loop nest\n   1 split " in listed
    assert re.search(r"split r 64 +a tile has all 40 elements along r\n", listed)
    assert main(["show", run, "y.step0"]) == 0
    nest = capsys.readouterr().out
    assert nest.count('kind="serial"') == 4 and "bool" not in nest
    assert main(["diff", f"{run}:y.step0", "y.step1"]) == 1
    assert "+" in capsys.readouterr().out
    assert main(["show", run, "y.step99"]) == 2
    assert "%y has steps 0 to" in capsys.readouterr().err
    assert main(["show", run, "z.step1"]) == 2
    assert "no kernel with schedule steps computes 'z'" in capsys.readouterr().err


def test_all_prints_the_kernel_after_each_step(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump(program, "--steps", "--all") == 0
    printed = capsys.readouterr().out
    assert "# y.step0: the plain loop nest\nfunc @" in printed
    assert "# y.step1: split " in printed


def test_each_step_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = str(tmp_path / "f.stack")
    Path(program).write_text(TEXT.replace("[6", "[2"))  # each check interprets every stage
    assert dump(program, "--steps", "--check") == 0
    assert "   each step computes the same as the loop nest\n" in capsys.readouterr().out
    monkeypatch.setattr(Vectorize, "apply", lambda self, kernel: kernel_that_forgets(kernel))
    assert dump(program, "--steps", "--check") == 1
    assert re.search(r"\n   step \d: result 0 differs", capsys.readouterr().out)


def kernel_that_forgets(kernel: Node) -> Node:
    """A kernel whose first maximum became a minimum."""
    return Edit(kernel).everywhere(
        lambda _, node: make("min", node.args) if node.op == "max" else None
    )


def test_a_nest_with_too_many_turns_is_not_interpreted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.stack"
    path.write_text(TEXT.replace("f32[6", "f32[60000"))
    assert dump(str(path), "--steps", "--check") == 2
    assert "too many to interpret" in capsys.readouterr().err


def test_a_list_by_hand(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    mine = "y: split r 16; vectorize r.1; rfactor r.0; bind i grid; launch 2"
    assert dump(program, "--steps", "--schedule", mine) == 0
    printed = capsys.readouterr().out
    assert "   1 split r 16\n   2 vectorize r.1\n   3 rfactor r.0\n   4 bind i grid" in printed
    assert "f32<16>" in printed


def test_a_list_in_a_file_goes_over_lines(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("y: split r 64  # all of a row\nvectorize r.1\nbind i grid\n")
    assert dump(program, "--steps", "--schedule", str(path)) == 0
    assert "   3 bind i grid\n   4 launch " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (
            "y: split q 4",
            "%y: step 1, `split q 4`: there is no loop over 'q'; the axes are: i of 6",
        ),
        ("y: bind i grid; vectorize i", "step 2, `vectorize i`: axis i is bound to grid"),
        ("y: tensorise r 4", "there is no primitive 'tensorise'"),
        ("z: split r 4", "no group to schedule is called %z"),
        ("split r 4", "a list of steps as"),
    ],
)
def test_a_list_that_is_not_legal(
    program: str, mine: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dump(program, "--schedule", mine) == 2
    assert message in capsys.readouterr().err


def test_kernels_of_a_cpu_are_shown(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", program, "--target", "avx2", "--to", "tiled", "--steps"]) == 0
    printed = capsys.readouterr().out
    assert "%y\n   0 the plain loop nest\n   1 vectorize r" in printed
    assert "one vector holds all of it\n   2 bind i cores\n" in printed


ON_CORES = "y: stage e local; split r 8 tail=peel; vectorize r.1; rfactor r.0; bind i cores"


def test_a_list_by_hand_for_a_cpu(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "r1")
    mine = ["--schedule", ON_CORES]
    assert main(["dump", program, *mine, "--steps", "--check", "-o", run]) == 0
    printed = capsys.readouterr().out
    assert "   1 stage e local\n   2 split r 8 tail=peel\n   3 vectorize r.1" in printed
    assert "   each step computes the same as the loop nest\n" in printed
    assert main(["show", run, "loop"]) == 0
    kernel = capsys.readouterr().out
    assert kernel.count("vexp(") + kernel.count("exp(") == 1 and "f32<8>" in kernel


def test_a_step_is_explained(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "r1")
    assert main(["dump", program, "--target", "avx2", "--to", "tiled", "-o", run]) == 0
    capsys.readouterr()
    assert main(["explain", run, "y.step1"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("%y, step 1: vectorize r\nwhy: one vector holds all of it\nloops: ")
    assert "  now: i < 6\n" in told
    assert main(["explain", run, "y.step0"]) == 0
    assert "the plain loop nest\nloops: i < 6, r < 40" in capsys.readouterr().out
    assert main(["explain", run, "y.step9"]) == 2
    assert "%y has steps 0 to 2, not 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        ("y: bind i grid", "step 1, `bind i grid`: "),
        ("y: split r 8; vectorize r.1; vectorize i", "vectors of a CPU have one axis"),
        ("y: bind i cores; unroll i", "step 2, `unroll i`: axis i is bound to cores"),
        ("y: launch 4", "step 1, `launch 4`: launch is for GPUs, and the target is a CPU"),
        ("y: m=4@unroll", "there is one way to compute"),
    ],
)
def test_a_list_that_is_not_legal_for_a_cpu(
    program: str, mine: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", program, "--schedule", mine]) == 2
    assert message in capsys.readouterr().err


PRODUCT = """func @g(%x: f16[64, 64], %w: f16[64, 64]) -> (f16[64, 64]) at tensor {
  %d = dot(%x, %w) {rule="m k, k n -> m n"} : f16[64, 64]
  %y = max(%d, 0.0:f16) : f16[64, 64]
  return %y
}
"""
BY_HAND = (
    "y: split i 32; split j 32; split k 16; vectorize k.1; vectorize j.1; vectorize i.1; tensorize;"
    " bind i.0 grid; bind j.0 grid; launch 4 stages=3"
)


def test_a_product_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.stack"
    path.write_text(PRODUCT)
    assert dump(str(path), "--steps") == 0
    out = capsys.readouterr().out
    assert "%y\n   0 the plain loop nest\n   1 split k" in out and "tensorize" in out
    for backend, code in (("triton", "tl.dot("), ("cuda", "mma")):
        mine = ["--schedule", BY_HAND, "-o", str(tmp_path / backend), "--steps"]
        gpu = ["--backend", backend, "--target", "sm_90"]
        assert main(["dump", str(path), *gpu, *mine]) == 0
        assert "7 tensorize" in capsys.readouterr().out
        (kernel,) = (tmp_path / backend / "kernels").glob("dot*")
        assert code in kernel.read_text()
    assert dump(str(path), "--schedule", BY_HAND.replace("split k 16", "split k 8")) == 2
    assert "step 7, `tensorize`: a product of 32 x 32 x 8: instructions take 16" in (
        capsys.readouterr().err
    )
