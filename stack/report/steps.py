"""Kernels step by step: a slider over the kernel text after each step, with changes marked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from stack.explore.diff import without_lines
from stack.explore.steps import KernelSteps
from stack.report.markup import Html, escaped, folded, joined, tag, text_box

_WORD = re.compile(r"\s+|[%\w.]+|.")


def steps_section(kernels: Sequence[KernelSteps]) -> Html:
    """Returns HTML with a slider per kernel that shows the kernel after each schedule step."""
    return joined(_kernel(number, kernel) for number, kernel in enumerate(kernels))


def _kernel(number: int, kernel: KernelSteps) -> Html:
    last = len(kernel.steps) - 1
    texts = [without_lines(str(step.func)).rstrip() for step in kernel.steps]
    field = f'<input type="range" min="0" max="{last}" value="0" data-steps="steps-{number}">'
    slider = tag("label", f"%{kernel.value}, step ", Html(field))
    views = [
        tag(
            "div",
            tag("p", tag("strong", f"{i}  {step.text}"), " ", step.why, class_="said"),
            text_box(marked(before, text), f"%{kernel.value} after step {i}"),
            class_="step",
            hidden=i > 0,
        )
        for i, (step, before, text) in enumerate(
            zip(kernel.steps, ("", *texts), texts, strict=False)
        )
    ]
    names = [tag("li", step.text, value=i) for i, step in enumerate(kernel.steps)]
    lists = folded("all steps", tag("ol", *names, start=0))
    return tag("div", slider, tag("div", *views, id=f"steps-{number}"), lists, class_="steps")


def marked(before: str, after: str) -> Html:
    """Highlights the words that were added or changed from the text `before` to `after`, as HTML.

    Highlights none if `before` is empty.
    """
    if not before:
        return escaped(after)
    old, new = _WORD.findall(before), _WORD.findall(after)
    parts: list[object] = []
    for what, _, _, start, stop in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        text = "".join(new[start:stop])
        if text:
            parts.append(text if what == "equal" or not text.strip() else tag("ins", text))
    return joined(parts)
