"""Contents of the page: words of a diff, passes, memory, errors, runs side by side."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import stack
from stack.errors import UsageError
from stack.explore.saved_run import load_run
from stack.ir import Func
from stack.report.content import report_of
from stack.report.graph import collapsed, graph_of
from stack.report.lines import Index
from stack.report.memory import buffers_of
from stack.report.page import page
from stack.report.passes import rule_text
from stack.report.runs import side_by_side
from stack.report.value_errors import value_errors
from stack.report.word_diff import diff_lines

TEXT = """func @f(%x: f32[16, 40], %w: f32[40, 40]) -> (f32[16, 40]) at tensor {
  %a = dot(%x, %w) {rule="m k, k n -> m n"} : f32[16, 40] from "net.py:3 layers.0.up"
  %b = div(%a, 4.0:f32) : f32[16, 40] from "net.py:4 layers.0"
  %flat = reshape(%b) : f32[640]
  %back = reshape(%flat) : f32[16, 40]
  %c = dot(%back, %w) {rule="m k, k n -> m n"} : f32[16, 40] from "net.py:5 layers.0.down"
  %d = tanh(%c) : f32[16, 40] from "net.py:6 layers.0"
  return %d
}
"""


def func() -> Func:
    return stack.parse(TEXT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    stack.compile(func()).run.save(root / "first")
    stack.compile(func(), passes="default,-fuse").run.save(root / "second")
    return root


def test_lone_reshapes_are_folded_and_arrows_have_bytes() -> None:
    graph = graph_of(func())
    assert [b.name for b in graph.boxes] == ["a", "b", "c", "d"]
    assert graph.boxes[1].values == ("b", "flat", "back")
    assert graph.arrows == ((0, 1), (1, 2), (2, 3))
    assert set(graph.sizes.values()) == {4 * 16 * 40}
    assert [b.computes for b in graph.boxes] == ["matmul", "div", "matmul", "tanh"]
    assert graph.boxes[0].modules == ("layers.0.up",)


def test_a_layer_has_the_modules_of_all_that_it_stands_for() -> None:
    lines, last = [], "%x"
    for i in range(4):
        lines.append(f'  %p{i} = tanh({last}) : f32[8] from "net.py:1 h.{i}.one"')
        lines.append(f'  %q{i} = exp(%p{i}) : f32[8] from "net.py:2 h.{i}.two"')
        last = f"%q{i}"
    head = "func @f(%x: f32[8]) -> (f32[8]) at tensor {\n"
    body = "\n".join(lines)
    graph = collapsed(graph_of(stack.parse(f"{head}{body}\n  return {last}\n}}")))
    assert graph.boxes[0].modules == ("h.0.one", "h.1.one", "h.2.one", "h.3.one")
    assert graph.boxes[0].values == ("p0", "p1", "p2", "p3")


def test_changed_words_of_a_value_are_marked(folder: Path) -> None:
    index = Index(report_of(load_run(folder / "first")))
    found = diff_lines("-  %b = div(%a, 4.0)\n+  %b = mul(%a, 0.25)\n+  %z = exp(%b)\n", index)
    assert "<del>div</del>" in found and "<ins>mul</ins>" in found and "<ins>0.25</ins>" in found
    new = found.split("\n")[-1]
    assert "<ins>" not in new and 'data-n="z"' in new  # a line without a counterpart


def test_passes_have_their_decisions_with_reasons(folder: Path) -> None:
    report = report_of(load_run(folder / "first"))
    passes = {p.name.partition("{")[0]: p for p in report.passes}
    rule = next(d for d in passes["canonicalize"].decisions if d.text == "divide_by_power_of_two")
    assert (rule.node, rule.source) == ("b", ("net.py:4 layers.0",))
    assert rule.why.startswith("x / 8.0 is x * 0.125")
    assert "-  %b = div" in passes["canonicalize"].diff
    assert rule_text("canonicalize", "no such rule") != ""  # the sentence about the pass
    text = page(report)
    assert 'data-steps="pass-views"' in text
    assert re.search(r'<li class="pick" data-n="b"[^>]*><strong>divide_by_power_of_two', text)


def test_intermediates_have_a_place_and_a_time(folder: Path) -> None:
    run = load_run(folder / "second")
    lowered = report_of(run).lowered
    assert lowered is not None
    found, is_planned = buffers_of(lowered)
    assert is_planned and found
    steps = sum("at" in n.attrs for n in lowered.nodes)
    assert all(0 <= b.first <= b.last < steps for b in found)
    for one in found:
        for other in found:
            together = one.first <= other.last and other.first <= one.last
            apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
            assert one is other or not together or apart


def test_errors_are_those_of_rounding() -> None:
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((16, 40), (40, 40))]
    found = value_errors(func(), arrays)
    assert set(found) == {"a", "b", "flat", "back", "c", "d"}
    assert 0 < found["a"] < 1e-5
    exact = [np.ones_like(a) for a in arrays]
    assert value_errors(func(), exact)["a"] == 0.0


def test_three_runs_side_by_side(folder: Path) -> None:
    names = ["first", "second", "third"]
    runs = [report_of(load_run(folder / n)) for n in ("first", "second", "first")]
    report = side_by_side(runs, names)
    text = page(report)
    for letter, prefix in (("a", ""), ("b", "r1-"), ("c", "r2-")):
        assert f'id="pane-{letter}"' in text
        assert f'id="{prefix}stage-canonical"' in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    missing = {h for h in re.findall(r'href="#([^"]+)"', text) if h not in ids}
    assert not missing
    with pytest.raises(UsageError, match="different names"):
        side_by_side(runs, ["x", "x", "y"])
