"""Pipelines as changes to a backend's own: `default,+mine{x=1}@fused,-layout`.

Stages keep their names, so that a run with changes can be compared with one without.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stack.errors import UsageError, unknown_name
from stack.rewrite.pipeline import Pipeline

DEFAULT = "default"
Passes = str | Pipeline
Stages = Sequence[tuple[str, Passes]]
_ITEM = re.compile(r"(?:[^,{}]|\{[^{}]*\})+")
_ADDED = re.compile(r"\+(?P<spec>[^@{]+(?:\{.*\})?)(?:@(?P<stage>[\w-]+))?")


def is_default(passes: Passes) -> bool:
    """True if the backend's own stages are requested, with or without changes."""
    return isinstance(passes, str) and passes.partition(",")[0].strip() == DEFAULT


def steer(stages: Stages, passes: str) -> Stages:
    """The stages of a backend with passes added at the end of a stage, and other passes removed.

    Args:
        passes: `default`, then items in order: `+PASS@STAGE` (stage "fused" by default), `-PASS` in
            all stages. PASS is a name with options, or `file.py:Class`.

    Raises:
        UsageError: for an item of another form, and for unknown names, with the closest one.
    """
    _, *items = (item.strip() for item in _ITEM.findall(passes))
    found = {name: Pipeline(spec) for name, spec in stages}
    changed: dict[str, Pipeline] = {}
    for item in items:
        added = _ADDED.fullmatch(item)
        if added is not None:
            stage = added["stage"] or "fused"
            if stage not in found:
                raise unknown_name("no stage", stage, found)
            found[stage] = changed[stage] = Pipeline([*found[stage].passes, added["spec"]])
        elif item.startswith("-"):
            for stage in _without(found, item[1:]):
                changed[stage] = found[stage]
        else:
            raise UsageError(f"{item!r} is neither +PASS@STAGE nor -PASS, after {DEFAULT!r}")
    return [(name, changed.get(name, spec)) for name, spec in stages]


def _without(found: dict[str, Pipeline], name: str) -> list[str]:
    """Removes a pass from every stage; returns the stages that had it."""
    held = [stage for stage, p in found.items() if any(one.name == name for one in p.passes)]
    if not held:
        known = {one.name for pipeline in found.values() for one in pipeline.passes}
        raise unknown_name("no stage runs pass", name, known)
    for stage in held:
        found[stage] = Pipeline([one for one in found[stage].passes if one.name != name])
    return held
