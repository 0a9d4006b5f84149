"""Someone else's package, found through entry points, listed and explained like our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from installed import installed_package

import stack
from stack.cli import main
from stack.errors import UsageError
from stack.rewrite import Pipeline
from stack.target import load
from stack.testing import check_pass

INFO = {
    "METADATA": "Metadata-Version: 2.1\nName: acme-compiler\nVersion: 1.0\n",
    "entry_points.txt": (
        "[stack.passes]\nacme_fuse = acme_compiler:AcmeFuse\n"
        "[stack.ops]\nacme_compiler = acme_compiler\n"
        "[stack.backends]\nacme_numpy = acme_compiler:BACKEND\n"
    ),
}
TEXT = """func @f(%x: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) at tensor {
  %a = exp(%x) : f32[64, 64] from "m.py:1"
  %b = neg(%x) : f32[64, 64] from "m.py:2"
  return %a, %b
}
"""
PRODUCT = """func @g(%x: bf16[512, 512], %w: bf16[512, 512]) -> (bf16[512, 512]) at tensor {
  %y = dot(%x, %w) {rule="a k, k b -> a b"} : bf16[512, 512]
  %z = exp(%y) : bf16[512, 512]
  return %z
}
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package as pip would have installed it."""
    with installed_package(INFO, tmp_path, monkeypatch):
        yield


@pytest.mark.parametrize(
    ("what", "name", "said"),
    [
        ("passes", "acme_fuse", "neighbours that read one value"),
        ("backends", "acme_numpy", "by the reference interpreter"),
        ("ops", "acme_compiler.twice", "x and x once more"),
        ("stages", "acme_numpy", "acme_fuse"),
    ],
)
def test_all_of_it_is_listed(
    what: str, name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([what, name]) == 0
    assert said in capsys.readouterr().out


def test_its_pass_is_a_pass() -> None:
    (one,) = Pipeline("acme_fuse").passes
    report = check_pass(one, [stack.parse(TEXT)], first="inline,canonicalize")
    assert report.rules["Siblings"] >= 1


def test_its_backend_compiles_and_its_rule_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.linspace(-1, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    compiled = stack.compile(stack.parse(TEXT), backend="acme_numpy")
    a, b = compiled(x)
    np.testing.assert_allclose(a, np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(b, -x)
    assert len(compiled.run.kernels) == 1
    compiled.run.save(tmp_path / "r")
    assert main(["explain", str(tmp_path / "r"), "a", "b"]) == 0
    assert "since Siblings (acme_fuse in fused)" in capsys.readouterr().out


def test_its_pass_steers_another_backend() -> None:
    passes = "default,-fuse,+acme_fuse@fused"
    compiled = stack.compile(stack.parse(TEXT), backend="mlir", passes=passes)
    assert len(compiled.run.kernels) == 1
    x = np.ones((64, 64), np.float32)
    np.testing.assert_allclose(compiled(x)[0], np.exp(x), rtol=1e-6)


def test_its_policy_schedules() -> None:
    func = Pipeline("fuse").run(stack.parse(PRODUCT)).func
    ours, theirs = (
        Pipeline(f"schedule{{loops={loops}, most=1}}").run(func, target=load("sm_90")).func
        for loops in ("blocks", "acme_compiler:generous")
    )
    assert _warps(theirs) > _warps(ours)
    with pytest.raises(UsageError, match="did you mean 'generous'"):
        Pipeline("schedule{loops=acme_compiler:generus}").run(func)


def _warps(func: stack.Func) -> int:
    from stack.schedule import first_schedule

    (group,) = [n for n in func.nodes if n.op == "fusion"]
    found = first_schedule(group)
    assert found is not None
    return found.warps


def test_its_operator_is_called() -> None:
    import acme_compiler

    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(acme_compiler.twice(x), x + x)
