"""Why two values are one kernel or not, in words of a fixed vocabulary; why a kernel is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack.errors import UsageError
from stack.explore.assembly import NOWHERE, assembly, beside_source, instructions
from stack.explore.kernel_sharing import WORDS, alike, explain_pairs
from stack.explore.lowering import Settings, inspect_target, lower_to
from stack.explore.provenance import explain, where
from stack.explore.retrace import retrace
from stack.explore.saved_run import SavedRun, load_run
from stack.explore.target import IRText, resolve
from stack.ir import parse
from stack.measure.kernel_time import slow

ATTENTION = """\
func @f(%q: f32[128, 64], %k: f32[64, 128], %v: f32[128, 8]) -> (f32[128, 8], f32[128]) at tensor {
  %s = dot(%q, %k) {rule="a k, k b -> a b"} : f32[128, 128] from "m.py:1"
  %m = reduce(%s) {axes=[1], kind="max"} : f32[128] from "m.py:2"
  %wide = broadcast(%m) {axes=[0]} : f32[128, 128] from "m.py:3"
  %d = sub(%s, %wide) : f32[128, 128] from "m.py:3"
  %e = exp(%d) : f32[128, 128] from "m.py:4"
  %l = reduce(%e) {axes=[1], kind="sum"} : f32[128] from "m.py:5"
  %o = dot(%e, %v) {rule="a k, k b -> a b"} : f32[128, 8] from "m.py:6"
  %below = broadcast(%l) {axes=[0]} : f32[128, 8] from "m.py:7"
  %y = div(%o, %below) : f32[128, 8] from "m.py:7"
  %z = exp(%l) : f32[128] from "m.py:8"
  return %y, %z
}
"""
CHAIN = """\
func @g(%x: f32[64, 64], %w: f32[64, 64], %u: f32[8]) -> (f32[64, 64], f32[8], f32[64]) at tensor {
  %a = exp(%x) : f32[64, 64] from "m.py:1"
  %b = dot(%a, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:2"
  %c = tanh(%b) : f32[64, 64] from "m.py:3"
  %d = dot(%c, %w) {rule="a k, k b -> a b"} : f32[64, 64] from "m.py:4"
  %n = neg(%u) : f32[8] from "m.py:5"
  %one = mul(%c, 1.0:f32) : f32[64, 64] from "m.py:6"
  %t = reduce(%one) {axes=[0], kind="sum"} : f32[64] from "m.py:7"
  return %d, %n, %t
}
"""  # fmt: skip


STEPS = """\
func @h(%x: f32[8, 64]) -> (f32[8, 64], f32[8, 64]) at tensor {
  %a = exp(%x) : f32[8, 64] from "m.py:1"
  %c = scan(%a) {axis=1, kind="sum", reverse=false} : f32[8, 64] from "m.py:2"
  %d = neg(%c) : f32[8, 64] from "m.py:3"
  %w = while(%c) : f32[8, 64] from "m.py:4" {(%h: f32[8, 64])
    %l = reduce(%h) {axes=[0, 1], kind="max"} : f32[] from "m.py:5"
    %ok = lt(%l, 9.0:f32) : bool[] from "m.py:5"
    return %ok
  } {(%h: f32[8, 64])
    %two = mul(%h, 2.0:f32) : f32[8, 64] from "m.py:6"
    %more = exp(%two) : f32[8, 64] from "m.py:6"
    return %more
  }
  return %d, %w
}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedRun]:
    found: dict[str, SavedRun] = {}
    for name, text in (("attention", ATTENTION), ("chain", CHAIN), ("steps", STEPS)):
        target = IRText(name, parse(text))
        run = inspect_target(target, Settings("mlir", machine="avx512"))
        found[name] = load_run(run.save(tmp_path_factory.mktemp(name)))
    return found


@pytest.mark.every(3)
@pytest.mark.parametrize("line", range(1, 8))
def test_a_streamed_line_is_found_and_explained(runs: dict[str, SavedRun], line: int) -> None:
    run = runs["attention"]
    (stream,) = [k for k in run.kernels if len(k["source"]) > 3]
    assert f"m.py:{line}" in stream["source"]
    assert stream["name"] in where(run, f"m.py:{line}").kernels
    assert "streamed" in {reason.stage for reason in explain(run, f"m.py:{line}")}


def test_a_kernel_is_its_own_node_and_not_what_shares_its_lines(runs: dict[str, SavedRun]) -> None:
    run = runs["chain"]
    for kernel in run.kernels:
        found = where(run, str(kernel["name"]))
        assert [p.name for p in found.stages["loop"]] == [kernel["stage_node"]]
        assert found.kernels == [kernel["name"]]


