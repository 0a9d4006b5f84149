"""Explanations are the decisions that a run recorded: no pass runs again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stack
from stack.errors import UsageError
from stack.explore.dump import describe
from stack.explore.in_memory_run import held
from stack.explore.kernel_sharing import explain_pairs, told
from stack.explore.lowering import Settings, inspect_target
from stack.explore.node_outcomes import fates
from stack.explore.provenance import explain, where
from stack.explore.retrace import retrace
from stack.explore.saved_run import SavedRun, load_run
from stack.explore.target import IRText
from stack.ir import parse
from stack.measure.kernel_time import slow

TEXT = """func @f(%x: f32[8, 8], %w: f32[8, 8]) -> (f32[8, 8]) at tensor {
  %y = exp(%x) : f32[8, 8] from "m.py:1"
  %z = mul(%y, 1.0:f32) : f32[8, 8] from "m.py:2"
  %d = dot(%z, %w) {rule="a k, k b -> a b"} : f32[8, 8] from "m.py:3 layers.0.attn.wq"
  %e = neg(%d) : f32[8, 8] from "m.py:4 layers.0.attn"
  return %e
}
"""
OWN_PASS = '''from dataclasses import dataclass
from typing import ClassVar

import stack
from stack.passes.fuse import Fuse


@dataclass(frozen=True)
class Mine(Fuse):
    """Fuses, and says so."""

    name: ClassVar[str] = "mine_of_a_lost_file"

    def run(self, func, log):
        log.note("fused by a pass that is gone", ("m.py:1",))
        return super().run(func, log)
'''
NORM = """func @g(%x: f32[2, 16, 64], %w: f32[96, 64]) -> (f32[32, 96]) at tensor {
  %s = reduce(%x) {axes=[2], kind="sum"} : f32[2, 16] from "m.py:1"
  %b = broadcast(%s) {axes=[0, 1]} : f32[2, 16, 64] from "m.py:1"
  %n = mul(%x, %b) : f32[2, 16, 64] from "m.py:1"
  %mm = dot(%n, %w) {rule="a b k, n k -> a b n"} : f32[2, 16, 96] from "m.py:2"
  %r = reshape(%mm) : f32[32, 96] from "m.py:2"
  return %r
}
"""


def saved(text: str, folder: Path, passes: str = "default") -> SavedRun:
    """A run of IR text, compiled here and saved."""
    compiled = stack.compile(parse(text), backend="mlir", passes=passes)
    return load_run(compiled.run.save(folder / "r"))


def test_a_pass_whose_file_is_gone_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "lost_pass.py"
    path.write_text(OWN_PASS)
    run = saved(TEXT, tmp_path, f"default,-fuse,+{path}:Mine@fused")
    path.write_text("")  # nothing can find the pass again
    manifest = json.loads((run.folder / "manifest.json").read_text())
    (stage,) = [s for s in manifest["stages"] if s["name"] == "fused"]
    stage["pass"] = stage["pass"].replace("lost_pass", "nowhere")
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    run = load_run(run.folder)
    reasons = [r.text for r in explain(run, "m.py:1")]
    assert "fused by a pass that is gone" in reasons
    assert any(text.startswith("formed") for text in reasons)
    kinds = {f.origin.mark: f.kind for f in fates(retrace(run))}
    assert kinds == {"%y": "kernel", "%z": "kernel", "%d": "kernel", "%e": "kernel"}
    assert "%d and %e: one kernel" in told(explain_pairs(retrace(run), "%d", "%e"))


def test_a_run_in_memory_gives_the_answers_of_a_saved_one(tmp_path: Path) -> None:
    compiled = stack.compile(parse(TEXT), backend="mlir")
    run = load_run(compiled.run.save(tmp_path / "r"))
    for what in ("m.py:1", "m.py:2", "m.py:3", "%e"):
        assert explain(run, what) == explain(held(compiled.run), what) != []


def test_quantized_weights_are_explained(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(256, 256, bias=False)
    compiled = stack.compile(
        lambda x: model(x).relu(), torch.randn(8, 256), passes="quantize{scheme=w4a16}"
    )
    run = load_run(compiled.run.save(tmp_path / "r"))
    (note,) = compiled.run["weights"].notes
    line = next(line for kernel in run.kernels for line in kernel["source"])
    reasons = [r.text for r in explain(run, line) if r.stage == "weights"]
    assert note in reasons
    assert not any("did not apply" in text for text in reasons)
    kinds = {f.origin.mark: f.kind for f in fates(retrace(run))}
    assert kinds["%t"] == "fold"  # the transpose of the weight is part of the packed weight
    assert set(kinds.values()) <= {"fold", "hosted", "kernel"}


def test_a_damaged_file_of_decisions_is_named(tmp_path: Path) -> None:
    run = saved(TEXT, tmp_path)
    path = run.folder / "decisions.json"
    for text in ("[]", "{", '{"schema": "stack.decisions/1", "stages": {"fused": [3]}}'):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"decisions\.json"):
            explain(load_run(run.folder), "m.py:1")
    path.unlink()
    with pytest.raises(UsageError, match="incomplete"):
        explain(load_run(run.folder), "m.py:1")


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("layers.0.attn.wq", {"m.py:3 layers.0.attn.wq"}),
        ("attn.wq", {"m.py:3 layers.0.attn.wq"}),
        ("attn/wq", {"m.py:3 layers.0.attn.wq"}),
        ("layers.0.attn", {"m.py:3 layers.0.attn.wq", "m.py:4 layers.0.attn"}),
        ("layers", {"m.py:3 layers.0.attn.wq", "m.py:4 layers.0.attn"}),
    ],
)
def test_module_paths_have_dots(what: str, lines: set[str], tmp_path: Path) -> None:
    run = saved(TEXT, tmp_path)
    assert set(where(run, what).source) == lines
    assert where(run, what).kernels


def test_a_part_of_a_module_name_is_no_module(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no source line, module"):
        where(saved(TEXT, tmp_path), "attn.w")


@pytest.mark.parametrize(("backend", "machine"), [("mlir", ""), ("triton", "sm_90")])
def test_a_linear_layer_after_a_norm_is_computed_once(
    backend: str, machine: str, tmp_path: Path
) -> None:
    settings = Settings(backend=backend, machine=machine or "avx2")
    run = load_run(inspect_target(IRText("g", parse(NORM)), settings).save(tmp_path / "r"))
    found = {f.origin.mark: f for f in fates(retrace(run))}
    assert found["%mm"].kind in ("kernel", "library")
    assert found["%mm"].steps == found["%r"].steps != found["%n"].steps
    norm = next(k for k in run.kernels if "reduce" in k["ops"])
    assert norm["source"] == ["m.py:1"]


@pytest.mark.parametrize("backend", ["mlir", "triton"])
def test_the_table_and_explain_count_the_same_operations(backend: str, tmp_path: Path) -> None:
    """128 rows are computed in tiles that do not divide them; padding is no work."""
    text = NORM.replace("2, 16", "2, 67").replace("32, 96", "134, 96")
    settings = Settings(backend=backend, machine="avx2" if backend == "mlir" else "sm_90")
    run = load_run(inspect_target(IRText("g", parse(text)), settings).save(tmp_path / "r"))
    (product,) = [k for k in run.kernels if "dot" in k["ops"]]
    assert product["flops"] == 2 * 134 * 64 * 96
    assert dict(slow(run, product["name"]))["work"].startswith("1.65 M operations")


def test_skipped_passes_are_recorded_with_the_reason(tmp_path: Path) -> None:
    run = saved(TEXT, tmp_path / "r")
    found = {d.name: d.idle for d in run.decisions("canonical") if d.idle}
    assert found["indexed"] == "no gather, scatter or sort in the program"
    assert found["roll"] == "3 ops, fewer than 64"
    assert "canonicalize" not in found
    assert run.stage("canonical")["skipped"] == found
    told_of = describe(run.manifest)
    assert "skipped, as they have nothing to do: inline, roll" in told_of
    assert not [d for d in run.decisions("laid-out") if d.idle], "there is a matmul"
