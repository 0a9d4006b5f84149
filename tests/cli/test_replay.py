"""The compiler's own list of steps, written by hand: the same kernel, and no other on the way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_cases import tile_group

from stack.cli import main
from stack.ir import parse
from stack.passes.policies.lowerings import lowering_of
from stack.rewrite import Pipeline
from stack.target import load

ROWS = """func @f(%x: f32[4, 100]) -> (f32[4, 100]) at tensor {
  %m = reduce(%x) {axes=[1], kind="max"} : f32[4] from "n.py:3"
  %broadcast = broadcast(%m) {axes=[0]} : f32[4, 100] from "n.py:3"
  %sub = sub(%x, %broadcast) : f32[4, 100] from "n.py:3"
  %exp = exp(%sub) : f32[4, 100] from "n.py:3"
  %reduce = reduce(%exp) {axes=[1], kind="sum"} : f32[4] from "n.py:4"
  %broadcast_1 = broadcast(%reduce) {axes=[0]} : f32[4, 100] from "n.py:4"
  %y = div(%exp, %broadcast_1) : f32[4, 100] from "n.py:4"
  return %y
}
"""
COLUMN = """func @f(%x: f32[41, 29], %w: f32[29, 1]) -> (f32[41, 1]) at tensor {
  %d = dot(%x, %w) {rule="m k, k n -> m n"} : f32[41, 1] from "n.py:3"
  %y = max(%d, 0.0:f32) : f32[41, 1] from "n.py:4"
  return %y
}
"""
BARE = """func @f(%x: f32[8, 53]) -> (f32[8]) at tensor {
  %y = reduce(%x) {axes=[1], kind="sum"} : f32[8] from "n.py:3"
  return %y
}
"""
MIXED = """func @f(%x: f32[512, 64], %d: f32[512, 64]) -> (f32[512, 64], f32[64]) at tensor {
  %p = mul(%x, %d) : f32[512, 64] from "n.py:2"
  %s = reduce(%p) {axes=[1], kind="sum"} : f32[512] from "n.py:2"
  %b = broadcast(%s) {axes=[0]} : f32[512, 64] from "n.py:2"
  %y = mul(%b, %x) : f32[512, 64] from "n.py:3"
  %c = reduce(%p) {axes=[0], kind="sum"} : f32[64] from "n.py:4"
  return %y, %c
}
"""
PROGRAMS = {
    "rows": ROWS,
    "one column": COLUMN,
    "a bare op": BARE,
    "rows and columns": MIXED,
}
LOOP = """func @f(%n: i32[], %x: f32[4, 64]) -> (f32[4, 64]) at tensor {
  %w = while(%n, %x) : (i32[], f32[4, 64]) {(%i: i32[], %a: f32[4, 64])
    %t = lt(%i, 3:i32) : bool[]
    return %t
  } {(%i: i32[], %a: f32[4, 64])
    %j = add(%i, 1:i32) : i32[]
    %m = reduce(%a) {axes=[1], kind="max"} : f32[4]
    %b = broadcast(%m) {axes=[0]} : f32[4, 64]
    %y = sub(%a, %b) : f32[4, 64]
    return %j, %y
  }
  %o = item(%w) {index=1} : f32[4, 64]
  return %o
}
"""
TARGETS = {"mlir": "avx2", "triton": "sm_90", "cuda": "sm_90"}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", TARGETS)
def test_a_list_replays(
    backend: str, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, mine = tmp_path / "f.stack", tmp_path / "mine"
    path.write_text(PROGRAMS[program])
    common = [str(path), "--backend", backend, "--target", TARGETS[backend], "--to", "tiled"]
    assert main(["dump", *common, "--steps", "-o", str(tmp_path / "r1")]) == 0
    listed = re.split(r"^%(\w+)\n", capsys.readouterr().out, flags=re.M)[1:]
    steps = {
        name: re.findall(r"^ +[1-9]\d* (.+?)(?:  .*)?$", text, re.M)
        for name, text in zip(listed[::2], listed[1::2], strict=True)
    }
    assert steps and all(steps.values())
    if backend != "mlir" and program == "rows and columns":
        del steps["c"]  # the sum of parts: a list for it alone asks for one part
    mine.write_text("\n".join(f"{name}: {'; '.join(own)}" for name, own in steps.items()))
    assert main(["dump", *common, "--schedule", str(mine), "-o", str(tmp_path / "r2")]) == 0
    first, second = (next((tmp_path / r).glob("*tiled.stack")).read_text() for r in ("r1", "r2"))
    assert first == second and "n.py:3" in first


def test_names_of_a_kernel_are_those_of_its_last_step() -> None:
    """The kernels of equal groups are built once, with marks for names."""
    func = Pipeline("fuse").run(parse(ROWS.replace("100", "1000"))).func
    (group,) = (n for n in func.nodes if n.op == "fusion")
    made = lowering_of(group, load("avx2")).made()
    assert any(text == "stage exp local" for text, _, _ in made.done)
    tiled = Pipeline("tile").run(func, target=load("avx2")).func
    (kernel,) = (n for n in tiled.nodes if n.op == "kernel")
    names = {*kernel.blocks[0].names.values()}
    assert names == {*tile_group(group, load("avx2")).blocks[0].names.values()}
    assert not any(name[0].isdigit() for name in names)


def test_kernels_in_loops_have_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, run = tmp_path / "f.stack", str(tmp_path / "r1")
    path.write_text(LOOP)
    options = ["--target", "avx2", "--to", "tiled"]
    assert main(["dump", str(path), *options, "--steps", "-o", run]) == 0
    printed = capsys.readouterr().out
    assert "%y\n   0 the plain loop nest\n   1 " in printed
    assert main(["show", run, "y.step0"]) == 0
    assert main(["explain", run, "y.step1"]) == 0
    capsys.readouterr()
    mine = "y: split r 8; vectorize r.1; rfactor r.0; bind i cores"
    assert main(["dump", str(path), *options, "--steps", "--schedule", mine]) == 0
    printed = capsys.readouterr().out
    assert "   3 rfactor r.0\n   4 bind i cores\n" in printed