@pytest.mark.parametrize(
    ("name", "a", "b", "word", "by"),
    [
        ("attention", "s", "o", "together", "stream in streamed"),
        ("attention", "m.py:2", "m.py:4", "together", "stream in streamed"),
        ("chain", "b", "c", "together", "fuse in fused"),
        ("chain", "a", "b", "memory", "fuse in fused"),
        ("chain", "b", "t", "rule", "fuse in fused"),
        ("chain", "a", "n", "unrelated", ""),
        ("chain", "a", "d", "between", ""),
        ("steps", "a", "c", "alone", ""),
        ("steps", "c", "w", "alone", ""),
        ("steps", "m.py:6", "m.py:3", "body", ""),
        ("steps", "two", "more", "together", "fuse in fused"),
        ("steps", "a", "d", "between", ""),
    ],
)
def test_reasons(runs: dict[str, SavedRun], name: str, a: str, b: str, word: str, by: str) -> None:
    pair = explain_pairs(retrace(runs[name]), a, b)[0]
    assert pair.answers[0].word == word
    assert pair.answers[0].by.startswith(by)
    assert pair.is_together == (word == "together")
    assert {answer.word for answer in pair.answers} <= set(WORDS)


def test_equal_answers_of_two_lines_are_told_once(runs: dict[str, SavedRun]) -> None:
    pairs = explain_pairs(retrace(runs["attention"]), "m.py:3", "m.py:7")
    told = alike(pairs)
    assert len(told) < len(pairs)
    shown = [(a, b) for first, second, _ in told for a in first for b in second]
    assert sorted(shown) == sorted((p.a.origin.mark, p.b.origin.mark) for p in pairs)


def test_a_word_of_the_code_names_its_lines(tmp_path: Path) -> None:
    code = "import torch\n\n\ndef f(x):\n    y = torch.relu(x)\n    return y.exp().relu()\n"
    (tmp_path / "m.py").write_text(code)
    program = resolve(f"{tmp_path / 'm.py'}:f", inputs=["f32[8]"])
    found = load_run(inspect_target(program, Settings("mlir")).save(tmp_path / "r"))
    assert where(found, "relu").source == ("m.py:5", "m.py:6")
    assert where(found, "torch").source == ("m.py:5",)
    assert where(found, "torch.relu").source == ("m.py:5",)
    for none in ("rel", "f.relu", "torchrelu", "torch.rel", "sigmoid"):
        with pytest.raises(UsageError, match=f"no source line, module, node or kernel '{none}'"):
            where(found, none)


def test_unknown_names_and_one_node(runs: dict[str, SavedRun]) -> None:
    with pytest.raises(UsageError, match="did you mean '%below'"):
        explain_pairs(retrace(runs["attention"]), "belw", "y")
    with pytest.raises(UsageError, match="the same node"):
        explain_pairs(retrace(runs["attention"]), "y", "y")


def test_why_a_kernel_is_slow(runs: dict[str, SavedRun]) -> None:
    (kernel,) = [k for k in runs["attention"].kernels if "dot" in k["ops"]]
    rows = dict(slow(runs["attention"], str(kernel["name"])))
    assert rows["operations"].startswith("dot ")
    assert rows["reads"] == "%q 32.8 kB, %k 32.8 kB, %v 4.1 kB"
    assert rows["writes"].endswith(" 4.61 kB")
    assert "512-bit vectors" in rows["code (asm)"]
    assert rows["likely limit"] in ("arithmetic", "memory", "launch")
    with pytest.raises(UsageError, match="has no kernel 'k0'"):
        slow(runs["attention"], "k0")


@pytest.mark.parametrize("line", ["m.py:1", "m.py:5"])
def test_assembly_has_the_source_beside_it(runs: dict[str, SavedRun], line: str) -> None:
    (kernel,) = [k for k in runs["chain"].kernels if k["source"] == [line]]
    stage, code = assembly(runs["chain"], str(kernel["name"]))
    if "no disassembly" in code:
        pytest.skip("objdump is not installed")
    assert stage == "asm"
    found = instructions(code)
    assert line in found and found.keys() <= {line, NOWHERE}
    shown = beside_source(code, {"m.py": "\n".join(f"text of {i}" for i in range(1, 9))})
    assert f"; {line}  text of {line[-1]}\n" in shown
    rows = dict(slow(runs["chain"], str(kernel["name"])))
    assert f"{line} x{len(found[line])}" in rows["instructions"]


def test_code_of_one_kernel_is_not_that_of_its_neighbours(runs: dict[str, SavedRun]) -> None:
    run = runs["chain"]
    whole = run.text("asm").count("zmm")
    names = dict.fromkeys(str(k["name"]) for k in run.kernels)
    widths = [dict(slow(run, name)).get("code (asm)", "") for name in names]
    counted = [int(w.partition(" x")[2].partition(",")[0]) for w in widths if w.startswith("512")]
    assert len(counted) > 1
    assert 0 < max(counted) < whole
    assert sum(counted) <= whole


def test_where_of_stages_without_kernels(tmp_path: Path) -> None:
    run = lower_to(IRText("chain", parse(CHAIN)), Settings("mlir", machine="avx512"), "fused")
    found = where(load_run(run.save(tmp_path)), "m.py:3")
    assert found.kernels == []
    assert {p.name for p in found.stages["fused"]} >= {"c"}
