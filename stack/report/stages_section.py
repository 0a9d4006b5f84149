"""The stages of a run: their table, and the text of each with its changes."""

from __future__ import annotations

from collections.abc import Sequence

from stack.explore.diff import diff_texts, summary, without_lines
from stack.explore.table import number
from stack.report.comparison import bar_table
from stack.report.content import Report, SystemView
from stack.report.drawing import Bar, draw_bars
from stack.report.explorer import can_differ, numbers
from stack.report.lines import Index, code_lines, joined_numbers, stage_lines
from stack.report.markup import Html, figure, folded, joined, table, tag, text_box
from stack.report.word_diff import diff_lines

LANGUAGES = {"captured": "py", "triton": "py", "cuda": "c", "llvm": "llvm", "llir": "llvm"}
_BY_NAME = {"mlir": "mlir", "ttir": "mlir", "ttgir": "mlir", "asm": "asm", "ptx": "c"}


def language(stage: str) -> str:
    """Returns the language of a stage of another compiler's text, for its colours."""
    if "." in stage:  # a pass inside of MLIR or Triton
        return "mlir"
    return LANGUAGES.get(stage) or _BY_NAME.get(stage, "asm")


def stages_section(report: Report, index: Index) -> Html:
    """Returns the table of stages with their times, and the texts of all runs."""
    rows = [
        [
            tag("a", s.name, href=f"#stage-{s.name}"),
            f"{number(s.ms)} ms" if s.pipeline else None,
            s.ops if s.func is not None else None,
            s.groups if s.func is not None else None,
            "yes" if s.changed else "no",
            s.pipeline,
        ]
        for s in report.stages
    ]
    head = ["stage", "time", "ops", "groups", "changed", "passes"]
    bars = [Bar(s.name, s.ms, f"{number(s.ms)} ms") for s in report.stages if s.pipeline]
    parts = [table(head, rows, "stages in order")]
    if bars:
        caption = "compile time by stage, in milliseconds"
        parts.append(figure(draw_bars(bars, caption), caption, bar_table(bars, "ms")))
    parts.append(_texts(report, index, ""))
    for n, run in enumerate(report.beside, 1):
        parts.append(tag("h3", run.name))
        parts.append(_texts(run, index.without_kernels(), f"r{n}-"))
    return joined(parts)


def _texts(report: Report, index: Index, prefix: str) -> Html:
    """Returns the text of each stage, and its difference from the stage before."""
    parts: list[Html] = []
    for before, stage in zip((None, *report.stages), report.stages, strict=False):
        is_ir = stage.func is not None
        lines = stage_lines(stage, index) if is_ir else code_lines(stage.text, index)
        box = text_box(lines, stage.name, "ir" if is_ir else language(stage.name))
        parts.append(folded(stage.name, box, id_=f"{prefix}stage-{stage.name}"))
        if before is not None and can_differ(before, stage):
            old, new = without_lines(before.text), without_lines(stage.text)
            changes = diff_texts(old, new, (before.name, stage.name))
            title = f"{before.name} to {stage.name}: {summary(changes)}"
            box = text_box(diff_lines(changes, index), title)
            parts.append(folded(title, box, id_=f"{prefix}diff-{stage.name}"))
    return joined(parts)


def code_section(report: Report, index: Index) -> Html:
    """Returns the code of the kernels of every compiler and run."""
    parts: list[Html] = []
    for n, system in enumerate(report.systems):
        inside = [_code(system, n, same, index) for same in system.code.values()]
        calls = sum(not k.text for k in system.kernels)
        note = f"{calls} library calls, without code" if calls else ""
        parts.append(tag("h3", system.name))
        parts.extend(inside)
        parts.append(tag("p", note, class_="faint"))
    return joined(parts)


def _code(system: SystemView, number: int, same: Sequence[int], index: Index) -> Html:
    """Returns the code of some kernels that have the same code."""
    first = system.kernels[same[0]]
    lines = f" ({' '.join(first.source)})" if first.source else ""
    text = code_lines(first.text, index, same if number == 0 else ())
    of = dict.fromkeys(line for i in same for line in index.kernels[number][i])
    return folded(
        f"{numbers(same)} {first.title}{lines}",
        text_box(text, first.title, code_language(first.text)),
        id_=f"code-{number}-{same[0]}",
        data_of=joined_numbers(list(of)),
    )


def code_language(text: str) -> str:
    """Guesses the language of a kernel's code from its first definition."""
    for start, name in (
        ("def ", "py"),
        ("func ", "ir"),
        ("func.func", "mlir"),
        ("define ", "llvm"),
    ):
        if any(line.lstrip().startswith(start) for line in text.splitlines()):
            return name
    return "c"
