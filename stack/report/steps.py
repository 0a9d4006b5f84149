"""Sliders: over the passes of a run with their decisions, and over the steps of each kernel."""

from __future__ import annotations

from collections.abc import Sequence

from stack.explore.diff import summary, without_lines
from stack.explore.steps import KernelSteps
from stack.report.lines import Index, joined_numbers
from stack.report.markup import Html, folded, joined, tag, text_box
from stack.report.passes import Decision, PassView
from stack.report.word_diff import diff_lines, marked


def passes_section(passes: Sequence[PassView], index: Index) -> Html:
    """Returns a slider over the passes: what each changed, and a slider over its decisions. Skipped
    passes are in a list after it.
    """
    ran, skipped = [p for p in passes if not p.idle], [p for p in passes if p.idle]
    parts: list[Html] = []
    if ran:
        views = [_pass(i, view, index) for i, view in enumerate(ran)]
        titles = [f"{p.stage}: {p.name.partition('{')[0]}" for p in ran]
        parts.append(_slider("pass", "pass-views", views, titles))
    if skipped:
        rows = [tag("li", tag("strong", p.name), f" in {p.stage}: {p.idle}") for p in skipped]
        parts.append(folded(f"{len(rows)} passes had nothing to do", tag("ul", *rows)))
    return joined(parts)


def _pass(number: int, view: PassView, index: Index) -> Html:
    changes = summary(view.diff) if view.diff else "changed nothing"
    head = tag("p", tag("strong", f"{number + 1}  {view.name}"), f" in {view.stage}: {changes}")
    rows = [_decision(d, index) for d in view.decisions]
    listed: list[object] = []
    if rows:
        field = _range(f"decisions-{number}", len(rows), "data_decisions")
        name = f"decision, of {len(rows)} "
        label = tag("label", name, field)
        listed = [label, tag("ol", *rows, class_="decisions", id=f"decisions-{number}")]
    told = [text_box(diff_lines(view.diff, index), f"changes of {view.name}")] if view.diff else []
    both = tag("div", tag("div", *listed), tag("div", *told), class_="beside")
    return tag("div", head, both, class_="step", hidden=number > 0)


def _decision(held: Decision, index: Index) -> Html:
    value = f" %{held.node}" if held.node else ""
    times = f" ×{held.repeats}" if held.repeats > 1 else ""
    lines = joined_numbers(index.numbers(s.split(" ")[0] for s in held.source))
    marks = {"data_n": held.node or None, "data_s": lines}
    place = " ".join(dict.fromkeys(s.split(" ")[0] for s in held.source[:3]))
    inside = (tag("strong", held.text), value, times, tag("span", held.why), tag("small", place))
    return tag("li", *inside, class_="pick" if held.node or lines else None, **marks)


def steps_section(kernels: Sequence[KernelSteps]) -> Html:
    """Returns HTML with a slider per kernel that shows the kernel after each schedule step."""
    return joined(_kernel(number, kernel) for number, kernel in enumerate(kernels))


def _kernel(number: int, kernel: KernelSteps) -> Html:
    texts = [without_lines(str(step.func)).rstrip() for step in kernel.steps]
    views = [
        tag(
            "div",
            tag("p", tag("strong", f"{i}  {step.text}"), " ", step.why, class_="said"),
            text_box(
                _rows(marked(before, text)),
                f"%{kernel.value} after step {i}",
                is_folded=number > 0 or i > 0,
            ),
            class_="step",
            hidden=i > 0,
        )
        for i, (step, before, text) in enumerate(
            zip(kernel.steps, ("", *texts), texts, strict=False)
        )
    ]
    slider = _slider("step", f"steps-{number}", views, [])
    names = [tag("li", step.text, value=i) for i, step in enumerate(kernel.steps)]
    lists = folded("all steps", tag("ol", *names, start=0))
    title = f"%{kernel.value}, {len(kernel.steps) - 1} steps"
    return folded(title, slider, lists, open=number == 0)


def _rows(text: Html) -> Html:
    """Puts each line of a text into an element, as in other texts of the page."""
    return Html("\n".join(f"<i>{line}</i>" for line in text.split("\n")))


def _slider(name: str, key: str, views: Sequence[Html], titles: Sequence[str]) -> Html:
    """Returns a slider that shows one of some views, with a list of titles to jump to."""
    field = _range(key, len(views), "data_steps")
    jump: list[Html] = []
    if titles:
        options = [tag("option", t, value=i) for i, t in enumerate(titles)]
        jump.append(tag("select", *options, data_jump=key, aria_label=f"{name} by name"))
    label = tag("label", f"{name} ", field)
    return tag("div", label, *jump, tag("div", *views, id=key), class_="steps")


def _range(key: str, count: int, link: str) -> Html:
    shown = f'{link.replace("_", "-")}="{key}"'
    return Html(f'<input type="range" min="0" max="{count - 1}" value="0" {shown}>')
