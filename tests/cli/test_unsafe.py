"""`stackc run`: what leaves its arrays is shown by the interpreter, and not given to a backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.cli import main
from stack.errors import UsageError

pytest.importorskip("torch_mlir")
TEXT = """
func @main(%x: f32[5, 7], %i: i64[3]) -> (f32[3, 7]) at tensor {
  %low = min(%i, -1:i64) : i64[3]
  %j = max(%low, -2:i64) : i64[3]
  %y = gather(%x, %j) {rule="a! b, i -> i b"} : f32[3, 7]
  return %y
}
"""


def test_a_function_that_leaves_its_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.stack"
    file.write_text(TEXT)
    assert main(["run", str(file), "--backend", "mlir"]) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "leaves axis 0 of [5, 7]: index -" in said
    assert "--unsafe" in said
    # two rows before an array: memory that is there
    assert main(["run", str(file), "--backend", "mlir", "--unsafe"]) == 0


def test_one_that_stays_inside_needs_no_flag(tmp_path: Path) -> None:
    file = tmp_path / "f.stack"
    file.write_text(TEXT.replace("-1:i64", "4:i64").replace("-2:i64", "0:i64"))
    assert main(["run", str(file), "--backend", "mlir"]) == 0
