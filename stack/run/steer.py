"""Pipelines that say what to change of a backend's own: `default,+mine{x=1}@fused,-layout`.

Stages keep their names, so that a run that was steered is compared with one that was not.
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
    """Whether a backend's own stages are wanted, changed or not."""
    return isinstance(passes, str) and passes.partition(",")[0].strip() == DEFAULT


def steer(stages: Stages, passes: str) -> Stages:
    """The stages of a backend with passes added after those of a stage, and others left out.

    Args:
        passes: `default`, then items in order: `+PASS@STAGE` (of "fused" where no stage is named),
            `-PASS` wherever it runs. PASS is a name with options, or `file.py:Class`.

    Raises:
        UsageError: for an item of another form; for names that do not exist, with the nearest.
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
    """Leave a pass out of every stage; the stages that had it."""
    held = [stage for stage, p in found.items() if any(one.name == name for one in p.passes)]
    if not held:
        known = {one.name for pipeline in found.values() for one in pipeline.passes}
        raise unknown_name("no stage runs pass", name, known)
    for stage in held:
        found[stage] = Pipeline([one for one in found[stage].passes if one.name != name])
    return held
