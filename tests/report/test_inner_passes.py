"""The passes inside of MLIR and Triton: their texts in order, as stages of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import stack
from stack.cli import main
from stack.imports import function_of

DUMP = """warning: something else
// -----// IR Dump Before InlinerPass (inline) ('builtin.module' operation) //----- //
module {
  tt.a loc(#loc1)
}
#loc1 = loc("f.py":1:0)
// -----// IR Dump Before CSEPass (cse) ('builtin.module' operation) //----- //
module {
  tt.a loc(callsite("f"("g.py":2:1) at #loc1))
}
// -----// IR Dump Before Last (last) ('builtin.module' operation) //----- //
module {
  tt.b
}
"""


def test_only_passes_that_change_the_module_are_shown() -> None:
    pytest.importorskip("triton")
    changed_modules = function_of("stack.backends.triton.inner_passes:changed_modules")
    assert list(changed_modules(DUMP)) == [("cse", "module {\n  tt.b\n}")]


def test_passes_of_mlir_are_stages_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "func @f(%x: f32[64]) -> (f32[64]) at tensor {\n  %y = exp(%x) : f32[64]\n"
    compiled = stack.compile(stack.parse(f"{text}  return %y\n}}"))
    compiled.run.save(tmp_path / "r")
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "r"), "--inner", "-o", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    names = [f"mlir.{i}.{n}" for i, n in ((1, "convert-scf-to-cf"), (2, "convert-to-llvm"))]
    assert all(f'id="stage-{name}"' in page for name in names)
    assert "MB" in capsys.readouterr().err


def test_a_backend_without_a_compiler_of_its_own_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.stack"
    path.write_text(
        "func @f(%x: f32[64]) -> (f32[64]) at tensor {\n  %y = exp(%x) : f32[64]\n  return %y\n}\n"
    )
    argv = ["report", str(path), "--backend", "cuda", "--target", "sm_90", "--inner"]
    code = main([*argv, "-o", str(tmp_path / "f.html")])
    assert code in (2, 5)  # 5 without a CUDA compiler
    assert "cuda" in capsys.readouterr().err
