"""The slider over the steps of a kernel: one text for each, and what a step changed is marked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stack.cli import main
from stack.explore.saved_run import load_run
from stack.report import markup
from stack.report.content import report_of
from stack.report.page import page
from stack.report.steps import steps_section
from stack.report.word_diff import marked

TEXT = """func @f(%x: f32[6, 40]) -> (f32[6], f32[6, 40]) at tensor {
  %t = reduce(%x) {axes=[1], kind="sum"} : f32[6]
  %e = exp(%x) : f32[6, 40]
  %y = transpose(%e) {perm=[0, 1]} : f32[6, 40]
  return %t, %y
}
"""


def test_words_that_are_new_are_marked() -> None:
    found = marked("%a = add(%x, 1)\n", "%a = sub(%x, 2)\n%b = neg(%a)\n")
    assert found.startswith("%a = <ins>sub</ins>(%x, <ins>2</ins>)")
    assert "<ins>" not in marked("", "%a < %b") and "&lt;" in marked("", "%a < %b")
    assert marked("%a", "%a") == "%a"


def test_a_kernel_has_a_slider(tmp_path: Path) -> None:
    path, run = tmp_path / "f.stack", tmp_path / "r1"
    path.write_text(TEXT)
    dumped = ["dump", str(path), "--backend", "triton", "--target", "sm_90", "--to", "tiled"]
    assert main([*dumped, "-o", str(run)]) == 0
    report = report_of(load_run(run))
    assert report.steps
    text = page(report)
    for number, kernel in enumerate(report.steps):
        last = len(kernel.steps) - 1
        assert f'max="{last}" value="0" data-steps="steps-{number}"' in text
    section = text[text.index('<section id="steps">') : text.index('<section id="stages">')]
    shown = re.findall(r'<div class="step"( hidden)?>', section)
    assert len(shown) == sum(len(k.steps) for k in report.steps)
    assert shown.count("") == len(report.steps)  # the plain loop nest of each
    assert "<ins>" in section


def test_only_the_step_that_is_shown_at_first_has_elements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markup, "FOLDED_LIMIT", 0)
    path, run = tmp_path / "f.stack", tmp_path / "r1"
    path.write_text(TEXT)
    dumped = ["dump", str(path), "--backend", "triton", "--target", "sm_90", "--to", "tiled"]
    assert main([*dumped, "-o", str(run)]) == 0
    report = report_of(load_run(run))
    section = steps_section(report.steps)
    assert section.count("data-packed") == sum(len(k.steps) for k in report.steps) - 1


def test_a_backend_that_makes_kernels_whole_has_none(tmp_path: Path) -> None:
    path, run = tmp_path / "f.stack", tmp_path / "r1"
    path.write_text(TEXT)
    assert main(["dump", str(path), "--to", "fused", "-o", str(run)]) == 0
    report = report_of(load_run(run))
    assert not report.steps and '<section id="steps">' not in page(report)
