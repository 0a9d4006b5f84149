"""The passes of a run, one by one: what each changed, and its decisions with their reasons."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import stack.plugins as plugins
from stack.errors import StackError
from stack.explore.diff import diff_texts, without_lines
from stack.explore.layers import alike, base_name
from stack.explore.retrace import Marks, PassStep, retrace
from stack.explore.saved_run import SavedRun
from stack.rewrite.engine import Simple
from stack.rewrite.pipeline import Record


@dataclass(frozen=True)
class Decision:
    """A decision of a pass: a rewrite, a fusion, a refusal, a near match, or a note.

    Attributes:
        text: what was decided.
        why: the reason, or what the rule does; "" if it is not known.
        node: the value that it is about; "" for the whole program.
        source: the source lines of that value.
        repeats: the number of equal layers in which it was taken.
    """

    text: str
    why: str
    node: str = ""
    source: tuple[str, ...] = ()
    repeats: int = 1


@dataclass(frozen=True)
class PassView:
    """One pass of a run. `diff` is the difference of the texts around it; "" if they are equal.
    `idle` is why it was skipped, "" if it ran.
    """

    stage: str
    name: str
    diff: str
    decisions: tuple[Decision, ...]
    idle: str = ""


def passes_of(run: SavedRun) -> tuple[PassView, ...]:
    """Returns the passes of a run that changed or decided something, or were skipped, in order.

    The recorded pipelines run again. If that gives another result, as without the weights of the
    run, the recorded stages and decisions are shown. A run without IR has none.
    """
    try:
        found = retrace(run)
    except StackError:
        return ()
    views = [_view(step, found.origins) for step in found.steps]
    return tuple(v for v in views if v.diff or v.decisions or v.idle)


def _view(step: PassStep, origins: Marks) -> PassView:
    record = step.record
    before, after = (without_lines(str(f)) for f in (record.before, record.after))
    diff = diff_texts(before, after, ("before", record.name)) if record.changed else ""
    decisions = _merged(list(_decisions(record, origins)))
    return PassView(step.stage, record.name, diff, decisions, record.idle)


def _decisions(record: Record, origins: Marks) -> Iterator[Decision]:
    """Yields the decisions of a pass, with source lines in place of marks."""

    def lines(marks: Sequence[str]) -> tuple[str, ...]:
        known = (s for m in marks if m in origins for s in origins[m].source)
        return tuple(dict.fromkeys(known))

    def node(name: str, marks: Sequence[str]) -> str:
        first = marks[0].rpartition("/")[2] if len(marks) == 1 else ""
        return (name or first).removeprefix("%")

    own = record.name.partition("{")[0]
    for r in record.rewrites:
        yield Decision(r.rule, rule_text(own, r.rule), node(r.node, r.source), lines(r.source))
    for g in record.formed:
        saved = f"{g.saved} bytes stay out of memory" if g.saved else ""
        yield Decision(f"formed a {g.kind} group", saved, g.name, lines(g.source))
    for r in record.refused:
        pair = f"did not fuse {r.producer} with {r.consumer}"
        yield Decision(pair, r.reason, r.producer.removeprefix("%"), lines(r.source))
    for m in record.misses:
        name = m.node.split(" = ")[0]
        yield Decision(f"{m.rule} did not apply", m.reason, node(name, ()), lines(m.source))
    for n in record.remarks:
        yield Decision("note", n.text, node("", n.source), lines(n.source))


def _merged(held: Sequence[Decision]) -> tuple[Decision, ...]:
    """Merges decisions that differ only in the numbers of value names, as those of equal layers."""
    keys = ((base_name(d.text), base_name(d.why), base_name(d.node)) for d in held)
    groups = alike(keys)
    return tuple(
        Decision(d.text, d.why, d.node, d.source, len(group))
        for group in groups
        for d in (held[group[0]],)
    )


@cache
def rule_text(own: str, rule: str) -> str:
    """Returns the first sentence about a rewrite rule of the pass `own`: of the rule's docstring,
    else of the pass's; "" if neither is known.
    """
    try:
        cls = plugins.load("stack.passes", own)
    except (StackError, ImportError, AttributeError):
        return ""
    text = _rules(str(cls.__module__).rpartition(".")[0]).get(rule, "")
    return _first(text or inspect.getdoc(cls) or "")


@cache
def _rules(package: str) -> Mapping[str, str]:
    """Maps the rules in the loaded modules of a package to their docstrings."""
    found: dict[str, str] = {}
    for module in [m for n, m in sorted(sys.modules.items()) if n.startswith(f"{package}.")]:
        for name, value in vars(module).items():
            if isinstance(value, Simple):
                found[value.name] = value.doc
            elif inspect.isclass(value) and value.__module__ == module.__name__:
                found[name] = inspect.getdoc(value) or ""
    return found


def _first(text: str) -> str:
    """Returns the first sentence of a docstring."""
    paragraph = " ".join(text.split("\n\n")[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]
